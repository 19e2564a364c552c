#include "lockstep/nn/checkpoint/sharing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint_files.h"
#include "checkpoint_model.h"
#include "lockstep/core/ops/shape_ops.h"

namespace lockstep::nn {
namespace {

using testing::bytes_of;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::pattern_tensor;
using testing::TemporaryDirectory;

std::vector<std::string> names_of(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

// "view: of start", for each.
std::vector<std::string> views_of(const SharedLayout& layout) {
  std::vector<std::string> views;
  for (const StoredView& view : layout.views) {
    views.push_back(view.name + ": " + view.of + " " + std::to_string(view.start));
  }
  return views;
}

TEST(CheckpointSharing, TensorsWithElementsOfTheirOwnAreStoredByThemselves) {
  const Tensor base = pattern_tensor({6, 5}, 1);
  const SharedLayout layout = lay_out_shared({{"left", base.narrow(1, 0, 2)},
                                              {"right", base.narrow(1, 2, 3)},
                                              {"other", pattern_tensor({3}, 2)},
                                              {"none", base.narrow(0, 2, 0)}});
  // Their extents overlap, their elements do not.
  EXPECT_THAT(names_of(layout.stored), ElementsAre("left", "right", "other", "none"));
  EXPECT_THAT(layout.views, IsEmpty());
}

TEST(CheckpointSharing, OneThatCoversTheOthersIsStoredForAll) {
  const Tensor base = pattern_tensor({4, 3}, 1);
  const SharedLayout layout = lay_out_shared({{"row", base.select(0, 2)},
                                              {"base", base},
                                              {"transposed", base.t()},
                                              {"again", base.reshape({4, 3})}});
  EXPECT_THAT(names_of(layout.stored), ElementsAre("base"));
  EXPECT_THAT(views_of(layout), ElementsAre("row: base 6", "transposed: base 0", "again: base 0"));
}

TEST(CheckpointSharing, WhereNoneCoversTheOthersTheirMemoryIsStored) {
  const Tensor base = pattern_tensor({20}, 1);
  const SharedLayout layout = lay_out_shared(
      {{"a", base.narrow(0, 2, 6)}, {"b", base.narrow(0, 5, 6)}, {"c", base.narrow(0, 11, 2)}});
  EXPECT_THAT(names_of(layout.stored), ElementsAre("/storage0", "c"));
  EXPECT_THAT(views_of(layout), ElementsAre("a: /storage0 0", "b: /storage0 3"));
  EXPECT_EQ(bytes_of(layout.stored[0].second), bytes_of(base.narrow(0, 2, 9)));
}

TEST(CheckpointSharing, TwinsOfAViewAreStoredWithTheirOwnElementsOnly) {
  const Tensor base = pattern_tensor({400, 300}, 1);
  const Tensor column = base.select(1, 7);
  const SharedLayout layout = lay_out_shared({{"a", column}, {"b", base.select(1, 7)}});
  EXPECT_THAT(names_of(layout.stored), ElementsAre("a"));
  EXPECT_THAT(views_of(layout), ElementsAre("b: a 0"));
  EXPECT_THAT(layout.views[0].strides, ElementsAre(1));
}

TEST(CheckpointSharing, WhatWasSharedIsStoredOnceAndSharedAgainAfterLoading) {
  const TemporaryDirectory dir;
  Tensor base = pattern_tensor({1000, 7}, 1);
  Tensor middle = base.narrow(0, 100, 33).t();
  Tensor same = base;
  Tensor apart = pattern_tensor({5}, 9);
  TrainingState state;
  state.add("base", base);
  state.add("middle", middle);
  state.add("same", same);
  state.add("apart", apart);
  save_checkpoint(dir.path(), 1, state);
  const auto path = dir / "step-00000001";
  EXPECT_LT(std::filesystem::file_size(path / "data-00000.lsck"), 28000u + 4096u);

  // Into a program that shares them, and into one that does not.
  const std::string middle_bytes = bytes_of(middle);
  const std::string base_bytes = bytes_of(base);
  base.fill_(0);
  load_checkpoint(path, state);
  EXPECT_EQ(bytes_of(base), base_bytes);
  EXPECT_EQ(bytes_of(middle), middle_bytes);
  Tensor undefined[4];
  TrainingState fresh;
  fresh.add("base", undefined[0]);
  fresh.add("middle", undefined[1]);
  fresh.add("same", undefined[2]);
  fresh.add("apart", undefined[3]);
  for (const bool mmap : {false, true}) {
    for (Tensor& tensor : undefined) tensor = Tensor();
    load_checkpoint(path, fresh, {.mmap = mmap});
    EXPECT_EQ(bytes_of(undefined[0]), base_bytes);
    EXPECT_EQ(bytes_of(undefined[1]), middle_bytes);
    EXPECT_EQ(bytes_of(undefined[2]), base_bytes);
    EXPECT_TRUE(undefined[0].shares_storage(undefined[1]));
    EXPECT_FALSE(undefined[0].shares_storage(undefined[3]));
    undefined[2].fill_(3);
    EXPECT_EQ(undefined[1].contiguous().data<float>()[32], 3);
  }
  load_checkpoint(path, state);  // the file was not written to
  EXPECT_EQ(bytes_of(base), base_bytes);
}

TEST(CheckpointSharing, TiedWeightsLoadIntoAProgramThatDoesNotTieThem) {
  const TemporaryDirectory dir;
  Tensor weight = pattern_tensor({3, 3}, 1);
  Tensor tied = weight.t();
  TrainingState state;
  state.add("embedding", weight);
  state.add("head", tied);
  save_checkpoint(dir.path(), 1, state);
  Tensor plain = pattern_tensor({3, 3}, 5);
  Tensor plain_head = pattern_tensor({3, 3}, 6);
  TrainingState untied;
  untied.add("embedding", plain);
  untied.add("head", plain_head);
  load_latest(dir.path(), untied);
  EXPECT_EQ(bytes_of(plain), bytes_of(weight));
  EXPECT_EQ(bytes_of(plain_head), bytes_of(tied));
}

}  // namespace
}  // namespace lockstep::nn
