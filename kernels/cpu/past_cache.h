#pragma once

#include <cstdint>
#include <cstring>

#include "lockstep/kernels/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Stores past the cache, as memcpy's are where it copies more than the cache holds: a usual store
// reads the line that it writes to first, which is a third of what an op with one input and one
// output moves.
namespace lockstep::kernels {

// Bytes of a result that no cache is expected to keep until they are read.
inline constexpr int64_t kPastCacheBytes = 32 << 20;
// Stores past the cache go by whole lines; parts of one cost more than usual stores.
inline constexpr int64_t kCacheLine = 64;

// A load waits for an earlier store whose address ends in the same 12 bits, as if it were to the
// same memory. Of what is read and written side by side, loads would wait for stores a few lines
// before them, whose values wait for memory: ops took twice as long. So buffers stand at the same
// place in a page as what goes through them: at its start, where large tensors are, or at that of
// x.
inline constexpr int64_t kPage = 4096;

// buffer, which starts a page and has room for one more than it needs, at the place of x in its
// page.
template <class T>
T* at_place_of(const T* x, T* buffer) {
  return buffer + reinterpret_cast<uintptr_t>(x) % kPage / sizeof(T);
}

// Whether runs that begin at multiples of `step_bytes` from y may be written past the cache, where
// all of them have `total_bytes`.
inline bool goes_past_cache(const void* y, int64_t step_bytes, int64_t total_bytes) {
#if defined(__x86_64__)
  return total_bytes >= kPastCacheBytes && reinterpret_cast<uintptr_t>(y) % kCacheLine == 0 &&
         step_bytes % kCacheLine == 0;
#else
  (void)y, (void)step_bytes, (void)total_bytes;
  return false;
#endif
}

namespace past_cache_internal {

template <class T>
inline constexpr int64_t kPerLine = kCacheLine / static_cast<int64_t>(sizeof(T));

// line[k] = f(first + k) for a line's values.
template <class T, class F>
LOCKSTEP_INLINE void fill_line(T* line, int64_t first, const F& f) {
#pragma omp simd
  for (int64_t k = 0; k < kPerLine<T>; ++k) line[k] = f(first + k);
}

#if defined(__x86_64__)
// A line that stays in one register on its way takes a sixth less of a soft-max's time than one
// that is put together in the cache. What is inlined into code for AVX-512 cannot use these
// intrinsics, so this is a function of that target.
template <class T, class F>
LOCKSTEP_TARGET_AVX512 __attribute__((noinline)) void store_lines_avx512(T* y, int64_t n,
                                                                         const F& values) {
  const F f = values;  // else the compiler must assume that a store changes what it captured
  for (int64_t i = 0; i < n; i += kPerLine<T>) {
    alignas(kCacheLine) T line[kPerLine<T>];
    fill_line(line, i, f);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(y + i), _mm512_load_si512(line));
  }
}
#endif

}  // namespace past_cache_internal

// Copies `bytes`, whole lines, to y, which is aligned to one. A call for vectors of 512 bits costs
// as much as a few lines.
inline void copy_past_cache(const void* x, void* y, int64_t bytes) {
#if defined(__x86_64__)
  if (bytes > 8 * kCacheLine && simd_level() == SimdLevel::kAvx512) {
    const auto* from = static_cast<const uint8_t*>(x);
    return past_cache_internal::store_lines_avx512(static_cast<uint8_t*>(y), bytes,
                                                   [from](int64_t i)
                                                       LOCKSTEP_INLINE_LAMBDA { return from[i]; });
  }
  const auto* from = static_cast<const __m128i*>(x);
  auto* to = static_cast<__m128i*>(y);
  for (int64_t i = 0; i < bytes / 16; i += 4) {  // a line at a time
    const __m128i a = _mm_loadu_si128(from + i);
    const __m128i b = _mm_loadu_si128(from + i + 1);
    const __m128i c = _mm_loadu_si128(from + i + 2);
    const __m128i d = _mm_loadu_si128(from + i + 3);
    _mm_stream_si128(to + i, a);
    _mm_stream_si128(to + i + 1, b);
    _mm_stream_si128(to + i + 2, c);
    _mm_stream_si128(to + i + 3, d);
  }
#else
  std::memcpy(y, x, static_cast<size_t>(bytes));
#endif
}

// y[i] = f(i) for i in [0, n), past the cache if told so: y and n are whole lines then. For the
// inside of simd_dispatch.
template <class T, class F>
LOCKSTEP_INLINE void store_values(T* y, int64_t n, bool past_cache, const F& f) {
  if (!past_cache) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = f(i);
    return;
  }
  using namespace past_cache_internal;  // NOLINT
#if defined(__x86_64__)
  if (simd_level() == SimdLevel::kAvx512) return store_lines_avx512(y, n, f);
#endif
  for (int64_t i = 0; i < n; i += kPerLine<T>) {
    alignas(kCacheLine) T line[kPerLine<T>];
    fill_line(line, i, f);
    copy_past_cache(line, y + i, kCacheLine);
  }
}

// Values of a row and of the next that the second-level cache has room for.
inline constexpr int64_t kAhead = 16384;

// Fetches n values from x on, which are to be read soon but not next: to the second-level cache,
// for the first has no room for them beside what is worked on.
template <class T>
LOCKSTEP_INLINE void fetch_later(const T* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kCacheLine / static_cast<int64_t>(sizeof(T))) {
    __builtin_prefetch(x + i, 0, 2);
  }
}

// To be called by the thread that stored past the cache, before any other one may read that.
inline void end_past_cache() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace lockstep::kernels
