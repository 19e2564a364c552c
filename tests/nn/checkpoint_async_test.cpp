#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <mutex>

#include "../errors.h"
#include "checkpoint_files.h"
#include "checkpoint_model.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/kernels/error.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/checkpoint/disk.h"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;
using comm::Communicator;
using comm::run_ranks;
using testing::bytes_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::names_in;
using testing::Net;
using testing::TemporaryDirectory;

// Stops at a save's first change until it is let go, and may then fail.
class GatedDisk : public Disk {
 public:
  void before(std::string_view, const fs::path&) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
    if (fails_) throw Error(ErrorCode::kIo, "save_checkpoint", "injected fault");
  }
  void set(bool open, bool fails) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    fails_ = fails;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  bool fails_ = false;
};

struct Training {
  explicit Training(int seed) : net(seed) {
    state.add("model", net);
    state.add("epoch", epoch);
  }
  Net net;
  int64_t epoch = 3;
  TrainingState state;
};

class CheckpointAsync : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, CheckpointAsync, ::testing::Values(1, 2, 3),
                         ::testing::PrintToStringParamName());

TEST_P(CheckpointAsync, WhatIsSavedIsWhatWasThereAtTheCall) {
  const TemporaryDirectory dir;
  run_ranks(GetParam(), [&](Communicator& group) {
    Training run(1);
    const std::string at_call = bytes_of(state_dict(run.net));
    GatedDisk disk;
    AsyncCheckpointer saver(dir.path(), {.group = &group, .disk = &disk});
    saver.save(5, run.state);
    // It returned though nothing is written yet, and training goes on.
    EXPECT_TRUE(fs::is_empty(dir.path()));
    load_state_dict(run.net, state_dict(Training(2).net));
    run.epoch = 4;
    group.barrier().wait();
    disk.set(true, false);
    saver.wait();
    EXPECT_TRUE(fs::exists(dir / "step-00000005"));
    Training loaded(9);
    load_latest(dir.path(), loaded.state, {.group = &group});
    EXPECT_EQ(bytes_of(state_dict(loaded.net)), at_call);
    EXPECT_EQ(loaded.epoch, 3);
  });
}

TEST_P(CheckpointAsync, AnErrorIsEveryRanksAtTheNextCallAndTheOneAfterIsGood) {
  const TemporaryDirectory dir;
  run_ranks(GetParam(), [&](Communicator& group) {
    Training run(1);
    GatedDisk disk;
    disk.set(true, true);
    AsyncCheckpointer saver(dir.path(), {.group = &group, .disk = &disk});
    saver.save(5, run.state);
    const Error error = error_of([&] { saver.save(6, run.state); });
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.what(), HasSubstr("injected fault"));
    disk.set(true, false);
    saver.save(7, run.state);
    saver.wait();
    saver.wait();
  });
  EXPECT_THAT(names_in(dir.path()), ElementsAre("latest", "step-00000007"));
}

TEST(CheckpointAsyncEnd, TheDestructorWaitsAndTellsWhatNobodyAskedFor) {
  const TemporaryDirectory dir;
  Training run(1);
  { AsyncCheckpointer(dir.path()).save(1, run.state); }
  EXPECT_THAT(names_in(dir.path()), ElementsAre("latest", "step-00000001"));
  std::vector<std::string> warnings;
  GatedDisk disk;
  disk.set(true, true);
  CheckpointOptions options;
  options.disk = &disk;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  { AsyncCheckpointer(dir.path(), options).save(2, run.state); }
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("injected fault")));
}

TEST_P(CheckpointAsync, EachRankWritesItsShareInTheBackground) {
  const int n = GetParam();
  const TemporaryDirectory dir;
  Tensor large = testing::pattern_tensor({1000003}, 1);
  run_ranks(n, [&](Communicator& group) {
    Tensor mine = large.clone();
    Tensor row = mine.narrow(0, 5, 7);
    TrainingState state;
    state.add("row", row);
    state.add("large", mine);
    AsyncCheckpointer saver(dir.path(), {.group = &group, .sharded = true});
    saver.save(1, state);
    mine.zero_();
    // Training's own collectives go on beside it.
    for (int i = 0; i < 20; ++i) group.barrier().wait();
    saver.wait();
    load_latest(dir.path(), state, {.group = &group, .every_rank_reads = true});
    EXPECT_EQ(bytes_of(mine), bytes_of(large));
  });
  EXPECT_EQ(names_in(dir / "step-00000001").size(), static_cast<size_t>(n) + 1);
}

TEST(CheckpointAsyncEnd, OneThatDisagreesIsToldAtTheCall) {
  const TemporaryDirectory dir;
  run_ranks(2, [&](Communicator& group) {
    Training run(1);
    AsyncCheckpointer saver(dir.path(), {.group = &group});
    EXPECT_THAT(error_of([&] { saver.save(1 + group.rank(), run.state); }).what(),
                HasSubstr("rank 1 saves step 2, rank 0 step 1"));
    saver.wait();
  });
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

}  // namespace
}  // namespace lockstep::nn
