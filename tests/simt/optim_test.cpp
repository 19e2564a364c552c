// Norms and the steps of LAMB, RMSprop and Adagrad of kernels/cuda/ against the CPU's.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "expect_same.h"
#include "lockstep/kernels/optim.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

// More tensors than one launch takes, of sizes from 0 on.
constexpr size_t kTensors = 25;

// Gradients, parameters, three states.
std::vector<Array> tensors(DType dtype) {
  std::vector<Array> arrays;
  for (int64_t k = 0; k < 5; ++k) {
    for (size_t t = 0; t < kTensors; ++t) {
      const Shape shape = {static_cast<int64_t>(t), 5, 3};
      arrays.push_back(
          with_strides(sample(dtype, shape, k == 2 ? 0.5 : -0.5, k == 3 ? 0.5 : 1, 7 * k + 1),
                       permuted_strides(shape, {1, 2, 0})));
    }
  }
  return arrays;
}

// A list of all dtypes and strides on both devices; of no dtype as many as one launch takes.
struct List {
  std::vector<Array> arrays, moved_arrays;
  std::vector<View> here, there;
};

List list() {
  List out;
  for (size_t t = 0; t < 47; ++t) {
    const Shape shape = {static_cast<int64_t>(t * t % 61), 3, 7};
    const Array x = with_strides(sample(kFloats[t % 4], shape, -2, 2, static_cast<int64_t>(t)),
                                 some_strides(shape)[t / 4 % 4]);
    out.arrays.push_back(x);
    out.here.push_back(x.view);
    out.moved_arrays.push_back(moved(x, kDevice));
    out.there.push_back(out.moved_arrays.back().view);
  }
  return out;
}

void expect_same_elements(const List& got) {
  for (size_t t = 0; t < got.arrays.size(); ++t) {
    const Array& want = got.arrays[t];
    const Array back = moved(got.moved_arrays[t], kCpu);
    EXPECT_EQ(back.values(), want.values()) << t;
    if (want.numel() < 2 || want.view.strides[2] != 3) continue;
    // What lies between the elements stays as it was.
    const auto* from = static_cast<const char*>(back.view.data);
    const size_t size = size_of(want.view.dtype);
    EXPECT_EQ(std::memcmp(from + size, static_cast<const char*>(want.view.data) + size, size), 0);
  }
}

TEST(CudaOptim, NormsAreTheCpus) {
  const auto [arrays, moved_arrays, here, there] = list();
  for (uint64_t seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(seed);
    const double want = kernels::L2NormSquared::cpu(here);
    EXPECT_NEAR(launch<kernels::L2NormSquared>(kDevice, there), want, 1e-13 * want);
  }
  EXPECT_EQ(launch<kernels::L2NormSquared>(kDevice, std::span<const View>()), 0);
  const Array large =
      moved(filled(empty(DType::kF32, {9001}), [](int64_t) { return 1e30; }), kDevice);
  EXPECT_NEAR(launch<kernels::L2NormSquared>(kDevice, std::span<const View>(&large.view, 1)),
              9001e60, 1e58);
  EXPECT_EQ(simt::take_report(), "");
}

TEST(CudaOptim, NormsShowWhatIsNotFinite) {
  for (double bad : {kNan, kInf}) {
    Array x = sample(DType::kF16, {5001});
    x.set(4999, bad);
    const Array there = moved(x, kDevice);
    EXPECT_FALSE(std::isfinite(
        launch<kernels::L2NormSquared>(kDevice, std::span<const View>(&there.view, 1))));
  }
}

TEST(CudaOptim, ListsAreScaledAndClampedAsOnTheCpu) {
  for (double factor : {1.0 / 65536, -1 / 3.0, 7e4}) {
    simt::seed(static_cast<uint64_t>(factor > 1 ? 3 : factor > 0 ? 1 : 2));
    List scaled = list();
    launch<kernels::ScaleAll>(kCpu, scaled.here, factor);
    launch<kernels::ScaleAll>(kDevice, scaled.there, factor);
    expect_same_elements(scaled);
    List with_norm = list();
    const double want = launch<kernels::ScaleAllNormSquared>(kCpu, with_norm.here, factor);
    const double got = launch<kernels::ScaleAllNormSquared>(kDevice, with_norm.there, factor);
    if (std::isfinite(want)) {
      EXPECT_NEAR(got, want, 1e-13 * want);
    }
    EXPECT_EQ(std::isfinite(got), factor < 1);  // 7e4 is too large for f16
    expect_same_elements(with_norm);
  }
  List clamped = list();
  launch<kernels::ClampAll>(kCpu, clamped.here, -0.7, 0.3);
  launch<kernels::ClampAll>(kDevice, clamped.there, -0.7, 0.3);
  expect_same_elements(clamped);
  launch<kernels::ScaleAll>(kDevice, std::span<const View>(), 2.0);
  EXPECT_EQ(launch<kernels::ScaleAllNormSquared>(kDevice, std::span<const View>(), 2.0), 0);
  EXPECT_EQ(simt::take_report(), "");
}

TEST(CudaOptim, ScaledNormsShowWhatIsNotFinite) {
  for (DType dtype : kFloats) {
    for (double bad : {kNan, kInf}) {
      Array x = sample(dtype, {5001});
      x.set(4999, bad);
      const Array there = moved(x, kDevice);
      EXPECT_FALSE(std::isfinite(launch<kernels::ScaleAllNormSquared>(
          kDevice, std::span<const View>(&there.view, 1), 1.0 / 65536)));
    }
  }
}

// 21 tensors take two launches, and one adds up what they found.
TEST(CudaOptimLaunches, AreOneForMostLists) {
  std::vector<Array> kept;
  std::vector<View> views;
  for (int i = 0; i < 21; ++i) {
    kept.push_back(moved(sample(DType::kF32, {13}), kDevice));
    views.push_back(kept.back().view);
  }
  const auto launches = [&](auto call) {
    const auto before = simt::launches();
    call();
    return simt::launches() - before;
  };
  EXPECT_EQ(launches([&] { launch<kernels::ScaleAll>(kDevice, views, 2.0); }), 2);
  EXPECT_EQ(launches([&] { launch<kernels::ScaleAllNormSquared>(kDevice, views, 2.0); }), 3);
  views.pop_back();
  EXPECT_EQ(launches([&] { launch<kernels::ScaleAll>(kDevice, views, 2.0); }), 1);
  EXPECT_EQ(launches([&] { launch<kernels::ClampAll>(kDevice, views, -1.0, 1.0); }), 1);
}

TEST(CudaOptim, LambStepsAsTheCpuDoes) {
  for (DType dtype : kFloats) {
    for (double decay : {0.0, 0.1}) {
      // For 16-bit floats the direction is that of the averages as stored.
      const double steps = dtype == DType::kF32 || dtype == DType::kF64 ? 32 : 2;
      expect_same(
          "lamb", tensors(dtype), kTensors, steps,
          [=](const Views& v) {
            for (int64_t step : {1, 2}) {
              std::vector<kernels::AdamEntry> entries;
              for (size_t t = 0; t < kTensors; ++t) {
                entries.push_back({v[kTensors + t], v[t], v[3 * kTensors + t], v[2 * kTensors + t],
                                   step + static_cast<int64_t>(t)});
              }
              launch<kernels::LambStep>(v[0].device, entries,
                                        kernels::LambOptions{0.02, 0.9, 0.99, 1e-3, decay});
            }
          },
          dtype == DType::kF32 ? 10 : 1);
    }
  }
}

TEST(CudaOptim, LambOfZerosIsAnOrdinaryStep) {
  const Array zeros = filled(empty(DType::kF32, {7}), [](int64_t) { return 0; });
  const Array g = sample(DType::kF32, {7});
  for (const auto& [parameter, gradient] : {std::pair(zeros, g), std::pair(g, zeros)}) {
    expect_same("lamb", {gradient, parameter, zeros, zeros}, 1, 32, [](const Views& v) {
      const kernels::AdamEntry entry = {v[1], v[0], v[2], v[3], 1};
      launch<kernels::LambStep>(v[0].device, std::span(&entry, 1), kernels::LambOptions{0.1});
    });
  }
}

TEST(CudaOptim, RMSpropAndAdagradStepAsTheCpuDoes) {
  for (DType dtype : kFloats) {
    for (double momentum : {0.0, 0.9}) {
      for (bool centered : {false, true}) {
        // square_avg is above grad_avg squared.
        expect_same("rmsprop", tensors(dtype), kTensors, 16, [=](const Views& v) {
          std::vector<kernels::RMSpropEntry> entries;
          for (size_t t = 0; t < kTensors; ++t) {
            entries.push_back({v[kTensors + t], v[t], v[2 * kTensors + t], v[4 * kTensors + t],
                               v[3 * kTensors + t]});
          }
          launch<kernels::RMSpropStep>(
              v[0].device, entries,
              kernels::RMSpropOptions{0.1, 0.9, 1e-2, 0.02, momentum, centered});
        });
      }
    }
    expect_same("adagrad", tensors(dtype), kTensors, 16, [](const Views& v) {
      for (int64_t step : {1, 2}) {
        std::vector<kernels::AdagradEntry> entries;
        for (size_t t = 0; t < kTensors; ++t) {
          entries.push_back(
              {v[kTensors + t], v[t], v[2 * kTensors + t], step + static_cast<int64_t>(t)});
        }
        launch<kernels::AdagradStep>(v[0].device, entries,
                                     kernels::AdagradOptions{0.1, 0.05, 0.02, 1e-3});
      }
    });
  }
}

TEST(CudaOptim, RefusesWhatIsNotAlike) {
  const Array p = moved(sample(DType::kF32, {7}), kDevice);
  const Array g = moved(sample(DType::kF32, {5}), kDevice);
  const kernels::AdamEntry lamb = {p.view, g.view, p.view, p.view, 1};
  EXPECT_THAT(said([&] {
                launch<kernels::LambStep>(kDevice, std::span(&lamb, 1), kernels::LambOptions{});
              }),
              HasSubstr("a gradient"));
  const kernels::AdagradEntry adagrad = {p.view, p.view, p.view, 0};
  EXPECT_THAT(said([&] {
                launch<kernels::AdagradStep>(kDevice, std::span(&adagrad, 1),
                                             kernels::AdagradOptions{});
              }),
              HasSubstr("from 1 on"));
}

}  // namespace
}  // namespace lockstep::testing
