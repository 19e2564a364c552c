#include "lockstep/nn/grad_norm.h"

#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/optim.h"

namespace lockstep::nn {
namespace {

// Calls f(device, views) for runs of tensors on one device, none of which is there twice.
template <class F>
void for_each_run(std::span<const Tensor> tensors, const F& f) {
  for (size_t i = 0; i < tensors.size();) {
    const Device device = tensors[i].device();
    std::vector<View> views;
    absl::flat_hash_set<const void*> seen;
    for (; i < tensors.size() && tensors[i].device() == device; ++i) {
      if (tensors[i].numel() == 0) continue;
      const View view = tensors[i].view();
      if (!seen.insert(view.data).second) break;
      views.push_back(view);
    }
    f(device, views);
  }
}

bool repeats(const View& x, size_t d) { return x.strides[d] == 0 && x.shape[d] > 1; }

// Whether elements share memory, as expand() has it.
bool repeats(const View& x) {
  for (size_t d = 0; d < x.shape.size(); ++d) {
    if (repeats(x, d)) return true;
  }
  return false;
}

// Each place in memory once.
void leave_out_repeats(std::vector<View>& views) {
  for (View& x : views) {
    for (size_t d = 0; d < x.shape.size(); ++d) {
      if (repeats(x, d)) x.shape[d] = 1;
    }
  }
}

void mark_changed(const char* op, std::span<const Tensor> tensors) {
  for (const Tensor& x : tensors) x.mark_changed(op);
}

}  // namespace

double squared_norm(std::span<const Tensor> tensors) {
  double squares = 0;
  for_each_run(tensors, [&](Device device, const std::vector<View>& views) {
    squares += launch<kernels::L2NormSquared>(device, views);
  });
  return squares;
}

void scale_all(const char* op, std::span<const Tensor> tensors, double factor) {
  for_each_run(tensors, [&](Device device, std::vector<View>& views) {
    leave_out_repeats(views);
    launch<kernels::ScaleAll>(device, views, factor);
  });
  mark_changed(op, tensors);
}

void clamp_all(const char* op, std::span<const Tensor> tensors, double low, double high) {
  for_each_run(tensors, [&](Device device, std::vector<View>& views) {
    leave_out_repeats(views);
    launch<kernels::ClampAll>(device, views, low, high);
  });
  mark_changed(op, tensors);
}

double scale_all_norm_squared(const char* op, std::span<const Tensor> tensors, double factor) {
  if (std::any_of(tensors.begin(), tensors.end(),
                  [](const Tensor& x) { return repeats(x.view()); })) {
    scale_all(op, tensors, factor);
    return squared_norm(tensors);
  }
  double squares = 0;
  for_each_run(tensors, [&](Device device, const std::vector<View>& views) {
    squares += launch<kernels::ScaleAllNormSquared>(device, views, factor);
  });
  mark_changed(op, tensors);
  return squares;
}

}  // namespace lockstep::nn
