#include "lockstep/kernels/matmul.h"

#include <bit>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/cuda/blas.h"
#include "lockstep/kernels/cuda/staged.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep::kernels {
namespace {

// x, (m, n) or (B, m, n), as a library sees it: nothing where neither its rows nor its columns are
// without gaps, or where they lie in each other.
std::optional<cuda::Matrix> as_matrix(const View& x) {
  const size_t d = x.shape.size();
  const int64_t rows = x.shape[d - 2], columns = x.shape[d - 1];
  const int64_t row = x.strides[d - 2], column = x.strides[d - 1];
  const int64_t batch = d == 3 && x.shape[0] > 1 ? x.strides[0] : 0;
  if ((column == 1 || columns == 1) && (row >= columns || rows == 1)) {
    return cuda::Matrix{x.data, rows == 1 ? columns : row, 1, batch};
  }
  if ((row == 1 || rows == 1) && (column >= rows || columns == 1)) {
    return cuda::Matrix{x.data, 1, columns == 1 ? rows : column, batch};
  }
  return std::nullopt;
}

cuda::Staged as_read(const View& x) {
  return {x, as_matrix(x) ? x.strides : contiguous_strides(x.shape), cuda::Staged::kRead};
}

cuda::Staged as_written(const View& x) {
  const std::optional<cuda::Matrix> direct = as_matrix(x);
  return {x, direct && direct->column == 1 ? x.strides : contiguous_strides(x.shape),
          cuda::Staged::kWritten};
}

bool fits(const void* address) { return std::bit_cast<uintptr_t>(address) % 16 == 0; }

// Operands as the library takes them, and the product of them.
struct Operands {
  cuda::Staged a, b, out;
  std::optional<cuda::Staged> bias;
  cuda::Product product;

  Operands(const View& a_in, const View& b_in, const View& out_in, const View* bias_in)
      : a(as_read(a_in)), b(as_read(b_in)), out(as_written(out_in)) {
    if (bias_in != nullptr) bias.emplace(*bias_in, Strides{1}, cuda::Staged::kRead);
    const Shape& shape = out_in.shape;
    product.a = *as_matrix(a.view());
    product.b = *as_matrix(b.view());
    product.out = *as_matrix(out.view());
    product.bias = bias ? bias->view().data : nullptr;
    product.batches = shape.size() == 3 ? shape[0] : 1;
    product.m = shape[shape.size() - 2];
    product.n = shape.back();
    product.k = a_in.shape.back();
    product.dtype = a_in.dtype;
  }
};

void check_dtype(const View& a) {
  check(is_floating(a.dtype), "matmul",
        [&] { return std::string("want a floating dtype, got ").append(name(a.dtype)); });
}

}  // namespace

void MatMul::cuda(const View& a, const View& b, const View& out, const View* bias) {
  check_dtype(a);
  if (out.numel() == 0) return;
  if (a.shape.back() == 0) {
    if (bias == nullptr) return Fill::cuda(out, 0.0);
    return Copy::cuda(bias->expanded(out.shape), out);
  }
  Operands all(a, b, out, bias);
  // A kernel that adds the bias may read 16 bytes of it at a time, and the library, which knows how
  // all else is aligned, is not told of this.
  if (!fits(all.product.bias) || !cuda::multiply(all.product)) {
    Copy::cuda(bias->expanded(out.shape), all.out.view());
    all.product.bias = nullptr;
    all.product.adds = true;
    cuda::multiply(all.product);
  }
  all.out.finish();
}

void MatMulGelu::cuda(const View& a, const View& b, const View& out, const View* bias,
                      const View* before) {
  check_dtype(a);
  if (out.numel() > 0 && a.shape.back() > 0) {
    Operands all(a, b, out, bias);
    all.product.gelus = true;
    all.product.before = before == nullptr ? nullptr : before->data;
    // The library wants rows of gelu's inputs that begin at every 8th element.
    const bool keeps = before == nullptr || (before->strides == all.out.view().strides &&
                                             all.product.out.row % 8 == 0 && fits(before->data));
    if (keeps && fits(all.product.bias) && cuda::multiply(all.product)) return all.out.finish();
  }
  const View& sums = before == nullptr ? out : *before;
  MatMul::cuda(a, b, sums, bias);
  Unary<GeluTanh>::cuda(sums, out);
}

}  // namespace lockstep::kernels
