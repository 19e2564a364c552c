#pragma once

#include <cstdint>
#include <initializer_list>

#include "lockstep/kernels/simd.h"
#include "lockstep/kernels/view.h"

// How element-wise kernels meet memory: the loop of an op sees contiguous elements of a type that
// the processor computes in, and nothing of strides, broadcasting, 16-bit floats or threads. Where
// memory is not like that, a block of it is copied through the first-level cache on the way.
namespace lockstep::kernels {

// The C++ type that a loop sees for an element type: float for the 16-bit floats, else T.
template <class T>
using Lane = std::conditional_t<is_reduced_float_v<T>, float, T>;

// out[i] = f(in[0][i], in[1][i], ...) for i in [0, n).
using BlockLoop = void (*)(const void* const* in, void* out, int64_t n);

inline constexpr int kMaxBlockInputs = 4;

// Runs `loop` over views of one shape. Each pointer it gets is of its view's lane type. The output
// may be one of the inputs; it is written in the order of its own memory, on several threads when
// it is large, and past the cache when it is larger than that, unless it is much arithmetic: then
// it is that which takes the time, and a copy on the way would add to it.
void run_blocks(std::initializer_list<const View*> inputs, const View& output, BlockLoop loop,
                bool much_arithmetic = false);

// Runs body(i) for i in [0, n) as vectors, of kLight for little arithmetic; iterations are
// independent. The body is copied into the loop, else the compiler must assume that a store of
// bytes changes what it captured.
template <SimdLevel widest = SimdLevel::kAvx512, class Body>
void vector_loop(int64_t n, const Body& body) {
  simd_dispatch<widest>([&]() LOCKSTEP_INLINE_LAMBDA {
    const Body b = body;
    const int64_t count = n;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) b(i);
  });
}

// Converts n contiguous 16-bit floats to and from f32, with the rounding of Half and BFloat16.
void widen(const Half* x, float* y, int64_t n);
void widen(const BFloat16* x, float* y, int64_t n);
void narrow(const float* x, Half* y, int64_t n);
void narrow(const float* x, BFloat16* y, int64_t n);

}  // namespace lockstep::kernels
