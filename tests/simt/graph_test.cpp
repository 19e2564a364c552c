// Steps that are captured in a graph and replayed, on emulated CUDA devices: the bits of steps that
// are run as ever, in every schedule, in memory of the graph's own.
#include "lockstep/kernels/graph.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <thread>

#include "../errors.h"
#include "lockstep/core/random.h"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/philox.h"
#include "lockstep/kernels/transfer.h"
#include "lockstep/nn/activation.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/dropout.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/optim.h"
#include "lockstep/nn/sequential.h"
#include "ranks_on_devices.h"

namespace lockstep::nn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kReplays = 5;
constexpr TensorOptions kOnDevice = {DType::kF32, kFirst};

Stream own() { return current_stream(kFirst); }

class Graphs : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(simt::take_report(), "");
    own().synchronize();
    empty_cache(kFirst);
    EXPECT_EQ(memory_stats(kFirst).cached, 0);  // no graph has kept its memory
  }
};

// An MLP with dropout and batch norm, and one batch of places that stay.
struct Training {
  std::shared_ptr<Sequential> net;
  std::unique_ptr<Optimizer> optimizer;
  Tensor input = Tensor::zeros({7, 13}, kOnDevice);
  Tensor target = Tensor::zeros({7}, {DType::kI64, kFirst});
  Tensor loss = {};

  template <class MakeOptimizer>
  explicit Training(const MakeOptimizer& make)
      : net(std::make_shared<Sequential>(std::make_shared<Linear>(13, 37), std::make_shared<Tanh>(),
                                         std::make_shared<BatchNorm1d>(37),
                                         std::make_shared<Dropout>(0.3),
                                         std::make_shared<Linear>(37, 5))) {
    int salt = 1;
    for (Tensor& parameter : net->parameters()) {
      NoGrad no_grad;
      parameter.copy_(wave(parameter.shape(), salt++) * 0.4);
    }
    net->to(kFirst);
    optimizer = make(net->named_parameters());
    manual_seed(9);
  }

  void take(int batch) {
    NoGrad no_grad;
    input.copy_(wave({7, 13}, batch));
    Tensor classes = Tensor::arange(7);
    for (int64_t i = 0; i < 7; ++i) classes.data<int64_t>()[i] = (3 * i + batch) % 5;
    target.copy_(classes);
  }
  void step() {
    optimizer->zero_grad();
    loss = cross_entropy((*net)(input), target);
    loss.backward();
    optimizer->step();
  }
  Numbers state() const {
    Numbers out;
    append(out, loss);
    for (const auto& [name, tensor] : net->named_parameters()) append(out, tensor);
    for (const auto& [name, tensor] : net->named_buffers()) append(out, tensor);
    for (const auto& [name, tensor] : optimizer->named_state()) append(out, tensor);
    out.push_back(static_cast<double>(default_generator().offset));
    return out;
  }
};

template <class MakeOptimizer>
void expect_the_bits_of_steps(const MakeOptimizer& make) {
  std::vector<Numbers> want;
  {
    Training eager(make);
    eager.take(0);
    eager.step();
    for (int i = 1; i <= kReplays; ++i) {
      if (i == 4) eager.optimizer->set_lr(0.003);
      eager.take(i);
      eager.step();
      want.push_back(eager.state());
    }
  }
  for (int seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    Training training(make);
    training.take(0);
    training.step();
    const Graph graph = Graph::capture(own(), [&] { training.step(); });
    for (int i = 1; i <= kReplays; ++i) {
      if (i == 4) training.optimizer->set_lr(0.003);
      training.take(i);
      graph.replay();
      EXPECT_EQ(training.state(), want[static_cast<size_t>(i - 1)])
          << "replay " << i << ", schedule " << seed;
    }
  }
}

TEST_F(Graphs, ReplaysHaveTheBitsOfStepsWithSgd) {
  expect_the_bits_of_steps([](NamedTensors parameters) {
    return std::make_unique<SGD>(std::move(parameters),
                                 SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
  });
}

TEST_F(Graphs, ReplaysHaveTheBitsOfStepsWithAdamW) {
  expect_the_bits_of_steps([](NamedTensors parameters) {
    return std::make_unique<AdamW>(std::move(parameters), AdamWOptions{.lr = 0.01});
  });
}

TEST_F(Graphs, ReplaysHaveTheBitsOfStepsWithAdagradAndRmsprop) {
  expect_the_bits_of_steps([](NamedTensors parameters) {
    return std::make_unique<Adagrad>(std::move(parameters),
                                     AdagradOptions{.lr = 0.1, .lr_decay = 0.1});
  });
  expect_the_bits_of_steps([](NamedTensors parameters) {
    return std::make_unique<RMSprop>(std::move(parameters),
                                     RMSpropOptions{.lr = 0.01, .momentum = 0.5});
  });
}

// Whose norms take memory that a replay finds again.
TEST_F(Graphs, ReplaysHaveTheBitsOfStepsWithLamb) {
  expect_the_bits_of_steps([](NamedTensors parameters) {
    return std::make_unique<LAMB>(std::move(parameters),
                                  LAMBOptions{.lr = 0.01, .weight_decay = 0.01});
  });
}

// The gradients drop what the result of the same replay dropped. A mask that wants a gradient takes
// another way.
TEST_F(Graphs, AttentionDropsAnewAtEachReplay) {
  for (const bool with_mask : {false, true}) {
    Tensor q = wave({2, 5, 7}, 1).to(kFirst), k = wave({2, 6, 7}, 2).to(kFirst);
    Tensor v = wave({2, 6, 3}, 3).to(kFirst), mask = wave({5, 6}, 4).to(kFirst);
    const std::vector<Tensor*> inputs = {&q, &k, &v, &mask};
    for (Tensor* input : inputs) input->set_requires_grad(input != &mask || with_mask);
    const Tensor factors = wave({2, 5, 3}, 5).to(kFirst);
    Tensor y;
    const auto step = [&] {
      for (Tensor* input : inputs) input->clear_grad();
      y = scaled_dot_product_attention(q, k, v,
                                       {.mask = with_mask ? mask : Tensor(), .dropout_p = 0.4});
      sum(y * factors).backward();
    };
    const auto found = [&] {
      Numbers out;
      append(out, y);
      for (Tensor* input : inputs) {
        if (input->has_grad()) append(out, input->grad());
      }
      return out;
    };
    std::vector<Numbers> want;
    manual_seed(5);
    for (int i = 0; i < kReplays; ++i) {
      step();
      want.push_back(found());
    }
    EXPECT_NE(want[0], want[1]);
    for (int seed = 1; seed <= kSchedules; ++seed) {
      simt::seed(static_cast<uint64_t>(seed));
      for (Tensor* input : inputs) input->clear_grad();
      manual_seed(5);
      const Graph graph = Graph::capture(own(), step);
      for (int i = 0; i < kReplays; ++i) {
        graph.replay();
        EXPECT_EQ(found(), want[static_cast<size_t>(i)]) << "replay " << i << ", schedule " << seed;
      }
    }
  }
}

TEST_F(Graphs, CaptureRunsNothing) {
  Tensor x = wave({3, 5}, 1).to(kFirst);
  const std::vector<float> before = x.to_vector<float>();
  Tensor y;
  const Graph graph = Graph::capture(own(), [&] {
    x.add_(1.0);
    y = x * 2.0;
  });
  EXPECT_EQ(x.to_vector<float>(), before);
  graph.replay();
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(x.to_vector<float>()[i], before[i] + 1);
    EXPECT_EQ(y.to_vector<float>()[i], (before[i] + 1) * 2);
  }
}

// What an op of the graph wrote is there until the next replay, whatever is taken meanwhile.
TEST_F(Graphs, NobodyElseIsGivenAGraphsMemory) {
  for (int seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    const Tensor x = wave({1037}, seed).to(kFirst);
    Tensor y;
    const Graph graph = Graph::capture(own(), [&] {
      Tensor between = x + 1.0;  // given back in the capture
      y = between * 3.0;
    });
    graph.replay();
    std::vector<Tensor> others;
    for (int i = 0; i < 8; ++i) others.push_back(wave({1037}, i).to(kFirst) * 0.0 - 1.0);
    graph.replay();
    for (const Tensor& other : others) {
      EXPECT_EQ(other.to_vector<float>(), std::vector<float>(1037, -1.0f));
    }
    EXPECT_EQ(y.to_vector<float>(), ((x + 1.0) * 3.0).to_vector<float>());
  }
}

TEST_F(Graphs, MemoryIsOthersOnceTheGraphIsGone) {
  const int64_t in_use = memory_stats(kFirst).in_use;
  const size_t free_before = cuda::memory_info(kFirst).free;
  Tensor y;
  {
    const Tensor x = wave({1037}, 1).to(kFirst);
    const Graph graph = Graph::capture(own(), [&] { y = exp(x + 1.0); });
    graph.replay();
    EXPECT_GT(memory_stats(kFirst).cached, 0);  // of x + 1
    empty_cache(kFirst);
    EXPECT_GT(memory_stats(kFirst).cached, 0);
    graph.replay();
  }
  // A result outlives the graph.
  EXPECT_EQ(y.to_vector<float>(), exp(wave({1037}, 1).to(kFirst) + 1.0).to_vector<float>());
  y = Tensor();
  own().synchronize();
  empty_cache(kFirst);
  own().synchronize();
  EXPECT_EQ(memory_stats(kFirst).in_use, in_use);
  if (!cuda::caches_memory()) {  // else a device's kernels have been loaded meanwhile
    EXPECT_EQ(cuda::memory_info(kFirst).free, free_before);
  }
}

// Its memory of other streams than the one that it runs on, too.
TEST_F(Graphs, MemoryIsOthersBehindTheLastReplay) {
  for (int seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    const Stream main = Stream::create(kFirst);
    const Stream side = Stream::create(kFirst);
    const Tensor x = wave({1037}, seed).to(kFirst);
    Tensor y;
    auto graph = std::make_unique<Graph>(Graph::capture(main, [&] {
      side.wait(main.record());
      {
        const StreamGuard guard(side);
        y = exp(x + 1.0);
      }
      main.wait(side.record());
    }));
    graph->replay();
    {
      const StreamGuard guard(side);  // which does not wait for the replay
      graph = nullptr;
    }
    EXPECT_EQ(y.to_vector<float>(), exp(x + 1.0).to_vector<float>());
  }
}

// A gradient of before, say: what came before it in the capture may use it at each replay.
TEST_F(Graphs, WhatIsLetGoInACaptureStays) {
  Tensor x = wave({1037}, 1).to(kFirst);
  const std::vector<float> want = (x + 1.0).to_vector<float>();
  Tensor y;
  const Graph graph = Graph::capture(own(), [&] {
    y = x + 1.0;
    x = Tensor();
  });
  const Tensor other = wave({1037}, 7).to(kFirst) * 2.0;
  graph.replay();
  EXPECT_EQ(y.to_vector<float>(), want);
}

TEST_F(Graphs, ForkedStreamsAreRightInEverySchedule) {
  for (int seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    const Stream main = Stream::create(kFirst);
    const Stream side = Stream::create(kFirst, StreamPriority::kHigh);
    Tensor x = wave({1037}, seed).to(kFirst);
    Tensor y, z;
    const Graph graph = Graph::capture(main, [&] {
      y = x * 2.0;
      side.wait(main.record());
      {
        const StreamGuard guard(side);
        z = y + 1.0;
        used_on(y.view().data, side);
      }
      const Tensor beside = y * 5.0;
      main.wait(side.record());
      z = z + beside;
    });
    for (int i = 0; i < 3; ++i) {
      x.copy_(wave({1037}, seed + i).to(kFirst));
      // Behind the copy, which is on another stream, and before what is put there next.
      graph.replay();
      const std::vector<float> got = z.to_vector<float>();
      EXPECT_EQ(got, (x * 2.0 + 1.0 + x * 2.0 * 5.0).to_vector<float>());
    }
  }
}

TEST_F(Graphs, OtherThreadsMayWaitMeanwhile) {
  const Tensor x = wave({1037}, 1).to(kFirst);
  Tensor y;
  const Graph graph = Graph::capture(own(), [&] {
    std::thread([] {
      const Stream stream = Stream::create(kFirst);
      const StreamGuard guard(stream);
      const Tensor z = wave({5}, 1).to(kFirst) + 1.0;
      EXPECT_EQ(z.to_vector<float>().size(), 5u);
      EXPECT_FALSE(is_capturing());
    }).join();
    EXPECT_TRUE(is_capturing());
    y = x + 1.0;
  });
  graph.replay();
  EXPECT_EQ(y.to_vector<float>(), (x + 1.0).to_vector<float>());
}

// The message of what goes wrong in a capture, after which another one goes well.
template <class F>
std::string refusal(const F& work) {
  const std::string message =
      message_of(ErrorCode::kInvalidArgument, [&] { Graph::capture(own(), work); });
  EXPECT_FALSE(is_capturing());
  const Tensor x = wave({7}, 1).to(kFirst);
  Tensor y;
  Graph::capture(own(), [&] { y = x + 1.0; }).replay();
  EXPECT_EQ(y.to_vector<float>(), (x + 1.0).to_vector<float>());
  return message;
}

TEST_F(Graphs, WaitsAreRefusedByName) {
  const Tensor x = wave({7}, 1).to(kFirst);
  const Tensor pinned = pin_memory(wave({7}, 2));
  const Event before = own().record();
  const std::string why = "cannot be captured in a graph";
  EXPECT_THAT(refusal([&] { sum(x).item(); }),
              AllOf(HasSubstr("[copy to or from cpu]"), HasSubstr(why)));
  EXPECT_THAT(refusal([&] { wave({7}, 2).to(kFirst); }), HasSubstr("[copy to or from cpu]"));
  EXPECT_THAT(refusal([&] { own().synchronize(); }), HasSubstr("[Stream::synchronize]"));
  EXPECT_THAT(refusal([&] { own().done(); }), HasSubstr("[Stream::done]"));
  EXPECT_THAT(refusal([&] { before.synchronize(); }), HasSubstr("[Event::synchronize]"));
  EXPECT_THAT(refusal([&] { before.done(); }), HasSubstr("[Event::done]"));
  EXPECT_THAT(refusal([&] { allocate_pinned(7); }), HasSubstr("[allocate_pinned]"));
  EXPECT_THAT(refusal([&] { empty_cache(kFirst); }), HasSubstr("[empty_cache]"));
  EXPECT_THAT(refusal([&] {
                const Tensor plain = wave({7}, 3);
                transfer_async(plain.view(), x.view(), own());
              }),
              HasSubstr("[copy_async]"));
  // Pinned memory is read at each replay.
  const Graph graph =
      Graph::capture(own(), [&] { transfer_async(pinned.view(), x.view(), own()); });
  graph.replay();
  EXPECT_EQ(x.to_vector<float>(), pinned.to_vector<float>());
}

TEST_F(Graphs, WhatCannotBeInOneIsRefused) {
  const Tensor x = wave({7}, 1).to(kFirst);
  EXPECT_THAT(message_of(ErrorCode::kInvalidArgument, [&] { Graph::capture(Stream(kCpu), [] {}); }),
              HasSubstr("CUDA device, got one of cpu"));
  EXPECT_THAT(message_of(ErrorCode::kInvalidArgument, [&] { Graph().replay(); }),
              HasSubstr("capture()"));
  EXPECT_THAT(refusal([&] { Graph::capture(own(), [] {}); }), HasSubstr("another capture"));
  const Graph other = Graph::capture(own(), [] {});
  EXPECT_THAT(refusal([&] { other.replay(); }), HasSubstr("[Graph::replay]"));

  const Stream side = Stream::create(kFirst);
  EXPECT_THAT(refusal([&] {
                const StreamGuard guard(side);
                x + 1.0;
              }),
              HasSubstr("a stream that is not captured"));
  EXPECT_THAT(refusal([&] {
                side.wait(own().record());
                const StreamGuard guard(side);
                x + 1.0;
              }),
              HasSubstr("nobody waits for"));
}

TEST_F(Graphs, OptimisersHaveStateBefore) {
  const auto step = [](Optimizer& optimizer, Tensor parameter) {
    parameter.clear_grad();
    sum(square(parameter)).backward();
    optimizer.step();
  };
  const auto parameter = [] {
    Tensor p = wave({7}, 1).to(kFirst);
    p.set_requires_grad(true);
    return p;
  };
  {
    Tensor p = parameter();
    AdamW optimizer(named(std::vector<Tensor>{p}));
    EXPECT_THAT(refusal([&] { step(optimizer, p); }), HasSubstr("step once before"));
  }
  {
    Tensor p = parameter();
    SGD optimizer(named(std::vector<Tensor>{p}), {.momentum = 0.9});
    EXPECT_THAT(refusal([&] { step(optimizer, p); }), HasSubstr("step once before"));
  }
}

TEST_F(Graphs, CollectivesAreRefused) {
  for (const std::vector<Device>& devices : {std::vector<Device>{kFirst, kSecond}, {kFirst}}) {
    run({devices}, [](const Group& group, Device device) {
      const Stream stream = Stream::create(device);  // two ranks may share the device
      const StreamGuard guard(stream);
      Tensor x = wave({7}, group->rank()).to(device);
      EXPECT_THAT(
          message_of(ErrorCode::kInvalidArgument,
                     [&] {
                       Graph::capture(stream, [&] {
                         float* data = static_cast<float*>(x.view().data);
                         group->all_reduce(data, data, 7, DType::kF32, comm::ReduceOp::kSum).wait();
                       });
                     }),
          AllOf(HasSubstr("[all_reduce]"), HasSubstr("ranks meet on the host")));
      auto net = std::make_shared<Linear>(7, 3);
      net->to(device);
      DataParallel model(net, group);
      const Tensor input = wave({2, 7}, 1).to(device);
      const auto step = [&] { sum(square(model(input))).backward(); };
      step();
      if (group->size() > 1) {
        EXPECT_THAT(message_of(ErrorCode::kInvalidArgument, [&] { Graph::capture(stream, step); }),
                    HasSubstr("[DataParallel]"));
        step();  // the group is as it was
      } else {
        Graph::capture(stream, step).replay();
      }
      stream.synchronize();
      return Numbers();
    });
  }
}

// In a process of its own, whose device is of no use afterwards.
TEST(GraphsDeathTest, APlaceOutOfRangeStopsTheDevice) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto stop = [] {
    const Tensor logits = wave({3, 5}, 1).to(kFirst);
    Tensor target = Tensor::arange(3).to(kFirst);
    Tensor loss;
    const Graph graph = Graph::capture(own(), [&] { loss = cross_entropy(logits, target); });
    graph.replay();
    if (loss.item() != cross_entropy(logits, target).item()) std::_Exit(1);
    target.fill_(5);
    const Error error = error_of([&] {
      graph.replay();
      loss.item();
    });
    std::_Exit(error.code() == ErrorCode::kDevice ? 7 : 2);
  };
  EXPECT_EXIT(stop(), ::testing::ExitedWithCode(7), "");
}

TEST_F(Graphs, PartsThatAreRenewedLaunchTheSameKernels) {
  const Tensor x = wave({7}, 1).to(kFirst);
  int kernels = 1;
  const Graph graph = Graph::capture(own(), [&] {
    renewed([&] {
      for (int i = 0; i < kernels; ++i) launch<kernels::Uniform>(kFirst, x.view(), 1, 0);
    });
  });
  graph.replay();
  graph.replay();
  kernels = 2;
  EXPECT_THAT(message_of(ErrorCode::kInvalidArgument, [&] { graph.replay(); }),
              HasSubstr("want the 1 kernels"));
  kernels = 0;
  EXPECT_THAT(message_of(ErrorCode::kInvalidArgument, [&] { graph.replay(); }),
              HasSubstr("want the 1 kernels that were captured, got 0"));
  // Numbers of a fill are fresh at each replay.
  Tensor drawn;
  manual_seed(3);
  const std::vector<float> first = rand({7}, kOnDevice).to_vector<float>();
  const std::vector<float> second = rand({7}, kOnDevice).to_vector<float>();
  manual_seed(3);
  const Graph draws = Graph::capture(own(), [&] { drawn = rand({7}, kOnDevice); });
  draws.replay();
  EXPECT_EQ(drawn.to_vector<float>(), first);
  draws.replay();
  EXPECT_EQ(drawn.to_vector<float>(), second);
}

TEST_F(Graphs, PartsThatAreRenewedFindTheirMemoryAgain) {
  int64_t length = 7;
  Tensor drawn;
  manual_seed(3);
  const Graph graph =
      Graph::capture(own(), [&] { renewed([&] { drawn = rand({length}, kOnDevice); }); });
  graph.replay();
  const void* const place = drawn.view().data;
  const std::vector<float> first = drawn.to_vector<float>();
  graph.replay();
  EXPECT_EQ(drawn.view().data, place);
  EXPECT_NE(drawn.to_vector<float>(), first);
  length = 8;
  EXPECT_THAT(message_of(ErrorCode::kInvalidArgument, [&] { graph.replay(); }),
              HasSubstr("got 32 bytes"));
  drawn = Tensor();
}

}  // namespace
}  // namespace lockstep::nn
