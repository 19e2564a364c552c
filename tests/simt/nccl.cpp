// Stands in for NCCL behind comm/nccl_group.h: kernels of one thread, which wait for those of other
// ranks, threads and processes alike, by flags in device memory, as NCCL's do. All of it goes
// through slots in a block of rank 0's device, one for each pair of ranks, so that no rank reaches
// another's buffers.
#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/nccl_group.h"
#include "lockstep/comm/text.h"
#include "lockstep/kernels/cuda/ipc.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/fold_rule.h"
#include "lockstep/kernels/memory.h"
#include "nccl_faults.h"

namespace lockstep::comm {
namespace {

constexpr int kMostRanks = 8;
constexpr int64_t kSlotBytes = 2048;  // a small one: tests then go through it in turns
constexpr Device kHubDevice = {DeviceType::kCuda, 0};

// In device memory, zero at first.
struct Slot {
  unsigned sent;
  unsigned taken;
  alignas(16) std::byte data[kSlotBytes];
};
struct Hub {
  unsigned joined;
  unsigned apart;                      // of those that are of other processes than rank 0's
  Slot slots[kMostRanks][kMostRanks];  // from, to
};

// How a rank finds it.
struct Address {
  int64_t process;
  uint64_t pointer;
  cuda::IpcHandle handle;
};
static_assert(sizeof(Address) <= sizeof(NcclGroup::Id));

// What is registered in this process, and the hubs whose groups are being made, or that other
// processes have mapped, which may be as long as they live.
struct Process {
  std::mutex mutex;  // guards what follows
  simt::NcclFaults faults;
  simt::NcclMemory memory;
  int calls = 0;
  std::vector<std::shared_ptr<void>> hubs;
};
Process& process() {
  static auto* instance = new Process;
  return *instance;
}

// What a kernel has of its rank.
struct Place {
  Hub* hub;
  const int* aborted;
  int rank;
  int size;

  __device__ bool is_aborted() const { return __atomic_load_n(aborted, __ATOMIC_ACQUIRE) != 0; }
};

__device__ bool is_full(Slot& slot) {
  const bool full = atomicAdd(&slot.sent, 0u) != atomicAdd(&slot.taken, 0u);
  __threadfence_system();
  return full;
}

__device__ void count_up(unsigned& counter) {
  __threadfence_system();
  atomicAdd(&counter, 1u);
}

__global__ void join_kernel(Hub* hub, unsigned apart) {
  atomicAdd(&hub->apart, apart);
  __threadfence_system();
  atomicAdd(&hub->joined, 1u);
}

__global__ void look_kernel(Hub* hub, unsigned* joined_and_apart) {
  joined_and_apart[0] = atomicAdd(&hub->joined, 0u);
  __threadfence_system();
  joined_and_apart[1] = atomicAdd(&hub->apart, 0u);
}

struct Span {
  std::byte* data;
  int64_t bytes;
};
struct Spans {
  Span to[kMostRanks];
  Span from[kMostRanks];
};

__global__ void exchange_kernel(Place p, Spans spans) {
  bool left = true;
  while (left && !p.is_aborted()) {
    left = false;
    bool moved = false;
    for (int peer = 0; peer < p.size; ++peer) {
      const auto move = [&](Span& span, Slot& slot, bool sends) {
        if (span.bytes == 0) return;
        if (is_full(slot) != sends) {
          const int64_t bytes = span.bytes < kSlotBytes ? span.bytes : kSlotBytes;
          for (int64_t i = 0; i < bytes; ++i) {
            (sends ? slot.data[i] : span.data[i]) = sends ? span.data[i] : slot.data[i];
          }
          count_up(sends ? slot.sent : slot.taken);
          span = {span.data + bytes, span.bytes - bytes};
          moved = true;
        }
        left = left || span.bytes != 0;
      };
      move(spans.to[peer], p.hub->slots[p.rank][peer], true);
      move(spans.from[peer], p.hub->slots[peer][p.rank], false);
    }
    if (left && !moved) __nanosleep(100);
  }
}

// `stride`: from one rank's elements in `send` to the next's. Root -1: all take. It folds in the
// order of the ranks, which is not Lockstep's.
template <class R>
__global__ void fold_kernel(Place p, const typename R::Input* send, int64_t stride,
                            typename R::Input* recv, int64_t count, int root) {
  using Input = typename R::Input;
  const R rule(p.size);
  constexpr auto kAtOnce = static_cast<int64_t>(kSlotBytes / sizeof(Input));
  const auto wait = [&](Slot& slot, bool full) {
    while (is_full(slot) != full) {
      if (p.is_aborted()) return false;
      __nanosleep(100);
    }
    return true;
  };
  const bool takes = root < 0 || root == p.rank;
  for (int64_t first = 0; first < count; first += kAtOnce) {
    const int64_t length = count - first < kAtOnce ? count - first : kAtOnce;
    for (int peer = 0; peer < p.size; ++peer) {
      if (peer == p.rank || (root >= 0 && peer != root)) continue;
      Slot& slot = p.hub->slots[p.rank][peer];
      if (!wait(slot, false)) return;
      for (int64_t i = 0; i < length; ++i) {
        reinterpret_cast<Input*>(slot.data)[i] = send[peer * stride + first + i];
      }
      count_up(slot.sent);
    }
    if (!takes) continue;
    const Input* inputs[kMostRanks];
    for (int peer = 0; peer < p.size; ++peer) {
      Slot& slot = p.hub->slots[peer][p.rank];
      if (peer != p.rank && !wait(slot, true)) return;
      inputs[peer] =
          peer == p.rank ? send + peer * stride + first : reinterpret_cast<const Input*>(slot.data);
    }
    for (int64_t i = 0; i < length; ++i) {
      auto partial = rule.begin(inputs[0][i]);
      for (int peer = 1; peer < p.size; ++peer) partial = rule.join(partial, inputs[peer][i]);
      recv[first + i] = rule.finish(partial);
    }
    for (int peer = 0; peer < p.size; ++peer) {
      if (peer != p.rank) count_up(p.hub->slots[peer][p.rank].taken);
    }
  }
}

// A registration: for which memory.
struct Registered {
  void* memory;
};

}  // namespace

struct NcclGroup::State {
  State(const Stream& on, std::function<void()> look_at)
      : stream(on), look(std::move(look_at)), aborted(allocate_pinned(sizeof(int))) {
    __atomic_store_n(static_cast<int*>(aborted.get()), 0, __ATOMIC_RELEASE);
  }

  // REQUIRES: the lock.
  void begin(std::string_view op) const {
    if (is_aborted) throw Error(ErrorCode::kCancelled, op, "NCCL's group was aborted");
    const std::lock_guard lock(process().mutex);
    ++process().calls;
  }

  const Stream stream;
  const std::function<void()> look;
  const std::shared_ptr<void> aborted;  // an int of pinned memory, which kernels look at
  std::shared_ptr<void> hub;
  Place place = {};
  std::mutex mutex;  // guards what follows
  bool is_aborted = false;
  std::vector<Registered*> registered;
};

std::string NcclGroup::why_not() {
  const std::lock_guard lock(process().mutex);
  return process().faults.missing;
}

std::string NcclGroup::device_name(Device device) {
  return concat("0000:0", device.index, ":00.0");
}

NcclGroup::Id NcclGroup::make_id() {
  std::shared_ptr<void> hub(cuda::take_memory(kHubDevice, sizeof(Hub)), [](void* gone) {
    cuda::free_memory(kHubDevice, gone, Stream(kHubDevice));
  });
  const Stream stream(kHubDevice);
  cuda::set_zero(hub.get(), sizeof(Hub), stream);
  stream.synchronize();
  const Address address{getpid(), reinterpret_cast<uint64_t>(hub.get()),
                        cuda::export_memory(hub.get(), kHubDevice)};
  Id id = {};
  std::memcpy(id.data(), &address, sizeof address);
  const std::lock_guard lock(process().mutex);
  process().hubs.push_back(std::move(hub));
  return id;
}

NcclGroup::NcclGroup(const Id& id, int rank, int size, const Stream& stream,
                     std::function<void()> look)
    : state_(std::make_unique<State>(stream, std::move(look))) {
  State& s = *state_;
  check(size <= kMostRanks, "connect", "the emulator's NCCL is for 8 ranks");
  {
    const std::lock_guard lock(process().mutex);
    const auto fault = process().faults.connecting.find(rank);
    if (fault != process().faults.connecting.end()) {
      throw Error(ErrorCode::kDevice, "connect", concat("NCCL: ", fault->second));
    }
  }
  const cuda::DeviceGuard guard(stream.device());
  Address address;
  std::memcpy(&address, id.data(), sizeof address);
  const auto is_it = [&](const std::shared_ptr<void>& hub) {
    return reinterpret_cast<uint64_t>(hub.get()) == address.pointer;
  };
  if (address.process == getpid()) {
    const std::lock_guard lock(process().mutex);
    const auto found = std::find_if(process().hubs.begin(), process().hubs.end(), is_it);
    check(found != process().hubs.end(), "connect", "NCCL: rank 0 is gone");
    s.hub = *found;
    cuda::reach_peer(stream.device(), kHubDevice);
  } else {
    s.hub = cuda::import_memory(address.handle, stream.device());
  }
  auto* hub = static_cast<Hub*>(s.hub.get());
  s.place = {hub, static_cast<const int*>(s.aborted.get()), rank, size};
  const StreamGuard current(stream);
  cuda::launch_kernel(dim3(1), dim3(1), join_kernel, hub, address.process == getpid() ? 0u : 1u);
  unsigned counts[2] = {};  // joined, apart
  const std::shared_ptr<void> seen = allocate(sizeof counts, stream.device());
  while (counts[0] < static_cast<unsigned>(size)) {
    s.look();
    std::this_thread::yield();
    cuda::launch_kernel(dim3(1), dim3(1), look_kernel, hub, static_cast<unsigned*>(seen.get()));
    cuda::copy_async(counts, seen.get(), sizeof counts, stream);
    stream.synchronize();
  }
  const std::lock_guard lock(process().mutex);
  if (rank == 0 && counts[1] == 0) std::erase_if(process().hubs, is_it);  // all have it
}

NcclGroup::~NcclGroup() {
  State& s = *state_;
  abort();  // nothing is on the stream but after an abort
  try {
    s.stream.synchronize();
  } catch (...) {
    // The device has failed, and nothing uses the hub any more.
  }
  const std::lock_guard lock(process().mutex);
  for (const Registered* one : s.registered) {
    --process().memory.now;
    delete one;
  }
}

void NcclGroup::put(const Collective& collective) {
  const Request& request = collective.request;
  const int rank = state_->place.rank;
  const int size = state_->place.size;
  const auto bytes = static_cast<int64_t>(request.count) * collective.element_size();
  if (!collective.folds()) {
    std::vector<Part> parts;
    for (int peer = 0; peer < size; ++peer) {
      const bool gathers = request.kind == Kind::kAllGather;
      auto* to = static_cast<std::byte*>(collective.recv) + (gathers ? peer * bytes : 0);
      if (peer == rank) {
        if (gathers && to != collective.send) {
          cuda::copy_async(to, collective.send, static_cast<size_t>(bytes), state_->stream);
        }
        continue;
      }
      if (collective.gives(rank)) {
        parts.push_back({peer, true, const_cast<void*>(collective.send), bytes});
      }
      if (collective.gives(peer)) parts.push_back({peer, false, to, bytes});
    }
    return exchange(request.name(), parts);
  }
  const std::lock_guard lock(state_->mutex);
  state_->begin(request.name());
  const cuda::DeviceGuard guard(state_->stream.device());
  const StreamGuard current(state_->stream);
  const int64_t stride = request.kind == Kind::kReduceScatter ? request.count : 0;
  const int root = request.kind == Kind::kReduce ? request.root : -1;
  kernels::visit_fold_rule(collective.fold(size), [&](const auto& rule) {
    using R = std::remove_cvref_t<decltype(rule)>;
    using Input = typename R::Input;
    cuda::launch_kernel(dim3(1), dim3(1), fold_kernel<R>, state_->place,
                        static_cast<const Input*>(collective.send), stride,
                        static_cast<Input*>(collective.recv), request.count, root);
  });
}

void NcclGroup::exchange(std::string_view op, std::span<const Part> parts) {
  Spans spans = {};
  for (const Part& part : parts) {
    (part.sends ? spans.to : spans.from)[part.peer] = {static_cast<std::byte*>(part.data),
                                                       part.bytes};
  }
  const std::lock_guard lock(state_->mutex);
  state_->begin(op);
  const cuda::DeviceGuard guard(state_->stream.device());
  const StreamGuard current(state_->stream);
  cuda::launch_kernel(dim3(1), dim3(1), exchange_kernel, state_->place, spans);
}

void* NcclGroup::register_memory(void* memory, size_t) noexcept {
  const std::lock_guard group(state_->mutex);
  if (state_->is_aborted) return nullptr;
  const std::lock_guard lock(process().mutex);
  ++process().memory.now;
  ++process().memory.ever;
  auto* made = new Registered{memory};
  state_->registered.push_back(made);
  return made;
}

void NcclGroup::deregister(void* handle) noexcept {
  const std::lock_guard group(state_->mutex);
  auto* one = static_cast<Registered*>(handle);
  if (std::erase(state_->registered, one) == 0) return;
  // What is on its way may be at any memory.
  const bool too_soon = device_of(one->memory).is_cpu() || !state_->stream.done();
  const std::lock_guard lock(process().mutex);
  --process().memory.now;
  process().memory.let_go_too_soon += too_soon ? 1 : 0;
  delete one;
}

std::string NcclGroup::error() {
  const std::lock_guard lock(process().mutex);
  const auto fault = process().faults.later.find(state_->place.rank);
  return fault == process().faults.later.end() ? "" : concat("NCCL: ", fault->second);
}

void NcclGroup::abort() noexcept {
  const std::lock_guard lock(state_->mutex);
  state_->is_aborted = true;
  __atomic_store_n(static_cast<int*>(state_->aborted.get()), 1, __ATOMIC_RELEASE);
}

}  // namespace lockstep::comm

namespace simt {

void set_nccl_faults(const NcclFaults& faults) {
  const std::lock_guard lock(lockstep::comm::process().mutex);
  lockstep::comm::process().faults = faults;
}

int nccl_calls() {
  const std::lock_guard lock(lockstep::comm::process().mutex);
  return lockstep::comm::process().calls;
}

NcclMemory nccl_memory() {
  const std::lock_guard lock(lockstep::comm::process().mutex);
  return lockstep::comm::process().memory;
}

}  // namespace simt
