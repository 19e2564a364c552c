// Every kernel of kernels/cuda/ against the CPU's, under random schedules: values, dtypes, strides,
// odd sizes, empty.
#include <gmock/gmock.h>

#include "expect_same.h"
#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/optim.h"
#include "lockstep/kernels/philox.h"
#include "lockstep/kernels/reduce.h"
#include "lockstep/kernels/softmax.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<Shape> kShapes = {{}, {1}, {7}, {259}, {3, 5, 7}, {2, 1, 3, 5}, {0, 3}};

template <class Op>
void check_unary() {
  for (DType dtype : kDTypes) {
    if (!is_floating(dtype) && !Op::kIntegers) continue;
    for (const Shape& shape : kShapes) {
      const Array x = random(dtype, shape, Op::kLow, Op::kHigh, 1);
      for (const Strides& strides : some_strides(shape)) {
        expect_same(std::string(Op::kName), {with_strides(x, strides), empty(dtype, shape)}, 1, 4,
                    [](const Views& v) { launch<kernels::Unary<Op>>(v[0].device, v[0], v[1]); });
        if (!is_floating(dtype)) continue;
        expect_same(std::string(Op::kName) + "'s gradient",
                    {random(dtype, shape, -1, 1, 2), with_strides(x, strides),
                     random(dtype, shape, 0.2, 0.9, 3), empty(dtype, shape, strides)},
                    3, 4, [](const Views& v) {
                      launch<kernels::UnaryVjp<Op>>(v[0].device, v[0], v[1], v[2], v[3]);
                    });
      }
    }
  }
}

TEST(CudaKernels, UnaryOpsAndTheirGradientsAreTheCpus) {
#define LOCKSTEP_CHECK(Op, function) check_unary<kernels::Op>();
  LOCKSTEP_UNARY_OPS(LOCKSTEP_CHECK)
#undef LOCKSTEP_CHECK
}

// a of (3, 5, 7) or (259), b alike, or broadcast along the first or the last dimension.
template <class F>
void for_operands(DType dtype, const F& f) {
  const Array flat_a = random(dtype, {259}, 0.3, 1.9, 1);
  const Array flat_b = random(dtype, {259}, 0.4, 1.7, 2);
  f(flat_a, flat_b, empty(dtype, {259}));
  const Shape shape = {3, 5, 7};
  const Array a = random(dtype, shape, 0.3, 1.9, 3);
  f(a, with_strides(random(dtype, shape, 0.4, 1.7, 4), permuted_strides(shape, {2, 0, 1})),
    empty(dtype, shape));
  Array row = random(dtype, {7}, 0.4, 1.7, 5);
  row.view.shape = shape;
  row.view.strides = {0, 0, 1};
  f(a, row, empty(dtype, shape, permuted_strides(shape, {1, 2, 0})));
  Array column = random(dtype, {3}, 0.4, 1.7, 6);
  column.view.shape = shape;
  column.view.strides = {1, 0, 0};
  f(column, a, empty(dtype, shape));
  f(empty(dtype, {0, 3}), empty(dtype, {0, 3}), empty(dtype, {0, 3}));
}

template <class Op>
void check_binary() {
  for (DType dtype : kDTypes) {
    if (!is_floating(dtype) && !Op::kIntegers) continue;
    for_operands(dtype, [&](const Array& a, const Array& b, const Array& y) {
      const std::string op(Op::kName);
      expect_same(op, {a, b, y}, 2, 4, [](const Views& v) {
        launch<kernels::Binary<Op>>(v[0].device, v[0], v[1], v[2]);
      });
      if (!is_floating(dtype)) return;
      const Array g = random(dtype, y.shape(), -1, 1, 7);
      const Array out = random(dtype, y.shape(), 0.2, 0.9, 8);
      expect_same(op + "'s gradients", {g, a, b, out, y, empty(dtype, y.shape())}, 4, 8,
                  [](const Views& v) {
                    launch<kernels::BinaryVjpA<Op>>(v[0].device, v[0], v[1], v[2], v[3], v[4]);
                    launch<kernels::BinaryVjpB<Op>>(v[0].device, v[0], v[1], v[2], v[3], v[5]);
                  });
    });
  }
}

TEST(CudaKernels, BinaryOpsAndTheirGradientsAreTheCpus) {
#define LOCKSTEP_CHECK(Op, function) check_binary<kernels::Op>();
  LOCKSTEP_BINARY_OPS(LOCKSTEP_CHECK)
#undef LOCKSTEP_CHECK
}

TEST(CudaKernels, ComparisonsAndWhereAreTheCpus) {
  for (DType dtype : kDTypes) {
    for_operands(dtype, [&](const Array& a, const Array& b, const Array& y) {
      const Array mask =
          filled(empty(DType::kBool, y.shape()), [](int64_t i) { return i % 3 == 0; });
      expect_same("where", {mask, a, b, y}, 3, 0, [](const Views& v) {
        launch<kernels::Where>(v[0].device, v[0], v[1], v[2], v[3]);
      });
#define LOCKSTEP_CHECK(Op, function)                                      \
  expect_same(#function, {a, b, mask}, 2, 0, [](const Views& v) {         \
    launch<kernels::Compare<kernels::Op>>(v[0].device, v[0], v[1], v[2]); \
  });
      LOCKSTEP_COMPARE_OPS(LOCKSTEP_CHECK)
#undef LOCKSTEP_CHECK
    });
  }
}

TEST(CudaKernels, OutputsMayBeInputs) {
  const Array x = sample(DType::kF32, {3, 5, 7});
  expect_same("square in place", {x}, 0, 0, [](const Views& v) {
    launch<kernels::Unary<kernels::Square>>(v[0].device, v[0], v[0]);
  });
}

TEST(CudaKernels, CopiesConvertAsTheCpuDoes) {
  for (DType from : kDTypes) {
    for (DType to : kDTypes) {
      Array x = random(from, {3, 5, 7}, -300, 300, 1);
      if (is_floating(from)) {
        x.set(0, kNan);
        x.set(1, kInf);
        x.set(2, -kInf);
      }
      for (const Strides& strides : some_strides({3, 5, 7})) {
        expect_same("copy", {with_strides(x, strides), empty(to, {3, 5, 7})}, 1, 0,
                    [](const Views& v) { launch<kernels::Copy>(v[0].device, v[0], v[1]); });
      }
    }
    expect_same("fill", {empty(from, {3, 5, 7}, permuted_strides({3, 5, 7}, {2, 1, 0}))}, 0, 0,
                [](const Views& v) { launch<kernels::Fill>(v[0].device, v[0], 2.7); });
    expect_same("fill of nothing", {empty(from, {0})}, 0, 0,
                [](const Views& v) { launch<kernels::Fill>(v[0].device, v[0], int64_t{3}); });
  }
}

template <class K>
void check_reduction(const std::string& what, bool gives_places, bool gives_sums) {
  struct Case {
    Shape shape, kept;
  };
  const std::vector<Case> cases = {{{7}, {1}},
                                   {{3, 5, 7}, {3, 5, 1}},
                                   {{3, 5, 7}, {1, 5, 7}},
                                   {{3, 5, 7}, {1, 5, 1}},
                                   {{3, 5, 7}, {1, 1, 1}},
                                   {{3, 1, 7}, {3, 1, 7}},
                                   {{9001}, {1}},
                                   {{3, 4500}, {3, 1}},
                                   {{4500, 3}, {1, 3}},
                                   {{600, 40}, {1, 40}},
                                   {{0, 3}, {0, 1}}};
  for (DType dtype : kDTypes) {
    for (const Case& c : cases) {
      const DType out = gives_places || (gives_sums && !is_floating(dtype)) ? DType::kI64 : dtype;
      // Products stay near 1; equal values show whether the first place is taken.
      Array x = what == "prod" && is_floating(dtype) ? sample(dtype, c.shape, 0.99, 1.01)
                                                     : random(dtype, c.shape, -1.5, 1.5, 1);
      const bool large = x.numel() > 1000;
      if (large && dtype != DType::kF32 && dtype != DType::kI64 && dtype != DType::kBF16) continue;
      for (const Strides& strides : some_strides(c.shape)) {
        expect_same(
            what, {with_strides(x, strides), empty(out, c.kept)}, 1, 4,
            [](const Views& v) { launch<K>(v[0].device, v[0], v[1]); },
            dtype == DType::kF32 && !large ? 20 : 1,
            2 * x.numel() / std::max<int64_t>(1, numel(c.kept)));
      }
    }
  }
}

TEST(CudaKernels, SumsAreTheCpus) { check_reduction<kernels::Sum>("sum", false, true); }
TEST(CudaKernels, ProductsAreTheCpus) { check_reduction<kernels::Prod>("prod", false, true); }
TEST(CudaKernels, ExtremesAreTheCpus) {
  check_reduction<kernels::Max>("max", false, false);
  check_reduction<kernels::Min>("min", false, false);
}
TEST(CudaKernels, PlacesOfExtremesAreTheCpus) {
  check_reduction<kernels::ArgMax>("argmax", true, false);
  check_reduction<kernels::ArgMin>("argmin", true, false);
}

TEST(CudaKernels, ReductionsOfNothing) {
  expect_same("sum", {empty(DType::kF32, {0, 3}), empty(DType::kF32, {1, 3})}, 1, 0,
              [](const Views& v) { launch<kernels::Sum>(v[0].device, v[0], v[1]); });
  const Array none = moved(empty(DType::kF32, {0, 3}), kDevice);
  const Array one = moved(empty(DType::kF32, {1, 3}), kDevice);
  EXPECT_THAT(said([&] { launch<kernels::Max>(kDevice, none.view, one.view); }),
              HasSubstr("at least one element"));
}

TEST(CudaKernels, NanIsTheExtreme) {
  Array x = sample(DType::kF32, {3, 301});
  x.set(301 + 7, kNan);
  x.set(301 + 260, kNan);
  expect_same(
      "max", {x, empty(DType::kF32, {3, 1})}, 1, 0,
      [](const Views& v) { launch<kernels::Max>(v[0].device, v[0], v[1]); }, 20);
  expect_same(
      "argmin", {x, empty(DType::kI64, {3, 1})}, 1, 0,
      [](const Views& v) { launch<kernels::ArgMin>(v[0].device, v[0], v[1]); }, 20);
}

// Rows of numbers alone, of infinities, and of both beside NaN.
TEST(CudaKernels, LogSumExpIsTheCpus) {
  const double odd[] = {1, -kInf, kInf, 2, kNan};
  for (DType dtype : kFloats) {
    for (int64_t axis : {0, 1, 2}) {
      const Shape shape = {3, 5, 3};
      Shape sums = shape;
      sums[static_cast<size_t>(axis)] = 1;
      const Array numbers = sample(dtype, shape, -3, 3);
      const Array mixed = filled(empty(dtype, shape), [&](int64_t i) {
        return odd[static_cast<size_t>(noise(i, 0, 4.999))];
      });
      const Array lowest = filled(empty(dtype, shape), [](int64_t) { return -kInf; });
      const Array high =
          filled(empty(dtype, shape), [](int64_t i) { return i % 7 == 0 ? kInf : 1; });
      for (const Array& values : {numbers, mixed, lowest, high}) {
        for (const Strides& strides : some_strides(shape)) {
          expect_same(
              "logsumexp", {with_strides(values, strides), empty(dtype, sums)}, 1, 8,
              [=](const Views& v) { launch<kernels::LogSumExp>(v[0].device, v[0], v[1], axis); },
              dtype == DType::kF32 ? 3 : 1);
        }
      }
    }
    const Array row = sample(dtype, {1, 301, 1}, -3, 3);
    expect_same(
        "logsumexp", {row, empty(dtype, {1, 1, 1})}, 1, 8,
        [](const Views& v) { launch<kernels::LogSumExp>(v[0].device, v[0], v[1], 1); }, 20);
  }
}

TEST(CudaKernels, SoftmaxAndItsGradientAreTheCpus) {
  const std::vector<std::pair<Shape, int64_t>> cases = {
      {{}, 0}, {{7}, 0}, {{3, 301}, 1}, {{3, 5, 7}, 0}, {{3, 5, 7}, 1}, {{0, 3}, 1}};
  for (DType dtype : kFloats) {
    for (const auto& [shape, axis] : cases) {
      const int schedules = dtype == DType::kF32 ? 20 : 1;
      for (const Strides& strides : some_strides(shape)) {
        const Array x = with_strides(sample(dtype, shape, -3, 3), strides);
        const Array g = sample(dtype, shape, -1, 1, 2);
        const Array y = empty(dtype, shape, strides);
        const int64_t dim = axis;
        expect_same(
            "softmax", {x, y}, 1, 8,
            [=](const Views& v) { launch<kernels::Softmax>(v[0].device, v[0], v[1], dim); },
            schedules);
        expect_same(
            "log_softmax", {x, y}, 1, 8,
            [=](const Views& v) { launch<kernels::LogSoftmax>(v[0].device, v[0], v[1], dim); },
            schedules);
        // The sums are multiplied by up to exp(3).
        const int64_t terms = 20 * (shape.empty() ? 1 : shape[static_cast<size_t>(axis)]);
        expect_same(
            "softmax's gradient", {g, x, y}, 2, 32,
            [=](const Views& v) {
              launch<kernels::SoftmaxBackward>(v[0].device, v[0], v[1], v[2], dim);
            },
            1, terms);
        expect_same(
            "log_softmax's gradient", {g, x, y}, 2, 32,
            [=](const Views& v) {
              launch<kernels::LogSoftmaxBackward>(v[0].device, v[0], v[1], v[2], dim);
            },
            1, terms);
      }
    }
  }
}

TEST(CudaKernels, CrossEntropyAndItsGradientAreTheCpus) {
  for (DType dtype : kFloats) {
    for (int64_t classes : {3, 301}) {
      const Shape shape = {7, classes};
      const Array logits = with_strides(sample(dtype, shape, -3, 3), some_strides(shape)[1]);
      const Array targets = filled(empty(DType::kI64, {7}), [&](int64_t i) {
        return i == 4 ? -100 : static_cast<double>(i * 5 % classes);
      });
      expect_same(
          "cross_entropy", {logits, targets, empty(dtype, {7}), empty(dtype, {7})}, 2, 8,
          [](const Views& v) {
            launch<kernels::CrossEntropy>(v[0].device, v[0], v[1], -100, v[2], v[3]);
          },
          dtype == DType::kF32 ? 20 : 1);
      expect_same(
          "cross_entropy's gradient",
          {logits, targets, sample(dtype, {7}, 3, 4), sample(dtype, {7}), empty(dtype, shape)}, 4,
          8, [](const Views& v) {
            launch<kernels::CrossEntropyBackward>(v[0].device, v[0], v[1], -100, v[2], v[3], v[4]);
          });
    }
  }
}

TEST(CudaKernels, AWrongTargetIsNamedByItsRow) {
  const Array logits = moved(sample(DType::kF32, {7, 3}), kDevice);
  const Array targets = moved(
      filled(empty(DType::kI64, {7}), [](int64_t i) { return i >= 5 ? 3.0 + double(i) : 0.0; }),
      kDevice);
  const Array out = moved(empty(DType::kF32, {7}), kDevice);
  EXPECT_THAT(said([&] {
                launch<kernels::CrossEntropy>(kDevice, logits.view, targets.view, -100, out.view,
                                              out.view);
              }),
              AllOf(HasSubstr("cross_entropy"), HasSubstr("row 5 has 8")));
}

TEST(CudaKernels, RandomNumbersAreTheCpusBitForBit) {
  for (const Shape& shape : kShapes) {
    for (const uint64_t offset : {uint64_t{0}, uint64_t{5}, uint64_t{1} << 40}) {
      for (DType dtype : kDTypes) {
        const Array x = empty(dtype, shape, some_strides(shape)[1]);
        if (is_floating(dtype)) {
          expect_same("uniform", {x}, 0, 0, [=](const Views& v) {
            launch<kernels::Uniform>(v[0].device, v[0], uint64_t{77}, offset);
          });
          expect_same("normal", {x}, 0, 0, [=](const Views& v) {
            launch<kernels::Normal>(v[0].device, v[0], uint64_t{77}, offset);
          });
        }
        if (dtype != DType::kBool) {
          expect_same("randint", {x}, 0, 0, [=](const Views& v) {
            launch<kernels::RandInt>(v[0].device, v[0], int64_t{3}, int64_t{99}, uint64_t{77},
                                     offset);
          });
        }
        expect_same("bernoulli", {x}, 0, 0, [=](const Views& v) {
          launch<kernels::Bernoulli>(v[0].device, v[0], 0.3, uint64_t{77}, offset);
        });
      }
    }
  }
}

// 25 tensors, more than one launch takes, of sizes from 0 on; two steps.
TEST(CudaKernels, OptimisersStepAsTheCpuDoes) {
  constexpr size_t kTensors = 25;
  for (DType dtype : kFloats) {
    std::vector<Array> arrays;
    for (int64_t k = 0; k < 4; ++k) {  // gradients, parameters, two states
      for (size_t t = 0; t < kTensors; ++t) {
        const Shape shape = {static_cast<int64_t>(t), 5, 3};
        arrays.push_back(with_strides(sample(dtype, shape, k == 3 ? 0.1 : -1, 1, 7 * k + 1),
                                      permuted_strides(shape, {1, 2, 0})));
      }
    }
    for (double momentum : {0.0, 0.9}) {
      for (bool nesterov : {false, true}) {
        expect_same("sgd", arrays, kTensors, 8, [=](const Views& v) {
          for (bool has_momentum : {false, true}) {
            std::vector<kernels::SgdEntry> entries;
            for (size_t t = 0; t < kTensors; ++t) {
              entries.push_back({v[kTensors + t], v[t], v[2 * kTensors + t], has_momentum});
            }
            launch<kernels::SgdStep>(v[0].device, entries,
                                     kernels::SgdOptions{0.1, momentum, 0.05, 0.01, nesterov});
          }
        });
      }
    }
    for (bool decoupled : {false, true}) {
      expect_same("adam", arrays, kTensors, 16, [=](const Views& v) {
        for (int64_t step : {1, 2}) {
          std::vector<kernels::AdamEntry> entries;
          for (size_t t = 0; t < kTensors; ++t) {
            entries.push_back({v[kTensors + t], v[t], v[2 * kTensors + t], v[3 * kTensors + t],
                               step + static_cast<int64_t>(t)});
          }
          launch<kernels::AdamStep>(v[0].device, entries,
                                    kernels::AdamOptions{0.1, 0.9, 0.99, 1e-3, 0.02, decoupled});
        }
      });
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
