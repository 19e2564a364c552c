#include "lockstep/nn/checkpoint/merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
using testing::pattern_tensor;
using testing::read_file;
using testing::TemporaryDirectory;
using testing::write_file;

StoredTensor range(const std::string& name, const Shape& shape, uint64_t first, uint64_t count,
                   DType dtype = DType::kF32) {
  StoredTensor stored;
  stored.name = name;
  stored.dtype = dtype;
  stored.shape = shape;
  stored.range = {first, count};
  return stored;
}

StoredView view(const std::string& of, const Shape& shape, const Strides& strides, int64_t start) {
  return {"view", of, shape, strides, start};
}

std::string refusal(const std::vector<Index>& indexes) {
  const Error error = error_of([&] { merge_indexes(indexes, "here"); });
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(error.what(), HasSubstr("here"));
  return error.what();
}

TEST(CheckpointMerge, RangesInAnyOrderMakeATensor) {
  const std::vector<Index> indexes = {{{range("w", {3, 5}, 4, 6), range("b", {2}, 0, 2)}, {}, {}},
                                      {{range("w", {3, 5}, 10, 5)}, {}, {}},
                                      {{range("w", {3, 5}, 0, 4)}, {}, {}}};
  const MergedIndex merged = merge_indexes(indexes, "here");
  ASSERT_EQ(merged.tensors.size(), 2u);
  std::vector<size_t> files;
  for (const auto& piece : merged.tensors[0].pieces) files.push_back(piece.file);
  EXPECT_THAT(files, ElementsAre(2, 0, 1));
}

TEST(CheckpointMerge, WhatDoesNotMakeATensorIsRefusedWithItsReason) {
  const auto two = [](const StoredTensor& a, const StoredTensor& b) {
    return refusal({{{a}, {}, {}}, {{b}, {}, {}}});
  };
  EXPECT_THAT(two(range("w", {10}, 0, 4), range("w", {10}, 5, 5)),
              HasSubstr("'w': its elements from 4 are in none of the files"));
  EXPECT_THAT(two(range("w", {10}, 0, 6), range("w", {10}, 5, 5)),
              HasSubstr("'w': its elements from 5 are there twice"));
  EXPECT_THAT(two(range("w", {10}, 0, 10), range("w", {10}, 0, 10)), HasSubstr("there twice"));
  EXPECT_THAT(two(range("w", {10}, 0, 4), range("w", {10}, 4, 4)),
              HasSubstr("its elements from 8 to 10 are in none of the files"));
  EXPECT_THAT(two(range("w", {10}, 0, 4), range("w", {5, 2}, 4, 6)),
              HasSubstr("'w' is f32 (10) in one file and f32 (5, 2) in another"));
  EXPECT_THAT(two(range("w", {10}, 0, 4), range("w", {10}, 4, 6, DType::kI32)),
              HasSubstr("and i32 (10) in another"));
}

TEST(CheckpointMerge, AViewThatReachesOutOfItsTensorIsRefused) {
  const auto verdict = [](const StoredView& v) {
    return refusal({{{range("w", {4, 5}, 0, 20)}, {v}, {}}});
  };
  const std::string outside = "view 'view' reaches out of 'w', which has 20 elements";
  EXPECT_THAT(verdict(view("w", {4, 5}, {5, 1}, 1)), HasSubstr(outside));
  EXPECT_THAT(verdict(view("w", {2}, {20}, 0)), HasSubstr(outside));
  EXPECT_THAT(verdict(view("w", {}, {}, 20)), HasSubstr(outside));
  EXPECT_THAT(verdict(view("w", {3, 3}, {int64_t{1} << 59, int64_t{1} << 59}, 0)),
              HasSubstr(outside));
  EXPECT_THAT(verdict(view("w", {0}, {1}, 21)), HasSubstr(outside));
  EXPECT_THAT(verdict(view("w", {int64_t{1} << 40}, {0}, 0)), HasSubstr(outside));
  EXPECT_THAT(verdict(view("v", {2}, {1}, 0)), HasSubstr("is of 'v', which is no tensor"));
  EXPECT_EQ(
      merge_indexes(
          std::vector<Index>{{{range("w", {4, 5}, 0, 20)}, {view("w", {5, 4}, {1, 5}, 0)}, {}}},
          "here")
          .views.size(),
      1u);
}

TEST(CheckpointMerge, ANameInTwoFilesIsRefused) {
  const NamedValue value{"epoch", int64_t{1}};
  EXPECT_THAT(refusal({{{}, {}, {value}}, {{}, {}, {value}}}), HasSubstr("'epoch' is there twice"));
  EXPECT_THAT(refusal({{{range("epoch", {1}, 0, 1)}, {}, {}}, {{}, {}, {value}}}),
              HasSubstr("'epoch' is there twice"));
}

// A model that is large enough to be cut, and odd.
struct Large {
  explicit Large(int seed)
      : weight(pattern_tensor({1237, 811}, seed)),  // 4,012,828 bytes
        wide(pattern_tensor({600001}, seed + 1)),
        small(pattern_tensor({13}, seed + 2)),
        none(Tensor::empty({0, 3})),
        flags(Tensor::full({7}, seed % 2, {DType::kBool})) {
    state.add("weight", weight);
    state.add("none", none);
    state.add("small", small);
    state.add("wide", wide);
    state.add("flags", flags);
    state.add("row", row);
    state.add("epoch", epoch);
  }
  std::string bits() const {
    return bytes_of(weight) + bytes_of(wide) + bytes_of(small) + bytes_of(flags) + bytes_of(row) +
           std::to_string(epoch);
  }
  Tensor weight, wide, small, none, flags;
  Tensor row = weight.select(0, 3);  // a view that shares
  int64_t epoch = 5;
  TrainingState state;
};

TEST(CheckpointShards, EveryRankWritesAPartAndAnyNumberOfRanksLoadsIt) {
  for (const int writers : {1, 2, 3, 5}) {
    const TemporaryDirectory dir;
    std::string saved;
    run_ranks(writers, [&](Communicator& group) {
      Large model(1);
      save_checkpoint(dir.path(), 7, model.state, {.group = &group, .sharded = true});
      if (group.rank() == 0) saved = model.bits();
    });
    const fs::path path = dir / "step-00000007";
    EXPECT_EQ(names_in(path).size(), static_cast<size_t>(writers) + 1);
    // No rank writes much more than its share: cuts are at whole mebibytes.
    for (int i = 0; i < writers; ++i) {
      EXPECT_LT(fs::file_size(path / ("data-0000" + std::to_string(i) + ".lsck")),
                6414000u / writers + 2 * (1u << 20));
    }
    for (const int readers : {1, 2, 4}) {
      for (const bool every : {false, true}) {
        run_ranks(readers, [&](Communicator& group) {
          Large model(2 + group.rank());
          model.epoch = 0;
          const LoadReport report =
              *load_latest(dir.path(), model.state,
                           {.group = &group, .every_rank_reads = every, .mmap = readers == 2});
          EXPECT_EQ(report.world_size, writers);
          EXPECT_THAT(report.writer, HasSubstr("lockstep "));
          EXPECT_EQ(model.bits(), saved);
        });
      }
    }
  }
}

TEST(CheckpointShards, OneThatIsMissingOrDamagedIsNamedAndNothingChanges) {
  const TemporaryDirectory dir;
  run_ranks(2, [&](Communicator& group) {
    Large model(1);
    save_checkpoint(dir.path(), 1, model.state, {.group = &group, .sharded = true});
  });
  const fs::path second = dir / "step-00000001/data-00001.lsck";
  const std::string whole = read_file(second);
  Large model(3);
  const std::string before = model.bits();
  const auto message = [&] {
    const Error error = error_of([&] { load_latest(dir.path(), model.state); });
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_EQ(model.bits(), before);
    EXPECT_THAT(error.what(), HasSubstr("data-00001.lsck"));
    return std::string(error.what());
  };
  std::string bytes = whole;
  bytes[5000] ^= 1;
  write_file(second, bytes);
  EXPECT_THAT(message(), HasSubstr("do not match their checksum"));
  write_file(second, whole.substr(0, whole.size() - 1));
  EXPECT_THAT(message(), HasSubstr("cut short"));
  fs::remove(second);
  EXPECT_THAT(message(), HasSubstr("there is no file"));
  write_file(second, whole);
  load_latest(dir.path(), model.state);
}

TEST(CheckpointShards, AFaultOfOneRankIsEveryRanksAndTheOldCheckpointStays) {
  class FailingDisk : public Disk {
   public:
    explicit FailingDisk(std::string step) : step_(std::move(step)) {}
    void before(std::string_view step, const fs::path& path) override {
      if (step == step_ && path.filename() == "data-00001.lsck") {
        throw Error(ErrorCode::kIo, "save_checkpoint", "injected fault");
      }
    }

   private:
    std::string step_;
  };
  for (const char* step : {"open", "write", "fsync"}) {
    const TemporaryDirectory dir;
    run_ranks(3, [&](Communicator& group) {
      Large model(1);
      save_checkpoint(dir.path(), 1, model.state, {.group = &group, .sharded = true});
      FailingDisk disk(step);
      const Error error = error_of([&] {
        save_checkpoint(dir.path(), 2, model.state,
                        {.group = &group, .sharded = true, .disk = &disk});
      });
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      EXPECT_THAT(error.what(), HasSubstr("on rank 1: injected fault"));
    });
    EXPECT_THAT(names_in(dir.path()), ElementsAre("latest", "step-00000001"));
  }
}

TEST(CheckpointShards, ADiskThatTheRanksDoNotShareIsTold) {
  const TemporaryDirectory here;
  const TemporaryDirectory there;
  run_ranks(2, [&](Communicator& group) {
    Large model(1);
    if (group.rank() == 1) fs::create_directory(there / "step-00000001.tmp");
    const Error error = error_of([&] {
      save_checkpoint(group.rank() == 0 ? here.path() : there.path(), 1, model.state,
                      {.group = &group, .sharded = true});
    });
    EXPECT_THAT(error.what(), HasSubstr("a folder that all ranks share"));
  });
  EXPECT_TRUE(fs::is_empty(here.path()));
}

TEST(CheckpointShards, RanksThatReadDifferentFilesAreTold) {
  const TemporaryDirectory one;
  const TemporaryDirectory two;
  Large first(1);
  Large second(2);
  save_checkpoint(one.path(), 1, first.state);
  save_checkpoint(two.path(), 1, second.state);
  run_ranks(2, [&](Communicator& group) {
    Large model(3);
    const std::string before = model.bits();
    const fs::path folder = group.rank() == 0 ? one.path() : two.path();
    const Error error = error_of(
        [&] { load_latest(folder, model.state, {.group = &group, .every_rank_reads = true}); });
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 reads another checkpoint than rank 0"));
    EXPECT_EQ(model.bits(), before);
    // Without it rank 0's files count.
    load_latest(folder, model.state, {.group = &group});
  });
}

// A disk of its own for each rank: what one rank cannot read, none loads.
TEST(CheckpointShards, ADamagedCopyOnOneRankSendsAllToTheOneBefore) {
  const TemporaryDirectory one;
  const TemporaryDirectory two;
  Large model(1);
  save_checkpoint(one.path(), 1, model.state);
  model.epoch = 6;
  save_checkpoint(one.path(), 2, model.state);
  fs::copy(one.path(), two.path(), fs::copy_options::recursive);
  const fs::path data = two / "step-00000002/data-00000.lsck";
  std::string bytes = read_file(data);
  bytes[4096] ^= 1;
  write_file(data, bytes);
  run_ranks(2, [&](Communicator& group) {
    Large mine(3);
    const LoadReport report =
        *load_latest(group.rank() == 0 ? one.path() : two.path(), mine.state,
                     {.group = &group, .every_rank_reads = true, .warn = [](const auto&) {}});
    EXPECT_EQ(report.step, 1);
    EXPECT_EQ(mine.epoch, 5);
    EXPECT_THAT(report.skipped, ElementsAre(HasSubstr("on rank 1")));
  });
}

}  // namespace
}  // namespace lockstep::nn
