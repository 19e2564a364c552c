#include <cstdio>
#include <utility>

#include "lockstep/kernels/error.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/checkpoint/save.h"
#include "lockstep/nn/checkpoint/together.h"

namespace lockstep::nn {

AsyncCheckpointer::AsyncCheckpointer(std::filesystem::path folder, CheckpointOptions options)
    : folder_(std::move(folder)), options_(std::move(options)) {
  if (size_of_group(options_.group) > 1) background_ = options_.group->duplicate();
}

AsyncCheckpointer::~AsyncCheckpointer() {
  join();
  if (error_ == nullptr) return;
  try {
    std::rethrow_exception(error_);
  } catch (const std::exception& error) {
    // Nobody called wait(): this is the last chance to say it.
    if (options_.warn) {
      options_.warn(error.what());
    } else {
      std::fprintf(stderr, "lockstep: warning: %s\n", error.what());
    }
  }
}

void AsyncCheckpointer::save(int64_t step, const TrainingState& state) {
  wait();
  auto job = std::make_unique<SaveJob>(prepare_save(folder_, step, state, options_));
  together(options_.group, "save_checkpoint", [&] { job->copy_tensors(options_.group); });
  job_ = std::move(job);
  thread_ = std::thread([this] {
    try {
      job_->run(background_.get());
    } catch (...) {
      error_ = std::current_exception();
    }
  });
}

void AsyncCheckpointer::join() {
  if (thread_.joinable()) thread_.join();
  job_.reset();
}

void AsyncCheckpointer::wait() {
  join();
  // The same on every rank: a save is collective to its end.
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace lockstep::nn
