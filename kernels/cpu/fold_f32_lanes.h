#pragma once

// Sums, averages and products of f16 and bf16 in vectors of sixteen floats, for processors with
// AVX2 and F16C: the bits are those of the loops in fold.cpp, element by element, at several times
// their speed, for compilers find neither the conversion instructions nor the fusion of a whole
// fold.

#include <cstdint>
#include <type_traits>

#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::kernels {

// How elements are joined; kAvgExact is the average over a power of two, which divides by scaling.
enum class Join { kSum, kAvgExact, kAvg, kMin, kMax, kProduct };

// Elements in a step of the vector loops, which take whole steps alone.
inline constexpr int64_t kLanes = 16;

template <class T, Join J>
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

template <class T, Join J>
class F32LaneRule {
 public:
  // Inputs of an average are multiplied by `scale`; what kAvg leaves is divided by `divisor`.
  F32LaneRule(float scale, float divisor) : scale_(scale), divisor_(divisor) {}

  LOCKSTEP_INLINE_AVX2 F32Lanes begin(const uint16_t* input) const {
    return {prepare(widen(input)), prepare(widen(input + 8))};
  }
  LOCKSTEP_INLINE_AVX2 F32Lanes join(const F32Lanes& partial, const uint16_t* input) const {
    return {join(partial.low, prepare(widen(input))),
            join(partial.high, prepare(widen(input + 8)))};
  }
  // Into 32 bytes.
  LOCKSTEP_INLINE_AVX2 __m256i finish(const F32Lanes& partial) const {
    const __m256 low = last(partial.low);
    const __m256 high = last(partial.high);
    if constexpr (std::is_same_v<T, BFloat16>) {
      // packus joins the vectors' 128-bit halves in turns.
      return _mm256_permute4x64_epi64(_mm256_packus_epi32(upper_half(low), upper_half(high)), 0xd8);
    } else {
      constexpr int kNearestEven = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
      return _mm256_set_m128i(_mm256_cvtps_ph(high, kNearestEven),
                              _mm256_cvtps_ph(low, kNearestEven));
    }
  }

 private:
  LOCKSTEP_INLINE_AVX2 static __m256 widen(const uint16_t* input) {
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
  // What is left before rounding: the rest of the division, and one form for every NaN.
  LOCKSTEP_INLINE_AVX2 __m256 last(__m256 value) const {
    if constexpr (J == Join::kAvg) value = _mm256_div_ps(value, _mm256_set1_ps(divisor_));
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    return _mm256_blendv_ps(value, nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  }
  // The nearest bf16, in the lower half of each lane.
  LOCKSTEP_INLINE_AVX2 static __m256i upper_half(__m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  }

  float scale_;
  float divisor_;
};

// REQUIRES below: `count` is a multiple of kLanes.

template <class R>
LOCKSTEP_TARGET_AVX2 void fold_lanes(const R& rule, const void* const* sources, int source_count,
                                     void* const* outputs, int output_count, int64_t count) {
  const R r = rule;
  for (int64_t i = 0; i < count; i += kLanes) {
    F32Lanes partial = r.begin(static_cast<const uint16_t*>(sources[0]) + i);
    for (int k = 1; k < source_count; ++k) {
      partial = r.join(partial, static_cast<const uint16_t*>(sources[k]) + i);
    }
    const __m256i result = r.finish(partial);
    for (int k = 0; k < output_count; ++k) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<uint16_t*>(outputs[k]) + i),
                          result);
    }
  }
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

#undef LOCKSTEP_INLINE_AVX2
#else
inline constexpr bool kSimdLanes = false;
#endif

}  // namespace lockstep::kernels
