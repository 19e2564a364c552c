#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

#include "lockstep/kernels/view.h"

// oneDNN as the product and convolution kernels use it.
namespace lockstep::kernels::onednn {

using Arguments = std::unordered_map<int, dnnl::memory>;

const dnnl::engine& engine();

// The memory of a view as oneDNN sees it, with the view's strides.
dnnl::memory::desc describe(const Shape& shape, const Strides& strides);

// Runs `primitive` in the calling thread and the OpenMP threads that num_threads() grants it.
void execute(const dnnl::primitive& primitive, const Arguments& arguments);

// Tells oneDNN, which plans for a number of threads when a primitive is made, how many there are.
int announce_threads();

// Returns the entry of the calling thread's cache of T under `key`, made by `make()` the first
// time. Making a primitive costs more than running a small one. A thread has its own cache, so
// that ranks that are threads neither wait for each other nor share scratch memory.
template <class T, class Make>
const T& cached(const std::string& key, const Make& make) {
  // Shapes repeat from step to step; a program that never repeats one starts over from time to
  // time.
  constexpr size_t kMostEntries = 512;
  thread_local std::unordered_map<std::string, T> cache;
  const auto found = cache.find(key);
  if (found != cache.end()) return found->second;
  if (cache.size() >= kMostEntries) cache.clear();
  return cache.emplace(key, make()).first->second;
}

// Calls f and turns oneDNN's errors into Error(kInternal) that names `op`.
template <class F>
void guarded(std::string_view op, const F& f) {
  try {
    f();
  } catch (const dnnl::error& error) {
    throw Error(error.status == dnnl_out_of_memory ? ErrorCode::kOutOfMemory : ErrorCode::kInternal,
                op, std::string("oneDNN says: ").append(error.what()));
  }
}

// Appends numbers to a cache key.
void append(std::string& key, const Shape& numbers);

}  // namespace lockstep::kernels::onednn
