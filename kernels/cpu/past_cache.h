#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

// Stores past the cache, as memcpy's are where it copies more than the cache holds: a usual store
// reads the line that it writes to first, which is a third of what an op with one input and one
// output moves.
namespace lockstep::kernels {

// Bytes of a result that no cache is expected to keep until they are read.
inline constexpr int64_t kPastCacheBytes = 32 << 20;
// Stores past the cache go by whole lines; parts of one cost more than usual stores.
inline constexpr int64_t kCacheLine = 64;

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

// Copies `bytes`, whole lines, to y, which is aligned to one.
inline void copy_past_cache(const void* x, void* y, int64_t bytes) {
#if defined(__x86_64__)
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

// To be called by the thread that stored past the cache, before any other one may read that.
inline void end_past_cache() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace lockstep::kernels
