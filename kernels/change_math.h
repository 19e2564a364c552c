#pragma once

#include "lockstep/kernels/convert.h"
#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/simd.h"

// What the kernels of kernels/optim.h that go over lists of tensors make of an element of T, in the
// type C that it is computed in; the same on the CPU and on CUDA devices.
namespace lockstep::kernels {

struct Unchanged {};

template <class C>
struct Scaled {
  C factor;
  LOCKSTEP_INLINE C operator()(C x) const { return x * factor; }
};

// NaN stays.
template <class C>
struct Clamped {
  C low, high;
  LOCKSTEP_INLINE C operator()(C x) const { return x < low ? low : x > high ? high : x; }
};

// A number as a constant of T is seen where it is computed with.
template <class T, class C>
C constant_of(double value) {
  return static_cast<C>(element_of<T>(value));
}

}  // namespace lockstep::kernels
