#include "lockstep/comm/operation_queue.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/stream_timeline.h"

namespace lockstep::comm {
namespace {

// A collective of this many bytes takes long enough to be worth waking a thread for.
constexpr int64_t kLargeBytes = int64_t{64} << 10;
// A caller who comes for a result later than this did something else meanwhile.
constexpr std::chrono::microseconds kMeanwhile{50};
// The worker looks for work that nobody waits for this often, and stops after so many looks.
constexpr std::chrono::milliseconds kLook{1};
constexpr int kLooks = 50;

Transfer transfer_of(const Collective& collective) {
  Transfer out{collective.request, collective.request.root, collective.request.kind == Kind::kSend};
  const void* data = out.sends ? collective.send : collective.recv;
  out.data = static_cast<std::byte*>(const_cast<void*>(data));
  out.bytes = collective.request.count * collective.element_size();
  out.on_device = collective.on_device;
  return out;
}

}  // namespace

Failure Failure::current(std::string_view op) {
  try {
    throw;
  } catch (const Error& error) {
    // what() begins with "[op] ".
    const std::string_view what = error.what();
    const size_t prefix = error.op().size() + 3;
    return {error.code(), error.op(), std::string(what.substr(std::min(prefix, what.size())))};
  } catch (const std::bad_alloc&) {
    return {ErrorCode::kOutOfMemory, std::string(op), "the system gave no more memory"};
  } catch (const std::exception& error) {
    return {ErrorCode::kInternal, std::string(op), error.what()};
  }
}

void Failure::raise() const { throw Error(code, op, message); }

void raise_departure(ErrorCode code, std::string_view op, int rank, std::string_view reason) {
  const bool about_others =
      code == ErrorCode::kTimeout || code == ErrorCode::kMismatch || code == ErrorCode::kPeerLost;
  throw Error(about_others ? code : ErrorCode::kPeerLost, op,
              concat("rank ", rank, about_others ? " gave up: " : " left: ", reason));
}

Error timed_out(std::string_view op, int rank, std::chrono::milliseconds waited,
                std::span<const int> missing) {
  return {ErrorCode::kTimeout, op,
          concat("rank ", rank, " waited ", seconds_text(waited), " for ", rank_list(missing),
                 "; Options::timeout or LOCKSTEP_TIMEOUT makes it wait longer")};
}

OperationQueue::OperationQueue(std::unique_ptr<Transport> transport, std::string about_ranks,
                               FlightRecorder::About about)
    : transport_(std::move(transport)),
      about_ranks_(std::move(about_ranks)),
      world_rank_(about.world_ranks[static_cast<size_t>(about.rank)]),
      track_(concat("collectives of ", about.group)),
      recorder_(std::move(about)) {}

std::shared_ptr<Operation> OperationQueue::submit(Collective&& collective) {
  const int64_t bytes = collective.recv_bytes(transport_->size());
  const bool large = std::max(bytes, collective.send_bytes(transport_->size())) >= kLargeBytes;
  auto operation = std::make_shared<Operation>(std::move(collective), bytes, large);
  if (large) operation->submitted = Clock::now();
  bool wake = false;
  {
    std::unique_lock lock(mutex_);
    operation->number = ++submitted_;
    if (operation->collective.is_transfer()) {
      operation->transfer = transfer_of(operation->collective);
    } else {
      operation->collective.sequence = ++collectives_;
    }
    if (failure_) {
      finish_with_failure(*operation);
      return operation;
    }
    if (!operation->transfer) recorder_.queued(operation->collective, large);
    pending_.push_back(operation);
    if (transport_->size() == 1) {  // nobody to wait for
      run_next(lock, false, nullptr);
      return operation;
    }
    if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
    hurry_ = hurry_ || (large && prompt_ && !running_);
    wake = asleep_ || hurry_;
    if (runs_transfers_) transport_->nudge();
  }
  if (wake) wake_.notify_one();
  return operation;
}

void OperationQueue::wait(Operation& operation) {
  if (!operation.finished.load(std::memory_order_acquire)) {
    const timeline::Span span(timeline::kind::kWait, "wait");
    std::unique_lock lock(mutex_);
    while (!operation.finished.load(std::memory_order_relaxed)) {
      if (!running_ && has_work()) {
        run_next(lock, false, &operation);
      } else {
        ++waiters_;
        done_.wait(lock);
        --waiters_;
      }
    }
  }
  if (!operation.failure) return;
  Failure failure = *operation.failure;
  failure.message += about_ranks_;
  failure.raise();
}

void OperationQueue::run_next(std::unique_lock<std::mutex>& lock, bool in_worker,
                              const Operation* wanted) {
  running_ = true;
  const bool transfers = !transfers_.empty() || pending_.front()->collective.is_transfer();
  if (transfers) {
    run_transfers(lock, wanted);
  } else {
    run_collective(lock, in_worker);
  }
  // An abort while it ran that came too late to end it.
  if (failure_ && !left_) fail(lock, *failure_);
  running_ = false;
  if (waiters_ != 0) done_.notify_all();
  // A waiter left it to the worker to go on, or the other way round.
  if (has_work() && !in_worker && asleep_) wake_.notify_one();
}

void OperationQueue::run_collective(std::unique_lock<std::mutex>& lock, bool in_worker) {
  const std::shared_ptr<Operation> operation = std::move(pending_.front());
  pending_.pop_front();
  const Collective& collective = operation->collective;
  recorder_.started(collective, operation->large);
  if (operation->large) {
    prompt_ = in_worker || Clock::now() - operation->submitted > kMeanwhile;
  }
  lock.unlock();
  std::optional<Failure> failure;
  std::shared_ptr<void> copy;  // parts of it may be on their way until fail() has left
  try {
    const timeline::Span span(timeline::kind::kCollective, collective.request.name(),
                              operation->bytes);
    run(collective, copy);
    show_on_device(collective);
  } catch (...) {
    failure = Failure::current(collective.request.name());
  }
  lock.lock();
  recorder_.finished(collective, !failure, operation->large);
  if (!failure) return finish(*operation);
  fail(lock, *std::move(failure));
  finish_with_failure(*operation);
}

void OperationQueue::show_on_device(const Collective& collective) const {
  const OnDevice* on_device = collective.on_device.get();
  if (on_device == nullptr || on_device->begun.handle() == nullptr) return;
  // The transport has one stream for all.
  timeline::record(timeline::kind::kCollective,
                   on_device->label.empty() ? collective.request.name() : on_device->label, track_,
                   nullptr, on_device->begun, on_device->completed,
                   collective.recv_bytes(transport_->size()));
}

void OperationQueue::run(const Collective& collective, std::shared_ptr<void>& copy) {
  const bool in_place = collective.send == collective.recv && collective.request.count != 0;
  if (collective.request.kind != Kind::kAllToAll || !in_place || collective.on_device != nullptr) {
    return transport_->run(collective);
  }
  // What comes from a rank would take the place of what must still go to it.
  const auto bytes = static_cast<size_t>(collective.send_bytes(transport_->size()));
  copy = transport_->allocate(bytes);
  std::memcpy(copy.get(), collective.send, bytes);
  Collective copied = collective;
  copied.send = copy.get();
  transport_->run(copied);
}

void OperationQueue::run_transfers(std::unique_lock<std::mutex>& lock, const Operation* wanted) {
  runs_transfers_ = true;
  while (wanted == nullptr || !wanted->finished.load(std::memory_order_relaxed)) {
    while (!pending_.empty() && pending_.front()->collective.is_transfer()) {
      transfers_.push_back(std::move(pending_.front()));
      pending_.pop_front();
    }
    if (transfers_.empty()) break;
    std::vector<Transfer*> going;
    for (const auto& operation : transfers_) going.push_back(&*operation->transfer);
    lock.unlock();
    std::optional<Failure> failure;
    try {
      transport_->run(going);
    } catch (...) {
      failure = Failure::current(going[0]->request.name());
    }
    lock.lock();
    if (failure) fail(lock, *std::move(failure));
    std::erase_if(transfers_, [&](const std::shared_ptr<Operation>& operation) {
      const bool done = operation->transfer->done();
      if (!failure_ && !done) return false;
      if (done) {
        finish(*operation);
      } else {
        finish_with_failure(*operation);
      }
      return true;
    });
    if (waiters_ != 0) done_.notify_all();
  }
  runs_transfers_ = false;
}

void OperationQueue::fail(std::unique_lock<std::mutex>& lock, Failure failure) {
  if (!failure_) failure_ = std::move(failure);
  if (!std::exchange(left_, true)) {
    const Failure why = *failure_;
    const bool closing = closing_;
    // Waits for others to leave this rank's buffers alone, before anybody is told that it may
    // free them.
    lock.unlock();
    transport_->leave(why);
    const std::string file = closing ? "" : recorder_.dump(why.message + about_ranks_);
    lock.lock();
    if (!file.empty()) {
      failure_->message += concat("; what this rank did last is in ", file,
                                  ", which `lockstep doctor` compares with other ranks'");
    }
  }
  fail_pending();
}

void OperationQueue::finish(Operation& operation) {
  operation.finished.store(true, std::memory_order_release);
}

void OperationQueue::finish_with_failure(Operation& operation) {
  operation.failure = failure_;
  finish(operation);
}

void OperationQueue::fail_pending() {
  for (const auto& operation : pending_) finish_with_failure(*operation);
  pending_.clear();
  if (running_) return;  // whoever runs them fails them
  for (const auto& operation : transfers_) finish_with_failure(*operation);
  transfers_.clear();
}

void OperationQueue::abort(std::string_view why) {
  std::unique_lock lock(mutex_);
  if (!failure_) failure_ = Failure{ErrorCode::kCancelled, "abort", std::string(why)};
  transport_->cancel();
  // Before anybody is told that it may free a buffer of which a part is on its way.
  if (!running_ && !std::exchange(left_, true)) transport_->leave(*failure_);
  fail_pending();
  if (waiters_ != 0) done_.notify_all();
}

void OperationQueue::close() noexcept {
  std::unique_lock lock(mutex_);
  if (std::exchange(closing_, true)) return;
  const bool unfinished = running_ || has_work();
  if (!failure_) {
    failure_ = Failure{
        ErrorCode::kCancelled, "communicator",
        unfinished ? concat("it was destroyed before collective ", collectives_, " had finished")
                   : concat("it was destroyed after ", collectives_, " collectives")};
  }
  if (unfinished) transport_->cancel();
  ++waiters_;
  done_.wait(lock, [&] { return !running_; });
  --waiters_;
  if (!std::exchange(left_, true)) transport_->leave(*failure_);
  fail_pending();
  done_.notify_all();
  lock.unlock();
  wake_.notify_all();
  if (worker_.joinable()) worker_.join();
}

void OperationQueue::work() {
  timeline::set_thread(world_rank_, track_);
  std::unique_lock lock(mutex_);
  uint64_t seen = 0;  // what was next at the last look
  uint64_t newest = 0;
  int looks = 0;
  const auto next = [this] {
    if (!transfers_.empty()) return transfers_.front()->number;
    return pending_.empty() ? 0 : pending_.front()->number;
  };
  while (!closing_) {
    const uint64_t front = next();
    const bool overdue = front != 0 && front == seen;
    if (front != 0 && !running_ && (hurry_ || overdue)) {
      run_next(lock, true, nullptr);
      // What waits behind a collective that nobody came for is likely to be the same.
      seen = next();
      hurry_ = has_work();
      looks = 0;
      continue;
    }
    hurry_ = false;
    seen = front;
    looks = submitted_ == newest && front == 0 ? looks + 1 : 0;
    newest = submitted_;
    if (looks < kLooks) {
      wake_.wait_for(lock, kLook);
    } else {
      asleep_ = true;
      wake_.wait(lock, [&] { return closing_ || has_work(); });
      asleep_ = false;
      looks = 0;
    }
  }
}

}  // namespace lockstep::comm
