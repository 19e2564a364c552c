#pragma once

// Inputs for collectives that depend on rank and index, and what must come out of them, computed
// element by element with none of the library's loops.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "../sanitized.h"
#include "lockstep/comm/blocks.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

inline constexpr DType kAllDTypes[] = {DType::kF32,  DType::kF64,  DType::kF16,
                                       DType::kBF16, DType::kI64,  DType::kI32,
                                       DType::kU8,   DType::kBool, DType::kI8};

inline std::vector<ReduceOp> ops_of(DType dtype) {
  std::vector<ReduceOp> ops;
  for (int i = 0; i < kernels::kFoldOpCount; ++i) {
    const auto op = static_cast<ReduceOp>(i);
    if (kernels::is_defined(op, dtype)) ops.push_back(op);
  }
  return ops;
}

using Bytes = std::vector<std::byte>;

inline uint64_t mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 29;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 32);
}

// Numbers of both signs and many magnitudes, so that a sum depends on its order, with an occasional
// NaN and infinity.
template <class T>
T input_value(int rank, int64_t index) {
  const uint64_t bits =
      mix(static_cast<uint64_t>(index) * 1315423911u + static_cast<uint64_t>(rank) + 1);
  if constexpr (std::is_same_v<T, bool>) {
    return bits % 3 != 0;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);
  } else {
    const double sign = (bits & 1) != 0 ? -1.0 : 1.0;
    double value = sign * std::ldexp(1.0 + static_cast<double>(bits >> 40) * 0x1p-24,
                                     static_cast<int>(bits >> 8 & 15) - 7);
    if (bits % 97 == 0) value = std::numeric_limits<double>::quiet_NaN();
    if (bits % 89 == 0) value = sign * std::numeric_limits<double>::infinity();
    if constexpr (is_reduced_float_v<T>) return T(static_cast<float>(value));
    if constexpr (std::is_floating_point_v<T>) return static_cast<T>(value);
  }
}

inline Bytes input_of(DType dtype, int rank, int64_t count) {
  Bytes out(static_cast<size_t>(count) * size_of(dtype));
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < count; ++i) {
      const T value = input_value<T>(rank, i);
      std::memcpy(out.data() + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T));
    }
  });
  return out;
}

// One element of each rank, in the order of the fold.
template <class T>
T folded(const std::vector<T>& values, ReduceOp op) {
  const auto n = static_cast<int64_t>(values.size());
  if constexpr (std::is_same_v<T, bool>) {
    bool all = true;
    bool any = false;
    for (const bool value : values) {
      all = all && value;
      any = any || value;
    }
    return op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kOr ? any : all;
  } else if constexpr (std::is_integral_v<T>) {
    __int128 sum = 0;
    uint64_t product = 1;
    T low = values[0];
    T high = values[0];
    T ones = values[0];
    T either = values[0];
    for (const T value : values) {
      sum += value;
      product *= static_cast<uint64_t>(value);
      low = std::min(low, value);
      high = std::max(high, value);
      ones = static_cast<T>(ones & value);
      either = static_cast<T>(either | value);
    }
    switch (op) {
      case ReduceOp::kSum:
        return static_cast<T>(static_cast<uint64_t>(sum));
      case ReduceOp::kAvg:
        return static_cast<T>(sum / n);
      case ReduceOp::kMin:
        return low;
      case ReduceOp::kMax:
        return high;
      case ReduceOp::kProduct:
        return static_cast<T>(product);
      case ReduceOp::kAnd:
        return ones;
      case ReduceOp::kOr:
        return either;
    }
  } else {
    using Wide = std::conditional_t<is_reduced_float_v<T>, float, T>;
    if (op == ReduceOp::kMin || op == ReduceOp::kMax) {
      T out = values[0];
      for (const T value : values) {
        const Wide a = static_cast<Wide>(out);
        const Wide b = static_cast<Wide>(value);
        if (std::isnan(a)) return out;
        const bool keep = op == ReduceOp::kMin ? a < b : a > b;
        if (!keep) out = value;
      }
      return out;
    }
    int power = 1;
    while (power < n) power *= 2;
    const Wide scale = op == ReduceOp::kAvg ? Wide(1) / static_cast<Wide>(power) : Wide(1);
    Wide sum = static_cast<Wide>(values[0]) * scale;
    for (size_t i = 1; i < values.size(); ++i) {
      const Wide value = static_cast<Wide>(values[i]);
      sum = op == ReduceOp::kProduct ? sum * value : sum + value * scale;
    }
    if (op == ReduceOp::kAvg && power != n) sum /= static_cast<Wide>(n) / static_cast<Wide>(power);
    if (std::isnan(sum)) sum = std::numeric_limits<Wide>::quiet_NaN();
    return T(sum);
  }
  return values[0];
}

// What an all-reduce (blocks of_all) or a reduce-scatter (of_each) makes of input_of(), where rank
// r gave what input_of() has for key(r).
inline Bytes folded_inputs(
    DType dtype, ReduceOp op, const Blocks& blocks,
    const std::function<int(int)>& key = [](int rank) { return rank; }) {
  Bytes out(static_cast<size_t>(blocks.count) * size_of(dtype));
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::vector<T> values(blocks.ranks);
    for (int block = 0; block < blocks.ranks; ++block) {
      for (int64_t i = blocks.begin(block); i < blocks.end(block); ++i) {
        for (int k = 0; k < blocks.ranks; ++k) {
          values[k] = input_value<T>(key(blocks.order(block, k)), i);
        }
        const T value = folded<T>(values, op);
        std::memcpy(out.data() + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T));
      }
    }
  });
  return out;
}

// A transport and an algorithm that it has; "" is its own choice.
struct Path {
  std::string transport;
  std::string algorithm;
};

inline std::vector<Path> all_paths() {
  return {{"thread", ""}, {"thread", "ring"}, {"thread", "two_shot"}, {"thread", "one_shot"},
          {"shm", ""},    {"shm", "ring"},    {"shm", "two_shot"},    {"shm", "one_shot"},
          {"tcp", ""},    {"tcp", "ring"},    {"tcp", "one_shot"},    {"mixed", "ring"}};
}

// For the names of tests.
inline std::string path_name(const Path& path) {
  return path.transport + "_" + (path.algorithm.empty() ? "auto" : path.algorithm);
}

inline Options options_of(const Path& path,
                          std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  Options options;
  options.transport = path.transport;
  options.algorithm = path.algorithm;
  options.timeout = timeout;
  return options;
}

}  // namespace lockstep::comm
