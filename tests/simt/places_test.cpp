// Kernels of kernels/cuda/ that go by places against the CPU's: index, gather, scan, sort.
#include <gmock/gmock.h>

#include "expect_same.h"
#include "lockstep/kernels/gather.h"
#include "lockstep/kernels/index.h"
#include "lockstep/kernels/scan.h"
#include "lockstep/kernels/sort.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Array index_for(const Shape& shape, int64_t size, const Strides& strides) {
  return filled(empty(DType::kI64, shape, strides),
                [size](int64_t i) { return static_cast<double>((i * i + 3 * i) % size); });
}

Shape with_size(Shape shape, size_t axis, int64_t size) {
  shape[axis] = size;
  return shape;
}

int schedules_for(DType dtype) { return dtype == DType::kF32 ? 20 : 1; }

TEST(CudaPlaces, SlicesArePickedAsTheCpuDoes) {
  // The last ones are made of runs of 16 bytes.
  for (const Shape& shape : {Shape{5}, Shape{5, 3, 7}, Shape{6, 48}, Shape{3, 5, 32}}) {
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      const Shape out = with_size(shape, axis, 11);
      const auto dim = static_cast<int64_t>(axis);
      const Array index = index_for({11}, shape[axis], {2});
      for (DType dtype : kDTypes) {
        for (const Strides& strides : some_strides(shape)) {
          expect_same(
              "index_select",
              {with_strides(random(dtype, shape, -2, 2, 1), strides), index, empty(dtype, out)}, 2,
              0, [=](const Views& v) {
                launch<kernels::IndexSelect>(v[0].device, v[0], v[1], v[2], dim);
              });
        }
        expect_same(
            "index_select",
            {random(dtype, shape, -2, 2, 1), index, empty(dtype, out, some_strides(out)[2])}, 2, 0,
            [=](const Views& v) {
              launch<kernels::IndexSelect>(v[0].device, v[0], v[1], v[2], dim);
            });
      }
    }
  }
}

// Places come up to seven times; the sums are the CPU's to the bit.
TEST(CudaPlaces, SlicesAreAddedInOrder) {
  for (const Shape& shape : {Shape{3}, Shape{3, 5, 4}}) {
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      const Shape from = with_size(shape, axis, 19);
      const auto dim = static_cast<int64_t>(axis);
      const Array index = index_for({19}, shape[axis], {2});
      for (DType dtype : kDTypes) {
        for (const Strides& strides : some_strides(from)) {
          expect_same(
              "index_add",
              {with_strides(random(dtype, from, -2, 2, 1), strides), index,
               with_strides(random(dtype, shape, -2, 2, 2), some_strides(shape)[1])},
              2, 0,
              [=](const Views& v) {
                launch<kernels::IndexAdd>(v[0].device, v[0], v[1], v[2], dim);
              },
              schedules_for(dtype));
        }
      }
    }
  }
}

TEST(CudaPlaces, ManySlicesAreAddedInOrder) {
  expect_same("index_add",
              {sample(DType::kF32, {2500, 3}), index_for({2500}, 7, {1}),
               sample(DType::kF32, {7, 3}, -1, 1, 5)},
              2, 0,
              [=](const Views& v) { launch<kernels::IndexAdd>(v[0].device, v[0], v[1], v[2], 0); });
}

TEST(CudaPlaces, ElementsAreGatheredAndScatteredAsTheCpuDoes) {
  const Shape large = {3, 5, 4};
  for (size_t axis = 0; axis < 3; ++axis) {
    const Shape small = with_size({2, 3, 3}, axis, 7);
    const auto dim = static_cast<int64_t>(axis);
    for (DType dtype : kDTypes) {
      const Array values = random(dtype, large, -2, 2, 1);
      const Array more = random(dtype, small, -2, 2, 2);
      for (size_t k = 0; k < 4; ++k) {
        const Array x = with_strides(values, some_strides(large)[k]);
        const Array index = index_for(small, large[axis], some_strides(small)[3 - k]);
        const Array y = with_strides(more, some_strides(small)[(k + 1) % 4]);
        expect_same("gather", {x, index, y}, 2, 0, [=](const Views& v) {
          launch<kernels::Gather>(v[0].device, v[0], v[1], v[2], dim);
        });
        expect_same(
            "scatter_add", {y, index, x}, 2, 0,
            [=](const Views& v) {
              launch<kernels::ScatterAdd>(v[0].device, v[0], v[1], v[2], dim);
            },
            schedules_for(dtype));
        expect_same(
            "scatter", {y, index, x}, 2, 0,
            [=](const Views& v) { launch<kernels::Scatter>(v[0].device, v[0], v[1], v[2], dim); },
            schedules_for(dtype));
      }
    }
  }
}

TEST(CudaPlaces, OfNothing) {
  const Array x = sample(DType::kF32, {3, 4});
  const Array none = empty(DType::kF32, {0, 4});
  expect_same("gather", {x, empty(DType::kI64, {0, 4}), none, x}, 0, 0, [](const Views& v) {
    launch<kernels::Gather>(v[0].device, v[0], v[1], v[2], 0);
    launch<kernels::Scatter>(v[0].device, v[2], v[1], v[3], 0);
    launch<kernels::ScatterAdd>(v[0].device, v[2], v[1], v[3], 0);
  });
  expect_same("index_select", {x, empty(DType::kI64, {0}), none, x}, 0, 0, [](const Views& v) {
    launch<kernels::IndexSelect>(v[0].device, v[0], v[1], v[2], 0);
    launch<kernels::IndexAdd>(v[0].device, v[2], v[1], v[3], 0);
  });
}

TEST(CudaPlaces, OneOutsideIsNamedBeforeAnythingIsWritten) {
  const Array x = moved(sample(DType::kF32, {3, 4}), kDevice);
  for (double bad : {-1.0, 4.0}) {
    const Array index = moved(
        filled(empty(DType::kI64, {2, 3}), [&](int64_t i) { return i >= 4 ? bad : 1; }), kDevice);
    const Array few = moved(
        filled(empty(DType::kI64, {3}), [&](int64_t i) { return i == 2 ? bad : 1; }), kDevice);
    const Array y = moved(filled(empty(DType::kF32, {2, 3}), [](int64_t) { return 7; }), kDevice);
    const Array wide =
        moved(filled(empty(DType::kF32, {3, 3}), [](int64_t) { return 7; }), kDevice);
    const std::string got = "got " + std::to_string(static_cast<int>(bad));
    EXPECT_THAT(said([&] { launch<kernels::Gather>(kDevice, x.view, index.view, y.view, 1); }),
                AllOf(HasSubstr("gather"), HasSubstr("[0, 4), " + got + " at 1 of dimension 1")));
    EXPECT_THAT(
        said([&] { launch<kernels::IndexSelect>(kDevice, x.view, few.view, wide.view, 1); }),
        AllOf(HasSubstr("index_select"), HasSubstr("[0, 4), " + got + " at 2 of the index")));
    EXPECT_THAT(said([&] { launch<kernels::ScatterAdd>(kDevice, y.view, index.view, x.view, 1); }),
                AllOf(HasSubstr("scatter_add"), HasSubstr(got)));
    EXPECT_THAT(said([&] { launch<kernels::Scatter>(kDevice, y.view, index.view, x.view, 1); }),
                AllOf(HasSubstr("scatter"), HasSubstr(got)));
    EXPECT_THAT(said([&] { launch<kernels::IndexAdd>(kDevice, wide.view, few.view, x.view, 1); }),
                AllOf(HasSubstr("index_add"), HasSubstr(got)));
    for (const Array* a : {&y, &wide}) EXPECT_EQ(moved(*a, kCpu).get(0), 7);
    EXPECT_EQ(moved(x, kCpu).values(), sample(DType::kF32, {3, 4}).values());
  }
}

struct Case {
  Shape shape;
  size_t axis;
};

TEST(CudaScan, RunningSumsAreTheCpus) {
  // A thread takes a short line, a block one of 300, several one of 9001.
  const std::vector<Case> cases = {{{7}, 0},      {{3, 5, 7}, 0}, {{3, 5, 7}, 2}, {{3, 300}, 1},
                                   {{300, 3}, 0}, {{9001}, 0},    {{3, 4200}, 1}, {{1, 1}, 1},
                                   {{0, 3}, 0},   {{2, 0}, 0},    {{34, 700}, 0}};
  for (const Case& c : cases) {
    const auto dim = static_cast<int64_t>(c.axis);
    for (DType dtype : kDTypes) {
      const bool large = numel(c.shape) > 1000;
      if (large && dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kI8) continue;
      const DType out = is_floating(dtype) ? dtype : DType::kI64;
      for (bool reverse : {false, true}) {
        for (const Strides& strides : some_strides(c.shape)) {
          expect_same(
              "cumsum",
              {with_strides(random(dtype, c.shape, -1, 1, 3), strides),
               empty(out, c.shape, some_strides(c.shape)[1])},
              1, 2,
              [=](const Views& v) {
                launch<kernels::CumSum>(v[0].device, v[0], v[1], dim, reverse);
              },
              dtype == DType::kF32 && !large ? 20 : 1, c.shape[c.axis]);
        }
      }
    }
  }
}

TEST(CudaScan, InPlaceAndNanStaysWhereItIs) {
  Array x = sample(DType::kF32, {2, 601});
  x.set(333, kNan);
  x.set(700, kInf);
  for (bool reverse : {false, true}) {
    expect_same(
        "cumsum", {x}, 0, 2,
        [=](const Views& v) { launch<kernels::CumSum>(v[0].device, v[0], v[0], 1, reverse); }, 20,
        10);
  }
}

TEST(CudaSort, OrdersAreTheCpus) {
  // Lines that share a block, lines of one tile, and lines of two to five tiles.
  const std::vector<Case> cases = {{{1}, 0},        {{7}, 0},      {{3, 17, 5}, 0}, {{3, 17, 5}, 1},
                                   {{3, 17, 5}, 2}, {{2, 700}, 1}, {{2500, 2}, 0},  {{4099}, 0},
                                   {{0, 3}, 1},     {{3, 0}, 0}};
  for (const Case& c : cases) {
    const auto dim = static_cast<int64_t>(c.axis);
    const int64_t size = c.shape[c.axis];
    for (DType dtype : kDTypes) {
      const bool large = numel(c.shape) > 1000;
      if (large && dtype != DType::kF64 && dtype != DType::kBF16 && dtype != DType::kI32) continue;
      // Values repeat, and are of both signs.
      const Array x = filled(empty(dtype, c.shape), [&](int64_t i) {
        const double v = std::floor(noise(i, dtype == DType::kU8 || dtype == DType::kBool ? 0 : -9,
                                          dtype == DType::kBool ? 1.99 : 9));
        return is_floating(dtype) && v == 0 && i % 2 == 0 ? -0.0 : v;
      });
      for (bool descending : {false, true}) {
        for (int64_t wanted : {int64_t{0}, std::min<int64_t>(size, 5), size}) {
          const Shape out = with_size(c.shape, c.axis, wanted);
          for (size_t k : {0, 1, 3}) {
            if (large && k == 3) continue;
            expect_same(
                "sort",
                {with_strides(x, some_strides(c.shape)[k]),
                 empty(DType::kI64, out, some_strides(out)[(k + 1) % 4])},
                1, 0,
                [=](const Views& v) {
                  launch<kernels::ArgSort>(v[0].device, v[0], v[1], dim, descending);
                },
                dtype == DType::kF32 ? 5 : 1);
          }
        }
      }
    }
  }
}

void expect_same_nonzero(const Array& x) {
  const Array there = moved(x, kDevice);
  const int64_t count = launch<kernels::CountNonzero>(kDevice, there.view);
  ASSERT_EQ(count, kernels::CountNonzero::cpu(x.view));
  for (const Shape& shape : {Shape{count}, Shape{count, x.view.dim()}}) {
    const Array want = empty(DType::kI64, shape), got = moved(want, kDevice);
    kernels::Nonzero::cpu(x.view, want.view);
    launch<kernels::Nonzero>(kDevice, there.view, got.view);
    EXPECT_EQ(moved(got, kCpu).values(), want.values());
  }
}

// More tiles and more elements than the device has room for at a time.
TEST(CudaSort, BlocksThatWorkTwice) {
  const Array x = sample(DType::kF32, {45, 600});
  expect_same(
      "sort", {x, empty(DType::kI64, {45, 600})}, 1, 0,
      [](const Views& v) { launch<kernels::ArgSort>(v[0].device, v[0], v[1], 1, false); }, 3);
  const Array some =
      filled(empty(DType::kU8, {40001}), [](int64_t i) { return noise(i, 0, 1) < 0.4 ? 1 : 0; });
  for (uint64_t seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(seed);
    expect_same_nonzero(some);
  }
  EXPECT_EQ(simt::take_report(), "");
}

TEST(CudaSort, ExtremesHaveTheirPlaces) {
  const double floats[] = {2, kNan, -kInf, kInf, kNan, 0, -0.0, -3, 1e-30, -1e-30};
  for (DType dtype : kFloats) {
    const Array x =
        filled(empty(dtype, {2000}), [&](int64_t i) { return floats[(i * i + i / 7) % 10]; });
    for (bool descending : {false, true}) {
      expect_same("sort", {x, empty(DType::kI64, {2000})}, 1, 0, [=](const Views& v) {
        launch<kernels::ArgSort>(v[0].device, v[0], v[1], 0, descending);
      });
    }
  }
  const Array x = empty(DType::kI64, {7});
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const int64_t integers[] = {kMost, 0, -kMost - 1, kMost, -1, -kMost, -kMost - 1};
  std::copy_n(integers, 7, x.view.as<int64_t>());
  for (bool descending : {false, true}) {
    expect_same("sort", {x, empty(DType::kI64, {7})}, 1, 0, [=](const Views& v) {
      launch<kernels::ArgSort>(v[0].device, v[0], v[1], 0, descending);
    });
  }
}

TEST(CudaSort, ElementsThatAreNotZeroAreTheCpus) {
  for (DType dtype : kDTypes) {
    for (const Shape& shape :
         {Shape{}, Shape{7}, Shape{3, 5, 7}, Shape{3001}, Shape{0, 3}, Shape{2, 600}}) {
      for (int64_t period : {2, 5000}) {
        Array values = filled(empty(dtype, shape), [&](int64_t i) {
          return i % period == 1 ? (is_floating(dtype) && i % 3 == 0 ? kNan : 1) : 0;
        });
        for (const Strides& strides : some_strides(shape)) {
          const Array x = with_strides(values, strides);
          simt::seed(static_cast<uint64_t>(period));
          expect_same_nonzero(x);
        }
      }
    }
  }
  EXPECT_EQ(simt::take_report(), "");
}

}  // namespace
}  // namespace lockstep::testing
