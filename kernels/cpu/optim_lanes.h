#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "lockstep/kernels/cpu/blocks.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/strided.h"
#include "lockstep/kernels/text.h"

// What the steps of all optimisers share.
namespace lockstep::kernels {

inline constexpr int64_t kOptimBlock =
    2048;  // elements of a block of 16-bit floats, on their way through f32
inline constexpr int64_t kOptimGrain = 32768;  // elements that are worth a thread

// Throws unless `other` has the parameter's dtype, shape and strides.
inline void check_alike(std::string_view op, const View& parameter, const View& other,
                        std::string_view what) {
  bool alike = parameter.dtype == other.dtype && parameter.shape == other.shape;
  for (size_t d = 0; alike && d < parameter.shape.size(); ++d) {
    alike = parameter.shape[d] <= 1 || parameter.strides[d] == other.strides[d];
  }
  check(alike, op, [&] {
    return str_cat(
        "want ", what, " with the parameter's dtype, shape and strides: ", name(parameter.dtype),
        " ", to_string(parameter.shape), " by ", to_string(parameter.strides), ", got ",
        name(other.dtype), " ", to_string(other.shape), " by ", to_string(other.strides));
  });
}

inline void check_dense(std::string_view op, const View& parameter) {
  check(is_floating(parameter.dtype), op, [&] {
    return str_cat("want parameters of a floating dtype, got ", name(parameter.dtype));
  });
  check(parameter.numel() <= 1 || Walk(parameter, memory_order(parameter)).dense(), op, [&] {
    return str_cat("want parameters without gaps in memory, got shape ", to_string(parameter.shape),
                   " by strides ", to_string(parameter.strides));
  });
}

// Runs step(pointers, count), with lanes of N dense arrays of one size, over all of these. The
// first `written` of them are written. 16-bit floats pass through f32 in blocks.
template <class T, size_t N, class Step>
void for_each_lane(const std::array<const View*, N>& views, size_t written, const Step& step) {
  parallel_for(views[0]->numel(), kOptimGrain, [&](int64_t begin, int64_t end) {
    std::array<Lane<T>*, N> lanes;
    if constexpr (!is_reduced_float_v<T>) {
      for (size_t k = 0; k < N; ++k) lanes[k] = views[k]->template as<T>() + begin;
      step(lanes, end - begin);
    } else {
      alignas(64) float buffers[N][kOptimBlock];
      for (size_t k = 0; k < N; ++k) lanes[k] = buffers[k];
      for (int64_t first = begin; first < end; first += kOptimBlock) {
        const int64_t n = std::min(kOptimBlock, end - first);
        for (size_t k = 0; k < N; ++k) widen(views[k]->template as<T>() + first, buffers[k], n);
        step(lanes, n);
        for (size_t k = 0; k < written; ++k) {
          narrow(buffers[k], views[k]->template as<T>() + first, n);
        }
      }
    }
  });
}

}  // namespace lockstep::kernels
