// SyncBatchNorm on emulated CUDA devices against one process on the whole batch, and against the
// same ranks on the CPU, under random schedules.
#include "lockstep/nn/sync_batch_norm.h"

#include <gmock/gmock.h>

#include "../errors.h"
#include "lockstep/nn/activation.h"
#include "lockstep/nn/collectives.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/optim.h"
#include "lockstep/nn/sequential.h"
#include "ranks_on_devices.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;

class CudaSyncBatchNorm : public ::testing::TestWithParam<Ranks> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CudaSyncBatchNorm, ::testing::ValuesIn(kAllRanks), ranks_name);

// Samples of each rank: many, one and none.
constexpr int64_t kSamples[] = {5, 1, 0, 3};
int64_t first_of(int rank) {
  int64_t first = 0;
  for (int r = 0; r < rank; ++r) first += kSamples[r];
  return first;
}

// What one rank sees: its part of y and of the input's gradient, the sums over the ranks of the
// weight's and the bias's gradients, and the running statistics.
Numbers normalise(const Group& group, Device device, const Shape& tail, DType dtype, bool whole) {
  const int ranks = group->size();
  Shape shape = {first_of(ranks)};
  shape.insert(shape.end(), tail.begin(), tail.end());
  const int64_t begin = first_of(group->rank());
  const int64_t count = kSamples[group->rank()];
  const auto take = [&](const Tensor& x) { return whole ? x : x.narrow(0, begin, count).clone(); };
  BatchNormArguments a;
  a.weight = (wave({tail[0]}, 3) + 1.5).to(dtype).to(device).set_requires_grad();
  a.bias = wave({tail[0]}, 4, {dtype, device}).set_requires_grad();
  a.running_mean = wave({tail[0]}, 5, {DType::kF32, device});
  a.running_var = (wave({tail[0]}, 6) + 2.0).to(device);
  if (!whole) a.group = make_batch_norm_group(group);
  // Far from 0, where a mean of squares would lose what matters.
  Tensor x = take((wave(shape, 1) * 2.0 + 30.0).to(dtype).to(device)).set_requires_grad();
  const Tensor y = batch_norm(x, a);
  EXPECT_EQ(y.device(), device);
  y.backward(take(wave(shape, 2, {dtype, device})));
  const auto part = [&](const Tensor& t) { return whole ? t.narrow(0, begin, count) : t; };
  Numbers out;
  append(out, part(y));
  append(out, part(x.grad()));
  for (const Tensor& gradient : {a.weight.grad(), a.bias.grad()}) {
    const Tensor wide = gradient.to(DType::kF32);
    append(out, whole ? wide : all_reduce(wide, group));
  }
  append(out, a.running_mean);
  append(out, a.running_var);
  return out;
}

TEST_P(CudaSyncBatchNorm, EqualsBatchNormOverTheWholeBatch) {
  for (const Shape& tail : {Shape{3}, Shape{2, 5}, Shape{3, 2, 7}}) {
    const auto fn = [&](const Group& group, Device device) {
      return normalise(group, device, tail, DType::kF32, device.is_cpu());
    };
    expect_as_on_cpu(GetParam(), 2e-4, fn, kSchedules / 3 + 1);
  }
}

TEST_P(CudaSyncBatchNorm, Of16BitsIsTheCpus) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    expect_as_on_cpu(
        GetParam(), dtype == DType::kBF16 ? 0x1p-6 : 0x1p-9,
        [&](const Group& group, Device device) {
          return normalise(group, device, {3, 7}, dtype, false);
        },
        kSchedules / 2);
  }
}

TEST_P(CudaSyncBatchNorm, SecondDerivativesAreTheCpus) {
  expect_as_on_cpu(GetParam(), 1e-9, [](const Group& group, Device device) {
    BatchNormArguments a;
    a.weight = (wave({2}, 3, {DType::kF64}) + 1.5).to(device).set_requires_grad();
    a.group = make_batch_norm_group(group);
    const int64_t samples = kSamples[group->rank()];
    Tensor x = wave({samples, 2, 3}, group->rank(), {DType::kF64, device}).set_requires_grad();
    const Tensor y = batch_norm(x, a);
    const Tensors first = grad({sum(y * y * y)}, {x, a.weight}, {}, {.create_graph = true});
    (sum(first[0] * first[0]) + sum(first[1] * first[1])).backward();
    Numbers out;
    append(out, x.grad());
    append(out, a.weight.grad());
    return out;
  });
}

TEST_P(CudaSyncBatchNorm, TrainsInDataParallelAsOnTheCpu) {
  expect_as_on_cpu(GetParam(), 1e-4, [](const Group& group, Device device) {
    auto net = std::make_shared<Sequential>(
        std::make_shared<Linear>(7, 11), std::make_shared<BatchNorm1d>(11),
        std::make_shared<Tanh>(), std::make_shared<Linear>(11, 3));
    int salt = 1;
    for (Tensor& parameter : net->parameters()) {
      NoGrad no_grad;
      if (parameter.dim() == 2) parameter.copy_(wave(parameter.shape(), salt++) * 0.4);
    }
    convert_sync_batchnorm(net, group);
    net->to(device);
    DataParallel model(net, group);
    AdamW optimizer(net->named_parameters(), {.lr = 0.01, .eps = 1e-2});
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      const Tensor x =
          wave({4 + group->rank(), 7}, 10 * step + group->rank(), {DType::kF32, device});
      loss_of(model(x)).backward();
      optimizer.step();
    }
    model.check_in_lockstep();
    model.eval();
    Numbers out;
    append(out, model(wave({2, 7}, 99, {DType::kF32, device})));
    for (const Tensor& parameter : net->parameters()) append(out, parameter);
    for (const auto& [name, buffer] : net->named_buffers()) {
      EXPECT_EQ(buffer.device(), device);
      append(out, buffer);
    }
    return out;
  });
}

TEST(CudaSyncBatchNormMisuse, OneValuePerChannelIsAnErrorOnEveryRank) {
  run({{kFirst, kSecond, kFirst}}, [](const Group& group, Device device) {
    SyncBatchNorm norm(3, group);
    norm.to(device);
    const Tensor x = wave({group->rank() == 1 ? 1 : 0, 3}, 1, {DType::kF32, device});
    EXPECT_THAT(message_of(ErrorCode::kInvalidArgument, [&] { norm(x); }),
                HasSubstr("over the whole group"));
    return Numbers();
  });
}

}  // namespace
}  // namespace lockstep::nn
