#pragma once

#include <span>

#include "lockstep/kernels/view.h"

namespace lockstep::kernels {

// Steps of optimisers over lists of tensors, each in one pass over memory; at the end, norms and
// changes of such lists. The views of one entry
// have one floating dtype, shape and strides, and are dense in memory (no gaps, any order of the
// dimensions); 16-bit entries are computed in f32. Scalars are computed in double and rounded to
// the dtype once. Throws Error(kInvalidArgument) for views that are not dense or alike.

struct SgdEntry {
  View parameter;
  View gradient;
  View momentum;              // unused where options.momentum is 0
  bool has_momentum = false;  // false on the first step: the buffer becomes the gradient
};

struct SgdOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

// g += weight_decay p;  b = momentum b + (1 - dampening) g, at first b = g;
// p -= lr (nesterov ? g + momentum b : b), or lr g without momentum (Sutskever et al., 2013).
struct SgdStep {
  static void cpu(std::span<const SgdEntry> entries, const SgdOptions& options);
  static void cuda(std::span<const SgdEntry> entries, const SgdOptions& options);
};

struct AdamEntry {
  View parameter;
  View gradient;
  View exp_avg;
  View exp_avg_sq;
  int64_t step = 1;  // steps of this parameter, counted from 1 with this one
};

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;  // AdamW: p -= lr weight_decay p, instead of g += weight_decay p
};

// m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
// p -= lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) (Kingma and Ba, 2015; decoupled:
// Loshchilov and Hutter, 2019).
struct AdamStep {
  static void cpu(std::span<const AdamEntry> entries, const AdamOptions& options);
  static void cuda(std::span<const AdamEntry> entries, const AdamOptions& options);
};

struct LambOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0;
};

// m and v as in Adam;  r = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay p;
// p -= lr (|p| / |r|) r with the L2 norms of the whole tensor, the ratio 1 where one is 0
// (You et al., 2020).
struct LambStep {
  static void cpu(std::span<const AdamEntry> entries, const LambOptions& options);
  static void cuda(std::span<const AdamEntry> entries, const LambOptions& options);
};

struct RMSpropEntry {
  View parameter;
  View gradient;
  View square_avg;
  View momentum_buffer;  // unused where options.momentum is 0
  View grad_avg;         // unused unless options.centered
};

struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
};

// g += weight_decay p;  v = alpha v + (1 - alpha) g^2;  p -= lr g / (sqrt(v) + eps) (Tieleman and
// Hinton, 2012). centered: v - a^2 stands for v, with a = alpha a + (1 - alpha) g (Graves, 2013).
// With momentum: b = momentum b + g / (…);  p -= lr b.
struct RMSpropStep {
  static void cpu(std::span<const RMSpropEntry> entries, const RMSpropOptions& options);
  static void cuda(std::span<const RMSpropEntry> entries, const RMSpropOptions& options);
};

struct AdagradEntry {
  View parameter;
  View gradient;
  View sum;          // of the squared gradients so far
  int64_t step = 1;  // counted from 1 with this one
};

struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double eps = 1e-10;
};

// g += weight_decay p;  s += g^2;  p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps) (Duchi,
// Hazan and Singer, 2011).
struct AdagradStep {
  static void cpu(std::span<const AdagradEntry> entries, const AdagradOptions& options);
  static void cuda(std::span<const AdagradEntry> entries, const AdagradOptions& options);
};

// The sum of the squares of all elements of all views: floating dtypes, any strides, summed in
// double.
struct L2NormSquared {
  static double cpu(std::span<const View> views);
  static double cuda(std::span<const View> views);
};

// The same lists, changed in place: no element of memory may come twice. Factors and limits are
// rounded to a view's dtype, then its elements are computed in it, 16-bit ones in f32.

// x *= factor.
struct ScaleAll {
  static void cpu(std::span<const View> views, double factor);
  static void cuda(std::span<const View> views, double factor);
};

// ScaleAll, and L2NormSquared of what comes out, while memory is gone over once.
struct ScaleAllNormSquared {
  static double cpu(std::span<const View> views, double factor);
  static double cuda(std::span<const View> views, double factor);
};

// x = low where x < low, high where x > high.
struct ClampAll {
  static void cpu(std::span<const View> views, double low, double high);
  static void cuda(std::span<const View> views, double low, double high);
};

// What both devices refuse.
void check_entries(std::span<const SgdEntry> entries, const SgdOptions& options);
void check_entries(std::span<const AdamEntry> entries, const AdamOptions& options);
void check_entries(std::span<const AdamEntry> entries, const LambOptions& options);
void check_entries(std::span<const RMSpropEntry> entries, const RMSpropOptions& options);
void check_entries(std::span<const AdagradEntry> entries, const AdagradOptions& options);

}  // namespace lockstep::kernels
