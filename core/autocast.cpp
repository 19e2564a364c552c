#include "lockstep/core/autocast.h"

#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

struct State {
  bool enabled = false;
  DType dtype = DType::kBF16;
};
thread_local State state;

bool is_16_bit(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

}  // namespace

Autocast::Autocast(DType dtype, bool enabled)
    : enabled_before_(state.enabled), dtype_before_(state.dtype) {
  check(is_16_bit(dtype), "Autocast",
        [&] { return str_cat("want bf16 or f16, got ", lockstep::name(dtype)); });
  state = {enabled, dtype};
}

Autocast::~Autocast() { state = {enabled_before_, dtype_before_}; }

bool Autocast::is_enabled() { return state.enabled; }
DType Autocast::dtype() { return state.dtype; }

Tensor autocast_low(const Tensor& x) {
  if (!state.enabled || !x.defined()) return x;
  return x.dtype() == DType::kF32 || is_16_bit(x.dtype()) ? to(x, state.dtype) : x;
}

Tensor autocast_f32(const Tensor& x) {
  if (!state.enabled || !x.defined()) return x;
  return is_16_bit(x.dtype()) ? to(x, DType::kF32) : x;
}

Tensor autocast_wider(const Tensor& x, const Tensor& other) {
  if (!state.enabled || !x.defined() || !other.defined()) return x;
  const DType a = x.dtype();
  const DType b = other.dtype();
  if (a == b || !is_floating(a) || !is_floating(b)) return x;
  const bool any_f64 = a == DType::kF64 || b == DType::kF64;
  return to(x, any_f64 ? DType::kF64 : DType::kF32);  // f16 and bf16 meet in f32
}

}  // namespace lockstep
