#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "checkpoint_files.h"
#include "checkpoint_model.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/kernels/error.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/checkpoint/disk.h"
#include "lockstep/nn/checkpoint/together.h"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;
using comm::Communicator;
using comm::run_ranks;
using ::testing::AllOf;
using testing::bytes_of;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::names_in;
using testing::Net;
using testing::pattern_tensor;
using testing::read_file;
using ::testing::SizeIs;
using testing::TemporaryDirectory;
using ::testing::UnorderedElementsAre;
using testing::write_file;

// What each rank was told; "" where nothing was thrown.
class Verdicts {
 public:
  // Runs `call`, which may throw an Error of `code`.
  template <class F>
  void record(ErrorCode code, const F& call) {
    std::string text;
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      text = error.what();
    }
    const std::lock_guard lock(mutex_);
    texts_.push_back(text);
  }

  // Every rank of `size` was told the same; returns it.
  std::string common(int size) const {
    EXPECT_THAT(texts_, SizeIs(size));
    EXPECT_THAT(texts_, Each(texts_.at(0)));
    return texts_.at(0);
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

// Fails at one kind of step.
class FailingDisk : public Disk {
 public:
  explicit FailingDisk(std::string step) : failing_(std::move(step)) {}
  void before(std::string_view step, const fs::path&) override {
    if (step == failing_) throw Error(ErrorCode::kIo, "save_checkpoint", "injected fault");
  }

 private:
  std::string failing_;
};

class CheckpointGroup : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, CheckpointGroup, ::testing::Values(1, 2, 3),
                         ::testing::PrintToStringParamName());

// Case 21.
TEST_P(CheckpointGroup, AllAreToldToSaveAndOneWrites) {
  const int n = GetParam();
  const TemporaryDirectory dir;
  std::mutex mutex;
  std::map<std::string, int> writers;
  run_ranks(n, [&](Communicator& group) {
    // Each rank has values of its own: rank 0's are those that count.
    Net net(group.rank() + 1);
    int64_t epoch = 10 + group.rank();
    TrainingState state;
    state.add("model", net);
    state.add("epoch", epoch);

    class CountingDisk : public Disk {
     public:
      void before(std::string_view, const fs::path&) override { ++count; }
      int count = 0;
    } disk;
    save_checkpoint(dir.path(), 4, state, {.group = &group, .disk = &disk});
    // It is there when the call returns, on every rank.
    EXPECT_EQ(names_in(dir / "step-00000004"),
              (std::set<std::string>{"data-00000.lsck", "manifest.json"}));
    const std::lock_guard lock(mutex);
    writers[disk.count > 0 ? "writer" : "idle"] += 1;
  });
  EXPECT_EQ(writers["writer"], 1);
  EXPECT_EQ(writers["idle"], n - 1);

  Net loaded(9);
  int64_t epoch = 0;
  TrainingState state;
  state.add("model", loaded);
  state.add("epoch", epoch);
  load_latest(dir.path(), state);
  Net first(1);
  EXPECT_EQ(bytes_of(state_dict(loaded)), bytes_of(state_dict(first)));
  EXPECT_EQ(epoch, 10);
}

TEST_P(CheckpointGroup, EveryRankLoadsTheSame) {
  const int n = GetParam();
  const TemporaryDirectory dir;
  Net saved(5);
  int64_t epoch = 6;
  std::string note = "from one process";
  TrainingState state;
  state.add("model", saved);
  state.add("epoch", epoch);
  state.add("note", note);
  save_checkpoint(dir.path(), 77, state);
  const std::string want = bytes_of(state_dict(saved));
  run_ranks(n, [&](Communicator& group) {
    Net net(100 + group.rank());
    int64_t its_epoch = -1;
    std::string its_note;
    TrainingState mine;
    mine.add("model", net);
    mine.add("epoch", its_epoch);
    mine.add("note", its_note);
    const auto report = load_latest(dir.path(), mine, {.group = &group});
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(report->step, 77);
    EXPECT_EQ(report->path, dir / "step-00000077");
    EXPECT_EQ(bytes_of(state_dict(net)), want);
    EXPECT_EQ(its_epoch, 6);
    EXPECT_EQ(its_note, "from one process");
    // All are the run that they loaded: the next save is one of it.
    save_checkpoint(dir.path(), 78, mine, {.group = &group});
    EXPECT_FALSE(load_latest(dir / "nowhere", mine, {.group = &group}).has_value());
  });
  EXPECT_THAT(names_in(dir.path()),
              UnorderedElementsAre("step-00000077", "step-00000078", "latest"));
}

TEST_P(CheckpointGroup, EachRankHasItsOwnRandomNumbersBack) {
  const int n = GetParam();
  const TemporaryDirectory dir;
  const auto seed_of = [](int rank) { return static_cast<uint64_t>(1000 + rank); };
  const auto offset_of = [](int rank) { return static_cast<uint64_t>(10 + rank); };
  run_ranks(n, [&](Communicator& group) {
    manual_seed(seed_of(group.rank()));
    default_generator().offset = offset_of(group.rank());
    Generator shuffle{7, static_cast<uint64_t>(group.rank())};
    TrainingState state;
    state.add("shuffle", shuffle);
    save_checkpoint(dir.path(), 1, state, {.group = &group});
  });
  // One rank more than was saved: it keeps its seed, and repeats no number that another has drawn.
  run_ranks(n + 1, [&](Communicator& group) {
    const int rank = group.rank();
    manual_seed(rank < n ? 5 : seed_of(rank));
    Generator shuffle{9, 9};
    TrainingState state;
    state.add("shuffle", shuffle);
    load_latest(dir.path(), state, {.group = &group});
    EXPECT_EQ(default_generator().seed, seed_of(rank));
    EXPECT_EQ(default_generator().offset, offset_of(std::min(rank, n - 1)));
    EXPECT_EQ(shuffle.seed, rank < n ? 7u : 9u);
    EXPECT_EQ(shuffle.offset, rank < n ? static_cast<uint64_t>(rank) : 9u);
  });
}

TEST_P(CheckpointGroup, WhatTheWriterCannotWriteIsEveryRanksError) {
  const int n = GetParam();
  for (const char* step : {"mkdir", "open", "write", "fsync", "rename"}) {
    const TemporaryDirectory dir;
    Verdicts verdicts;
    run_ranks(n, [&](Communicator& group) {
      Net net(1);
      TrainingState state;
      state.add("model", net);
      FailingDisk disk(step);
      verdicts.record(ErrorCode::kIo, [&] {
        save_checkpoint(dir.path(), 1, state, {.group = &group, .disk = &disk});
      });
      // The group is as good as before.
      save_checkpoint(dir.path(), 2, state, {.group = &group});
      EXPECT_EQ(load_latest(dir.path(), state, {.group = &group})->step, 2);
    });
    EXPECT_THAT(verdicts.common(n), HasSubstr("injected fault"));
  }
}

TEST_P(CheckpointGroup, WhatTheReaderCannotReadIsEveryRanksErrorAndNothingChanges) {
  const int n = GetParam();
  const TemporaryDirectory dir;
  Net saved(1);
  TrainingState state;
  state.add("model", saved);
  save_checkpoint(dir.path(), 1, state);
  const fs::path data = dir / "step-00000001/data-00000.lsck";
  std::string bytes = read_file(data);
  bytes[300] ^= 4;
  write_file(data, bytes);
  Verdicts verdicts;
  run_ranks(n, [&](Communicator& group) {
    Net net(2 + group.rank());
    const std::string before = bytes_of(state_dict(net));
    TrainingState mine;
    mine.add("model", net);
    verdicts.record(ErrorCode::kCorrupt, [&] { load_latest(dir.path(), mine, {.group = &group}); });
    EXPECT_EQ(bytes_of(state_dict(net)), before);
  });
  EXPECT_THAT(verdicts.common(n), HasSubstr("is damaged"));
}

TEST_P(CheckpointGroup, AStateThatDoesNotFitOnOneRankIsEveryRanksErrorAndNothingChanges) {
  const int n = GetParam();
  const int odd = n - 1;
  const TemporaryDirectory dir;
  Net saved(1);
  TrainingState state;
  state.add("model", saved);
  save_checkpoint(dir.path(), 1, state);
  Verdicts verdicts;
  run_ranks(n, [&](Communicator& group) {
    Net net(2, group.rank() == odd ? Shape{5, 3} : Shape{3, 5});
    const std::string before = bytes_of(state_dict(net));
    TrainingState mine;
    mine.add("model", net);
    verdicts.record(ErrorCode::kMismatch,
                    [&] { load_latest(dir.path(), mine, {.group = &group}); });
    EXPECT_EQ(bytes_of(state_dict(net)), before);
  });
  EXPECT_THAT(verdicts.common(n), HasSubstr("model/weight: want f32 (5, 3), got f32 (3, 5)"));
  EXPECT_THAT(verdicts.common(n), HasSubstr(n > 1 ? "on rank " + std::to_string(odd) : ""));
}

TEST(CheckpointSharing, RanksThatDisagreeAboutASaveAreTold) {
  const int n = 3;
  const TemporaryDirectory dir;
  Verdicts steps;
  Verdicts names;
  Verdicts undefined;
  run_ranks(n, [&](Communicator& group) {
    const bool odd = group.rank() == n - 1;
    Net net(1, odd ? Shape{4} : Shape{3, 5});
    Net same(1);
    Tensor average = odd ? Tensor() : pattern_tensor({2}, 1);
    TrainingState different;
    different.add("model", net);
    TrainingState alike;
    alike.add("model", same);
    TrainingState partly;
    partly.add("average", average);
    steps.record(ErrorCode::kMismatch,
                 [&] { save_checkpoint(dir.path(), odd ? 11 : 10, alike, {.group = &group}); });
    names.record(ErrorCode::kMismatch,
                 [&] { save_checkpoint(dir.path(), 10, different, {.group = &group}); });
    undefined.record(ErrorCode::kInvalidArgument,
                     [&] { save_checkpoint(dir.path(), 10, partly, {.group = &group}); });
  });
  const std::string rank = "rank " + std::to_string(n - 1);
  EXPECT_THAT(steps.common(n), HasSubstr(rank + " saves step 11, rank 0 step 10"));
  EXPECT_THAT(names.common(n), HasSubstr(rank + " saves tensors"));
  EXPECT_THAT(undefined.common(n), AllOf(HasSubstr(rank), HasSubstr("'average' is undefined")));
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

// The second half of case 21.
TEST(CheckpointSharing, AReaderThatComesAtAnyTimeSeesAWholeCheckpoint) {
  const TemporaryDirectory dir;
  constexpr int kSaves = 12;
  std::atomic<bool> done{false};
  std::thread reader([&] {
    Net net(1);
    int64_t step = -1;
    TrainingState state;
    state.add("model", net);
    state.add("step", step);
    int64_t last = -1;
    bool last_round = false;
    while (!last_round) {
      last_round = done;
      const auto report = load_latest(dir.path(), state, {.warn = [](const std::string& text) {
                                        // One that its writer removes while it is read counts as
                                        // damaged; a newer one is there.
                                        EXPECT_THAT(text, HasSubstr("there is no file"));
                                      }});
      if (!report) continue;
      EXPECT_EQ(step, report->step);
      EXPECT_GE(step, last);
      last = step;
      Net want(static_cast<int>(step));
      EXPECT_EQ(bytes_of(state_dict(net)), bytes_of(state_dict(want)));
    }
    EXPECT_EQ(last, kSaves);
  });
  run_ranks(2, [&](Communicator& group) {
    Net net(0);
    int64_t step = 0;
    TrainingState state;
    state.add("model", net);
    state.add("step", step);
    for (step = 1; step <= kSaves; ++step) {
      Net next(static_cast<int>(step));
      load_state_dict(net, state_dict(next));
      save_checkpoint(dir.path(), step, state, {.keep = 2, .group = &group});
    }
  });
  done = true;
  reader.join();
}

TEST(CheckpointSharing, RanksWithoutTheirGroupAreToldThatTheyCollide) {
  const TemporaryDirectory dir;
  Net net(1);
  TrainingState state;
  state.add("model", net);
  const DirectoryLock other(dir.path());
  try {
    save_checkpoint(dir.path(), 1, state);
    FAIL() << "no error came";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("pass their group in CheckpointOptions"));
  }
}

TEST(Together, TheLowestRanksErrorIsEveryRanks) {
  Verdicts verdicts;
  run_ranks(3, [&](Communicator& group) {
    verdicts.record(ErrorCode::kIo, [&] {
      together(&group, "op", [&] {
        if (group.rank() == 1) throw Error(ErrorCode::kIo, "inner", "one");
        if (group.rank() == 2) throw Error(ErrorCode::kCorrupt, "inner", "two");
      });
    });
    together(&group, "op", [] {});
    std::string text = group.rank() == 0 ? "shared" : "";
    share_text(&group, text);
    EXPECT_EQ(text, "shared");
    const auto rank = static_cast<uint64_t>(group.rank());
    EXPECT_THAT(gather_words(&group, {rank, rank * 10}), ElementsAre(0, 0, 1, 10, 2, 20));
  });
  EXPECT_EQ(verdicts.common(3), "[op] on rank 1: one");
}

TEST(Together, BytesAreRankZerosOnceTheyAreShared) {
  run_ranks(3, [](Communicator& group) {
    for (int step = 0; step < 20; ++step) {
      std::vector<int32_t> numbers(65'537);
      if (group.rank() == 0) std::iota(numbers.begin(), numbers.end(), step);
      share_bytes(&group, numbers.data(), numbers.size() * sizeof(int32_t));
      const int32_t last = numbers.back();
      EXPECT_EQ(last, 65'536 + step);
    }
  });
}

TEST(Together, WhatIsNoErrorOfOursBecomesOne) {
  Verdicts verdicts;
  run_ranks(2, [&](Communicator& group) {
    verdicts.record(ErrorCode::kOutOfMemory, [&] {
      together(&group, "op", [&] {
        if (group.rank() == 1) throw std::bad_alloc();
      });
    });
  });
  EXPECT_THAT(verdicts.common(2), HasSubstr("on rank 1: there is not enough memory"));
}

}  // namespace
}  // namespace lockstep::nn
