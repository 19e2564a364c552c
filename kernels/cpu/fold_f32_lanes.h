#pragma once

// Sums, averages and products of f16 and bf16 in vectors of sixteen floats, for processors with
// AVX2 and F16C, and of bf16 in wider ones for those with AVX-512: the bits are those of the loops
// in fold.cpp, element by element, at several times their speed, for compilers find neither the
// conversion instructions nor the fusion of a whole fold.

#include <cstdint>
#include <type_traits>

#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/fold_rule.h"
#include "lockstep/kernels/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::kernels {

// Elements in a step of the vector loops, which take whole steps alone.
inline constexpr int64_t kLanes = 16;

template <class T, Join J, bool kPairs = false>
class F32LaneRule;

#if defined(__x86_64__)
inline constexpr bool kSimdLanes = true;

// How many of `count` elements are for the vector loops; the rest is the caller's.
inline int64_t in_lanes(int64_t count) {
  return simd_level() == SimdLevel::kBaseline ? 0 : count / kLanes * kLanes;
}

#define LOCKSTEP_INLINE_AVX2 LOCKSTEP_INLINE LOCKSTEP_TARGET_AVX2

struct F32Lanes {
  __m256 low;
  __m256 high;
};

// With kPairs, for bf16, `low` has the elements of even and `high` those of odd places, which takes
// no shuffles; otherwise they have the first and the last eight.
template <class T, Join J, bool kPairs>
class F32LaneRule {
 public:
  static_assert(!kPairs || std::is_same_v<T, BFloat16>);

  // Inputs of an average are multiplied by `scale`; what kAvg leaves is divided by `divisor`.
  F32LaneRule(float scale, float divisor) : scale_(scale), divisor_(divisor) {}

  LOCKSTEP_INLINE_AVX2 F32Lanes begin(const uint16_t* input) const {
    const F32Lanes lanes = widen(input);
    return {prepare(lanes.low), prepare(lanes.high)};
  }
  LOCKSTEP_INLINE_AVX2 F32Lanes join(const F32Lanes& partial, const uint16_t* input) const {
    const F32Lanes lanes = begin(input);
    return {join(partial.low, lanes.low), join(partial.high, lanes.high)};
  }
  // Into 32 bytes.
  LOCKSTEP_INLINE_AVX2 __m256i finish(const F32Lanes& partial) const {
    __m256 low = divide(partial.low);
    __m256 high = divide(partial.high);
    if (_mm256_movemask_ps(_mm256_cmp_ps(low, high, _CMP_UNORD_Q)) != 0) [[unlikely]] {
      low = with_one_nan(low);
      high = with_one_nan(high);
    }
    if constexpr (kPairs) {
      constexpr int kOdd = 0xaa;
      return _mm256_blend_epi16(_mm256_srli_epi32(rounded(low), 16), rounded(high), kOdd);
    } else if constexpr (std::is_same_v<T, BFloat16>) {
      // packus joins the vectors' 128-bit halves in turns.
      const __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(rounded(low), 16),
                                                 _mm256_srli_epi32(rounded(high), 16));
      return _mm256_permute4x64_epi64(packed, 0xd8);
    } else {
      constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
      return _mm256_set_m128i(_mm256_cvtps_ph(high, kNearestEven),
                              _mm256_cvtps_ph(low, kNearestEven));
    }
  }

 private:
  LOCKSTEP_INLINE_AVX2 static __m256i upper_halves() {
    return _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  }
  LOCKSTEP_INLINE_AVX2 static F32Lanes widen(const uint16_t* input) {
    if constexpr (kPairs) {
      const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(input));
      return {_mm256_castsi256_ps(_mm256_slli_epi32(raw, 16)),
              _mm256_castsi256_ps(_mm256_and_si256(raw, upper_halves()))};
    } else {
      return {widen_eight(input), widen_eight(input + 8)};
    }
  }
  LOCKSTEP_INLINE_AVX2 static __m256 widen_eight(const uint16_t* input) {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(input));
    if constexpr (std::is_same_v<T, BFloat16>) {
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
    } else {
      return _mm256_cvtph_ps(raw);
    }
  }
  LOCKSTEP_INLINE_AVX2 __m256 prepare(__m256 value) const {
    if constexpr (J == Join::kAvg || J == Join::kAvgExact) {
      return _mm256_mul_ps(value, _mm256_set1_ps(scale_));
    }
    return value;
  }
  LOCKSTEP_INLINE_AVX2 static __m256 join(__m256 a, __m256 b) {
    return J == Join::kProduct ? _mm256_mul_ps(a, b) : _mm256_add_ps(a, b);
  }
  // The rest of the division.
  LOCKSTEP_INLINE_AVX2 __m256 divide(__m256 value) const {
    if constexpr (J == Join::kAvg) return _mm256_div_ps(value, _mm256_set1_ps(divisor_));
    return value;
  }
  LOCKSTEP_INLINE_AVX2 static __m256 with_one_nan(__m256 value) {
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    return _mm256_blendv_ps(value, nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  }
  // To the nearest bf16, in the upper half of each lane.
  LOCKSTEP_INLINE_AVX2 static __m256i rounded(__m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  }

  float scale_;
  float divisor_;
};

// REQUIRES below: `count` is a multiple of kLanes.

// Sources and outputs whose number is known when this is compiled stay in registers.
template <int kSources, int kOutputs, class R>
LOCKSTEP_INLINE_AVX2 void fold_lanes_of(const R& rule, const void* const* sources, int source_count,
                                        void* const* outputs, int output_count, int64_t count) {
  const R r = rule;
  const auto* first = static_cast<const uint16_t*>(sources[0]);
  const auto* second = static_cast<const uint16_t*>(sources[kSources == 2 ? 1 : 0]);
  auto* out = static_cast<uint16_t*>(outputs[0]);
  auto* copy = static_cast<uint16_t*>(outputs[kOutputs == 2 ? 1 : 0]);
  for (int64_t i = 0; i < count; i += kLanes) {
    F32Lanes partial = r.begin(first + i);
    if constexpr (kSources == 2) partial = r.join(partial, second + i);
    for (int k = 1; kSources == 0 && k < source_count; ++k) {
      partial = r.join(partial, static_cast<const uint16_t*>(sources[k]) + i);
    }
    const __m256i result = r.finish(partial);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), result);
    if constexpr (kOutputs == 2) _mm256_storeu_si256(reinterpret_cast<__m256i*>(copy + i), result);
    for (int k = 1; kOutputs == 0 && k < output_count; ++k) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<uint16_t*>(outputs[k]) + i),
                          result);
    }
  }
}

// A whole fold of bf16 once more, with vectors of 512 bits: in a cache it waits for instructions,
// of which these are half as many. Folds of f16 wait for conversions, which take as long either
// way.
inline constexpr int64_t kWideLanes = 32;

#define LOCKSTEP_INLINE_AVX512 LOCKSTEP_INLINE LOCKSTEP_TARGET_AVX512

struct F32WideLanes {
  __m512 even;
  __m512 odd;
};

template <Join J>
class BFloat16WideRule {
 public:
  BFloat16WideRule(float scale, float divisor) : scale_(scale), divisor_(divisor) {}

  LOCKSTEP_INLINE_AVX512 F32WideLanes begin(const uint16_t* input) const {
    const __m512i raw = _mm512_loadu_si512(input);
    const __m512i upper_halves = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    return {prepare(_mm512_castsi512_ps(_mm512_slli_epi32(raw, 16))),
            prepare(_mm512_castsi512_ps(_mm512_and_si512(raw, upper_halves)))};
  }
  LOCKSTEP_INLINE_AVX512 F32WideLanes join(const F32WideLanes& partial,
                                           const uint16_t* input) const {
    const F32WideLanes lanes = begin(input);
    return {join(partial.even, lanes.even), join(partial.odd, lanes.odd)};
  }
  LOCKSTEP_INLINE_AVX512 __m512i finish(const F32WideLanes& partial) const {
    __m512 even = divide(partial.even);
    __m512 odd = divide(partial.odd);
    if (_mm512_cmp_ps_mask(even, odd, _CMP_UNORD_Q) != 0) [[unlikely]] {
      even = with_one_nan(even);
      odd = with_one_nan(odd);
    }
    constexpr __mmask32 kOdd = 0xaaaaaaaa;
    return _mm512_mask_blend_epi16(kOdd, _mm512_srli_epi32(rounded(even), 16), rounded(odd));
  }

 private:
  LOCKSTEP_INLINE_AVX512 __m512 prepare(__m512 value) const {
    if constexpr (J == Join::kAvg || J == Join::kAvgExact) {
      return _mm512_mul_ps(value, _mm512_set1_ps(scale_));
    }
    return value;
  }
  LOCKSTEP_INLINE_AVX512 static __m512 join(__m512 a, __m512 b) {
    return J == Join::kProduct ? _mm512_mul_ps(a, b) : _mm512_add_ps(a, b);
  }
  LOCKSTEP_INLINE_AVX512 __m512 divide(__m512 value) const {
    if constexpr (J == Join::kAvg) return _mm512_div_ps(value, _mm512_set1_ps(divisor_));
    return value;
  }
  LOCKSTEP_INLINE_AVX512 static __m512 with_one_nan(__m512 value) {
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q), value, nan);
  }
  // To the nearest bf16, in the upper half of each lane.
  LOCKSTEP_INLINE_AVX512 static __m512i rounded(__m512 value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(1 << 16));
    const __m512i below = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    return _mm512_mask_add_epi32(below, is_odd, below, _mm512_set1_epi32(1));
  }

  float scale_;
  float divisor_;
};

template <int kSources, int kOutputs, class R>
LOCKSTEP_INLINE_AVX512 void fold_wide_of(const R& rule, const void* const* sources,
                                         int source_count, void* const* outputs, int output_count,
                                         int64_t count) {
  const R r = rule;
  const auto* first = static_cast<const uint16_t*>(sources[0]);
  const auto* second = static_cast<const uint16_t*>(sources[kSources == 2 ? 1 : 0]);
  auto* out = static_cast<uint16_t*>(outputs[0]);
  auto* copy = static_cast<uint16_t*>(outputs[kOutputs == 2 ? 1 : 0]);
  for (int64_t i = 0; i < count; i += kWideLanes) {
    F32WideLanes partial = r.begin(first + i);
    if constexpr (kSources == 2) partial = r.join(partial, second + i);
    for (int k = 1; kSources == 0 && k < source_count; ++k) {
      partial = r.join(partial, static_cast<const uint16_t*>(sources[k]) + i);
    }
    const __m512i result = r.finish(partial);
    _mm512_storeu_si512(out + i, result);
    if constexpr (kOutputs == 2) _mm512_storeu_si512(copy + i, result);
    for (int k = 1; kOutputs == 0 && k < output_count; ++k) {
      _mm512_storeu_si512(static_cast<uint16_t*>(outputs[k]) + i, result);
    }
  }
}

template <class R>
LOCKSTEP_TARGET_AVX512 void fold_wide(const R& rule, const void* const* sources, int source_count,
                                      void* const* outputs, int output_count, int64_t count) {
  if (source_count == 2 && output_count == 1) {
    return fold_wide_of<2, 1>(rule, sources, 2, outputs, 1, count);
  }
  if (source_count == 2 && output_count == 2) {
    return fold_wide_of<2, 2>(rule, sources, 2, outputs, 2, count);
  }
  fold_wide_of<0, 0>(rule, sources, source_count, outputs, output_count, count);
}

template <class R>
LOCKSTEP_TARGET_AVX2 void fold_lanes(const R& rule, const void* const* sources, int source_count,
                                     void* const* outputs, int output_count, int64_t count) {
  if (source_count == 2 && output_count == 1) {
    return fold_lanes_of<2, 1>(rule, sources, 2, outputs, 1, count);
  }
  if (source_count == 2 && output_count == 2) {
    return fold_lanes_of<2, 2>(rule, sources, 2, outputs, 2, count);
  }
  fold_lanes_of<0, 0>(rule, sources, source_count, outputs, output_count, count);
}

// Folds the elements that are whole steps, and says how many that were: the rest is the caller's.
template <class T, Join J>
int64_t fold_whole_steps(float scale, float divisor, const void* const* sources, int source_count,
                         void* const* outputs, int output_count, int64_t count) {
  constexpr bool kPairs = std::is_same_v<T, BFloat16>;
  if constexpr (kPairs) {
    if (simd_level() == SimdLevel::kAvx512) {
      const int64_t done = count / kWideLanes * kWideLanes;
      const BFloat16WideRule<J> rule(scale, divisor);
      fold_wide(rule, sources, source_count, outputs, output_count, done);
      return done;
    }
  }
  const int64_t done = in_lanes(count);
  const F32LaneRule<T, J, kPairs> rule(scale, divisor);
  fold_lanes(rule, sources, source_count, outputs, output_count, done);
  return done;
}

template <class R>
LOCKSTEP_TARGET_AVX2 void begin_lanes(const R& rule, const uint16_t* source, float* partial,
                                      int64_t count) {
  const R r = rule;
  for (int64_t i = 0; i < count; i += kLanes) {
    const F32Lanes lanes = r.begin(source + i);
    _mm256_storeu_ps(partial + i, lanes.low);
    _mm256_storeu_ps(partial + i + 8, lanes.high);
  }
}

template <class R>
LOCKSTEP_TARGET_AVX2 void step_lanes(const R& rule, const float* partial, const uint16_t* source,
                                     float* output, int64_t count) {
  const R r = rule;
  for (int64_t i = 0; i < count; i += kLanes) {
    const F32Lanes lanes =
        r.join({_mm256_loadu_ps(partial + i), _mm256_loadu_ps(partial + i + 8)}, source + i);
    _mm256_storeu_ps(output + i, lanes.low);
    _mm256_storeu_ps(output + i + 8, lanes.high);
  }
}

template <class R>
LOCKSTEP_TARGET_AVX2 void finish_lanes(const R& rule, const float* partial, const uint16_t* source,
                                       uint16_t* output, int64_t count) {
  const R r = rule;
  for (int64_t i = 0; i < count; i += kLanes) {
    const F32Lanes lanes =
        r.join({_mm256_loadu_ps(partial + i), _mm256_loadu_ps(partial + i + 8)}, source + i);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(output + i), r.finish(lanes));
  }
}

#undef LOCKSTEP_INLINE_AVX512
#undef LOCKSTEP_INLINE_AVX2
#else
inline constexpr bool kSimdLanes = false;
#endif

}  // namespace lockstep::kernels
