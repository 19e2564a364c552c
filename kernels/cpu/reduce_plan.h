#pragma once

#include <algorithm>
#include <memory>
#include <string_view>

#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/strided.h"
#include "lockstep/kernels/text.h"

// What the two kinds of reductions share: which dimensions stay and which go, and in what order.
namespace lockstep::kernels {

// Elements that are worth a thread.
inline constexpr int64_t kReduceGrain = 32768;

// The dimensions of a reduction: those that stay (with y's strides beside x's) and those that go,
// each from the largest stride of x to the smallest.
struct ReducePlan {
  Shape kept;
  Strides kept_x;
  Strides kept_y;
  Walk gone;
  int64_t kept_count = 1;
  int64_t gone_count = 1;
};

inline ReducePlan reduce_plan(const View& x, const View& y) {
  ReducePlan out;
  Shape gone;
  for (int64_t dim : memory_order(x)) {
    const auto d = static_cast<size_t>(dim);
    if (y.shape[d] == 1) {
      gone.push_back(dim);
      out.gone_count *= x.shape[d];
      continue;
    }
    const int64_t size = x.shape[d];
    out.kept_count *= size;
    if (!out.kept.empty() && out.kept_x.back() == x.strides[d] * size &&
        out.kept_y.back() == y.strides[d] * size) {
      out.kept.back() *= size;
      out.kept_x.back() = x.strides[d];
      out.kept_y.back() = y.strides[d];
    } else {
      out.kept.push_back(size);
      out.kept_x.push_back(x.strides[d]);
      out.kept_y.push_back(y.strides[d]);
    }
  }
  out.gone = Walk(x, gone);
  return out;
}

struct Offsets {
  int64_t x = 0;
  int64_t y = 0;
};

// Where element `index` of the kept dimensions, or of all but the last of them, stands.
inline Offsets locate(const ReducePlan& p, int64_t index, bool skip_last) {
  Offsets out;
  for (size_t d = p.kept.size() - (skip_last ? 1 : 0); d-- > 0;) {
    const int64_t i = d == 0 ? index : index % p.kept[d];
    if (d > 0) index /= p.kept[d];
    out.x += i * p.kept_x[d];
    out.y += i * p.kept_y[d];
  }
  return out;
}

// How many of `columns` results side by side a thread takes at once: `most`, unless other threads
// would be left without.
inline int64_t stripe_width(int64_t columns, int64_t threads, int64_t most) {
  constexpr int64_t kLeast = 256;
  const int64_t share = columns / std::max<int64_t>(threads, 1) / kLeast * kLeast;
  return std::clamp(share, kLeast, most);
}

// A copy of x in f32, dense in x's memory order, and memory for a result like y.
struct Wide {
  explicit Wide(const View& like)
      : view{nullptr, DType::kF32, like.device, like.shape, Strides(like.shape.size(), 1)} {
    int64_t step = 1;
    const Shape order = memory_order(like);
    for (size_t k = order.size(); k-- > 0;) {
      const auto d = static_cast<size_t>(order[k]);
      view.strides[d] = step;
      step *= like.shape[d];
    }
    memory = allocate(static_cast<size_t>(like.numel()) * sizeof(float));
    view.data = memory.get();
  }

  View view;
  std::shared_ptr<void> memory;
};

// Throws unless there is something to choose from. Returns whether there is something to write.
inline bool check_some(const View& x, const View& y, std::string_view op) {
  if (y.numel() == 0) return false;
  check(x.numel() > 0, op, [&] {
    return str_cat("want at least one element to choose from, got shape ", to_string(x.shape));
  });
  return true;
}

}  // namespace lockstep::kernels
