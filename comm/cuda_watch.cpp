#include "lockstep/comm/cuda_watch.h"

#include <utility>

#include "lockstep/comm/log.h"
#include "lockstep/comm/text.h"

namespace lockstep::comm {
namespace {

constexpr std::chrono::milliseconds kLook{20};
// Somebody waits.
constexpr std::chrono::milliseconds kDrainLook{1};

}  // namespace

CudaWatch::CudaWatch(int rank, std::chrono::milliseconds timeout,
                     std::function<std::string()> find_loss, std::function<void()> let_go)
    : rank_(rank),
      timeout_(timeout),
      find_loss_(std::move(find_loss)),
      let_go_(std::move(let_go)),
      thread_([this] { work(); }) {}

CudaWatch::~CudaWatch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CudaWatch::add(std::string_view op, Event completed) {
  const std::lock_guard lock(mutex_);
  watched_.push_back({std::string(op), std::move(completed), deadline_after(timeout_)});
  if (watched_.size() == 1) changed_.notify_all();
}

void CudaWatch::raise_failure() const {
  if (!failed_.load()) return;
  const std::lock_guard lock(mutex_);
  failure_->raise();
}

void CudaWatch::drain() {
  std::unique_lock lock(mutex_);
  while (!failure_) {
    look();
    if (watched_.empty()) return;
    if (!failure_) changed_.wait_for(lock, kDrainLook);
  }
}

void CudaWatch::look() {
  if (!failure_) {
    failure_ = find_failure();
    if (!failure_) return;
    failed_.store(true);
    // Told at once: the stream goes on with what it has, and the next collective may be far off, or
    // never come.
    log_line(rank_,
             concat(failure_->op, " failed on the device, whose results are not to be used: ",
                    failure_->message));
    changed_.notify_all();
  }
  let_go_();
  try {
    forget_completed();
  } catch (...) {
    watched_.clear();  // the device has failed too: nothing waits on it any more
  }
}

void CudaWatch::forget_completed() {
  while (!watched_.empty() && watched_.front().completed.done()) watched_.pop_front();
}

std::optional<Failure> CudaWatch::find_failure() {
  if (watched_.empty()) return std::nullopt;
  // Before anything counts as completed: another rank that saw it may have let its stream go.
  const std::string loss = find_loss_();
  if (!loss.empty()) return Failure{ErrorCode::kPeerLost, watched_.front().op, loss};
  try {
    forget_completed();
  } catch (...) {
    return Failure::current(watched_.front().op);
  }
  if (watched_.empty() || Clock::now() < watched_.front().deadline) return std::nullopt;
  return Failure{ErrorCode::kTimeout, watched_.front().op,
                 concat("rank ", rank_, " waited ", seconds_text(timeout_),
                        " for the devices of the other ranks, or for its own; Options::timeout or "
                        "LOCKSTEP_TIMEOUT makes it wait longer")};
}

void CudaWatch::work() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (watched_.empty()) {
      changed_.wait(lock, [&] { return ending_ || !watched_.empty(); });
      continue;
    }
    look();
    if (!watched_.empty()) changed_.wait_for(lock, kLook);
  }
}

}  // namespace lockstep::comm
