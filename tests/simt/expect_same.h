#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../errors.h"
#include "../kernels/arrays.h"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/memory.h"
#include "schedules.h"
#include "simt/simt.h"

// How a kernel on an emulated CUDA device is held to the CPU's.
namespace lockstep::testing {

// What call() says when it throws.
template <class F>
std::string said(const F& call) {
  return error_of(call).what();
}

inline constexpr Device kDevice = {DeviceType::kCuda, 0};
inline constexpr DType kDTypes[] = {DType::kF32,  DType::kF64,  DType::kF16,
                                    DType::kBF16, DType::kI64,  DType::kI32,
                                    DType::kU8,   DType::kBool, DType::kI8};

// Bytes from the first element to the end of the last.
inline size_t extent(const View& x) {
  if (x.numel() == 0) return 0;
  int64_t count = 1;
  for (size_t d = 0; d < x.shape.size(); ++d) count += (x.shape[d] - 1) * x.strides[d];
  return static_cast<size_t>(count) * size_of(x.dtype);
}

inline Array moved(const Array& x, Device to) {
  Array out = x;
  out.memory = to.is_cpu() ? std::shared_ptr<void>(::operator new(extent(x.view) + 1),
                                                   [](void* p) { ::operator delete(p); })
                           : allocate(extent(x.view), to);
  out.view.data = out.memory.get();
  out.view.device = to;
  if (extent(x.view) > 0) {
    cuda::copy(out.view.data, to, x.view.data, x.view.device, extent(x.view));
  }
  return out;
}

using Views = std::vector<View>;

// Runs `call` with views on the CPU and on the device, and compares arrays from `first_output` on:
// within `steps` of the dtype, and what sums of `terms` numbers about 1 may differ by, which are
// taken in f32 or f64. Each call has schedules of its own, a test's first one kSchedules and more.
inline void expect_same(const std::string& what, const std::vector<Array>& arrays,
                        size_t first_output, double steps,
                        const std::function<void(const Views&)>& call, int schedules = 1,
                        int64_t terms = 0) {
  const auto views = [](const std::vector<Array>& list) {
    Views out;
    for (const Array& a : list) out.push_back(a.view);
    return out;
  };
  static const ::testing::TestInfo* last_test = nullptr;
  static uint64_t seed = 0;
  const auto* this_test = ::testing::UnitTest::GetInstance()->current_test_info();
  if (last_test != this_test) schedules = std::max(schedules, kSchedules);
  last_test = this_test;
  for (int run = 0; run < schedules; ++run) {
    simt::seed(++seed);
    std::vector<Array> there;
    for (const Array& a : arrays) there.push_back(moved(a, kDevice));
    call(views(there));
    std::vector<Array> here;  // inputs are left alone, outputs may be inputs too
    for (const Array& a : arrays) here.push_back(moved(a, kCpu));
    call(views(here));
    for (size_t k = first_output; k < arrays.size(); ++k) {
      const Array back = moved(there[k], kCpu);
      const DType dtype = back.view.dtype;
      const double relative = is_floating(dtype) ? steps * epsilon(dtype) : 0;
      const double absolute =
          !is_floating(dtype)
              ? 0
              : static_cast<double>(terms) * epsilon(dtype == DType::kF64 ? dtype : DType::kF32);
      for (int64_t i = 0; i < back.numel(); ++i) {
        ASSERT_TRUE(close(back.get(i), here[k].get(i), relative, relative + absolute))
            << what << ", " << name(dtype) << to_string(back.shape()) << ", output "
            << k - first_output << ", element " << i << ", schedule " << seed;
      }
    }
  }
  ASSERT_EQ(simt::take_report(), "") << what;
}

// Of the integer dtypes small numbers that repeat.
inline Array random(DType dtype, const Shape& shape, double low, double high, int64_t salt) {
  const bool positive = dtype == DType::kU8 || dtype == DType::kBool;
  return sample(dtype, shape, is_floating(dtype) ? low : (positive ? 0 : -9),
                is_floating(dtype) ? high : (dtype == DType::kBool ? 2 : 9), salt);
}

}  // namespace lockstep::testing
