#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simt/vector_types.h"

// CUDA's kernel language for a host compiler. A lane (a CUDA thread) is a fiber; everything by
// which lanes meet calls the scheduler in block.cpp. This header is compiled with the sanitizers of
// the code that includes it, the scheduler is not.

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

// What the running lane is; set by the scheduler.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

namespace simt {

// A place in a kernel's source. Lanes that meet must meet at one site.
struct Site {
  const char* file;
  int line;
};

extern unsigned lane_index;  // of the running lane in its warp

enum class BarrierOp { kSync, kCount, kAnd, kOr };
enum class WarpOp { kSync, kShuffle, kBallot, kMatch, kAdd, kMin, kMax, kAnd, kOr, kXor };

int barrier(const Site* site, BarrierOp op, int predicate);
// `in` has n <= 8 bytes. For kShuffle `out` gets those of lane `source`, else 4 bytes of result.
void warp(WarpOp op, unsigned mask, const Site* site, const void* in, void* out, size_t n,
          unsigned source);
unsigned active_mask();
void* static_shared(const Site* site, size_t bytes);
void* dynamic_shared();
void fence();
void sleep();
long long clock();
[[noreturn]] void trap(const Site* site);

inline unsigned lane() { return lane_index; }

template <class T>
T shuffle(unsigned mask, T value, unsigned source, const Site* site) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  T out;
  warp(WarpOp::kShuffle, mask, site, &value, &out, sizeof(T), source);
  return out;
}

// The lane that shuffles within groups of `width` lanes read from; own where there is none.
inline unsigned group_lane(unsigned lane_in_group, int width) {
  const auto w = static_cast<unsigned>(width);
  return (lane() & ~(w - 1)) + (lane_in_group & (w - 1));
}
inline unsigned lane_above(unsigned delta, int width) {
  const auto w = static_cast<unsigned>(width);
  return (lane() & (w - 1)) + delta < w ? lane() + delta : lane();
}
inline unsigned lane_below(unsigned delta, int width) {
  const auto w = static_cast<unsigned>(width);
  return (lane() & (w - 1)) >= delta ? lane() - delta : lane();
}
inline unsigned lane_across(unsigned bits, int width) {
  const auto w = static_cast<unsigned>(width);
  const unsigned other = lane() ^ bits;
  return other < (lane() & ~(w - 1)) + w ? other : lane();
}

inline unsigned vote(WarpOp op, unsigned mask, unsigned value, const Site* site) {
  unsigned out = 0;
  warp(op, mask, site, &value, &out, sizeof value, 0);
  return out;
}

template <class T>
unsigned match(unsigned mask, T value, const Site* site) {
  unsigned out = 0;
  warp(WarpOp::kMatch, mask, site, &value, &out, sizeof value, 0);
  return out;
}

template <class T>
unsigned match_all(unsigned mask, T value, int* all_match, const Site* site) {
  *all_match = match(mask, value, site) == mask ? 1 : 0;
  return *all_match != 0 ? mask : 0;
}

template <class T>
T reduce(WarpOp op, unsigned mask, T value, const Site* site) {
  static_assert(sizeof(T) == 4 && std::is_integral_v<T>);
  // Order among signed numbers is that of unsigned ones with the sign bit turned.
  const bool turn = std::is_signed_v<T> && (op == WarpOp::kMin || op == WarpOp::kMax);
  const unsigned bit = turn ? 0x80000000u : 0u;
  return static_cast<T>(vote(op, mask, static_cast<unsigned>(value) ^ bit, site) ^ bit);
}

// Replaces *p by f(*p), atomically; returns what it was.
template <class T, class F>
T atomic_update(T* p, const F& f) {
  using U = std::conditional_t<sizeof(T) == 2, uint16_t,
                               std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  static_assert(sizeof(T) == sizeof(U));
  U* bits = reinterpret_cast<U*>(p);
  U seen = __atomic_load_n(bits, __ATOMIC_RELAXED);
  while (true) {
    T old;
    std::memcpy(&old, &seen, sizeof old);
    const T next = f(old);
    U wanted;
    std::memcpy(&wanted, &next, sizeof wanted);
    if (__atomic_compare_exchange_n(bits, &seen, wanted, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED)) {
      return old;
    }
  }
}

}  // namespace simt

#define SIMT_SITE                                            \
  ([]() -> const simt::Site* {                               \
    static constexpr simt::Site site = {__FILE__, __LINE__}; \
    return &site;                                            \
  }())

inline constexpr int warpSize = 32;

#define __syncthreads() (void)simt::barrier(SIMT_SITE, simt::BarrierOp::kSync, 0)
#define __syncthreads_count(p) simt::barrier(SIMT_SITE, simt::BarrierOp::kCount, (p))
#define __syncthreads_and(p) simt::barrier(SIMT_SITE, simt::BarrierOp::kAnd, (p))
#define __syncthreads_or(p) simt::barrier(SIMT_SITE, simt::BarrierOp::kOr, (p))

#define SIMT_WIDTH(...) simt::width_or_32(__VA_ARGS__)
namespace simt {
constexpr int width_or_32(int width = 32) { return width; }
}  // namespace simt
#define __shfl_sync(m, v, l, ...) \
  simt::shuffle((m), (v), simt::group_lane((l), SIMT_WIDTH(__VA_ARGS__)), SIMT_SITE)
#define __shfl_down_sync(m, v, d, ...) \
  simt::shuffle((m), (v), simt::lane_above((d), SIMT_WIDTH(__VA_ARGS__)), SIMT_SITE)
#define __shfl_up_sync(m, v, d, ...) \
  simt::shuffle((m), (v), simt::lane_below((d), SIMT_WIDTH(__VA_ARGS__)), SIMT_SITE)
#define __shfl_xor_sync(m, v, x, ...) \
  simt::shuffle((m), (v), simt::lane_across((x), SIMT_WIDTH(__VA_ARGS__)), SIMT_SITE)

#define SIMT_MASK(m) simt::mask_or_all(m)
namespace simt {
constexpr unsigned mask_or_all(unsigned mask = 0xffffffffu) { return mask; }
}  // namespace simt
#define __syncwarp(...) (void)simt::vote(simt::WarpOp::kSync, SIMT_MASK(__VA_ARGS__), 0, SIMT_SITE)
#define __ballot_sync(m, p) simt::vote(simt::WarpOp::kBallot, (m), (p) ? 1u : 0u, SIMT_SITE)
#define __any_sync(m, p) (__ballot_sync(m, p) != 0u)
#define __all_sync(m, p) (__ballot_sync(m, !(p)) == 0u)
#define __match_any_sync(m, v) simt::match((m), (v), SIMT_SITE)
#define __match_all_sync(m, v, p) simt::match_all((m), (v), (p), SIMT_SITE)
#define __activemask() simt::active_mask()
#define __reduce_add_sync(m, v) simt::reduce(simt::WarpOp::kAdd, (m), (v), SIMT_SITE)
#define __reduce_min_sync(m, v) simt::reduce(simt::WarpOp::kMin, (m), (v), SIMT_SITE)
#define __reduce_max_sync(m, v) simt::reduce(simt::WarpOp::kMax, (m), (v), SIMT_SITE)
#define __reduce_and_sync(m, v) simt::reduce(simt::WarpOp::kAnd, (m), (v), SIMT_SITE)
#define __reduce_or_sync(m, v) simt::reduce(simt::WarpOp::kOr, (m), (v), SIMT_SITE)
#define __reduce_xor_sync(m, v) simt::reduce(simt::WarpOp::kXor, (m), (v), SIMT_SITE)

inline void __threadfence() { simt::fence(); }
inline void __threadfence_block() { simt::fence(); }
inline void __threadfence_system() { simt::fence(); }
// A loop that waits for another block, stream or process must call this: lanes run until they meet,
// end or sleep.
inline void __nanosleep(unsigned) { simt::sleep(); }
inline long long clock64() { return simt::clock(); }
#define __trap() simt::trap(SIMT_SITE)

#define SIMT_ATOMIC(name, expression)                                                      \
  template <class T>                                                                       \
  T name(T* p, std::type_identity_t<T> v) {                                                \
    return simt::atomic_update(p, [=](T old) -> T { return static_cast<T>(expression); }); \
  }
SIMT_ATOMIC(atomicAdd, old + v)
SIMT_ATOMIC(atomicSub, old - v)
SIMT_ATOMIC(atomicExch, ((void)old, v))
SIMT_ATOMIC(atomicMin, v < old ? v : old)
SIMT_ATOMIC(atomicMax, old < v ? v : old)
SIMT_ATOMIC(atomicAnd, old& v)
SIMT_ATOMIC(atomicOr, old | v)
SIMT_ATOMIC(atomicXor, old ^ v)
SIMT_ATOMIC(atomicInc, old >= v ? T{0} : old + 1)
SIMT_ATOMIC(atomicDec, old == 0 || old > v ? v : old - 1)
#undef SIMT_ATOMIC
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> v) {
  return simt::atomic_update(p, [=](T old) { return old == expected ? v : old; });
}

template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T value) {
  *p = value;
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((uint64_t{a} * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// Under nvcc these are `__shared__ T name[n]` and `extern __shared__`.
#define SIMT_STATIC_SHARED(T, name, n) \
  auto& name = *static_cast<T(*)[n]>(simt::static_shared(SIMT_SITE, sizeof(T[n])))
#define SIMT_DYNAMIC_SHARED(T, name) T* name = static_cast<T*>(simt::dynamic_shared())
