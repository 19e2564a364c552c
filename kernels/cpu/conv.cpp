#include "lockstep/kernels/conv.h"

#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/cpu/onednn.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

using Dims = dnnl::memory::dims;
using Tag = dnnl::memory::format_tag;
constexpr auto kF32 = dnnl::memory::data_type::f32;

// x in channels-last memory: itself, or a copy that lives as long as this.
class ChannelsLast {
 public:
  ChannelsLast(const View& x, bool copy_in) : original_(x), view_(x) {
    if (x.is_channels_last()) return;
    view_.strides = channels_last_strides(x.shape);
    memory_ = allocate(static_cast<size_t>(x.numel()) * size_of(x.dtype));
    view_.data = memory_.get();
    if (copy_in) Copy::cpu(x, view_);
  }
  void* data() const { return view_.data; }
  void copy_out() const {
    if (memory_ != nullptr) Copy::cpu(view_, original_);
  }

 private:
  View original_;
  View view_;
  std::shared_ptr<void> memory_;
};

// What one call is, as oneDNN wants it: memory as it is, and as a primitive may have it.
struct Problem {
  dnnl::memory::desc x, weight, y;
  dnnl::memory::desc free_x, free_weight, free_y;
  Dims stride, dilation, padding;
  std::string key;
};

// Whether images are worth turning into oneDNN's own layout, blocks of 8 or 16 channels, for a
// call: 3x3 in 64 channels of 56x56 take 29 ms in it, 44 to 51 in channels-last memory, and turning
// both images 3. By shape alone, never by time: layouts differ in the order of their sums.
bool wants_blocks(const Shape& x, const Shape& weight, const Conv2dParams& p) {
  return p.groups == 1 && x[1] % 8 == 0 && weight[0] % 8 == 0 && weight[2] * weight[3] > 1;
}

Problem problem(const char* kind, const Shape& x, const View& weight, const Shape& y,
                const Conv2dParams& p) {
  const int64_t g = p.groups;
  Dims dims = {weight.shape[0], weight.shape[1], weight.shape[2], weight.shape[3]};
  Dims strides(weight.strides.begin(), weight.strides.end());
  if (g > 1) {
    dims.insert(dims.begin(), g);
    dims[1] /= g;
    strides.insert(strides.begin(), dims[1] * strides[0]);
  }
  Problem out;
  const Tag images = wants_blocks(x, weight.shape, p) ? Tag::any : Tag::nhwc;
  out.x = {Dims(x.begin(), x.end()), kF32, Tag::nhwc};
  out.y = {Dims(y.begin(), y.end()), kF32, Tag::nhwc};
  out.weight = {dims, kF32, strides};
  out.free_x = {Dims(x.begin(), x.end()), kF32, images};
  out.free_y = {Dims(y.begin(), y.end()), kF32, images};
  out.free_weight = {dims, kF32, Tag::any};
  out.stride = {p.stride[0], p.stride[1]};
  out.dilation = {p.dilation[0] - 1, p.dilation[1] - 1};  // oneDNN counts the gaps
  out.padding = {p.padding[0], p.padding[1]};
  out.key = kind;
  for (const Shape* part :
       std::initializer_list<const Shape*>{&x, &weight.shape, &weight.strides, &y})
    onednn::append(out.key, *part);
  onednn::append(out.key, {p.stride[0], p.stride[1], p.padding[0], p.padding[1], p.dilation[0],
                           p.dilation[1], g, onednn::announce_threads()});
  return out;
}

dnnl::memory at(const dnnl::memory::desc& desc, const void* data) {
  return {desc, onednn::engine(), const_cast<void*>(data)};
}

// An operand of a primitive: the caller's layout, the one that the primitive chose, and the way
// from one to the other where they differ.
struct Operand {
  Operand(const dnnl::memory::desc& own, const dnnl::memory::desc& wanted, bool is_read)
      : mine(own), chosen(wanted), reads(is_read), reorders(own != wanted) {
    if (!reorders) return;
    const auto& from = reads ? mine : chosen;
    const auto& to = reads ? chosen : mine;
    reorder = dnnl::reorder({onednn::engine(), from, onednn::engine(), to});
  }

  dnnl::memory::desc mine, chosen;
  bool reads;
  bool reorders;
  dnnl::reorder reorder;
};

// An operand's memory for one call: the caller's, or a copy in the chosen layout.
class Placed {
 public:
  Placed(const Operand& operand, const void* data)
      : operand_(operand), mine_(at(operand.mine, data)), memory_(mine_) {
    if (!operand.reorders) return;
    copy_ = allocate(operand.chosen.get_size());
    memory_ = at(operand.chosen, copy_.get());
    if (operand.reads) {
      onednn::execute(operand.reorder, {{DNNL_ARG_FROM, mine_}, {DNNL_ARG_TO, memory_}});
    }
  }
  const dnnl::memory& memory() const { return memory_; }
  // Brings what was written to the caller's memory.
  void finish() const {
    if (operand_.reorders && !operand_.reads) {
      onednn::execute(operand_.reorder, {{DNNL_ARG_FROM, memory_}, {DNNL_ARG_TO, mine_}});
    }
  }

 private:
  const Operand& operand_;
  dnnl::memory mine_;
  dnnl::memory memory_;
  std::shared_ptr<void> copy_;
};

template <class Primitive>
struct Plan {
  Primitive primitive;
  Operand x, weight, y;
};

dnnl::convolution_forward::primitive_desc forward_desc(const Problem& p,
                                                       const dnnl::memory::desc* bias) {
  using F = dnnl::convolution_forward;
  constexpr auto kKind = dnnl::prop_kind::forward_training;
  constexpr auto kDirect = dnnl::algorithm::convolution_direct;
  const auto desc = bias != nullptr ? F::desc(kKind, kDirect, p.free_x, p.free_weight, *bias,
                                              p.free_y, p.stride, p.dilation, p.padding, p.padding)
                                    : F::desc(kKind, kDirect, p.free_x, p.free_weight, p.free_y,
                                              p.stride, p.dilation, p.padding, p.padding);
  return {desc, onednn::engine()};
}

// Calls f(n, g, o, c, i, j, h, w, r, s) style loops for f64: every product of the convolution once.
template <class F>
void for_each_product(const Shape& x, const Shape& weight, const Shape& y, const Conv2dParams& p,
                      const F& f) {
  const int64_t outs = weight[0] / p.groups, ins = weight[1];
  for (int64_t n = 0; n < y[0]; ++n) {
    for (int64_t o = 0; o < y[1]; ++o) {
      for (int64_t c = 0; c < ins; ++c) {
        for (int64_t i = 0; i < y[2]; ++i) {
          for (int64_t r = 0; r < weight[2]; ++r) {
            const int64_t h = i * p.stride[0] + r * p.dilation[0] - p.padding[0];
            if (h < 0 || h >= x[2]) continue;
            for (int64_t j = 0; j < y[3]; ++j) {
              for (int64_t s = 0; s < weight[3]; ++s) {
                const int64_t w = j * p.stride[1] + s * p.dilation[1] - p.padding[1];
                if (w < 0 || w >= x[3]) continue;
                f(std::array{n, o / outs * ins + c, h, w}, std::array{o, c, r, s},
                  std::array{n, o, i, j});
              }
            }
          }
        }
      }
    }
  }
}

double& element(const View& v, const std::array<int64_t, 4>& i) {
  return v.as<double>()[i[0] * v.strides[0] + i[1] * v.strides[1] + i[2] * v.strides[2] +
                        i[3] * v.strides[3]];
}

// True where f64 is to be computed, false for f32; other dtypes are refused.
bool is_double(DType dtype, std::string_view op) {
  check(dtype == DType::kF32 || dtype == DType::kF64, op,
        [&] { return std::string("want f32 or f64, got ").append(name(dtype)); });
  return dtype == DType::kF64;
}

}  // namespace

void Conv2d::cpu(const View& x, const View& weight, const View* bias, const View& y,
                 const Conv2dParams& params) {
  if (y.numel() == 0) return;
  const bool no_products = x.numel() == 0 || weight.numel() == 0;
  if (is_double(x.dtype, "conv2d") || no_products) {
    Fill::cpu(y, 0.0);
    if (bias != nullptr) {
      View wide = *bias;
      wide.shape = y.shape;
      wide.strides = {0, bias->strides[0], 0, 0};
      Copy::cpu(wide, y);
    }
    if (no_products) return;
    return for_each_product(x.shape, weight.shape, y.shape, params,
                            [&](const auto& xi, const auto& wi, const auto& yi) {
                              element(y, yi) += element(x, xi) * element(weight, wi);
                            });
  }
  const ChannelsLast in(x, true);
  const ChannelsLast out(y, false);
  Problem p = problem("forward", x.shape, weight, y.shape, params);
  onednn::append(p.key, {bias != nullptr});
  const dnnl::memory::desc bias_desc({y.shape[1]}, kF32, Tag::x);
  std::vector<float> dense_bias;
  const void* bias_data = bias == nullptr ? nullptr : bias->data;
  if (bias != nullptr && !bias->is_contiguous()) {
    dense_bias.resize(static_cast<size_t>(y.shape[1]));
    for (int64_t c = 0; c < y.shape[1]; ++c) {
      dense_bias[static_cast<size_t>(c)] = bias->as<float>()[c * bias->strides[0]];
    }
    bias_data = dense_bias.data();
  }
  using Forward = Plan<dnnl::convolution_forward>;
  onednn::guarded("conv2d", [&] {
    const Forward& f = onednn::cached<Forward>(p.key, [&] {
      const auto desc = forward_desc(p, bias == nullptr ? nullptr : &bias_desc);
      return Forward{dnnl::convolution_forward(desc), Operand(p.x, desc.src_desc(), true),
                     Operand(p.weight, desc.weights_desc(), true),
                     Operand(p.y, desc.dst_desc(), false)};
    });
    const Placed images(f.x, in.data()), kernel(f.weight, weight.data), results(f.y, out.data());
    onednn::Arguments arguments = {{DNNL_ARG_SRC, images.memory()},
                                   {DNNL_ARG_WEIGHTS, kernel.memory()},
                                   {DNNL_ARG_DST, results.memory()}};
    if (bias != nullptr) arguments.emplace(DNNL_ARG_BIAS, at(bias_desc, bias_data));
    onednn::execute(f.primitive, arguments);
    results.finish();
  });
  out.copy_out();
}

void Conv2dInputGrad::cpu(const View& g, const View& weight, const View& gx,
                          const Conv2dParams& params) {
  if (gx.numel() == 0) return;
  const bool no_products = g.numel() == 0 || weight.numel() == 0;
  if (is_double(g.dtype, "conv2d_input_grad") || no_products) {
    Fill::cpu(gx, 0.0);
    if (no_products) return;
    return for_each_product(gx.shape, weight.shape, g.shape, params,
                            [&](const auto& xi, const auto& wi, const auto& yi) {
                              element(gx, xi) += element(g, yi) * element(weight, wi);
                            });
  }
  const ChannelsLast in(g, true);
  const ChannelsLast out(gx, false);
  const Problem p = problem("input_grad", gx.shape, weight, g.shape, params);
  using Backward = Plan<dnnl::convolution_backward_data>;
  onednn::guarded("conv2d_input_grad", [&] {
    const Backward& b = onednn::cached<Backward>(p.key, [&] {
      const dnnl::convolution_backward_data::primitive_desc desc(
          dnnl::convolution_backward_data::desc(dnnl::algorithm::convolution_direct, p.free_x,
                                                p.free_weight, p.free_y, p.stride, p.dilation,
                                                p.padding, p.padding),
          onednn::engine(), forward_desc(p, nullptr));
      return Backward{
          dnnl::convolution_backward_data(desc), Operand(p.x, desc.diff_src_desc(), false),
          Operand(p.weight, desc.weights_desc(), true), Operand(p.y, desc.diff_dst_desc(), true)};
    });
    const Placed images(b.x, out.data()), kernel(b.weight, weight.data), gradient(b.y, in.data());
    onednn::execute(b.primitive, {{DNNL_ARG_DIFF_DST, gradient.memory()},
                                  {DNNL_ARG_WEIGHTS, kernel.memory()},
                                  {DNNL_ARG_DIFF_SRC, images.memory()}});
    images.finish();
  });
  out.copy_out();
}

void Conv2dWeightGrad::cpu(const View& g, const View& x, const View& gweight,
                           const Conv2dParams& params) {
  if (gweight.numel() == 0) return;
  const bool no_products = g.numel() == 0 || x.numel() == 0;
  if (is_double(g.dtype, "conv2d_weight_grad") || no_products) {
    Fill::cpu(gweight, 0.0);
    if (no_products) return;
    return for_each_product(x.shape, gweight.shape, g.shape, params,
                            [&](const auto& xi, const auto& wi, const auto& yi) {
                              element(gweight, wi) += element(g, yi) * element(x, xi);
                            });
  }
  const ChannelsLast in(x, true);
  const ChannelsLast gradient(g, true);
  const Problem p = problem("weight_grad", x.shape, gweight, g.shape, params);
  using Backward = Plan<dnnl::convolution_backward_weights>;
  onednn::guarded("conv2d_weight_grad", [&] {
    const Backward& b = onednn::cached<Backward>(p.key, [&] {
      const dnnl::convolution_backward_weights::primitive_desc desc(
          dnnl::convolution_backward_weights::desc(dnnl::algorithm::convolution_direct, p.free_x,
                                                   p.free_weight, p.free_y, p.stride, p.dilation,
                                                   p.padding, p.padding),
          onednn::engine(), forward_desc(p, nullptr));
      return Backward{dnnl::convolution_backward_weights(desc), Operand(p.x, desc.src_desc(), true),
                      Operand(p.weight, desc.diff_weights_desc(), false),
                      Operand(p.y, desc.diff_dst_desc(), true)};
    });
    const Placed images(b.x, in.data()), kernel(b.weight, gweight.data),
        gradients(b.y, gradient.data());
    onednn::execute(b.primitive, {{DNNL_ARG_SRC, images.memory()},
                                  {DNNL_ARG_DIFF_DST, gradients.memory()},
                                  {DNNL_ARG_DIFF_WEIGHTS, kernel.memory()}});
    kernel.finish();
  });
}

}  // namespace lockstep::kernels
