#include "allreduce_check.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

namespace bench {
namespace {

using lockstep::comm::ReduceOp;

int64_t input(int rank, int64_t index, ReduceOp op) {
  const int64_t mixed = index * 5 + index / 977 + rank * 3;
  if (op == ReduceOp::kProduct) return mixed % 5 == 0 ? 2 : 1;
  return mixed % 4;
}

// Bits of the mantissa, the hidden one included.
template <class T>
constexpr int precision() {
  if constexpr (std::is_same_v<T, lockstep::Half>) return 11;
  if constexpr (std::is_same_v<T, lockstep::BFloat16>) return 8;
  if constexpr (std::is_same_v<T, float>) return 24;
  return 53;
}

template <class T>
bool is_right(T got, const int64_t* inputs, int ranks, ReduceOp op) {
  int64_t want = inputs[0];
  for (int r = 1; r < ranks; ++r) {
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        want += inputs[r];
        break;
      case ReduceOp::kMin:
        want = std::min(want, inputs[r]);
        break;
      case ReduceOp::kMax:
        want = std::max(want, inputs[r]);
        break;
      case ReduceOp::kProduct:
        want = static_cast<int64_t>(static_cast<uint64_t>(want) * static_cast<uint64_t>(inputs[r]));
        break;
      case ReduceOp::kAnd:
        want &= inputs[r];
        break;
      case ReduceOp::kOr:
        want |= inputs[r];
        break;
    }
  }
  if constexpr (std::is_same_v<T, bool>) {
    bool all = true;
    bool any = false;
    for (int r = 0; r < ranks; ++r) {
      all = all && inputs[r] != 0;
      any = any || inputs[r] != 0;
    }
    const bool either = op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kOr;
    return got == (either ? any : all);
  } else if constexpr (std::is_integral_v<T>) {
    return got == static_cast<T>(op == ReduceOp::kAvg ? want / ranks : want);
  } else {
    double value = 0;
    if constexpr (lockstep::is_reduced_float_v<T>) {
      value = static_cast<float>(got);
    } else {
      value = static_cast<double>(got);
    }
    if (op != ReduceOp::kAvg) return value == static_cast<double>(want);
    const double exact = static_cast<double>(want) / ranks;
    const double unit = std::ldexp(1.0, std::ilogb(exact) + 1 - precision<T>());
    return exact == 0 ? value == 0 : std::abs(value - exact) <= 2 * unit;
  }
}

}  // namespace

void fill_input(void* data, int64_t count, lockstep::DType dtype, ReduceOp op, int rank) {
  lockstep::visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* out = static_cast<T*>(data);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t value = input(rank, i, op);
      if constexpr (lockstep::is_reduced_float_v<T>) {
        out[i] = T(static_cast<float>(value));
      } else {
        out[i] = static_cast<T>(value);
      }
    }
  });
}

int64_t count_wrong(const void* data, int64_t count, lockstep::DType dtype, ReduceOp op,
                    int ranks) {
  int64_t wrong = 0;
  lockstep::visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* got = static_cast<const T*>(data);
    std::vector<int64_t> inputs(ranks);
    for (int64_t i = 0; i < count; ++i) {
      for (int r = 0; r < ranks; ++r) inputs[r] = input(r, i, op);
      if (!is_right(got[i], inputs.data(), ranks, op)) ++wrong;
    }
  });
  return wrong;
}

}  // namespace bench
