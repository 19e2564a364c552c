// Folds of collectives on CUDA: the CPU's bits, for every dtype, op and number of ranks.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "../errors.h"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/fold.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/memory.h"
#include "simt/simt.h"

namespace lockstep::kernels {
namespace {

constexpr Device kDevice = {DeviceType::kCuda, 0};
constexpr int64_t kCount = 2051;

using Bytes = std::vector<std::byte>;

// Any bits of every dtype are a value of it: NaNs, infinities and subnormals are among them.
Bytes random_bits(size_t bytes, uint64_t seed) {
  Bytes out(bytes);
  for (std::byte& byte : out) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    byte = static_cast<std::byte>(seed >> 56);
  }
  return out;
}

// The outputs of a fold of `inputs`, each `offset` elements into memory of its own.
std::vector<Bytes> folded(Device device, const FoldSpec& spec, const std::vector<Bytes>& inputs,
                          int outputs, int64_t offset) {
  const size_t skip = static_cast<size_t>(offset) * size_of(spec.dtype);
  const size_t bytes = inputs[0].size();
  std::vector<std::shared_ptr<void>> memory;
  const auto place = [&] {
    memory.push_back(allocate(bytes + skip, device));
    return static_cast<std::byte*>(memory.back().get()) + skip;
  };
  const auto move = [&](void* to, Device to_device, const void* from, Device from_device) {
    if (device.is_cpu()) {
      std::memcpy(to, from, bytes);
    } else {
      cuda::copy(to, to_device, from, from_device, bytes);
    }
  };
  std::vector<const void*> sources;
  for (const Bytes& input : inputs) {
    std::byte* at = place();
    move(at, device, input.data(), kCpu);
    sources.push_back(at);
  }
  std::vector<void*> targets;
  for (int k = 0; k < outputs; ++k) targets.push_back(place());
  launch<Fold>(device, spec, sources.data(), targets.data(), outputs, kCount);
  std::vector<Bytes> out(static_cast<size_t>(outputs), Bytes(bytes));
  for (size_t k = 0; k < out.size(); ++k) move(out[k].data(), kCpu, targets[k], device);
  return out;
}

// Calls f(spec, inputs, odd) for every dtype and op, `odd` for half of them.
template <class F>
void for_each_fold(int ranks, const F& f) {
  uint64_t seed = 1;
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    std::vector<Bytes> inputs;
    for (int rank = 0; rank < ranks; ++rank) {
      inputs.push_back(random_bits(kCount * size_of(dtype), static_cast<uint64_t>(rank + d * 10)));
    }
    for (int o = 0; o < kFoldOpCount; ++o) {
      const FoldSpec spec{dtype, static_cast<FoldOp>(o), ranks};
      if (!is_defined(spec.op, dtype)) continue;
      SCOPED_TRACE(::testing::Message() << name(dtype) << " " << name(spec.op));
      simt::seed(seed++);
      f(spec, inputs, (o + d) % 2 != 0);
    }
  }
  EXPECT_EQ(simt::take_report(), "");
}

class CudaFolds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CudaFolds, ::testing::Values(1, 2, 3, 4, 7));

TEST_P(CudaFolds, AreTheCpusBits) {
  for_each_fold(GetParam(), [](const FoldSpec& spec, const std::vector<Bytes>& inputs, bool odd) {
    const int outputs = 1 + static_cast<int>(spec.op) % 3;
    const int64_t offset = odd ? 1 : 0;  // aligned, and not
    ASSERT_EQ(folded(kDevice, spec, inputs, outputs, offset),
              folded(kCpu, spec, inputs, outputs, offset));
  });
}

// A fold of `inputs` in the steps of a ring, in memory that begins `skip` bytes into a block.
Bytes folded_in_steps(Device device, const FoldSpec& spec, const std::vector<Bytes>& inputs,
                      size_t skip) {
  const size_t bytes = inputs[0].size();
  const auto at = [&](const std::shared_ptr<void>& memory) {
    return static_cast<std::byte*>(memory.get()) + skip;
  };
  const auto input = allocate(bytes + skip, device);
  const auto give = [&](const Bytes& values) {
    device.is_cpu() ? void(std::memcpy(at(input), values.data(), bytes))
                    : cuda::copy(at(input), device, values.data(), kCpu, bytes);
  };
  // Each step has its own, as in a ring, but for one that is in place.
  std::vector<std::shared_ptr<void>> partials;
  for (int k = 0; k < spec.ranks; ++k) {
    partials.push_back(allocate(kCount * partial_size(spec.dtype, spec.op) + skip, device));
  }
  give(inputs[0]);
  launch<FoldBegin>(device, spec, at(input), at(partials[0]), kCount);
  for (size_t k = 1; k + 1 < inputs.size(); ++k) {
    if (k == 2) partials[k] = partials[k - 1];
    give(inputs[k]);
    launch<FoldStep>(device, spec, at(partials[k - 1]), at(input), at(partials[k]), kCount);
  }
  give(inputs.back());
  launch<FoldFinish>(device, spec, at(partials[inputs.size() - 2]), at(input), at(input), kCount);
  Bytes out(bytes);
  if (device.is_cpu()) {
    std::memcpy(out.data(), at(input), bytes);
  } else {
    cuda::copy(out.data(), kCpu, at(input), device, bytes);
  }
  return out;
}

// One rank takes no step.
class CudaFoldSteps : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CudaFoldSteps, ::testing::Values(2, 3, 4, 7));

TEST_P(CudaFoldSteps, AreTheCpusBits) {
  for_each_fold(GetParam(), [](const FoldSpec& spec, const std::vector<Bytes>& inputs, bool odd) {
    const size_t skip = odd ? partial_size(spec.dtype, spec.op) : 0;  // not aligned, and aligned
    const Bytes got = folded_in_steps(kDevice, spec, inputs, skip);
    ASSERT_EQ(got, folded_in_steps(kCpu, spec, inputs, skip));
    ASSERT_EQ(got, folded(kCpu, spec, inputs, 1, 0)[0]);
  });
}

TEST(CudaFold, InPlaceAndOfNothingIsAFoldToo) {
  const std::vector<Bytes> inputs = {random_bits(kCount * 4, 1), random_bits(kCount * 4, 2)};
  const FoldSpec spec{DType::kF32, FoldOp::kAvg, 2};
  const auto x = allocate(kCount * 4, kDevice);
  const auto y = allocate(kCount * 4, kDevice);
  cuda::copy(x.get(), kDevice, inputs[0].data(), kCpu, kCount * 4);
  cuda::copy(y.get(), kDevice, inputs[1].data(), kCpu, kCount * 4);
  const void* sources[] = {x.get(), y.get()};
  void* outputs[] = {x.get(), y.get()};
  launch<Fold>(kDevice, spec, sources, outputs, 2, int64_t{0});
  launch<Fold>(kDevice, spec, sources, outputs, 2, kCount);
  const Bytes want = folded(kCpu, spec, inputs, 1, 0)[0];
  for (const auto& memory : {x, y}) {
    Bytes got(kCount * 4);
    cuda::copy(got.data(), kCpu, memory.get(), kDevice, got.size());
    EXPECT_EQ(got, want);
  }
}

TEST(CudaFold, RefusesWhatItCannotTakeAtOnce) {
  const auto x = allocate(64, kDevice);
  const std::vector<const void*> sources(33, x.get());
  void* output = x.get();
  const std::string said = message_of(ErrorCode::kInvalidArgument, [&] {
    launch<Fold>(kDevice, FoldSpec{DType::kU8, FoldOp::kMax, 33}, sources.data(), &output, 1,
                 int64_t{3});
  });
  EXPECT_NE(said.find("32"), std::string::npos) << said;
}

}  // namespace
}  // namespace lockstep::kernels
