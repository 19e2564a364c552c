#pragma once

#include <string>
#include <type_traits>

#include "lockstep/kernels/cpu/blocks.h"
#include "lockstep/kernels/elementwise.h"

// What the element-wise loops share; they stand in several files so that they compile side by side.
namespace lockstep::kernels {

// The type an op computes a lane in: integers that wrap are unsigned, bool is 0 or 1.
template <class Op, class T, class Bits = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>>
auto compute_tag() {
  if constexpr (std::is_integral_v<T> && Op::kWraps) {
    return TypeTag<std::make_unsigned_t<Bits>>{};
  } else {
    return TypeTag<Bits>{};
  }
}
template <class Op, class T>
using Compute = typename decltype(compute_tag<Op, T>())::type;

// An op that integers have is little arithmetic.
template <class Op>
inline constexpr bool is_much_arithmetic = !Op::kIntegers;
template <class Op>
inline constexpr SimdLevel widest_of = is_much_arithmetic<Op> ? SimdLevel::kAvx512 : kLight;

// Throws for a dtype that Op does not have.
template <class Op>
[[noreturn]] void refuse_dtype(DType dtype) {
  throw Error(ErrorCode::kInvalidArgument, Op::kName,
              std::string("want a floating dtype, got ").append(name(dtype)));
}

// Calls f(TypeTag<lane type>) for the dtypes that Op has.
template <class Op, class F>
void visit_lanes(DType dtype, const F& f) {
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (is_floating_v<T> || Op::kIntegers) {
      f(TypeTag<Lane<T>>{});
    } else {
      refuse_dtype<Op>(dtype);
    }
  });
}

// The same for gradients, which are floating.
template <class F>
void visit_floating_lanes(DType dtype, std::string_view op, const F& f) {
  visit_floating(dtype, op, [&](auto tag) { f(TypeTag<Lane<typename decltype(tag)::type>>{}); });
}

}  // namespace lockstep::kernels
