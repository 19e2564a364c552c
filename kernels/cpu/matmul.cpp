#include "lockstep/kernels/matmul.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/cpu/onednn.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::kernels {
namespace {

// A view of new memory, with the memory's owner.
struct Owned {
  std::shared_ptr<void> memory;
  View view;
};

Owned dense_copy(const View& x, DType dtype) {
  Owned out;
  out.view = {nullptr, dtype, x.device, x.shape, contiguous_strides(x.shape)};
  out.memory = allocate(static_cast<size_t>(x.numel()) * size_of(dtype));
  out.view.data = out.memory.get();
  Copy::cpu(x, out.view);
  return out;
}

View transposed(View x) {
  const size_t d = x.shape.size();
  std::swap(x.shape[d - 2], x.shape[d - 1]);
  std::swap(x.strides[d - 2], x.strides[d - 1]);
  return x;
}

// Whether rows lie one after another, and the numbers of each side by side.
bool is_by_rows(const View& x) {
  const size_t d = x.shape.size();
  return (x.strides[d - 1] == 1 || x.shape[d - 1] == 1) &&
         (x.strides[d - 2] >= x.shape[d - 1] || x.shape[d - 2] == 1);
}

// oneDNN wants one of the two inner strides to be 1 and the other to span the rows.
bool is_plain(const View& x) { return is_by_rows(x) || is_by_rows(transposed(x)); }

// Strides of size-1 dimensions are free; oneDNN takes them at their word.
Strides tidy(const View& x) {
  Strides strides = x.strides;
  const size_t d = x.shape.size();
  if (x.shape[d - 1] == 1) strides[d - 1] = 1;
  if (x.shape[d - 2] == 1) strides[d - 2] = std::max<int64_t>(x.shape[d - 1] * strides[d - 1], 1);
  return strides;
}

// oneDNN packs an operand by walking along k. Where each step is a multiple of 2 KiB, what it walks
// over falls into so few sets of a cache that hardly any of it stays, and packing takes as long as
// the product: with at most 256 rows (columns) on the other side it is faster to copy the operand
// first, to lines that are a little longer (128 x 1024 times 1024 x 1024: 35 -> 56 GFLOP/s,
// oneDNN 2.6 on Zen 3).
constexpr int64_t kBadStep = 512;
constexpr int64_t kMostOthers = 256;
constexpr int64_t kApart = 16;

// `x`, or where that pays a copy in `copy`, which may hold x itself; `k` is its dimension of terms,
// `others` the size of the other operand's own.
View walked_well(const View& x, size_t k, int64_t others, Owned& copy) {
  const size_t d = x.shape.size();
  const size_t along = k == d - 1 ? d - 2 : d - 1;
  const int64_t step = x.strides[k];
  if (x.strides[along] != 1 || step == 0 || step % kBadStep != 0 || others > kMostOthers) return x;
  Owned apart;
  apart.view = x;
  apart.view.strides[k] = x.shape[along] + kApart;
  const int64_t matrix = x.shape[k] * apart.view.strides[k];
  if (d == 3) apart.view.strides[0] = matrix;
  apart.memory = allocate(static_cast<size_t>(matrix * (d == 3 ? x.shape[0] : 1)) * sizeof(float));
  apart.view.data = apart.memory.get();
  Copy::cpu(x, apart.view);
  copy = std::move(apart);
  return copy.view;
}

void multiply_f32(const View& a_in, const View& b_in, const View& out_in, const View* bias) {
  // For a result by columns oneDNN has plain loops alone.
  if (bias == nullptr && !is_by_rows(out_in) && is_by_rows(transposed(out_in))) {
    return multiply_f32(transposed(b_in), transposed(a_in), transposed(out_in), nullptr);
  }
  Owned a_copy, b_copy, out_copy;
  View a = a_in, b = b_in, out = out_in;
  if (!is_plain(a)) a = (a_copy = dense_copy(a, DType::kF32)).view;
  if (!is_plain(b)) b = (b_copy = dense_copy(b, DType::kF32)).view;
  if (!is_by_rows(out)) out = (out_copy = dense_copy(out, DType::kF32)).view;
  const size_t d = out.shape.size();
  a = walked_well(a, d - 1, b.shape[d - 1], a_copy);
  b = walked_well(b, d - 2, a.shape[d - 2], b_copy);
  const Strides a_strides = tidy(a), b_strides = tidy(b), out_strides = tidy(out);

  std::string key;
  for (const Shape* part : std::initializer_list<const Shape*>{&a.shape, &a_strides, &b.shape,
                                                               &b_strides, &out_strides}) {
    onednn::append(key, *part);
  }
  onednn::append(
      key, {bias != nullptr, bias == nullptr ? 0 : bias->strides[0], onednn::announce_threads()});
  Shape bias_shape(out.shape.size(), 1);
  bias_shape.back() = out.shape.back();
  Strides bias_strides(out.shape.size(), out.shape.back());
  bias_strides.back() = 1;
  Owned bias_copy;
  const void* bias_data = nullptr;
  if (bias != nullptr) {
    bias_data = bias->data;
    if (!bias->is_contiguous()) bias_data = (bias_copy = dense_copy(*bias, DType::kF32)).view.data;
  }
  const auto a_desc = onednn::describe(a.shape, a_strides);
  const auto b_desc = onednn::describe(b.shape, b_strides);
  const auto out_desc = onednn::describe(out.shape, out_strides);
  const auto bias_desc = onednn::describe(bias_shape, bias_strides);
  onednn::guarded("matmul", [&] {
    const auto& primitive = onednn::cached<dnnl::matmul>(key, [&] {
      const auto desc = bias == nullptr ? dnnl::matmul::desc(a_desc, b_desc, out_desc)
                                        : dnnl::matmul::desc(a_desc, b_desc, bias_desc, out_desc);
      return dnnl::matmul({desc, onednn::engine()});
    });
    const auto memory = [](const dnnl::memory::desc& desc, const void* data) {
      return dnnl::memory(desc, onednn::engine(), const_cast<void*>(data));
    };
    onednn::Arguments arguments = {{DNNL_ARG_SRC, memory(a_desc, a.data)},
                                   {DNNL_ARG_WEIGHTS, memory(b_desc, b.data)},
                                   {DNNL_ARG_DST, memory(out_desc, out.data)}};
    if (bias != nullptr) arguments.emplace(DNNL_ARG_BIAS, memory(bias_desc, bias_data));
    onednn::execute(primitive, arguments);
  });
  if (out_copy.memory != nullptr) Copy::cpu(out, out_in);
}

// Gradient checks use it; row by row, so that the inner loop runs along memory.
void multiply_f64(const View& a_in, const View& b_in, const View& out, const View* bias) {
  const Owned a = dense_copy(a_in, DType::kF64);
  const Owned b = dense_copy(b_in, DType::kF64);
  const size_t d = out.shape.size();
  const int64_t m = out.shape[d - 2], n = out.shape[d - 1], k = a_in.shape[d - 1];
  const int64_t batch = d == 3 ? out.shape[0] : 1;
  const int64_t out_batch = d == 3 ? out.strides[0] : 0;
  const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, n * k));
  parallel_for(batch * m, grain, [&](int64_t begin, int64_t end) {
    std::vector<double> row(static_cast<size_t>(n));
    for (int64_t r = begin; r < end; ++r) {
      const int64_t i = r % m;
      for (int64_t j = 0; j < n; ++j) {
        row[static_cast<size_t>(j)] =
            bias == nullptr ? 0 : bias->as<double>()[j * bias->strides[0]];
      }
      const double* left = a.view.as<double>() + r * k;
      const double* right = b.view.as<double>() + r / m * k * n;
      for (int64_t p = 0; p < k; ++p) {
        for (int64_t j = 0; j < n; ++j) row[static_cast<size_t>(j)] += left[p] * right[p * n + j];
      }
      double* y = out.as<double>() + r / m * out_batch + i * out.strides[d - 2];
      for (int64_t j = 0; j < n; ++j) y[j * out.strides[d - 1]] = row[static_cast<size_t>(j)];
    }
  });
}

}  // namespace

void MatMul::cpu(const View& a, const View& b, const View& out, const View* bias) {
  if (out.numel() == 0) return;
  if (a.shape.back() == 0) {
    Fill::cpu(out, 0.0);
    if (bias == nullptr) return;
    View wide = *bias;
    wide.shape = out.shape;
    wide.strides = Strides(out.shape.size(), 0);
    wide.strides.back() = bias->strides[0];
    return Copy::cpu(wide, out);
  }
  if (a.dtype == DType::kF32) return multiply_f32(a, b, out, bias);
  if (a.dtype == DType::kF64) return multiply_f64(a, b, out, bias);
  check(is_floating(a.dtype), "matmul",
        [&] { return std::string("want a floating dtype, got ").append(name(a.dtype)); });
  // 16-bit products are exact in f32, where they are summed; the result is rounded once.
  const Owned left = dense_copy(a, DType::kF32);
  const Owned right = dense_copy(b, DType::kF32);
  Owned result;
  result.view = {nullptr, DType::kF32, out.device, out.shape, contiguous_strides(out.shape)};
  result.memory = allocate(static_cast<size_t>(out.numel()) * sizeof(float));
  result.view.data = result.memory.get();
  Owned wide_bias;
  if (bias != nullptr) wide_bias = dense_copy(*bias, DType::kF32);
  multiply_f32(left.view, right.view, result.view, bias == nullptr ? nullptr : &wide_bias.view);
  Copy::cpu(result.view, out);
}

void MatMulGelu::cpu(const View& a, const View& b, const View& out, const View* bias,
                     const View* before) {
  const View& sums = before == nullptr ? out : *before;
  MatMul::cpu(a, b, sums, bias);
  Unary<GeluTanh>::cpu(sums, out);
}

}  // namespace lockstep::kernels
