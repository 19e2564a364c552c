#include "lockstep/comm/nccl_group.h"

#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

// Between looks at a call that goes on by itself.
constexpr std::chrono::microseconds kLook{100};
// Ranks that end together do so in milliseconds.
constexpr std::chrono::seconds kEnd{2};
constexpr int kOldest = NCCL_VERSION(2, 14, 0);  // has communicators that do not block

// NCCL's functions, by its own declarations.
class Library {
 public:
  Library() {
    // First where the system looks, then where it was when Lockstep was built.
    void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    const std::string why = library == nullptr ? dlerror() : "";
#ifdef LOCKSTEP_NCCL
    if (library == nullptr) library = dlopen(LOCKSTEP_NCCL, RTLD_NOW | RTLD_LOCAL);
#endif
    if (library == nullptr) {
      why_not = concat("there is no NCCL library (", why,
                       "): install NCCL 2, or name its folder in LD_LIBRARY_PATH");
      return;
    }
    const auto find = [&](auto& function, const char* name, bool must = true) {
      void* found = dlsym(library, name);
      if (found == nullptr && must) {
        why_not = concat("libnccl.so.2 has no ", name, ": install NCCL 2.14 or a newer one");
      }
      std::memcpy(&function, &found, sizeof found);
    };
    find(get_version, "ncclGetVersion");
    find(get_unique_id, "ncclGetUniqueId");
    find(init, "ncclCommInitRankConfig");
    find(async_error, "ncclCommGetAsyncError");
    find(finalize, "ncclCommFinalize");
    find(destroy, "ncclCommDestroy");
    find(abort, "ncclCommAbort");
    find(error_string, "ncclGetErrorString");
    find(last_error, "ncclGetLastError");
    find(group_start, "ncclGroupStart");
    find(group_end, "ncclGroupEnd");
    find(all_reduce, "ncclAllReduce");
    find(reduce, "ncclReduce");
    find(reduce_scatter, "ncclReduceScatter");
    find(all_gather, "ncclAllGather");
    find(broadcast, "ncclBroadcast");
    find(send, "ncclSend");
    find(recv, "ncclRecv");
    find(enregister, "ncclCommRegister", false);  // since 2.19
    find(deregister, "ncclCommDeregister", false);
    int version = 0;
    if (why_not.empty() && (get_version(&version) != ncclSuccess || version < kOldest)) {
      why_not = concat("libnccl.so.2 is version ", version,
                       ", which is too old: install NCCL 2.14 or a newer one");
    }
  }

  std::string why_not;
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  // Null where NCCL has them not.
  ncclResult_t (*enregister)(ncclComm_t, void*, size_t, void**) = nullptr;
  ncclResult_t (*deregister)(ncclComm_t, void*) = nullptr;
};

// Never destroyed: a communicator may end when static objects have.
const Library& nccl() {
  static const auto* instance = new Library;
  return *instance;
}

std::string text_of(ncclResult_t result, ncclComm_t comm) {
  const char* more = nccl().last_error(comm);
  const std::string_view detail = more != nullptr ? more : "";
  return concat("NCCL: ", nccl().error_string(result), detail.empty() ? "" : "; ", detail);
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kF16:
      return ncclFloat16;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kI64:
      return ncclInt64;
    case DType::kI32:
      return ncclInt32;
    case DType::kI8:
      return ncclInt8;
    case DType::kU8:
    case DType::kBool:  // which is moved alone
      return ncclUint8;
  }
  throw Error(ErrorCode::kInternal, "nccl", "a value that is not a DType");
}

ncclRedOp_t op_of(kernels::FoldOp op) {
  switch (op) {
    case kernels::FoldOp::kSum:
      return ncclSum;
    case kernels::FoldOp::kAvg:
      return ncclAvg;
    case kernels::FoldOp::kMin:
      return ncclMin;
    case kernels::FoldOp::kMax:
      return ncclMax;
    case kernels::FoldOp::kProduct:
      return ncclProd;
    default:
      throw Error(ErrorCode::kInternal, "nccl", concat("it has no ", kernels::name(op)));
  }
}

// Makes calls with `device` current; where it has failed without, for NCCL has more to let go than
// what is there.
template <class Calls>
void on(Device device, const Calls& calls) {
  std::optional<cuda::DeviceGuard> guard;
  try {
    guard.emplace(device);
  } catch (const Error&) {
  }
  calls();
}

// Makes the last calls for a communicator of `device`, which wait until the other ranks of the
// machine have made theirs, and leaves them to a thread where that takes long.
template <class Calls>
void end(Device device, const Calls& calls) noexcept {
  try {
    const auto ended = std::make_shared<std::promise<void>>();
    const std::future<void> end = ended->get_future();
    std::thread([device, calls, ended] {
      on(device, calls);
      ended->set_value();
    }).detach();
    end.wait_for(kEnd);
  } catch (const std::exception&) {
    // There is no thread to be had: the communicator stays.
  }
}

}  // namespace

struct NcclGroup::State {
  // What a call that does not block is at: ncclInProgress until it has ended.
  ncclResult_t ask() {
    const std::lock_guard lock(mutex);
    if (comm == nullptr) return ncclInvalidUsage;
    ncclResult_t result = ncclSuccess;
    const ncclResult_t asked = nccl().async_error(comm, &result);
    return asked != ncclSuccess ? asked : result;
  }

  // Waits until such a call has ended.
  void finish(std::string_view op, ncclResult_t result) {
    while (result == ncclInProgress) {
      look();
      std::this_thread::sleep_for(kLook);
      result = ask();
    }
    if (result == ncclSuccess) return;
    const std::lock_guard lock(mutex);
    check_alive(op);
    throw Error(ErrorCode::kDevice, op, text_of(result, comm));
  }

  // REQUIRES: the lock.
  void check_alive(std::string_view op) const {
    if (comm == nullptr) throw Error(ErrorCode::kCancelled, op, "NCCL's group was aborted");
  }

  const Stream stream;
  const std::function<void()> look;
  // From a call that puts something on the stream until it has ended, which may be in a thread of
  // NCCL's, and while memory is registered: NCCL takes one such call at a time. Locked before the
  // other, and neither for ask() nor to abort.
  std::mutex calling;
  std::mutex mutex;           // guards what follows, and all calls for it
  ncclComm_t comm = nullptr;  // null once aborted
  std::vector<void*> registered;
};

std::string NcclGroup::why_not() { return nccl().why_not; }

std::string NcclGroup::device_name(Device device) {
  char name[32] = {};
  const cudaError_t error = cudaDeviceGetPCIBusId(name, sizeof name, device.index);
  if (error != cudaSuccess) {
    throw Error(ErrorCode::kDevice, "connect",
                concat(cudaGetErrorName(error), " from cudaDeviceGetPCIBusId"));
  }
  return name;
}

NcclGroup::Id NcclGroup::make_id() {
  ncclUniqueId id;
  static_assert(sizeof id == sizeof(Id));
  const ncclResult_t result = nccl().get_unique_id(&id);
  if (result != ncclSuccess) throw Error(ErrorCode::kDevice, "connect", text_of(result, nullptr));
  Id out;
  std::memcpy(out.data(), &id, sizeof id);
  return out;
}

NcclGroup::NcclGroup(const Id& id, int rank, int size, const Stream& stream,
                     std::function<void()> look)
    : state_(new State{stream, std::move(look), {}, {}, nullptr, {}}) {
  const cuda::DeviceGuard guard(stream.device());
  ncclUniqueId unique;
  std::memcpy(&unique, id.data(), sizeof unique);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result = nccl().init(&state_->comm, size, unique, rank, &config);
  try {
    if (state_->comm == nullptr) {
      throw Error(ErrorCode::kDevice, "connect", text_of(result, nullptr));
    }
    state_->finish("connect", result);
  } catch (...) {
    abort();
    throw;
  }
}

NcclGroup::~NcclGroup() {
  ncclComm_t comm = nullptr;
  {
    const std::lock_guard lock(state_->mutex);
    comm = std::exchange(state_->comm, nullptr);
    if (comm == nullptr) return;
    // It is freed when this rank likes, and the thread that ends the communicator may be later.
    on(state_->stream.device(), [&] {
      for (void* handle : state_->registered) nccl().deregister(comm, handle);
    });
  }
  end(state_->stream.device(), [comm] {
    ncclResult_t result = nccl().finalize(comm);
    while (result == ncclInProgress) {
      std::this_thread::sleep_for(10 * kLook);
      const ncclResult_t asked = nccl().async_error(comm, &result);
      if (asked != ncclSuccess) result = asked;
    }
    if (result == ncclSuccess) {
      nccl().destroy(comm);
    } else {
      nccl().abort(comm);
    }
  });
}

void NcclGroup::put(const Collective& collective) {
  const Request& request = collective.request;
  const cuda::DeviceGuard guard(state_->stream.device());
  const std::lock_guard calling(state_->calling);
  CUstream_st* const stream = state_->stream.handle();
  const auto count = static_cast<size_t>(request.count);
  const ncclDataType_t type = type_of(request.dtype);
  const ncclRedOp_t op = collective.folds() ? op_of(request.op) : ncclSum;
  const void* send = collective.send;
  void* recv = collective.recv;
  ncclResult_t result = ncclInternalError;
  {
    const std::lock_guard lock(state_->mutex);
    state_->check_alive(request.name());
    const ncclComm_t comm = state_->comm;
    switch (request.kind) {
      case Kind::kAllReduce:
        result = nccl().all_reduce(send, recv, count, type, op, comm, stream);
        break;
      case Kind::kReduce:
        result = nccl().reduce(send, recv, count, type, op, request.root, comm, stream);
        break;
      case Kind::kReduceScatter:
        result = nccl().reduce_scatter(send, recv, count, type, op, comm, stream);
        break;
      case Kind::kAllGather:
        result = nccl().all_gather(send, recv, count, type, comm, stream);
        break;
      case Kind::kBroadcast:
        result = nccl().broadcast(send, recv, count, type, request.root, comm, stream);
        break;
      default:
        throw Error(ErrorCode::kInternal, request.name(), "NCCL has no such call");
    }
  }
  state_->finish(request.name(), result);
}

void NcclGroup::exchange(std::string_view op, std::span<const Part> parts) {
  const cuda::DeviceGuard guard(state_->stream.device());
  const std::lock_guard calling(state_->calling);
  CUstream_st* const stream = state_->stream.handle();
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard lock(state_->mutex);
    state_->check_alive(op);
    result = nccl().group_start();
    for (const Part& part : parts) {
      // What went wrong in a group is said at its end too.
      const auto bytes = static_cast<size_t>(part.bytes);
      if (part.sends) {
        nccl().send(part.data, bytes, ncclUint8, part.peer, state_->comm, stream);
      } else {
        nccl().recv(part.data, bytes, ncclUint8, part.peer, state_->comm, stream);
      }
    }
    const ncclResult_t ended = nccl().group_end();
    if (result == ncclSuccess) result = ended;
  }
  state_->finish(op, result);
}

void* NcclGroup::register_memory(void* memory, size_t bytes) noexcept {
  try {
    const cuda::DeviceGuard guard(state_->stream.device());
    const std::lock_guard calling(state_->calling);
    const std::lock_guard lock(state_->mutex);
    if (state_->comm == nullptr || nccl().enregister == nullptr || nccl().deregister == nullptr) {
      return nullptr;
    }
    void* handle = nullptr;
    if (nccl().enregister(state_->comm, memory, bytes, &handle) != ncclSuccess) return nullptr;
    if (handle != nullptr) state_->registered.push_back(handle);
    return handle;
  } catch (...) {
    return nullptr;  // the device has failed, which its next user will be told
  }
}

void NcclGroup::deregister(void* handle) noexcept {
  try {
    const cuda::DeviceGuard guard(state_->stream.device());
    const std::lock_guard calling(state_->calling);
    const std::lock_guard lock(state_->mutex);
    if (state_->comm == nullptr) return;  // what is left was let go with it
    const auto found = std::find(state_->registered.begin(), state_->registered.end(), handle);
    if (found == state_->registered.end()) return;
    state_->registered.erase(found);
    nccl().deregister(state_->comm, handle);
  } catch (...) {
    // The device has failed, and what was registered with it.
  }
}

std::string NcclGroup::error() {
  const ncclResult_t result = state_->ask();
  if (result == ncclSuccess || result == ncclInProgress) return "";
  const std::lock_guard lock(state_->mutex);
  return state_->comm == nullptr ? "" : text_of(result, state_->comm);
}

void NcclGroup::abort() noexcept {
  ncclComm_t comm = nullptr;
  {
    const std::lock_guard lock(state_->mutex);
    comm = std::exchange(state_->comm, nullptr);
  }
  if (comm != nullptr) end(state_->stream.device(), [comm] { nccl().abort(comm); });
}

}  // namespace lockstep::comm
