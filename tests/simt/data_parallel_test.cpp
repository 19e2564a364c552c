// DataParallel on emulated CUDA devices against the same ranks on the CPU, under random schedules.
#include "lockstep/nn/data_parallel.h"

#include <gmock/gmock.h>

#include "../errors.h"
#include "gate.h"
#include "lockstep/kernels/stream.h"
#include "lockstep/nn/activation.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/comm_hooks.h"
#include "lockstep/nn/join.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/optim.h"
#include "lockstep/nn/sequential.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "ranks_on_devices.h"

namespace lockstep::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CudaDataParallel : public ::testing::TestWithParam<Ranks> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CudaDataParallel, ::testing::ValuesIn(kAllRanks), ranks_name);

// Several buckets, and blocks of odd sizes.
const ReducerOptions kSmallBuckets = {.first_bucket_bytes = 500, .bucket_bytes = 1500};

// One parameter of each of some dtypes; forward takes those that it is told.
class Scales : public Module {
 public:
  explicit Scales(Device device, const std::vector<DType>& dtypes, int salt = 0) {
    p.reserve(dtypes.size());
    for (size_t i = 0; i < dtypes.size(); ++i) {
      p.push_back(wave({3, 17 + static_cast<int64_t>(i)}, salt, {dtypes[i], device}));
      register_parameter("p" + std::to_string(i), p[i]);
    }
  }
  // A number whose gradient by parameter i is x of that parameter's shape, bit for bit.
  Tensor loss(int salt, const std::vector<size_t>& used) const {
    Tensor out;
    for (const size_t i : used) {
      const Tensor x = wave(p[i].shape(), salt + static_cast<int>(i), p[i].options());
      const Tensor part = sum((p[i] * x).to(DType::kF64));
      out = out.defined() ? out + part : part;
    }
    return out;
  }
  std::vector<Tensor> p;
};

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
  return wave({3 + group->rank() % 2, 13}, 10 * step + group->rank(), {DType::kF32, device});
}

template <class MakeOptimizer>
Numbers train(const Group& group, Device device, const MakeOptimizer& make,
              const std::shared_ptr<CommHook>& hook = nullptr) {
  const auto net = make_net(device);
  DataParallel model(net, group, {.reducer = kSmallBuckets});
  if (hook != nullptr) model.set_comm_hook(hook);
  const auto optimizer = make(*net);
  for (int step = 0; step < 4; ++step) {
    optimizer->zero_grad();
    {
      const auto local = model.no_sync();
      if (step == 2) loss_of(model(input_of(group, 7, device))).backward();
    }
    loss_of(model(input_of(group, step, device))).backward();
    optimizer->step();
  }
  model.check_in_lockstep();
  Numbers out;
  for (const Tensor& parameter : net->parameters()) {
    EXPECT_EQ(parameter.device(), device);
    append(out, parameter);
    append(out, parameter.grad());
  }
  return out;
}

TEST_P(CudaDataParallel, TrainsAsOnTheCpu) {
  expect_as_on_cpu(GetParam(), 1e-5, [](const Group& group, Device device) {
    return train(group, device, [](const Module& net) {
      return std::make_unique<SGD>(net.named_parameters(),
                                   SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
    });
  });
  expect_as_on_cpu(GetParam(), 1e-4, [](const Group& group, Device device) {
    return train(group, device, [](const Module& net) {
      return std::make_unique<AdamW>(net.named_parameters(), AdamWOptions{.lr = 0.01, .eps = 1e-3});
    });
  });
}

// Buckets are for each dtype; the fold is the CPU's, and so are its bits.
TEST_P(CudaDataParallel, AveragesHaveTheBitsOfTheCpus) {
  const std::vector<DType> dtypes = {DType::kF32, DType::kBF16, DType::kF64, DType::kF16,
                                     DType::kF32};
  expect_as_on_cpu(GetParam(), 0, [&](const Group& group, Device device) {
    const auto net = std::make_shared<Scales>(device, dtypes, group->rank());
    DataParallel model(net, group, {.reducer = kSmallBuckets});
    Numbers out;
    for (int step = 0; step < 4; ++step) {
      const auto loss = [&](int salt) {
        return model.call([&] { return net->loss(salt + group->rank(), {0, 1, 2, 3, 4}); });
      };
      if (step == 2) net->zero_grad();
      {
        const auto local = model.no_sync();
        if (step != 1) loss(100 + step).backward();
      }
      loss(200 + step).backward();
      for (const Tensor& p : net->p) append(out, p.grad());
    }
    return out;
  });
}

TEST_P(CudaDataParallel, ParametersThatSomeOrNoRankUsedAreAsOnTheCpu) {
  const std::vector<DType> dtypes(4, DType::kF32);
  expect_as_on_cpu(GetParam(), 0, [&](const Group& group, Device device) {
    const auto net = std::make_shared<Scales>(device, dtypes);
    DataParallel model(net, group, {.reducer = {.first_bucket_bytes = 1, .bucket_bytes = 300}});
    Numbers out;
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      // Rank 0 alone uses 1, and nobody 3; in the last step 1 has what the one before it left.
      const std::vector<size_t> used =
          group->rank() == 0 ? std::vector<size_t>{1, 0, 2} : std::vector<size_t>{2, 0};
      model.call([&] { return net->loss(step + group->rank(), used); }).backward();
      for (const Tensor& p : net->p) {
        out.push_back(p.has_grad() ? 1 : 0);
        if (p.has_grad()) append(out, p.grad());
      }
    }
    EXPECT_FALSE(net->p[3].has_grad());
    return out;
  });
}

// What the graph saved of buffers stays, and values are rank 0's or the average.
TEST_P(CudaDataParallel, BuffersAreBroughtIntoLine) {
  class Net : public Module {
   public:
    explicit Net(int rank)
        : weight(wave({5}, 0)),
          mean(wave({5}, rank)),
          half(wave({3}, rank, {DType::kF16})),
          count(Tensor::full({}, 3 + rank, {DType::kI64})),
          none(Tensor::empty({0})) {
      register_parameter("weight", weight);
      register_buffer("mean", mean);
      register_buffer("half", half);
      register_buffer("count", count);
      register_buffer("none", none);
    }
    Tensor forward(const Tensor& x) override { return x * weight * mean; }
    Tensor weight, mean, half, count, none;
  };
  for (const BufferMode mode : {BufferMode::kBroadcast, BufferMode::kAverage}) {
    expect_as_on_cpu(GetParam(), 0, [&](const Group& group, Device device) {
      const auto net = std::make_shared<Net>(group->rank());
      net->to(device);
      DataParallel model(net, group, {.buffers = mode});
      Numbers out;
      for (int step = 0; step < 2; ++step) {
        const Tensor before = sum(model(wave({5}, step, {DType::kF32, device})));
        {
          NoGrad no_grad;
          net->mean.set_data(wave({5}, 20 + step + group->rank(), net->mean.options()));
          net->half.copy_(wave({3}, 30 + step + group->rank()));
          net->count.fill_(100 + step + group->rank());
        }
        model(wave({5}, step, {DType::kF32, device}));
        before.backward();
        for (const Tensor& buffer : {net->mean, net->half, net->count, net->weight.grad()}) {
          EXPECT_EQ(buffer.device(), device);
          append(out, buffer);
        }
      }
      return out;
    });
  }
}

TEST_P(CudaDataParallel, HooksAverageAsOnTheCpu) {
  const std::pair<const char*, std::function<std::shared_ptr<CommHook>()>> hooks[] = {
      {"cast", [] { return std::make_shared<CastHook>(DType::kBF16); }},
      {"quant", [] { return std::make_shared<BlockQuantHook>(32); }},
      {"top-k", [] { return std::make_shared<TopKHook>(0.2); }},
      {"PowerSGD", [] {
         return std::make_shared<PowerSgdHook>(
             PowerSgdOptions{.rank = 2, .start_iteration = 1, .min_compression = 1});
       }}};
  for (const auto& [name, make] : hooks) {
    SCOPED_TRACE(name);
    // A code that rounds to the other side moves a gradient by a step of the code.
    expect_as_on_cpu(
        GetParam(), 2e-3,
        [&, make = make](const Group& group, Device device) {
          return train(
              group, device,
              [](const Module& net) {
                return std::make_unique<SGD>(net.named_parameters(), SGDOptions{.lr = 0.1});
              },
              make());
        },
        kSchedules / 4);
  }
}

// A rank that never has a batch learns the shapes of one, and gets it on its device.
TEST_P(CudaDataParallel, JoinsUnevenInputs) {
  expect_as_on_cpu(GetParam(), 2e-5, [](const Group& group, Device device) {
    auto net = std::make_shared<Sequential>(make_net(kCpu), std::make_shared<BatchNorm1d>(5));
    convert_sync_batchnorm(net, group);
    net->to(device);
    DataParallel model(net, group);
    SGD optimizer(net->named_parameters(), {.lr = 0.1, .momentum = 0.9});
    struct Source {
      int left;
      int rank;
      Device device;
      std::optional<Batch> next() {
        if (left == 0) return std::nullopt;
        --left;
        return Batch{wave({3, 13}, 10 * left + rank, {DType::kF32, device}), Tensor()};
      }
    } source{group->rank() == 1 ? 0 : 3 - group->rank() % 2, group->rank(), device};
    Join join(model);
    Batch batch;
    while (join.next(source, batch)) {
      EXPECT_EQ(batch.input.device(), device);
      optimizer.zero_grad();
      const Tensor loss = loss_of(model(batch.input));
      join.mean_over_samples(loss).backward();
      optimizer.step();
    }
    EXPECT_EQ(join.steps(), 3);
    model.check_in_lockstep();
    Numbers out;
    for (const Tensor& parameter : net->parameters()) append(out, parameter);
    for (const auto& [name, buffer] : net->named_buffers()) append(out, buffer);
    return out;
  });
}

// Backward through what backward computed, whose averages are recorded.
TEST_P(CudaDataParallel, SecondDerivativesAreAsOnTheCpu) {
  expect_as_on_cpu(GetParam(), 1e-5, [](const Group& group, Device device) {
    const auto net = make_net(device);
    DataParallel model(net, group, {.reducer = kSmallBuckets});
    Numbers out;
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      loss_of(model(input_of(group, step, device))).backward({}, {.create_graph = true});
      Tensor norm;
      for (const Tensor& parameter : net->parameters()) {
        const Tensor part = sum(square(parameter.grad()));
        norm = norm.defined() ? norm + part : part;
      }
      net->zero_grad();
      norm.backward();
      for (const Tensor& parameter : net->parameters()) append(out, parameter.grad());
    }
    net->zero_grad();
    return out;
  });
}

// A whole step is put on the device while that stands still.
TEST(CudaDataParallelOrder, AStepWaitsForNoDevice) {
  for (int k = 0; k < kSchedules; ++k) {
    run({{kFirst, kSecond}}, [&](const Group& group, Device device) {
      auto net = std::make_shared<Sequential>(make_net(kCpu), std::make_shared<BatchNorm1d>(5));
      convert_sync_batchnorm(net, group);
      net->to(device);
      DataParallel model(net, group);
      AdamW optimizer(net->named_parameters());
      const Tensor x = input_of(group, 1, device);
      const Tensor weights = wave({x.size(0), 5}, 3, {DType::kF32, device});
      // Before all is held up: buckets get their last layout after a backward, and CUDA waits for a
      // device when a kernel is launched on it for the first time, or a page is registered.
      for (int step = 0; step < 2; ++step) {
        sum(model(x) * weights).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      const Gate gate(device);
      group->barrier().wait();
      gate.hold(current_stream(device));
      EXPECT_TRUE(comes_through_while_held(gate, [&] {
        sum(model(x) * weights).backward();
        optimizer.step();
      }));
      current_stream(device).synchronize();
      return Numbers();
    });
  }
}

TEST(CudaDataParallelMisuse, NamesWhatIsOnAnotherDevice) {
  LOCKSTEP_WANT_DEVICES(2);
  run({{kFirst, kFirst}}, [](const Group& group, Device) {
    const std::string text = message_of(ErrorCode::kInvalidArgument,
                                        [&] { DataParallel model(make_net(kSecond), group); });
    EXPECT_THAT(text, AllOf(HasSubstr("'0.weight'"), HasSubstr("cuda:1"), HasSubstr("cuda:0")));
    return Numbers();
  });
}

TEST(CudaDataParallelMisuse, NamesWhatIsOnADeviceThatTheGroupHasNot) {
  run({{kCpu, kCpu}}, [](const Group& group, Device) {
    const std::string text = message_of(ErrorCode::kInvalidArgument,
                                        [&] { DataParallel model(make_net(kFirst), group); });
    EXPECT_THAT(text, AllOf(HasSubstr("'0.weight'"), HasSubstr("Options::device")));
    return Numbers();
  });
}

TEST(CudaDataParallelMisuse, NamesAParameterThatWasMoved) {
  run({{kFirst, kFirst}}, [](const Group& group, Device device) {
    const auto net = make_net(device);
    DataParallel model(net, group);
    net->to(kCpu);
    EXPECT_THAT(message_of(ErrorCode::kInvalidArgument,
                           [&] {
                             model(wave({2, 13}, 1));
                           }),
                AllOf(HasSubstr("'0.weight'"), HasSubstr("moved")));
    return Numbers();
  });
}

}  // namespace
}  // namespace lockstep::nn
