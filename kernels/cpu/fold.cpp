// The folds of collectives: several ranks' inputs into one result, bound by the bytes they move.
//
// One loop template per shape of fold (all at once for two sources, and begin, step, finish), each
// over a Rule (fold_rule.h): how one element of one dtype and op is widened, joined and rounded.

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

// Whether fold_f32_lanes.h has a rule in vectors, and that rule for a fold in steps.
template <class R>
constexpr bool kHasLanes = is_reduced_float_v<typename R::Element>&& R::kJoin !=
                           Join::kMin&& R::kJoin != Join::kMax&& kSimdLanes;
template <class R>
F32LaneRule<typename R::Element, R::kJoin> lanes_of(const R& rule) {
  return {static_cast<float>(rule.scale()), static_cast<float>(rule.divisor())};
}

// Runs body(i) for i in [0, count) as vectors. `body` gets the pointers as its own copies: a store
// of bytes might otherwise change them, for all that the compiler knows.
template <class Body>
void for_each(int64_t count, const Body& body) {
  constexpr int64_t kFew = 8;  // fewer take less time than the choice of a loop
  if (count < kFew) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
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
  return visit_fold_rule({dtype, op, 1}, [](const auto& rule) {
    return sizeof(typename std::remove_cvref_t<decltype(rule)>::Partial);
  });
}

bool partial_is_input(DType dtype, FoldOp op) {
  return partial_size(dtype, op) == size_of(dtype) && !(op == FoldOp::kAvg && is_floating(dtype));
}

void Fold::cpu(const FoldSpec& spec, const void* const* sources, void* const* outputs,
               int output_count, int64_t count) {
  visit_fold_rule(spec, [&](const auto& rule) {
    using R = std::remove_cvref_t<decltype(rule)>;
    using Input = typename R::Input;
    int64_t done = 0;
    if constexpr (kHasLanes<R>) {
      done = fold_whole_steps<typename R::Element, R::kJoin>(
          static_cast<float>(rule.scale()), static_cast<float>(rule.divisor()), sources, spec.ranks,
          outputs, output_count, count);
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
  visit_fold_rule(spec, [&](const auto& rule) {
    using R = std::remove_cvref_t<decltype(rule)>;
    const auto* from = static_cast<const typename R::Input*>(source);
    auto* to = static_cast<typename R::Partial*>(partial);
    int64_t done = 0;
    if constexpr (kHasLanes<R>) {
      done = in_lanes(count);
      begin_lanes(lanes_of(rule), from, to, done);
    }
    begin_loop(rule, from + done, to + done, count - done);
  });
}

void FoldStep::cpu(const FoldSpec& spec, const void* partial, const void* source, void* output,
                   int64_t count) {
  visit_fold_rule(spec, [&](const auto& rule) {
    using R = std::remove_cvref_t<decltype(rule)>;
    const auto* a = static_cast<const typename R::Partial*>(partial);
    const auto* b = static_cast<const typename R::Input*>(source);
    auto* to = static_cast<typename R::Partial*>(output);
    int64_t done = 0;
    if constexpr (kHasLanes<R>) {
      done = in_lanes(count);
      step_lanes(lanes_of(rule), a, b, to, done);
    }
    step_loop(rule, a + done, b + done, to + done, count - done);
  });
}

void FoldFinish::cpu(const FoldSpec& spec, const void* partial, const void* source, void* output,
                     int64_t count) {
  visit_fold_rule(spec, [&](const auto& rule) {
    using R = std::remove_cvref_t<decltype(rule)>;
    const auto* a = static_cast<const typename R::Partial*>(partial);
    const auto* b = static_cast<const typename R::Input*>(source);
    auto* to = static_cast<typename R::Input*>(output);
    int64_t done = 0;
    if constexpr (kHasLanes<R>) {
      done = in_lanes(count);
      finish_lanes(lanes_of(rule), a, b, to, done);
    }
    finish_loop(rule, a + done, b + done, to + done, count - done);
  });
}

}  // namespace lockstep::kernels
