#include "lockstep/comm/communicator.h"

#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "lockstep/comm/collective.h"
#include "lockstep/comm/communicator_maker.h"
#include "lockstep/comm/operation_queue.h"
#include "lockstep/comm/reunion.h"
#include "lockstep/comm/text.h"
#include "lockstep/kernels/graph.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/stream_timeline.h"

namespace lockstep::comm {
namespace {

bool overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a);
  const auto y = reinterpret_cast<uintptr_t>(b);
  return x < y + static_cast<uintptr_t>(b_bytes) && y < x + static_cast<uintptr_t>(a_bytes);
}

// One rank's counts. Throws where they have no meaning; returns their sum.
int64_t check_counts(std::string_view op, std::span<const int64_t> counts, std::string_view what,
                     int64_t element, int size) {
  check(counts.size() == static_cast<size_t>(size), op,
        [&] { return concat("want ", size, " ", what, ", one per rank, got ", counts.size()); });
  int64_t sum = 0;
  for (int rank = 0; rank < size; ++rank) {
    check(counts[rank] >= 0, op, [&] {
      return concat("want counts of 0 or more, got ", counts[rank], " for rank ", rank);
    });
    check(!__builtin_add_overflow(sum, counts[rank], &sum), op,
          [&] { return concat(what, " add up to more than 64 bits count"); });
  }
  check(sum <= std::numeric_limits<int64_t>::max() / element, op,
        [&] { return concat(what, " add up to more bytes than 64 bits count"); });
  return sum;
}

// What must hold of the numbers of any collective.
void check_request(const Request& request, int size) {
  const std::string_view op = request.name();
  check(request.count >= 0, op,
        [&] { return concat("want a count of 0 or more, got ", request.count); });
  check(static_cast<size_t>(request.dtype) < kDTypeCount, op, "a value that is not a DType");
  check(static_cast<int>(request.op) < kernels::kFoldOpCount, op, "a value that is not a ReduceOp");
  check(kernels::is_defined(request.op, request.dtype), op, [&] {
    return concat("\"", kernels::name(request.op), "\" is for integers and bool, got ",
                  lockstep::name(request.dtype));
  });
  check(request.root >= 0 && request.root < size, op,
        [&] { return concat("want a root in [0, ", size, "), got rank ", request.root); });
  const auto element = static_cast<int64_t>(size_of(request.dtype));
  int64_t bytes = 0;
  const bool fits = !__builtin_mul_overflow(request.count, element, &bytes) &&
                    !__builtin_mul_overflow(bytes, size, &bytes);
  check(fits, op, [&] {
    return concat(request.count, " ", lockstep::name(request.dtype), " for each of ", size,
                  " ranks are more bytes than 64 bits count");
  });
}

// What must hold of its buffers, of which this rank uses so many bytes. `in_place` is the address
// of send (or of recv, for reduce_scatter and scatter) that a call in place has.
void check_buffers(const Collective& collective, int64_t send_bytes, int64_t recv_bytes,
                   const void* in_place, const void* must_be) {
  const Request& request = collective.request;
  const std::string_view op = request.name();
  const int64_t element = collective.element_size();  // a power of two
  const auto check_buffer = [&](const void* data, int64_t bytes) {
    check(data != nullptr, op, [&] {
      return concat("want a buffer of ", bytes / element, " ", lockstep::name(request.dtype),
                    ", got a null pointer");
    });
    check((reinterpret_cast<uintptr_t>(data) & static_cast<uintptr_t>(element - 1)) == 0, op, [&] {
      return concat("want a buffer aligned to its ", lockstep::name(request.dtype), " elements");
    });
  };
  if (send_bytes != 0) check_buffer(collective.send, send_bytes);
  if (recv_bytes != 0) check_buffer(collective.recv, recv_bytes);
  const bool both = send_bytes != 0 && recv_bytes != 0;
  check(!both || in_place == must_be ||
            !overlap(collective.send, send_bytes, collective.recv, recv_bytes),
        op, "send and recv overlap without being in place (communicator.h says where that is)");
}

// An address to compare with; it need not be one of anything, for nothing was checked yet.
const void* offset(const void* data, int rank, int64_t count, DType dtype) {
  return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(data) +
                                       static_cast<uintptr_t>(rank) *
                                           static_cast<uintptr_t>(count) * size_of(dtype));
}

}  // namespace

Work::Work(std::shared_ptr<OperationQueue> queue, std::shared_ptr<Operation> operation)
    : queue_(std::move(queue)), operation_(std::move(operation)) {}

void Work::wait() {
  if (operation_ == nullptr) return;
  queue_->wait(*operation_);
  const OnDevice* on_device = operation_->collective.on_device.get();
  if (on_device == nullptr) return;
  const timeline::StreamSpan span(timeline::kind::kWait, "wait", on_device->device);
  current_stream(on_device->device).wait(on_device->completed);
}

bool Work::done() const { return operation_ == nullptr || operation_->finished.load(); }

Communicator::Communicator(std::shared_ptr<OperationQueue> queue, Algorithm algorithm,
                           Lineage lineage)
    : queue_(std::move(queue)),
      algorithm_(algorithm),
      lineage_(std::make_unique<const Lineage>(std::move(lineage))) {}

Communicator::~Communicator() {
  queue_->close();
  if (lineage_->threads != nullptr) lineage_->threads->leave(rank());
}

int Communicator::rank() const { return queue_->transport().rank(); }
int Communicator::size() const { return queue_->transport().size(); }
std::string Communicator::transport() const { return std::string(queue_->transport().name()); }
std::string Communicator::pair_text(int peer) const {
  check(peer >= 0 && peer < size() && peer != rank(), "pair_text",
        [&] { return concat("want another rank in [0, ", size(), "), got ", peer); });
  return queue_->transport().pair_text(peer);
}
std::chrono::milliseconds Communicator::timeout() const { return queue_->transport().timeout(); }
std::shared_ptr<void> Communicator::allocate(size_t bytes, Device where) {
  check(where.is_cpu() || where == device(), "allocate", [&] {
    return concat("want memory of cpu or of this communicator's device, ", device().name(),
                  ", got ", where.name(), "; see Options::device");
  });
  return where.is_cpu() ? queue_->transport().allocate(bytes)
                        : queue_->transport().allocate_on_device(bytes);
}
Device Communicator::device() const { return queue_->transport().device(); }
void Communicator::abort(std::string why) { queue_->abort(why); }

Work Communicator::start(Collective&& collective, const void* in_place, const void* must_be) {
  refuse_capture(collective.request.name(), "ranks meet on the host for each collective");
  const int ranks = size();
  check_request(collective.request, ranks);
  const int64_t send_bytes = collective.gives(rank()) ? collective.send_bytes(ranks) : 0;
  const int64_t recv_bytes = collective.takes(rank()) ? collective.recv_bytes(ranks) : 0;
  check_buffers(collective, send_bytes, recv_bytes, in_place, must_be);
  collective.on_device = find_device(collective, send_bytes, recv_bytes);
  return Work(queue_, queue_->submit(std::move(collective)));
}

std::shared_ptr<OnDevice> Communicator::find_device(const Collective& collective,
                                                    int64_t send_bytes, int64_t recv_bytes) const {
  const std::string_view op = collective.request.name();
  const bool has_device = !this->device().is_cpu();
  std::optional<Device> found;
  const auto look = [&](const void* buffer, int64_t bytes) {
    if (bytes == 0) return;
    // A group of the host alone, which has no use for another's device memory, does not ask CUDA.
    const Device device = has_device ? device_of(buffer) : device_of_ours(buffer);
    check(device == found.value_or(device), op, [&] {
      return concat("want send and recv on one device, got ", found->name(), " and ",
                    device.name());
    });
    found = device;
  };
  look(collective.send, send_bytes);
  if (collective.recv != collective.send || send_bytes == 0) look(collective.recv, recv_bytes);
  if (!found || found->is_cpu()) return nullptr;
  check(*found == device(), op, [&] {
    return concat("this communicator is for memory of ", device().is_cpu() ? "" : "cpu and of ",
                  device().name(), ", got that of ", found->name(), "; see Options::device");
  });
  auto on_device = std::make_shared<OnDevice>();
  on_device->device = *found;
  on_device->ready = current_stream(*found).record();
  if (timeline::enabled()) on_device->label = timeline::Label::current();
  return on_device;
}

Work Communicator::all_reduce(const void* send, void* recv, int64_t count, DType dtype,
                              ReduceOp op) {
  return start({{Kind::kAllReduce, dtype, op, algorithm_, 0, count}, 0, send, recv}, send, recv);
}

Work Communicator::reduce_scatter(const void* send, void* recv, int64_t count_per_rank, DType dtype,
                                  ReduceOp op) {
  return start({{Kind::kReduceScatter, dtype, op, algorithm_, 0, count_per_rank}, 0, send, recv},
               recv, offset(send, rank(), count_per_rank, dtype));
}

Work Communicator::all_gather(const void* send, void* recv, int64_t count_per_rank, DType dtype) {
  return start(
      {{Kind::kAllGather, dtype, ReduceOp::kSum, algorithm_, 0, count_per_rank}, 0, send, recv},
      send, offset(recv, rank(), count_per_rank, dtype));
}

Work Communicator::broadcast(void* data, int64_t count, DType dtype, int root) {
  return start({{Kind::kBroadcast, dtype, ReduceOp::kSum, algorithm_, root, count}, 0, data, data},
               data, data);
}

Work Communicator::barrier() {
  return start({{Kind::kBarrier, DType::kU8, ReduceOp::kSum, algorithm_, 0, 0}}, nullptr, nullptr);
}

Work Communicator::reduce(const void* send, void* recv, int64_t count, DType dtype, ReduceOp op,
                          int root) {
  return start({{Kind::kReduce, dtype, op, algorithm_, root, count}, 0, send, recv}, send, recv);
}

Work Communicator::gather(const void* send, void* recv, int64_t count_per_rank, DType dtype,
                          int root) {
  return start({{Kind::kGather, dtype, ReduceOp::kSum, Algorithm::kAuto, root, count_per_rank},
                0,
                send,
                recv},
               send, offset(recv, rank(), count_per_rank, dtype));
}

Work Communicator::scatter(const void* send, void* recv, int64_t count_per_rank, DType dtype,
                           int root) {
  return start({{Kind::kScatter, dtype, ReduceOp::kSum, Algorithm::kAuto, root, count_per_rank},
                0,
                send,
                recv},
               recv, offset(send, rank(), count_per_rank, dtype));
}

Work Communicator::all_to_all(const void* send, void* recv, int64_t count_per_rank, DType dtype) {
  return start({{Kind::kAllToAll, dtype, ReduceOp::kSum, Algorithm::kAuto, 0, count_per_rank},
                0,
                send,
                recv},
               send, recv);
}

Work Communicator::all_gather_v(const void* send, void* recv, std::span<const int64_t> counts,
                                DType dtype) {
  const Request request{Kind::kAllGatherV, dtype, ReduceOp::kSum, Algorithm::kAuto, 0, 0};
  check_request(request, size());
  check_counts(request.name(), counts, "counts", static_cast<int64_t>(size_of(dtype)), size());
  Counts mine{std::vector<int64_t>(counts.size(), counts[rank()]), {counts.begin(), counts.end()}};
  const int64_t before = std::accumulate(counts.begin(), counts.begin() + rank(), int64_t{0});
  return start({request, 0, send, recv, std::make_shared<const Counts>(std::move(mine))}, send,
               offset(recv, 1, before, dtype));
}

Work Communicator::all_to_all_v(const void* send, std::span<const int64_t> send_counts, void* recv,
                                std::span<const int64_t> recv_counts, DType dtype) {
  const Request request{Kind::kAllToAllV, dtype, ReduceOp::kSum, Algorithm::kAuto, 0, 0};
  check_request(request, size());
  const auto element = static_cast<int64_t>(size_of(dtype));
  check_counts(request.name(), send_counts, "send_counts", element, size());
  check_counts(request.name(), recv_counts, "recv_counts", element, size());
  Counts mine{{send_counts.begin(), send_counts.end()}, {recv_counts.begin(), recv_counts.end()}};
  return start({request, 0, send, recv, std::make_shared<const Counts>(std::move(mine))}, nullptr,
               &request);
}

Work Communicator::send(const void* data, int64_t count, DType dtype, int to) {
  check(to != rank(), "send", "want another rank to send to, got this one");
  return start(
      {{Kind::kSend, dtype, ReduceOp::kSum, Algorithm::kAuto, to, count}, 0, data, nullptr},
      nullptr, nullptr);
}

Work Communicator::recv(void* data, int64_t count, DType dtype, int from) {
  check(from != rank(), "recv", "want another rank to receive from, got this one");
  return start(
      {{Kind::kRecv, dtype, ReduceOp::kSum, Algorithm::kAuto, from, count}, 0, nullptr, data},
      nullptr, nullptr);
}

}  // namespace lockstep::comm
