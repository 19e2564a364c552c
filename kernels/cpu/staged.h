#pragma once

#include <memory>

#include "lockstep/kernels/cpu/blocks.h"
#include "lockstep/kernels/view.h"

// How kernels that want one memory order meet any other: a view that is not laid out as wanted, or
// is of 16-bit floats, is copied to memory that is.
namespace lockstep::kernels {

// The dtype that loops compute in: f32 for f16 and bf16, else the dtype itself.
constexpr DType lane_dtype(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 ? DType::kF32 : dtype;
}

// Calls f(TypeTag<T>{}) with float or double, the type that loops over a floating `dtype` compute
// in. Throws Error(kInvalidArgument) that names `op` for any other dtype.
template <class F>
decltype(auto) visit_lane(DType dtype, std::string_view op, F&& f) {
  if (dtype == DType::kF64) return f(TypeTag<double>{});
  return visit_floating(dtype, op, [&](auto) { return f(TypeTag<float>{}); });
}

// The elements of a view that is read, in lanes with the wanted strides.
class StagedInput {
 public:
  StagedInput(const View& view, const Strides& strides);

  template <class T>
  const T* as() const {
    return staged_.as<T>();
  }

 private:
  std::shared_ptr<void> memory_;
  View staged_;
};

// The place for the elements of a view that is written. finish() brings them to the view.
class StagedOutput {
 public:
  StagedOutput(const View& view, const Strides& strides);

  template <class T>
  T* as() const {
    return staged_.as<T>();
  }
  void finish() const;

 private:
  std::shared_ptr<void> memory_;  // null where the view itself is written
  View view_;
  View staged_;
};

}  // namespace lockstep::kernels
