// Tensors on emulated CUDA devices, under random schedules.
#include <gmock/gmock.h>

#include <cmath>

#include "../errors.h"
#include "devices.h"
#include "lockstep/core/ops.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/memory.h"
#include "schedules.h"
#include "simt/simt.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Device kDevice = {DeviceType::kCuda, 0};

// What call() says when it throws.
template <class F>
std::string said(const F& call) {
  return error_of(call).what();
}

TEST(CudaTensors, MoveThereAndBackWithTheirGradient) {
  Tensor x = Tensor::arange(35, {DType::kF32}).reshape({5, 7});
  x.set_requires_grad();
  const Tensor there = x.transpose(0, 1).to(kDevice);
  EXPECT_EQ(there.device(), kDevice);
  EXPECT_EQ(there.select(0, 3).select(0, 2).item(), 17);
  sum(there * there).backward();
  EXPECT_EQ(x.grad().device(), kCpu);
  for (int64_t i = 0; i < 35; ++i) {
    EXPECT_EQ(x.grad().to_vector<float>()[static_cast<size_t>(i)], 2.0f * static_cast<float>(i));
  }
}

TEST(CudaTensors, MoveToAnotherDevice) {
  LOCKSTEP_WANT_DEVICES(2);
  const Tensor there = Tensor::arange(35, {DType::kF32}).reshape({5, 7}).transpose(0, 1).to(kFirst);
  const Tensor other = there.to(kSecond);
  EXPECT_EQ(other.device(), kSecond);
  EXPECT_EQ(other.to(kCpu).to_vector<float>(), there.to_vector<float>());
  EXPECT_THAT(said([&] { add(other, there); }), HasSubstr("one device"));
}

TEST(CudaTensors, TrainTheSameAsOnTheCpu) {
  const auto loss_and_gradient = [](Device device) {
    Tensor w = Tensor::arange(-1.0, 1.0, 0.04, {DType::kF32, device}).reshape({5, 10});
    EXPECT_EQ(w.device(), device);
    w.set_requires_grad();
    const Tensor logits = gelu(w * w.narrow(0, 2, 1)) + tanh(w);
    const Tensor targets = Tensor::arange(5, {DType::kI64, device});
    const Tensor loss = cross_entropy(logits, targets) + mean(softmax(w, 1) * w);
    loss.backward();
    std::vector<float> out = w.grad().to_vector<float>();
    out.push_back(static_cast<float>(loss.item()));
    return out;
  };
  const std::vector<float> want = loss_and_gradient(kCpu);
  for (int seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    const std::vector<float> got = loss_and_gradient(kDevice);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], 1e-6 + 1e-5 * std::abs(want[i])) << i;
    }
  }
}

// Memory that another stream may still read is not written to.
TEST(CudaTensors, AGradientIsWrittenOverLogitsOfItsOwnStreamAlone) {
  const auto is_written_over = [](bool other_stream, bool another_reads) {
    const Stream side = Stream::create(kDevice);
    const Tensor w = Tensor::ones({5, 7}, {DType::kF32, kDevice}).set_requires_grad();
    Tensor logits = w * 0.5;
    const void* memory = logits.view().data;
    if (another_reads) used_on(memory, side);
    bool is_over = false;
    logits.register_hook([&](const Tensor& g) {
      is_over = g.view().data == memory;
      return Tensor();
    });
    const Tensor loss = cross_entropy(logits, Tensor::arange(5, {DType::kI64, kDevice}));
    logits = Tensor();
    if (other_stream) {
      side.wait(current_stream(kDevice).record());
      const StreamGuard guard(side);
      loss.backward();
    } else {
      loss.backward();
    }
    side.synchronize();
    current_stream(kDevice).synchronize();
    return is_over;
  };
  EXPECT_TRUE(is_written_over(false, false));
  EXPECT_FALSE(is_written_over(false, true));
  EXPECT_FALSE(is_written_over(true, false));
  EXPECT_EQ(simt::take_report(), "");
}

struct KernelForTheCpuAlone {
  static void cpu() {}
};

TEST(CudaTensors, AKernelThatIsNotThereIsNamed) {
  launch<KernelForTheCpuAlone>(kCpu);
  EXPECT_THAT(said([] { launch<KernelForTheCpuAlone>(kDevice); }),
              AllOf(HasSubstr("KernelForTheCpuAlone"), HasSubstr("cuda:0")));
}

TEST(CudaTensors, MemoryThatEndsIsAnError) {
  const int64_t before = memory_stats(kDevice).in_use;
  {
    const Tensor some = Tensor::zeros({1001}, {DType::kF32, kDevice});
    EXPECT_GE(memory_stats(kDevice).in_use - before, 4004);
    EXPECT_THAT(said([] {
                  Tensor::empty({int64_t{1} << 44}, {DType::kF32, kDevice});
                }),
                AllOf(HasSubstr("cuda:0"), HasSubstr("70368744177664"), HasSubstr("in use")));
  }
  EXPECT_EQ(memory_stats(kDevice).in_use, before);
}

TEST(CudaTensors, ADeviceThatIsNotThereIsAnError) {
  EXPECT_THAT(said([] {
                Tensor::empty({3}, {DType::kF32, {DeviceType::kCuda, 99}});
              }),
              HasSubstr("cuda:99"));
  const Tensor a = Tensor::ones({3}, {DType::kF32, kDevice});
  EXPECT_THAT(said([&] { a.data<float>(); }), HasSubstr("on cpu"));
}

}  // namespace
}  // namespace lockstep
