#pragma once

// One binary runs on any x86-64: a hot loop is compiled for AVX-512, for AVX2 and for the baseline,
// and the widest that the processor has is picked at run time. The compiler vectorises; a loop is
// written once, as a lambda that is inlined into a caller with the wanted target:
//
//   simd_dispatch([=]() LOCKSTEP_INLINE_LAMBDA {
//     for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
//   });
//
// Everything that the lambda calls must be inlined too (LOCKSTEP_INLINE), else that call runs
// baseline code. A sum that may be reordered is marked `#pragma omp simd reduction(+ : s)`.

#include <algorithm>

#ifdef __CUDACC__
#define LOCKSTEP_INLINE __host__ __device__ __forceinline__
#else
#define LOCKSTEP_INLINE inline __attribute__((always_inline))
#endif
#define LOCKSTEP_INLINE_LAMBDA __attribute__((always_inline))

namespace lockstep {

enum class SimdLevel { kBaseline, kAvx2, kAvx512 };

// The widest level of this processor, or the one that LOCKSTEP_SIMD (baseline, avx2, avx512) names
// if that is narrower; tests use it to run every path on one machine. Read once.
SimdLevel simd_level();

#if defined(__x86_64__)
#if defined(__clang__)
#define LOCKSTEP_TARGET_AVX512 \
  __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c")))
#else
#define LOCKSTEP_TARGET_AVX512 \
  __attribute__((              \
      target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c,prefer-vector-width=512")))
#endif
#define LOCKSTEP_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))

namespace simd_internal {

template <class F>
LOCKSTEP_TARGET_AVX512 __attribute__((noinline)) void run_avx512(const F& f) {
  f();
}

template <class F>
LOCKSTEP_TARGET_AVX2 __attribute__((noinline)) void run_avx2(const F& f) {
  f();
}

}  // namespace simd_internal
#endif

// The widest level for loops of little arithmetic. With vectors of 512 bits a Zen 4 takes up to
// twice as long for what comes from memory: it looks so far ahead that loads wait for each other.
inline constexpr SimdLevel kLight = SimdLevel::kAvx2;

// Calls f() compiled for simd_level(), or for `widest` if that is narrower. The call itself costs a
// few nanoseconds.
template <SimdLevel widest = SimdLevel::kAvx512, class F>
void simd_dispatch(const F& f) {
#if defined(__x86_64__)
  static const SimdLevel level = std::min(simd_level(), widest);
  if constexpr (widest == SimdLevel::kAvx512) {
    if (level == SimdLevel::kAvx512) return simd_internal::run_avx512(f);
  }
  if (level == SimdLevel::kAvx2) return simd_internal::run_avx2(f);
#endif
  f();
}

}  // namespace lockstep
