#include "lockstep/kernels/matmul.h"

#include <bit>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/cuda/blas.h"
#include "lockstep/kernels/cuda/staged.h"

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

}  // namespace

void MatMul::cuda(const View& a_in, const View& b_in, const View& out_in, const View* bias) {
  check(is_floating(a_in.dtype), "matmul",
        [&] { return std::string("want a floating dtype, got ").append(name(a_in.dtype)); });
  const Shape& shape = out_in.shape;
  if (out_in.numel() == 0) return;
  if (a_in.shape.back() == 0) {
    if (bias == nullptr) return Fill::cuda(out_in, 0.0);
    return Copy::cuda(bias->expanded(shape), out_in);
  }
  const cuda::Staged a = as_read(a_in), b = as_read(b_in);
  const std::optional<cuda::Matrix> direct = as_matrix(out_in);
  const cuda::Staged out(out_in,
                         direct && direct->column == 1 ? out_in.strides : contiguous_strides(shape),
                         cuda::Staged::kWritten);
  std::optional<cuda::Staged> dense_bias;
  if (bias != nullptr) dense_bias.emplace(*bias, Strides{1}, cuda::Staged::kRead);

  cuda::Product product;
  product.a = *as_matrix(a.view());
  product.b = *as_matrix(b.view());
  product.out = *as_matrix(out.view());
  product.bias = dense_bias ? dense_bias->view().data : nullptr;
  product.batches = shape.size() == 3 ? shape[0] : 1;
  product.m = shape[shape.size() - 2];
  product.n = shape.back();
  product.k = a_in.shape.back();
  product.dtype = a_in.dtype;
  // A kernel that adds the bias may read 16 bytes of it at a time, and the library, which knows how
  // all else is aligned, is not told of this.
  const bool bias_fits =
      product.bias == nullptr || std::bit_cast<uintptr_t>(product.bias) % 16 == 0;
  if (!bias_fits || !cuda::multiply(product)) {
    Copy::cuda(bias->expanded(shape), out.view());
    product.bias = nullptr;
    product.adds = true;
    cuda::multiply(product);
  }
  out.finish();
}

}  // namespace lockstep::kernels
