// Products and convolutions on an emulated CUDA device against the CPU's. The emulator has loops in
// place of NVIDIA's libraries, so what is tested is all around them: shapes, strides, batches,
// biases, copies, empty operands, the order of what is put on the stream.
#include <gmock/gmock.h>

#include "expect_same.h"
#include "lockstep/kernels/conv.h"
#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/matmul.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

// Several of these rounding steps may come together: those of the sum and that of the result.
constexpr double kSteps = 2;

// a b, and a b + bias, in `schedules` schedules. Arrays: a, b, bias, out.
void check_products(const std::string& what, const std::vector<Array>& arrays, int schedules = 1) {
  const int64_t terms = 4 * arrays[0].shape().back();
  expect_same(
      what, arrays, 3, kSteps,
      [](const Views& v) { launch<kernels::MatMul>(v[0].device, v[0], v[1], v[3], nullptr); },
      schedules, terms);
  expect_same(
      what + " with bias", arrays, 3, kSteps,
      [](const Views& v) { launch<kernels::MatMul>(v[0].device, v[0], v[1], v[3], &v[2]); },
      schedules, terms);
}

struct Sizes {
  int64_t m, k, n;
};
constexpr Sizes kSizes[] = {{1, 7, 5}, {5, 1, 3}, {6, 5, 1}, {1, 1, 1}, {17, 33, 9}};

TEST(CudaProducts, EverySizeDtypeAndStrideIsTheCpus) {
  for (DType dtype : kFloats) {
    for (const Sizes& s : kSizes) {
      const Array a = sample(dtype, {s.m, s.k});
      const Array b = sample(dtype, {s.k, s.n}, -1.5, 1.5, 1);
      const Array bias = sample(dtype, {s.n}, -1.5, 1.5, 2);
      for (const Strides& a_strides : some_strides(a.shape())) {
        for (const Strides& b_strides : some_strides(b.shape())) {
          for (const Strides& out_strides : some_strides({s.m, s.n})) {
            check_products("matmul", {with_strides(a, a_strides), with_strides(b, b_strides), bias,
                                      empty(dtype, {s.m, s.n}, out_strides)});
          }
        }
      }
    }
  }
}

TEST(CudaProducts, BatchesAreTheCpus) {
  for (DType dtype : kFloats) {
    for (int64_t batch : {1, 3}) {
      for (const Sizes& s : kSizes) {
        const Array a = sample(dtype, {batch, s.m, s.k});
        const Array b = sample(dtype, {batch, s.k, s.n}, -1.5, 1.5, 1);
        const Array bias = with_strides(sample(dtype, {s.n}, -1.5, 1.5, 2), {3});
        for (const Strides& a_strides : some_strides(a.shape())) {
          for (const Strides& out_strides : some_strides({batch, s.m, s.n})) {
            check_products("batches",
                           {with_strides(a, a_strides), with_strides(b, some_strides(b.shape())[1]),
                            bias, empty(dtype, {batch, s.m, s.n}, out_strides)});
          }
        }
      }
    }
  }
}

TEST(CudaProducts, ABroadcastOperandIsReadAgainForEachRowOrMatrix) {
  for (DType dtype : kFloats) {
    Array a = sample(dtype, {1, 4, 5});
    a.view.shape = {3, 4, 5};
    a.view.strides[0] = 0;
    Array b = sample(dtype, {3, 1, 6});
    b.view.shape = {3, 5, 6};
    b.view.strides[1] = 0;
    Array bias = sample(dtype, {1});
    bias.view.shape = {6};
    bias.view.strides = {0};
    check_products("broadcast", {a, b, bias, empty(dtype, {3, 4, 6})});
  }
}

TEST(CudaProducts, OverlappingRowsOfOneBufferAreAMatrixToo) {
  for (DType dtype : kFloats) {
    Array a = sample(dtype, {12});
    a.view.shape = {5, 4};
    a.view.strides = {2, 1};
    check_products("rows in each other", {a, sample(dtype, {4, 3}, -1.5, 1.5, 1),
                                          sample(dtype, {3}), empty(dtype, {5, 3})});
  }
}

// By the library's own kernel, and where that has none (f64, and rows of an odd length) in two.
TEST(CudaProducts, GeluAndWhatWentIntoItAreTheCpus) {
  for (DType dtype : kFloats) {
    for (int64_t n : {1, 8, 13, 24}) {
      for (size_t strides : {0, 1, 3}) {
        const Array out = empty(dtype, {5, n});
        const std::vector<Array> arrays = {
            with_strides(sample(dtype, {5, 7}), some_strides({5, 7})[strides]),
            with_strides(sample(dtype, {7, n}, -1, 1, 1), some_strides({7, n})[strides]),
            sample(dtype, {n}, -1, 1, 3), with_strides(out, some_strides({5, n})[strides]), out};
        expect_same(
            "gelu of a product", arrays, 3, 8,
            [](const Views& v) {
              launch<kernels::MatMulGelu>(v[0].device, v[0], v[1], v[3], &v[2], &v[4]);
            },
            1, 8);
        expect_same(
            "gelu of a product without a bias, its inputs forgotten", arrays, 3, 8,
            [](const Views& v) {
              launch<kernels::MatMulGelu>(v[0].device, v[0], v[1], v[3], nullptr, nullptr);
            },
            1, 8);
      }
    }
    expect_same("gelu of nothing but a bias",
                {empty(dtype, {3, 0}), empty(dtype, {0, 8}), sample(dtype, {8}),
                 empty(dtype, {3, 8}), empty(dtype, {3, 8})},
                3, 8, [](const Views& v) {
                  launch<kernels::MatMulGelu>(v[0].device, v[0], v[1], v[3], &v[2], &v[4]);
                });
  }
}

TEST(CudaProducts, TheOrderOnTheStreamIsKeptInEverySchedule) {
  for (DType dtype : kFloats) {
    for (size_t strides : {0, 3}) {  // in place, and by way of copies
      check_products("schedules",
                     {with_strides(sample(dtype, {65, 31}), some_strides({65, 31})[strides]),
                      sample(dtype, {31, 33}, -1.5, 1.5, 1), sample(dtype, {33}),
                      empty(dtype, {65, 33}, some_strides({65, 33})[strides])},
                     20);
    }
  }
}

TEST(CudaProducts, AnEmptySumIsTheBiasAndAnEmptyResultNothing) {
  for (DType dtype : kFloats) {
    for (const Sizes& s : {Sizes{3, 0, 5}, Sizes{0, 4, 5}, Sizes{3, 4, 0}}) {
      check_products("empty", {empty(dtype, {s.m, s.k}), empty(dtype, {s.k, s.n}),
                               sample(dtype, {s.n}), empty(dtype, {s.m, s.n})});
      check_products("empty", {empty(dtype, {2, s.m, s.k}), empty(dtype, {2, s.k, s.n}),
                               sample(dtype, {s.n}), empty(dtype, {2, s.m, s.n})});
    }
    check_products("no batch", {empty(dtype, {0, 3, 4}), empty(dtype, {0, 4, 5}),
                                sample(dtype, {5}), empty(dtype, {0, 3, 5})});
  }
}

TEST(CudaProducts, OtherDtypesAreAnErrorThatNamesThem) {
  const Array x = moved(sample(DType::kI32, {3, 3}, -9, 9), kDevice);
  const auto message =
      said([&] { launch<kernels::MatMul>(kDevice, x.view, x.view, x.view, nullptr); });
  EXPECT_EQ(message, "[matmul] want a floating dtype, got i32");
  EXPECT_THAT(said([&] {
                launch<kernels::Conv2dInputGrad>(kDevice, x.view, x.view, x.view,
                                                 kernels::Conv2dParams{});
              }),
              HasSubstr("[conv2d_input_grad] want a floating dtype, got i32"));
}

struct Setting {
  Shape x;       // (N, C, H, W)
  Shape weight;  // (O, C / groups, kh, kw)
  Shape y;       // (N, O, H', W')
  kernels::Conv2dParams params;
};

const Setting kSettings[] = {
    {{2, 3, 7, 9}, {5, 3, 3, 3}, {2, 5, 5, 7}, {}},
    {{1, 1, 8, 8}, {4, 1, 5, 5}, {1, 4, 8, 8}, {{1, 1}, {2, 2}, {1, 1}, 1}},
    {{3, 7, 6, 5}, {9, 7, 1, 1}, {3, 9, 6, 5}, {}},
    {{2, 4, 11, 8}, {6, 4, 3, 2}, {2, 6, 6, 3}, {{2, 3}, {1, 0}, {1, 1}, 1}},
    {{2, 4, 11, 13}, {6, 4, 3, 3}, {2, 6, 11, 5}, {{1, 2}, {2, 1}, {2, 3}, 1}},
    {{2, 6, 7, 7}, {9, 2, 3, 3}, {2, 9, 7, 7}, {{1, 1}, {1, 1}, {1, 1}, 3}},
    {{2, 5, 7, 7}, {5, 1, 3, 3}, {2, 5, 4, 4}, {{2, 2}, {1, 1}, {1, 1}, 5}},
    {{2, 3, 3, 3}, {2, 3, 3, 3}, {2, 2, 1, 1}, {}},
    {{2, 2, 1, 1}, {3, 2, 3, 3}, {2, 3, 1, 1}, {{1, 1}, {1, 1}, {1, 1}, 1}},
};

// Runs a kernel; of 16-bit floats, which the CPU's does not take, its f32 on copies.
void convolve(const Views& views, const std::function<void(const Views&)>& call) {
  if (!views[0].device.is_cpu() || size_of(views[0].dtype) > 2) return call(views);
  std::vector<Array> wide;
  Views wide_views;
  for (const View& v : views) {
    wide.push_back(empty(DType::kF32, v.shape));
    wide_views.push_back(wide.back().view);
    kernels::Copy::cpu(v, wide_views.back());
  }
  call(wide_views);
  for (size_t k = 0; k < views.size(); ++k) kernels::Copy::cpu(wide_views[k], views[k]);
}

// A convolution without and with a bias and its two gradients, of operands in the given order of
// some_strides().
void check_convolution(const Setting& s, DType dtype, size_t x_order, size_t y_order,
                       int schedules = 1) {
  const auto lay = [&](const Array& x, size_t order) {
    return with_strides(x, some_strides(x.shape())[order]);
  };
  const Array x = lay(sample(dtype, s.x), x_order);
  const Array weight = lay(sample(dtype, s.weight, -1, 1, 1), y_order);
  const Array bias = with_strides(sample(dtype, {s.weight[0]}, -1, 1, 2), {2});
  const Array g = lay(sample(dtype, s.y, -1, 1, 3), y_order);
  const auto result = [&](const Shape& shape, size_t order) {
    return empty(dtype, shape, some_strides(shape)[order]);
  };
  const kernels::Conv2dParams params = s.params;
  const auto check = [&](const std::string& what, const std::vector<Array>& arrays, int64_t terms,
                         const std::function<void(const Views&)>& call) {
    expect_same(
        what, arrays, 2, kSteps, [&](const Views& v) { convolve(v, call); }, schedules, 8 * terms);
  };
  const int64_t sum = s.weight[1] * s.weight[2] * s.weight[3];
  check("conv2d", {x, weight, result(s.y, y_order)}, sum, [=](const Views& v) {
    launch<kernels::Conv2d>(v[0].device, v[0], v[1], nullptr, v[2], params);
  });
  check("conv2d with bias", {x, weight, result(s.y, y_order), bias}, sum, [=](const Views& v) {
    launch<kernels::Conv2d>(v[0].device, v[0], v[1], &v[3], v[2], params);
  });
  check("conv2d_input_grad", {g, weight, result(s.x, x_order)}, s.weight[0] * sum,
        [=](const Views& v) {
          launch<kernels::Conv2dInputGrad>(v[0].device, v[0], v[1], v[2], params);
        });
  check("conv2d_weight_grad", {g, x, result(s.weight, y_order)}, s.y[0] * s.y[2] * s.y[3],
        [=](const Views& v) {
          launch<kernels::Conv2dWeightGrad>(v[0].device, v[0], v[1], v[2], params);
        });
}

TEST(CudaConvolutions, ValuesAndGradientsAreTheCpus) {
  for (DType dtype : kFloats) {
    for (size_t s = 0; s < std::size(kSettings); ++s) {
      for (size_t x_order = 0; x_order < 4; ++x_order) {  // rows, reversed, channels-last, gaps
        for (size_t y_order : {x_order, size_t{2}}) {
          SCOPED_TRACE(::testing::Message() << name(dtype) << " setting " << s << " orders "
                                            << x_order << " and " << y_order);
          check_convolution(kSettings[s], dtype, x_order, y_order);
        }
      }
    }
  }
}

TEST(CudaConvolutions, TheOrderOnTheStreamIsKeptInEverySchedule) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    check_convolution(kSettings[5], dtype, 2, 2, 20);
    check_convolution(kSettings[5], dtype, 3, 1, 20);  // by way of copies
  }
}

TEST(CudaConvolutions, EmptyBatchesAndEmptySums) {
  for (DType dtype : kFloats) {
    check_convolution({{0, 2, 5, 5}, {3, 2, 3, 3}, {0, 3, 3, 3}, {}}, dtype, 0, 0);
    check_convolution({{2, 0, 5, 5}, {3, 0, 3, 3}, {2, 3, 3, 3}, {}}, dtype, 0, 0);
  }
}

}  // namespace
}  // namespace lockstep::testing
