// What stands around a model in training, on emulated CUDA devices: shared-out optimisers,
// clipping, scalers, averages, modules that move, and pinned batches.
#include <gmock/gmock.h>

#include <limits>

#include "../errors.h"
#include "gate.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/transfer.h"
#include "lockstep/nn/activation.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/data/data_loader.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/ema.h"
#include "lockstep/nn/fingerprint.h"
#include "lockstep/nn/grad_scaler.h"
#include "lockstep/nn/init.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/optim.h"
#include "lockstep/nn/sequential.h"
#include "lockstep/nn/sharded_optimizer.h"
#include "ranks_on_devices.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

const DataParallelOptions kSmallBuckets = {
    .reducer = {.first_bucket_bytes = 500, .bucket_bytes = 1500}};

std::shared_ptr<Sequential> make_net(Device device) {
  auto net = std::make_shared<Sequential>(
      std::make_shared<Linear>(13, 37), std::make_shared<Tanh>(), std::make_shared<Linear>(37, 5));
  int salt = 1;
  for (Tensor& parameter : net->parameters()) {
    NoGrad no_grad;
    parameter.copy_(wave(parameter.shape(), salt++) * 0.4);
  }
  net->to(device);
  return net;
}

Tensor input_of(const Group& group, int step, Device device) {
  return wave({3, 13}, 10 * step + group->rank(), {DType::kF32, device});
}

class CudaShards : public ::testing::TestWithParam<Ranks> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CudaShards, ::testing::ValuesIn(kAllRanks), ranks_name);

enum class Rule { kSGD, kAdamW, kLAMB };
enum class Way { kPlain, kSharded, kScattered };

std::unique_ptr<Optimizer> make_optimizer(Rule rule, Way way, DataParallel& model) {
  const NamedTensors parameters = model.module()->named_parameters();
  std::unique_ptr<Optimizer> rules;
  if (rule == Rule::kSGD) {
    rules = std::make_unique<SGD>(parameters, SGDOptions{.lr = 0.1, .momentum = 0.9});
  } else if (rule == Rule::kAdamW) {
    rules = std::make_unique<AdamW>(parameters, AdamWOptions{.lr = 0.01, .eps = 1e-3});
  } else {
    rules = std::make_unique<LAMB>(parameters, LAMBOptions{.lr = 0.01, .eps = 1e-3});
  }
  if (way == Way::kPlain) return rules;
  if (way == Way::kSharded) {
    return std::make_unique<ShardedOptimizer>(std::move(rules), model.group());
  }
  return std::make_unique<ShardedOptimizer>(std::move(rules), model);
}

// All that four steps leave behind.
NamedTensors train(const Group& group, Device device, Rule rule, Way way) {
  const auto net = make_net(device);
  DataParallel model(net, group, kSmallBuckets);
  const auto optimizer = make_optimizer(rule, way, model);
  for (int step = 0; step < 4; ++step) {
    optimizer->zero_grad();
    {
      const auto local = model.no_sync();
      if (step == 2) loss_of(model(input_of(group, 7, device))).backward();
    }
    loss_of(model(input_of(group, step, device))).backward();
    const double norm = way == Way::kPlain
                            ? clip_grad_norm_(net->parameters(), 0.2)
                            : dynamic_cast<ShardedOptimizer&>(*optimizer).clip_grad_norm(0.2);
    EXPECT_GT(norm, 0.2);
    optimizer->step();
  }
  model.check_in_lockstep();
  NamedTensors out;
  for (const auto& [name, parameter] : net->named_parameters()) {
    out.emplace_back(name, parameter.detach());
  }
  for (auto& entry : optimizer->named_state()) out.push_back(std::move(entry));
  return out;
}

TEST_P(CudaShards, TrainAsOnTheCpu) {
  for (const auto& [rule, way] :
       {std::pair(Rule::kSGD, Way::kScattered), std::pair(Rule::kAdamW, Way::kSharded),
        std::pair(Rule::kAdamW, Way::kScattered), std::pair(Rule::kLAMB, Way::kSharded)}) {
    SCOPED_TRACE(static_cast<int>(rule) * 10 + static_cast<int>(way));
    expect_as_on_cpu(
        GetParam(), 1e-4,
        [rule = rule, way = way](const Group& group, Device device) {
          Numbers out;
          for (const auto& [name, tensor] : train(group, device, rule, way)) append(out, tensor);
          return out;
        },
        kSchedules / 4);
  }
}

// Without clipping, whose norm is summed in another order.
TEST_P(CudaShards, HaveTheBitsOfTheOptimiserAlone) {
  for (const Rule rule : {Rule::kSGD, Rule::kAdamW, Rule::kLAMB}) {
    run(GetParam(), [&](const Group& group, Device device) {
      std::vector<uint64_t> found;
      for (const Way way : {Way::kPlain, Way::kSharded, Way::kScattered}) {
        if (rule == Rule::kLAMB && way == Way::kScattered) continue;
        const auto net = make_net(device);
        DataParallel model(net, group, kSmallBuckets);
        const auto optimizer = make_optimizer(rule, way, model);
        for (int step = 0; step < 3; ++step) {
          optimizer->zero_grad();
          loss_of(model(input_of(group, step, device))).backward();
          optimizer->step();
        }
        NamedTensors all = net->named_parameters();
        for (auto& entry : optimizer->named_state()) all.push_back(std::move(entry));
        found.push_back(fingerprint(all));
      }
      for (const uint64_t one : found) EXPECT_EQ(one, found[0]);
      return Numbers();
    });
  }
}

TEST_P(CudaShards, OneRanksOverflowStopsTheStepOfAll) {
  for (const Way way : {Way::kPlain, Way::kSharded, Way::kScattered}) {
    run(GetParam(), [&](const Group& group, Device device) {
      const auto net = make_net(device);
      DataParallel model(net, group, kSmallBuckets);
      const auto optimizer = make_optimizer(Rule::kSGD, way, model);
      GradScaler scaler({.init_scale = 1024});
      for (int step = 0; step < 3; ++step) {
        const uint64_t before = fingerprint(net->named_parameters());
        optimizer->zero_grad();
        const bool overflows = step == 1;
        const bool here = overflows && group->rank() == group->size() - 1;
        const Tensor loss = loss_of(model(input_of(group, step, device)));
        scaler.scale(here ? loss * std::numeric_limits<double>::infinity() : loss).backward();
        EXPECT_EQ(scaler.step(*optimizer), !overflows);
        scaler.update();
        EXPECT_EQ(fingerprint(net->named_parameters()) == before, overflows);
      }
      EXPECT_EQ(scaler.scale(), 512);
      model.check_in_lockstep();
      return Numbers();
    });
  }
}

// Numbers of a run whose module moves from device to device between steps.
Numbers move_and_train(const std::vector<Device>& places) {
  const auto net = std::make_shared<Sequential>(make_net(kCpu), std::make_shared<BatchNorm1d>(5));
  AdamW optimizer(net->named_parameters(), {.lr = 0.01, .eps = 1e-3});
  ExponentialMovingAverage average(*net, 0.9);
  for (size_t step = 0; step < places.size(); ++step) {
    const Device device = places[step];
    const int salt = static_cast<int>(step);
    // With a gradient that was computed elsewhere.
    if (step > 0) loss_of((*net)(wave({4, 13}, salt, {DType::kF32, places[step - 1]}))).backward();
    net->to(device);
    loss_of((*net)(wave({4, 13}, salt + 20, {DType::kF32, device}))).backward();
    EXPECT_EQ(clip_grad_norm_(net->parameters(), 0.5) > 0, true);
    optimizer.step();
    average.update();
    optimizer.zero_grad();
  }
  Numbers out;
  for (const auto& [name, tensor] : average.named_state()) append(out, tensor);
  average.swap();
  for (const auto& [name, tensor] : net->named_parameters()) append(out, tensor);
  for (const auto& [name, tensor] : optimizer.named_state()) append(out, tensor);
  return out;
}

TEST(CudaTraining, AModuleMovesBetweenStepsAndItsOptimiserFollows) {
  const Numbers want = move_and_train({kCpu, kCpu, kCpu, kCpu, kCpu});
  for (int seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    for (const std::vector<Device>& places :
         {std::vector<Device>{kCpu, kFirst, kFirst, kSecond, kCpu},
          std::vector<Device>{kFirst, kFirst, kSecond, kCpu, kSecond}}) {
      const Numbers got = move_and_train(places);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(got[i], want[i], 2e-4 * (1 + std::abs(want[i]))) << i;
      }
    }
  }
  EXPECT_EQ(simt::take_report(), "");
}

TEST(CudaTraining, InitialisersGiveTheCpusNumbers) {
  const auto same = [](const std::function<void(Tensor&)>& initialise) {
    Tensor here = Tensor::empty({7, 5});
    Tensor there = Tensor::empty({7, 5}, {DType::kF32, kFirst});
    initialise(here);
    initialise(there);
    EXPECT_EQ(there.to_vector<float>(), here.to_vector<float>());
  };
  same([](Tensor& x) {
    Generator generator{.seed = 3};
    trunc_normal_(x, 0.1, 2, -1, 1.5, &generator);
  });
  same([](Tensor& x) {
    Generator generator{.seed = 4};
    orthogonal_(x, 1, &generator);
  });
  same([](Tensor& x) {
    Generator generator{.seed = 5};
    uniform_(x, -1, 2, &generator);
  });
}

TEST(CudaTraining, APinnedBatchGoesToADeviceThatIsHeldUp) {
  const auto dataset = std::make_shared<TensorDataset>(wave({4, 3}, 1), Tensor::arange(4));
  DataLoader loader(dataset, std::make_shared<SequentialSampler>(4),
                    {.batch_size = 4, .pin_memory = true});
  const Batch batch = *loader.begin();
  const Gate gate(kFirst);
  gate.hold(current_stream(kFirst));
  Batch there;
  EXPECT_TRUE(comes_through_while_held(gate, [&] { there = batch.to(kFirst); }));
  EXPECT_EQ(there.input.to_vector<float>(), batch.input.to_vector<float>());
  EXPECT_EQ(there.target.to_vector<int64_t>(), batch.target.to_vector<int64_t>());
  EXPECT_EQ(simt::take_report(), "");
}

TEST(CudaTraining, PinnedBatchesGoToADeviceWithoutAWait) {
  Tensor inputs = wave({23, 3, 5}, 1);
  const Tensor targets = Tensor::arange(23);
  const auto dataset = std::make_shared<TensorDataset>(inputs, targets);
  for (int workers : {0, 2}) {
    for (int seed = 1; seed <= kSchedules; ++seed) {
      simt::seed(static_cast<uint64_t>(seed));
      DataLoader loader(dataset, std::make_shared<SequentialSampler>(23),
                        {.batch_size = 4, .workers = workers, .pin_memory = true});
      int64_t first = 0;
      std::vector<Tensor> sums;
      for (Batch& batch : loader) {
        EXPECT_TRUE(is_pinned(batch.input.view().data));
        EXPECT_TRUE(is_pinned(batch.target.view().data));
        const Batch there = batch.to(kFirst);
        batch = Batch();  // before the copy has been made, perhaps
        EXPECT_EQ(there.target.device(), kFirst);
        sums.push_back(sum(there.input, {1, 2}) + there.target.to(DType::kF32));
      }
      for (const Tensor& one : sums) {
        const Tensor want = sum(inputs.narrow(0, first, one.size(0)), {1, 2}) +
                            targets.narrow(0, first, one.size(0)).to(DType::kF32);
        const std::vector<float> got = one.to_vector<float>();
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_NEAR(got[i], want.to_vector<float>()[i], 1e-5 * (1 + std::abs(got[i])));
        }
        first += one.size(0);
      }
      EXPECT_EQ(first, 23);
    }
  }
  EXPECT_EQ(simt::take_report(), "");
}

TEST(CudaTraining, PinnedMemoryIsWhatItSays) {
  const Tensor plain = wave({5, 7}, 1);
  EXPECT_FALSE(is_pinned(plain.view().data));
  const Tensor pinned = pin_memory(plain.transpose(0, 1));
  EXPECT_TRUE(is_pinned(pinned.view().data));
  EXPECT_TRUE(pinned.is_contiguous());
  EXPECT_EQ(pinned.to_vector<float>(), plain.transpose(0, 1).to_vector<float>());
  EXPECT_TRUE(pin_memory(pinned).is_same(pinned));
  EXPECT_EQ(pinned.to(kSecond).to(kCpu).to_vector<float>(), pinned.to_vector<float>());
  EXPECT_THAT(message_of(ErrorCode::kInvalidArgument, [&] { pin_memory(plain.to(kFirst)); }),
              HasSubstr("cuda:0"));
  EXPECT_EQ(pin_memory(Tensor::empty({0, 3})).numel(), 0);
}

// Values go where the tensor is, from wherever they come.
TEST(CudaTraining, CopiesCrossDevices) {
  const Tensor source = wave({5, 7}, 1);
  for (const Device from : {kCpu, kFirst, kSecond}) {
    for (const Device to : {kCpu, kFirst, kSecond}) {
      Tensor target = Tensor::zeros({7, 5}, {DType::kF32, to});
      const uint64_t version = target.version();
      target.copy_(source.transpose(0, 1).to(from));
      EXPECT_EQ(target.to_vector<float>(), source.transpose(0, 1).to_vector<float>());
      EXPECT_EQ(target.version(), version + 1);
      Tensor wide = Tensor::zeros({2, 5, 7}, {DType::kF64, to});
      wide.copy_(source.to(from));
      for (int64_t i : {0, 1}) {
        EXPECT_EQ(wide.select(0, i).to(DType::kF32).to_vector<float>(), source.to_vector<float>());
      }
      wide.select(2, 3).copy_(source.select(1, 0).to(from));
      EXPECT_EQ(wide.select(0, 1).select(1, 3).to(DType::kF32).to_vector<float>(),
                source.select(1, 0).to_vector<float>());
    }
  }
}

TEST(CudaTraining, ADatasetMayLieOnADevice) {
  const Tensor inputs = wave({9, 3}, 1);
  const TensorDataset dataset(inputs.to(kFirst), Tensor::arange(9));
  const Batch batch = dataset.batch(std::vector<int64_t>{7, 0, 7});
  EXPECT_EQ(batch.input.device(), kFirst);
  EXPECT_EQ(batch.input.select(0, 1).to_vector<float>(), inputs.select(0, 0).to_vector<float>());
  EXPECT_EQ(batch.target.to_vector<int64_t>(), (std::vector<int64_t>{7, 0, 7}));
}

}  // namespace
}  // namespace lockstep::nn
