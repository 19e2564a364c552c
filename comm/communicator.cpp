#include "lockstep/comm/communicator.h"

#include <limits>
#include <utility>

#include "lockstep/comm/collective.h"
#include "lockstep/comm/communicator_maker.h"
#include "lockstep/comm/operation_queue.h"
#include "lockstep/comm/text.h"

namespace lockstep::comm {
namespace {

bool overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  const auto x = reinterpret_cast<uintptr_t>(a);
  const auto y = reinterpret_cast<uintptr_t>(b);
  return x < y + static_cast<uintptr_t>(b_bytes) && y < x + static_cast<uintptr_t>(a_bytes);
}

// What must hold of any collective's arguments. `in_place` is the address of send (or of recv, for
// reduce_scatter) that a call in place has.
void check_arguments(const Collective& collective, int size, const void* in_place,
                     const void* must_be) {
  const Request& request = collective.request;
  const std::string_view op = request.name();
  check(request.count >= 0, op,
        [&] { return concat("want a count of 0 or more, got ", request.count); });
  check(static_cast<size_t>(request.dtype) < kDTypeCount, op, "a value that is not a DType");
  check(static_cast<int>(request.op) < kernels::kFoldOpCount, op, "a value that is not a ReduceOp");
  check(request.root >= 0 && request.root < size, op,
        [&] { return concat("want a root in [0, ", size, "), got rank ", request.root); });
  const int64_t element = collective.element_size();
  check(request.count <= std::numeric_limits<int64_t>::max() / element / size, op, [&] {
    return concat(request.count, " ", lockstep::name(request.dtype), " for each of ", size,
                  " ranks are more bytes than 64 bits count");
  });
  if (request.count == 0) return;
  for (const void* data : {collective.send, static_cast<const void*>(collective.recv)}) {
    check(data != nullptr, op, [&] {
      return concat("want a buffer of ", request.count, " ", lockstep::name(request.dtype),
                    ", got a null pointer");
    });
    check(reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(element) == 0, op, [&] {
      return concat("want a buffer aligned to its ", lockstep::name(request.dtype), " elements");
    });
  }
  check(in_place == must_be || !overlap(collective.send, collective.send_bytes(size),
                                        collective.recv, collective.recv_bytes(size)),
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
  if (operation_ != nullptr) queue_->wait(*operation_);
}

bool Work::done() const { return operation_ == nullptr || operation_->finished.load(); }

Communicator::Communicator(std::shared_ptr<OperationQueue> queue, Algorithm algorithm,
                           Lineage lineage)
    : queue_(std::move(queue)),
      algorithm_(algorithm),
      lineage_(std::make_unique<const Lineage>(std::move(lineage))) {}

Communicator::~Communicator() { queue_->close(); }

int Communicator::rank() const { return queue_->transport().rank(); }
int Communicator::size() const { return queue_->transport().size(); }
std::string Communicator::transport() const { return std::string(queue_->transport().name()); }
std::chrono::milliseconds Communicator::timeout() const { return queue_->transport().timeout(); }
std::shared_ptr<void> Communicator::allocate(size_t bytes) {
  return queue_->transport().allocate(bytes);
}
void Communicator::abort(std::string why) { queue_->abort(why); }

Work Communicator::start(const Collective& collective, const void* in_place, const void* must_be) {
  check_arguments(collective, size(), in_place, must_be);
  return Work(queue_, queue_->submit(collective));
}

Work Communicator::all_reduce(const void* send, void* recv, int64_t count, DType dtype,
                              ReduceOp op) {
  Collective collective{{Kind::kAllReduce, dtype, op, algorithm_, 0, count}, 0, send, recv};
  return start(collective, send, recv);
}

Work Communicator::reduce_scatter(const void* send, void* recv, int64_t count_per_rank, DType dtype,
                                  ReduceOp op) {
  Collective collective{
      {Kind::kReduceScatter, dtype, op, algorithm_, 0, count_per_rank}, 0, send, recv};
  return start(collective, recv, offset(send, rank(), count_per_rank, dtype));
}

Work Communicator::all_gather(const void* send, void* recv, int64_t count_per_rank, DType dtype) {
  Collective collective{
      {Kind::kAllGather, dtype, ReduceOp::kSum, algorithm_, 0, count_per_rank}, 0, send, recv};
  return start(collective, send, offset(recv, rank(), count_per_rank, dtype));
}

Work Communicator::broadcast(void* data, int64_t count, DType dtype, int root) {
  Collective collective{
      {Kind::kBroadcast, dtype, ReduceOp::kSum, algorithm_, root, count}, 0, data, data};
  return start(collective, data, data);
}

Work Communicator::barrier() {
  Collective collective{{Kind::kBarrier, DType::kU8, ReduceOp::kSum, algorithm_, 0, 0}};
  return start(collective, nullptr, nullptr);
}

}  // namespace lockstep::comm
