// Checkpoints and files of tensors on emulated CUDA devices: what is saved on one device loads on
// any other, with the same bits.
#include "lockstep/nn/checkpoint.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "../nn/checkpoint_files.h"
#include "lockstep/kernels/stream.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/ema.h"
#include "lockstep/nn/fingerprint.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/numpy.h"
#include "lockstep/nn/optim.h"
#include "lockstep/nn/safetensors.h"
#include "lockstep/nn/sequential.h"
#include "lockstep/nn/sharded_optimizer.h"
#include "ranks_on_devices.h"

namespace lockstep::nn {
namespace {

using testing::TemporaryDirectory;

// A model, its optimiser, an average and tensors of the program's own, on some device.
struct Training {
  explicit Training(Device where, int salt)
      : device(where),
        net(std::make_shared<Sequential>(std::make_shared<Linear>(13, 7),
                                         std::make_shared<BatchNorm1d>(7))),
        own(wave({3, 5}, salt, {DType::kBF16, where})),
        views({{"row", own.select(0, 1)}, {"columns", own.transpose(0, 1)}}) {
    for (Tensor& parameter : net->parameters()) {
      NoGrad no_grad;
      parameter.copy_(wave(parameter.shape(), salt++));
    }
    net->to(device);
    optimizer = std::make_unique<AdamW>(net->named_parameters(), AdamWOptions{.eps = 1e-2});
    average = std::make_unique<ExponentialMovingAverage>(*net, 0.9);
    state.add("model", *net);
    state.add("optimizer", *optimizer);
    state.add("average", *average);
    state.add("own", own);
    state.add("views", views);
  }

  void step(int number) {
    optimizer->zero_grad();
    loss_of((*net)(wave({4, 13}, number, {DType::kF32, device}))).backward();
    optimizer->step();
    average->update();
  }

  NamedTensors all() const {
    NamedTensors out = state_dict(*net);
    for (const NamedTensors& more : {optimizer->named_state(), average->named_state(), views}) {
      out.insert(out.end(), more.begin(), more.end());
    }
    out.emplace_back("own", own);
    return out;
  }

  Device device;
  std::shared_ptr<Sequential> net;
  Tensor own;
  NamedTensors views;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<ExponentialMovingAverage> average;
  TrainingState state;
};

void expect_on(const Training& training, Device device) {
  for (const Tensor& parameter : training.net->parameters()) {
    EXPECT_EQ(parameter.device(), device);
  }
  for (const auto& [name, state] : training.optimizer->named_state()) {
    EXPECT_EQ(state.device(), is_floating(state.dtype()) ? device : kCpu) << name;
  }
  EXPECT_EQ(training.own.device(), device);
}

TEST(CudaCheckpoints, LoadOnAnyDeviceAndGoOn) {
  const Device devices[] = {kCpu, kFirst, kSecond};
  for (size_t seed = 1; seed <= kSchedules; ++seed) {
    const Device from = devices[seed % 3], to = devices[seed / 3 % 3];
    SCOPED_TRACE(from.name() + " to " + to.name());
    simt::seed(seed);
    TemporaryDirectory folder;
    Training saved(from, 1);
    saved.step(1);
    saved.step(2);
    save_checkpoint(folder.path(), 2, saved.state, {.sync_files = false});
    const uint64_t want = fingerprint(saved.all());
    Training loaded(to, 50);
    loaded.step(3);
    ASSERT_TRUE(load_latest(folder.path(), loaded.state).has_value());
    EXPECT_EQ(fingerprint(loaded.all()), want);
    expect_on(loaded, to);
    // They share elements as before.
    EXPECT_TRUE(loaded.views[0].second.shares_storage(loaded.own));
    saved.step(4);
    loaded.step(4);
    Numbers a, b;
    for (const auto& [name, tensor] : saved.all()) append(a, tensor);
    for (const auto& [name, tensor] : loaded.all()) append(b, tensor);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-5 * (1 + std::abs(a[i])));
  }
  EXPECT_EQ(simt::take_report(), "");
}

// Training goes on at once, and the host waits for no copy before it does.
TEST(CudaCheckpoints, AnAsynchronousSaveHoldsTheValuesOfItsCall) {
  for (int seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    TemporaryDirectory folder;
    Training training(kFirst, 1);
    AsyncCheckpointer saver(folder.path(), {.sync_files = false});
    std::vector<uint64_t> want;
    for (int step = 1; step <= 2; ++step) {
      // On the program's own stream.
      const Stream side = Stream::create(kFirst);
      side.wait(current_stream(kFirst).record());
      {
        const StreamGuard guard(side);
        training.step(step);
        saver.save(step, training.state);
        NoGrad no_grad;
        NamedTensors kept;
        for (const auto& [name, tensor] : training.all()) kept.emplace_back(name, tensor.clone());
        for (Tensor& parameter : training.net->parameters()) parameter.fill_(-7);
        training.own.fill_(-7);
        want.push_back(fingerprint(kept));
        training.own.copy_(wave({3, 5}, 1 + step));
      }
      current_stream(kFirst).wait(side.record());
      Stream(kFirst).synchronize();
    }
    saver.wait();
    for (int step = 1; step <= 2; ++step) {
      Training loaded(kCpu, 90);
      loaded.step(9);
      load_checkpoint(folder.path() / ("step-0000000" + std::to_string(step)), loaded.state);
      EXPECT_EQ(fingerprint(loaded.all()), want[static_cast<size_t>(step - 1)]);
    }
  }
  EXPECT_EQ(simt::take_report(), "");
}

TEST(CudaCheckpoints, FingerprintsAreOfValuesAlone) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI64, DType::kBool}) {
    const Tensor here = wave({7, 9}, 3).to(dtype);
    const Tensor there = here.to(kFirst);
    EXPECT_EQ(fingerprint(there), fingerprint(here));
    EXPECT_EQ(fingerprint(there.transpose(0, 1)), fingerprint(here.transpose(0, 1)));
    EXPECT_EQ(fingerprint(there.narrow(1, 2, 3)), fingerprint(here.narrow(1, 2, 3)));
  }
  EXPECT_EQ(fingerprint(Tensor::empty({0}, {DType::kF32, kFirst})),
            fingerprint(Tensor::empty({0})));
}

TEST(CudaCheckpoints, OtherFilesHoldWhatADeviceHas) {
  TemporaryDirectory folder;
  const Tensor here = wave({5, 7}, 1);
  const NamedTensors there = {{"a", here.to(kFirst)},
                              {"b", here.to(kSecond).transpose(0, 1)},
                              {"c", wave({3}, 2, {DType::kF16, kFirst})},
                              {"none", Tensor::empty({0, 3}, {DType::kF32, kFirst})}};
  save_safetensors(folder / "x.safetensors", there);
  save_npz(folder / "x.npz", there);
  save_npz(folder / "y.npz", there, true);
  save_npy(folder / "x.npy", there[1].second);
  EXPECT_EQ(fingerprint(load_npy(folder / "x.npy")), fingerprint(there[1].second));
  for (NamedTensors loaded : {load_safetensors(folder / "x.safetensors"),
                              load_npz(folder / "x.npz"), load_npz(folder / "y.npz")}) {
    ASSERT_EQ(loaded.size(), there.size());
    std::sort(loaded.begin(), loaded.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 0; i < there.size(); ++i) {
      EXPECT_EQ(loaded[i].first, there[i].first);
      EXPECT_EQ(loaded[i].second.shape(), there[i].second.shape());
      EXPECT_EQ(fingerprint(loaded[i].second), fingerprint(there[i].second));
    }
  }
  Linear from(5, 7), to(5, 7);
  to.to(kFirst);
  load_state_dict(to, state_dict(from));
  EXPECT_EQ(fingerprint(state_dict(to)), fingerprint(state_dict(from)));
  EXPECT_EQ(to.weight.device(), kFirst);
}

class CudaGroupCheckpoints : public ::testing::TestWithParam<Ranks> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CudaGroupCheckpoints, ::testing::ValuesIn(kAllRanks), ranks_name);

// A model, an optimiser's state and a tensor that is large enough to be cut in shards.
NamedTensors contents(const Module& module, const Optimizer& optimizer, const Tensor& big) {
  NamedTensors all = state_dict(module);
  for (auto& entry : optimizer.named_state()) all.push_back(std::move(entry));
  all.emplace_back("big", big);
  return all;
}

Tensor big_tensor(int64_t first, Device device) {
  constexpr int64_t kBytes = 1501 * 2111;
  return (Tensor::arange(kBytes) + static_cast<double>(first))
      .to(DType::kU8)
      .reshape({1501, 2111})
      .to(device);
}

// In one file or a file a rank, with an optimiser that is shared out; loaded by other ranks and on
// other devices, by the optimiser alone.
TEST_P(CudaGroupCheckpoints, LoadAtAnotherWorldSizeOnAnotherDevice) {
  for (const bool sharded : {false, true}) {
    TemporaryDirectory folder;
    std::vector<uint64_t> saved(GetParam().devices.size());
    run(GetParam(), [&](const Group& group, Device device) {
      const auto net = std::make_shared<Linear>(13, 7);
      net->to(device);
      DataParallel model(net, group);
      ShardedOptimizer optimizer(std::make_unique<AdamW>(net->named_parameters()), model);
      for (int step = 0; step < 2; ++step) {
        const Tensor x = wave({2, 13}, 2 + group->rank() + step, {DType::kF32, device});
        loss_of(model(x)).backward();
        optimizer.step();
      }
      Tensor big = big_tensor(3, device);
      TrainingState state;
      state.add("model", model);
      state.add("optimizer", optimizer);
      state.add("big", big);
      save_checkpoint(folder.path(), 1, state,
                      {.group = group.get(), .sharded = sharded, .sync_files = false});
      saved[static_cast<size_t>(group->rank())] = fingerprint(contents(*net, optimizer, big));
      return Numbers();
    });
    for (const Device device : {kCpu, kSecond}) {
      Linear net(13, 7);
      net.to(device);
      AdamW optimizer(net.named_parameters());
      Tensor big = big_tensor(0, device);
      TrainingState state;
      state.add("model", net);
      state.add("optimizer", optimizer);
      state.add("big", big);
      load_latest(folder.path(), state);
      for (const uint64_t value : saved) {
        EXPECT_EQ(fingerprint(contents(net, optimizer, big)), value);
      }
      EXPECT_EQ(big.device(), device);
    }
    run(GetParam(), [&](const Group& group, Device device) {
      const auto net = std::make_shared<Linear>(13, 7);
      net->to(device);
      ShardedOptimizer optimizer(std::make_unique<AdamW>(net->named_parameters()), group);
      Tensor big = big_tensor(0, device);
      TrainingState state;
      state.add("model", *net);
      state.add("optimizer", optimizer);
      state.add("big", big);
      load_latest(folder.path(), state, {.group = group.get()});
      EXPECT_EQ(fingerprint(contents(*net, optimizer, big)), saved[0]);
      EXPECT_EQ(net->weight.device(), device);
      return Numbers();
    });
  }
}

}  // namespace
}  // namespace lockstep::nn
