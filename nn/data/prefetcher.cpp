#include "lockstep/nn/data/prefetcher.h"

#include <algorithm>
#include <utility>

namespace lockstep::nn {

Prefetcher::Prefetcher(Make make, int64_t first, int64_t count, int workers, int64_t prefetch)
    : make_(std::move(make)),
      count_(count),
      slots_(static_cast<size_t>(std::clamp<int64_t>(prefetch, 1, std::max<int64_t>(count, 1)))),
      claimed_(first),
      taken_(first) {
  // A thread beyond the slots could never have a batch to make.
  const int64_t useful = std::min<int64_t>(workers, static_cast<int64_t>(slots_.size()));
  try {
    for (int64_t i = 0; i < useful; ++i) workers_.emplace_back([this] { work(); });
  } catch (...) {
    stop();  // the system has no more threads: leave none of the started ones behind
    throw;
  }
}

Prefetcher::~Prefetcher() { stop(); }

void Prefetcher::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  room_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

std::optional<Batch> Prefetcher::take() {
  if (taken_ >= count_) return std::nullopt;
  if (workers_.empty()) return make_(taken_++);
  std::unique_lock lock(mutex_);
  Slot& next = slot(taken_);
  made_.wait(lock, [&] { return next.ready; });
  Slot taken = std::exchange(next, Slot());
  ++taken_;
  lock.unlock();
  room_.notify_one();
  if (taken.error) std::rethrow_exception(taken.error);
  return std::move(taken.batch);
}

void Prefetcher::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    room_.wait(lock, [&] {
      return stopping_ || claimed_ >= count_ ||
             claimed_ - taken_ < static_cast<int64_t>(slots_.size());
    });
    if (stopping_ || claimed_ >= count_) break;
    const int64_t number = claimed_++;
    lock.unlock();
    Slot made;
    try {
      made.batch = make_(number);
    } catch (...) {
      made.error = std::current_exception();
    }
    made.ready = true;
    lock.lock();
    slot(number) = std::move(made);
    made_.notify_one();
  }
  // The one that saw the end may have taken the only call that the others wait for.
  lock.unlock();
  room_.notify_all();
}

}  // namespace lockstep::nn
