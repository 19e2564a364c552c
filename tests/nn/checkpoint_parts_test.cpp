#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "../errors.h"
#include "checkpoint_files.h"
#include "checkpoint_model.h"
#include "lockstep/kernels/error.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/ema.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/optim.h"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;
using testing::bytes_of;
using ::testing::HasSubstr;
using testing::Net;
using testing::pattern_tensor;
using testing::read_file;
using testing::TemporaryDirectory;
using testing::write_file;

TEST(CheckpointParts, AnythingThatHasItsStateInNumbersIsSavedByName) {
  struct Scaler {
    double scale = 65536;
    double good_steps = 0;
    NamedNumbers named_state() const { return {{"scale", scale}, {"good_steps", good_steps}}; }
    void load_named_state(const NamedNumbers& numbers) {
      scale = numbers[0].second;
      good_steps = numbers[1].second;
    }
  };
  const TemporaryDirectory dir;
  Scaler scaler{1024, 7};
  SequentialSampler sampler(10);
  sampler.set_epoch(3);
  NamedTensors averages = {{"weight", pattern_tensor({3, 5}, 1)}, {"bias", pattern_tensor({7}, 2)}};
  TrainingState state;
  state.add("scaler", scaler);
  state.add("sampler", sampler);
  state.add("ema", averages);
  save_checkpoint(dir.path(), 1, state);
  const std::string saved = bytes_of(averages);
  scaler = {};
  sampler.set_epoch(0);
  for (auto& [name, tensor] : averages) tensor.zero_();
  const LoadReport report = *load_latest(dir.path(), state);
  EXPECT_EQ(scaler.scale, 1024);
  EXPECT_EQ(scaler.good_steps, 7);
  EXPECT_EQ(sampler.epoch(), 3);
  EXPECT_EQ(bytes_of(averages), saved);
  EXPECT_EQ(report.world_size, 1);
  EXPECT_THAT(report.writer, HasSubstr("lockstep "));
  EXPECT_THAT(report.written, HasSubstr("T"));
}

TEST(CheckpointParts, AnEpochOfSamplesGoesOnFromItsMiddleAtAnotherWorldSize) {
  const auto make = [](int world, int rank) {
    return WeightedRandomSampler({1, 2, 3, 4, 5, 6, 7, 8, 9}, 30,
                                 {.seed = 2, .world_size = world, .rank = rank});
  };
  WeightedRandomSampler whole = make(1, 0);
  whole.set_epoch(5);
  const std::vector<int64_t> order = whole.indices();
  const TemporaryDirectory dir;
  WeightedRandomSampler before = make(2, 1);
  before.set_epoch(5);
  for (int i = 0; i < 7; ++i) before.next();
  TrainingState saved;
  saved.add("sampler", before);
  save_checkpoint(dir.path(), 1, saved);
  for (const int world : {1, 2, 3, 7}) {
    // What all ranks read is the rest of the order, from the last place that all of them had read.
    for (int rank = 0; rank < world; ++rank) {
      WeightedRandomSampler sampler = make(world, rank);
      TrainingState state;
      state.add("sampler", sampler);
      load_latest(dir.path(), state);
      EXPECT_EQ(sampler.epoch(), 5);
      for (size_t place = static_cast<size_t>(14 / world * world + rank); place < order.size();
           place += static_cast<size_t>(world)) {
        EXPECT_EQ(sampler.next(), order[place]) << world << " " << place;
      }
    }
  }
  WeightedRandomSampler small({1, 2}, 6);
  TrainingState state;
  state.add("sampler", small);
  EXPECT_THAT(error_of([&] { load_latest(dir.path(), state); }).what(),
              HasSubstr("sampler: want a place in epochs of 6 samples on each of 1 ranks, got "
                        "place 14 of epoch 5"));
}

TEST(CheckpointParts, AMovingAverageAndAScalerGoOnWhereTheyWere) {
  const TemporaryDirectory dir;
  Net net(1);
  ExponentialMovingAverage average(net, 0.5);
  GradScaler scaler({.init_scale = 256, .growth_interval = 5});
  SGD optimizer(net.named_parameters(), {.lr = 0.1});
  TrainingState state;
  state.add("average", average);
  state.add("scaler", scaler);
  const auto step = [&](int number) {
    net.set_gradients(number);
    scaler.step(optimizer);
    scaler.update();
    average.update();
  };
  for (int i = 0; i < 3; ++i) step(i);
  save_checkpoint(dir.path(), 3, state);
  const std::string parameters = bytes_of(net.named_parameters());
  const std::string saved = bytes_of(average.named_state());
  for (int i = 3; i < 6; ++i) step(i);
  EXPECT_EQ(scaler.scale(), 512);
  EXPECT_EQ(average.updates(), 6);
  EXPECT_NE(bytes_of(average.named_state()), saved);

  load_latest(dir.path(), state);
  EXPECT_EQ(scaler.scale(), 256);
  EXPECT_EQ(average.updates(), 3);
  EXPECT_EQ(bytes_of(average.named_state()), saved);
  for (int i = 3; i < 5; ++i) {
    net.set_gradients(i);
    scaler.step(optimizer);
    scaler.update();
  }
  EXPECT_EQ(scaler.scale(), 512);  // after two more good steps of five

  // Of another model: every name, and nothing changes.
  Net other(2, {3, 6});
  ExponentialMovingAverage wrong(other, 0.5);
  wrong.update();
  const std::string before = bytes_of(wrong.named_state());
  TrainingState wanted;
  wanted.add("average", wrong);
  wanted.add("scaler", scaler);
  EXPECT_THAT(error_of([&] { load_latest(dir.path(), wanted); }).what(),
              HasSubstr("average/weight: want f32 (3, 6), got f32 (3, 5)"));
  EXPECT_EQ(bytes_of(wrong.named_state()), before);
  // Where that is allowed the rest is loaded.
  load_latest(dir.path(), wanted, {.strict = false});
  EXPECT_EQ(wrong.updates(), 3);
}

// Case 27's state: several of everything.
TEST(CheckpointParts, AnyNumberOfModelsAndOptimisersWithGroupsIsARun) {
  struct Pair {
    explicit Pair(int seed) : generator(seed), critic(seed + 10) {
      for (auto [net, optimizer] : {std::pair{&generator, &first}, std::pair{&critic, &second}}) {
        const NamedTensors parameters = net->named_parameters();
        *optimizer = std::make_unique<AdamW>(NamedTensors{parameters[0]}, AdamWOptions{.lr = 0.1});
        (*optimizer)->add_group({parameters[1]}, {.lr = 0.01 * seed, .weight_decay = 0});
      }
      state.add("generator_net", generator);
      state.add("critic", critic);
      state.add("generator_optimizer", *first);
      state.add("critic_optimizer", *second);
    }
    void train() {
      generator.set_gradients(1);
      critic.set_gradients(2);
      first->step();
      second->step();
    }
    std::string bits() const {
      return bytes_of(state_dict(generator)) + bytes_of(state_dict(critic)) +
             bytes_of(first->named_state()) + bytes_of(second->named_state()) +
             std::to_string(second->lr(1));
    }
    Net generator, critic;
    std::unique_ptr<AdamW> first, second;
    TrainingState state;
  };
  const TemporaryDirectory dir;
  Pair saved(1);
  saved.train();
  save_checkpoint(dir.path(), 1, saved.state);
  Pair loaded(2);
  load_latest(dir.path(), loaded.state);
  EXPECT_EQ(loaded.bits(), saved.bits());
  saved.train();
  loaded.train();
  EXPECT_EQ(loaded.bits(), saved.bits());
}

TEST(CheckpointParts, AMappedFileIsReadInPlaceAndVerifiedUnlessToldNot) {
  const TemporaryDirectory dir;
  Net net(1);
  TrainingState state;
  state.add("model", net);
  save_checkpoint(dir.path(), 1, state);
  const fs::path path = dir / "step-00000001";
  const NamedTensors tensors = read_state_dict(path, "model", {.mmap = true});
  EXPECT_EQ(bytes_of(tensors), bytes_of(state_dict(net)));
  EXPECT_TRUE(tensors[0].second.is_contiguous());
  // Theirs to change; the file stays, and they outlive it.
  Tensor first = tensors[0].second;
  first.fill_(7);
  EXPECT_EQ(bytes_of(read_state_dict(path)), bytes_of(state_dict(net)));
  std::string bytes = read_file(path / "data-00000.lsck");
  bytes[256] ^= 1;  // in the first tensor
  write_file(path / "data-00000.lsck", bytes);
  EXPECT_EQ(first.data<float>()[14], 7);
  EXPECT_EQ(bytes_of(tensors[1].second), bytes_of(state_dict(net)[1].second));
  EXPECT_EQ(error_of([&] { read_state_dict(path, "model", {.mmap = true}); }).code(),
            ErrorCode::kCorrupt);
  EXPECT_NE(bytes_of(read_state_dict(path, "model", {.mmap = true, .verify = false})),
            bytes_of(state_dict(net)));
}

}  // namespace
}  // namespace lockstep::nn
