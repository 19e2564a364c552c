// The folds of collectives: several ranks' inputs into one result, bound by the bytes they move.
//
// One loop template per shape of fold (all at once for two sources, and begin, step, finish), each
// over a Rule: how one element of one dtype and op is widened, joined and rounded.

#include "lockstep/kernels/fold.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "lockstep/kernels/cpu/fold_f32_lanes.h"
#include "lockstep/kernels/simd.h"

namespace lockstep::kernels {
namespace {

constexpr std::string_view kNames[kFoldOpCount] = {"sum", "avg", "min", "max", "prod", "and", "or"};

// Elements per pass of a fold: partial results of a pass stay in the first-level cache.
constexpr int64_t kPass = 1024;

// What an element looks like in memory to these loops: compilers vectorise numbers, not structs.
template <class T>
using Raw = std::conditional_t<is_reduced_float_v<T>, uint16_t,
                               std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>>;

template <class T, Join J>
constexpr auto partial_tag() {
  constexpr bool average = J == Join::kAvg || J == Join::kAvgExact;
  constexpr bool order = J == Join::kMin || J == Join::kMax;
  if constexpr (is_reduced_float_v<T> && !order) {
    return TypeTag<float>{};
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool> && average) {
    if constexpr (sizeof(T) == 1) return TypeTag<int32_t>{};
    if constexpr (sizeof(T) == 4) return TypeTag<int64_t>{};
    if constexpr (sizeof(T) == 8) return TypeTag<__int128>{};
  } else {
    return TypeTag<Raw<T>>{};
  }
}

template <class T>
LOCKSTEP_INLINE bool is_nan(T value) {
  return value != value;
}

// The value of an element as a number that can be compared and added; bool is 0 or 1.
//
// Half's conversions stand here in a form that takes a few vector instructions and no branch; they
// agree with Half for every value, except that a NaN loses its sign and payload when it is stored.
template <class T>
LOCKSTEP_INLINE auto value_of(Raw<T> raw) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return std::bit_cast<float>(uint32_t{raw} << 16);
  } else if constexpr (std::is_same_v<T, Half>) {
    const uint32_t sign = uint32_t{raw & 0x8000u} << 16;
    const uint32_t magnitude = raw & 0x7fffu;
    // A subnormal counts multiples of 2^-24. Floats that are subnormal themselves are avoided:
    // arithmetic on them is many times slower.
    const float counted = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
    const uint32_t small = std::bit_cast<uint32_t>(counted);
    const uint32_t normal = (magnitude << 13) + (magnitude < 0x7c00u ? 0x38000000u : 0x70000000u);
    return std::bit_cast<float>(sign | (magnitude < 0x400u ? small : normal));
  } else if constexpr (std::is_same_v<T, bool>) {
    return static_cast<uint8_t>(raw != 0);
  } else {
    return raw;
  }
}

template <class T>
LOCKSTEP_INLINE Raw<T> round_to(float value) {
  const uint32_t b = std::bit_cast<uint32_t>(value);
  if constexpr (std::is_same_v<T, BFloat16>) {
    const uint32_t rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
    return static_cast<uint16_t>(is_nan(value) ? 0x7fc0u : rounded);
  } else {
    // The half is put together in the upper 16 bits: in the lower ones the compiler would see that
    // the upper are not wanted, and mix vectors of 16 and of 32 bits, which is slower.
    const uint32_t a = b & 0x7fffffffu;
    // Adding 0.5 lets the float unit round a subnormal half to a multiple of 2^-24.
    const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(a) + 0.5f) << 16;
    const uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) << 3;
    const uint32_t finite = a < 0x38800000u ? small : normal;
    const uint32_t number = (b & 0x80000000u) | (a >= 0x47800000u ? 0x7c000000u : finite);
    return static_cast<uint16_t>((a > 0x7f800000u ? 0x7e000000u : number) >> 16);
  }
}

template <class T, Join J>
class Rule {
 public:
  using Input = Raw<T>;
  using Partial = typename decltype(partial_tag<T, J>())::type;

  explicit Rule(int ranks) : ranks_(ranks) {
    // With 2^k >= ranks, inputs times 2^-k cannot add up to more than their largest.
    const auto power = std::bit_ceil(static_cast<unsigned>(ranks));
    scale_ = 1.0 / power;
    divisor_ = static_cast<double>(ranks) / power;
  }

  // Whether fold_f32_lanes.h has the same rule in vectors.
  static constexpr bool kHasLanes =
      is_reduced_float_v<T> && J != Join::kMin && J != Join::kMax && kSimdLanes;
  F32LaneRule<T, J> lanes() const {
    return {static_cast<float>(scale_), static_cast<float>(divisor_)};
  }
  F32LaneRule<T, J, std::is_same_v<T, BFloat16>> whole_lanes() const {
    return {static_cast<float>(scale_), static_cast<float>(divisor_)};
  }

  LOCKSTEP_INLINE Partial begin(Input input) const {
    if constexpr (kOrder || std::is_same_v<T, bool>) {
      return input;
    } else if constexpr (kAverage && is_floating_v<T>) {
      return value_of<T>(input) * static_cast<Partial>(scale_);
    } else {
      return static_cast<Partial>(value_of<T>(input));
    }
  }

  LOCKSTEP_INLINE Partial join(Partial partial, Input input) const {
    if constexpr (std::is_same_v<T, bool>) {
      constexpr bool either = J == Join::kSum || J == Join::kMax || J == Join::kOr;
      const uint8_t a = value_of<T>(partial);
      const uint8_t b = value_of<T>(input);
      return static_cast<uint8_t>(either ? a | b : a & b);
    } else if constexpr (kOrder) {
      return in_order(value_of<T>(partial), value_of<T>(input)) ? partial : input;
    } else if constexpr (std::is_integral_v<T> && !kAverage) {
      using U = std::make_unsigned_t<std::common_type_t<T, int>>;
      const U a = static_cast<U>(partial);
      const U b = static_cast<U>(input);
      if constexpr (J == Join::kAnd) return static_cast<Partial>(a & b);
      if constexpr (J == Join::kOr) return static_cast<Partial>(a | b);
      return static_cast<Partial>(J == Join::kProduct ? a * b : a + b);
    } else {
      return J == Join::kProduct ? partial * begin(input) : partial + begin(input);
    }
  }

  LOCKSTEP_INLINE Input finish(Partial partial) const {
    if constexpr (std::is_same_v<T, bool>) {
      return value_of<T>(partial);
    } else if constexpr (kOrder) {
      return partial;
    } else if constexpr (is_floating_v<T>) {
      if constexpr (J == Join::kAvg) partial = partial / static_cast<Partial>(divisor_);
      if constexpr (is_reduced_float_v<T>) {
        return round_to<T>(partial);
      } else {
        return is_nan(partial) ? std::numeric_limits<T>::quiet_NaN() : partial;
      }
    } else if constexpr (kAverage) {
      return static_cast<Input>(partial / ranks_);
    } else {
      return partial;
    }
  }

 private:
  static constexpr bool kAverage = J == Join::kAvg || J == Join::kAvgExact;
  static constexpr bool kOrder = J == Join::kMin || J == Join::kMax;

  // Whether `a` stands before `b`, or is a NaN. Where only `b` is a NaN the comparison is false.
  template <class V>
  LOCKSTEP_INLINE static bool in_order(V a, V b) {
    const bool before = J == Join::kMin ? a < b : a > b;
    if constexpr (std::is_floating_point_v<V>) return before | is_nan(a);
    return before;
  }

  int ranks_;
  double scale_ = 1;
  double divisor_ = 1;
};

// Runs body(i) for i in [0, count) as vectors. `body` gets the pointers as its own copies: a store
// of bytes might otherwise change them, for all that the compiler knows.
template <class Body>
void for_each(int64_t count, const Body& body) {
  simd_dispatch([&]() LOCKSTEP_INLINE_LAMBDA {
    const Body b = body;
    const int64_t n = count;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) b(i);
  });
}

template <class R>
void begin_loop(const R& r, const typename R::Input* source, typename R::Partial* partial,
                int64_t count) {
  for_each(count, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { partial[i] = r.begin(source[i]); });
}

template <class R>
void step_loop(const R& r, const typename R::Partial* partial, const typename R::Input* source,
               typename R::Partial* output, int64_t count) {
  for_each(count,
           [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { output[i] = r.join(partial[i], source[i]); });
}

template <class R>
void finish_loop(const R& r, const typename R::Partial* partial, const typename R::Input* source,
                 typename R::Input* output, int64_t count) {
  for_each(count, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA {
    output[i] = r.finish(r.join(partial[i], source[i]));
  });
}

// One source is a world of one; two, the most common, need no partial results in memory.
template <class R>
void one_loop(const R& r, const typename R::Input* source, typename R::Input* output,
              int64_t count) {
  for_each(count,
           [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { output[i] = r.finish(r.begin(source[i])); });
}

template <class R>
void two_loop(const R& r, const typename R::Input* a, const typename R::Input* b,
              typename R::Input* output, int64_t count) {
  for_each(count, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA {
    output[i] = r.finish(r.join(r.begin(a[i]), b[i]));
  });
}

template <class R>
void fold_pass(const R& rule, const void* const* sources, int source_count, int64_t first,
               typename R::Input* output, int64_t count) {
  using Input = typename R::Input;
  const auto source = [&](int k) { return static_cast<const Input*>(sources[k]) + first; };
  if (source_count == 1) return one_loop(rule, source(0), output, count);
  if (source_count == 2) return two_loop(rule, source(0), source(1), output, count);
  alignas(64) typename R::Partial partial[kPass];
  begin_loop(rule, source(0), partial, count);
  for (int k = 1; k < source_count - 1; ++k) {
    step_loop(rule, partial, source(k), partial, count);
  }
  finish_loop(rule, partial, source(source_count - 1), output, count);
}

// Calls f with the rule of a spec.
template <class F>
decltype(auto) visit_rule(const FoldSpec& spec, const F& f) {
  return visit_dtype(spec.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    switch (spec.op) {
      case FoldOp::kSum:
        return f(Rule<T, Join::kSum>(spec.ranks));
      case FoldOp::kAvg:
        if (std::has_single_bit(static_cast<unsigned>(spec.ranks)) && is_floating_v<T>) {
          return f(Rule<T, Join::kAvgExact>(spec.ranks));
        }
        return f(Rule<T, Join::kAvg>(spec.ranks));
      case FoldOp::kMin:
        return f(Rule<T, Join::kMin>(spec.ranks));
      case FoldOp::kMax:
        return f(Rule<T, Join::kMax>(spec.ranks));
      case FoldOp::kProduct:
        return f(Rule<T, Join::kProduct>(spec.ranks));
      case FoldOp::kAnd:
        if constexpr (!is_floating_v<T>) return f(Rule<T, Join::kAnd>(spec.ranks));
        break;
      case FoldOp::kOr:
        if constexpr (!is_floating_v<T>) return f(Rule<T, Join::kOr>(spec.ranks));
        break;
    }
    if (!is_defined(spec.op, spec.dtype)) {
      throw Error(ErrorCode::kInvalidArgument, "fold", "\"and\" and \"or\" are not for floats");
    }
    throw Error(ErrorCode::kInvalidArgument, "fold", "a value that is not a FoldOp");
  });
}

}  // namespace

std::string_view name(FoldOp op) {
  const auto index = static_cast<size_t>(op);
  return index < std::size(kNames) ? kNames[index] : "not an op";
}

FoldOp parse_fold_op(std::string_view text) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == text) return static_cast<FoldOp>(i);
  }
  if (text == "mean") return FoldOp::kAvg;
  if (text == "product") return FoldOp::kProduct;
  std::string message = "want one of";
  for (std::string_view known : kNames) message.append(" ").append(known);
  throw Error(ErrorCode::kInvalidArgument, "op",
              message.append(", got '").append(text).append("'"));
}

bool is_defined(FoldOp op, DType dtype) {
  return (op != FoldOp::kAnd && op != FoldOp::kOr) || !is_floating(dtype);
}

size_t partial_size(DType dtype, FoldOp op) {
  return visit_rule({dtype, op, 1}, [](const auto& rule) {
    return sizeof(typename std::remove_cvref_t<decltype(rule)>::Partial);
  });
}

bool partial_is_input(DType dtype, FoldOp op) {
  return partial_size(dtype, op) == size_of(dtype) && !(op == FoldOp::kAvg && is_floating(dtype));
}

void Fold::cpu(const FoldSpec& spec, const void* const* sources, void* const* outputs,
               int output_count, int64_t count) {
  visit_rule(spec, [&](const auto& rule) {
    using R = std::remove_cvref_t<decltype(rule)>;
    using Input = typename R::Input;
    int64_t done = 0;
    if constexpr (R::kHasLanes) {
      done = in_lanes(count);
      fold_lanes(rule.whole_lanes(), sources, spec.ranks, outputs, output_count, done);
    }
    for (int64_t first = done; first < count; first += kPass) {
      const int64_t pass = std::min(kPass, count - first);
      Input* output = static_cast<Input*>(outputs[0]) + first;
      fold_pass(rule, sources, spec.ranks, first, output, pass);
      for (int k = 1; k < output_count; ++k) {
        std::memcpy(static_cast<Input*>(outputs[k]) + first, output, pass * sizeof(Input));
      }
    }
  });
}

void FoldBegin::cpu(const FoldSpec& spec, const void* source, void* partial, int64_t count) {
  visit_rule(spec, [&](const auto& rule) {
    using R = std::remove_cvref_t<decltype(rule)>;
    const auto* from = static_cast<const typename R::Input*>(source);
    auto* to = static_cast<typename R::Partial*>(partial);
    int64_t done = 0;
    if constexpr (R::kHasLanes) {
      done = in_lanes(count);
      begin_lanes(rule.lanes(), from, to, done);
    }
    begin_loop(rule, from + done, to + done, count - done);
  });
}

void FoldStep::cpu(const FoldSpec& spec, const void* partial, const void* source, void* output,
                   int64_t count) {
  visit_rule(spec, [&](const auto& rule) {
    using R = std::remove_cvref_t<decltype(rule)>;
    const auto* a = static_cast<const typename R::Partial*>(partial);
    const auto* b = static_cast<const typename R::Input*>(source);
    auto* to = static_cast<typename R::Partial*>(output);
    int64_t done = 0;
    if constexpr (R::kHasLanes) {
      done = in_lanes(count);
      step_lanes(rule.lanes(), a, b, to, done);
    }
    step_loop(rule, a + done, b + done, to + done, count - done);
  });
}

void FoldFinish::cpu(const FoldSpec& spec, const void* partial, const void* source, void* output,
                     int64_t count) {
  visit_rule(spec, [&](const auto& rule) {
    using R = std::remove_cvref_t<decltype(rule)>;
    const auto* a = static_cast<const typename R::Partial*>(partial);
    const auto* b = static_cast<const typename R::Input*>(source);
    auto* to = static_cast<typename R::Input*>(output);
    int64_t done = 0;
    if constexpr (R::kHasLanes) {
      done = in_lanes(count);
      finish_lanes(rule.lanes(), a, b, to, done);
    }
    finish_loop(rule, a + done, b + done, to + done, count - done);
  });
}

}  // namespace lockstep::kernels
