// Every misuse is an error that names the op, and the shapes, dtypes or numbers that do not fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "lockstep/core/ops.h"
#include "lockstep/core/random.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

struct Misuse {
  std::function<void()> call;
  std::string op;
  std::vector<std::string> parts;
};

Tensor zeros(const Shape& shape, DType dtype = DType::kF32) {
  return Tensor::zeros(shape, {dtype});
}

std::vector<Misuse> misuses() {
  const Tensor x = zeros({2, 3});
  const Tensor scalar = zeros({});
  const Tensor whole = zeros({2, 3}, DType::kI64);
  const Tensor image = zeros({1, 2, 4, 4});
  const Tensor far = Tensor::from<int64_t>({0, 5}, {2});
  return {
      {[=] { x + zeros({4}); }, "add", {"(2, 3)", "(4)"}},
      {[=] { x* zeros({3}, DType::kF64); }, "mul", {"f32", "f64"}},
      {[=] { leaky_relu(x, zeros({2})); }, "leaky_relu", {"(2, 3)", "(2)"}},
      {[=] { where(x, x, x); }, "where", {"bool"}},
      {[=] { exp(whole); }, "exp", {"i64"}},
      {[=] { gelu_tanh(whole); }, "gelu_tanh", {"i64"}},
      {[=] { logical_not(x); }, "logical_not", {"bool", "f32"}},
      {[=] { isinf(whole); }, "isinf", {"floating"}},
      {[=] { clamp(x, 2, 1); }, "clamp", {"2", "1"}},
      {[=] { sum(x, {2}); }, "sum", {"2"}},
      {[=] { mean(whole); }, "mean", {"floating"}},
      {[=] { var(whole); }, "var", {"floating"}},
      {[=] { lockstep::std(whole); }, "std", {"floating"}},
      {[=] {
         max(zeros({0, 3}), {0});
       },
       "max",
       {"(0, 3)"}},
      {[=] { argmin(zeros({0})); }, "argmin", {"(0)"}},
      {[=] { norm(x, -1); }, "norm", {"p > 0", "-1"}},
      {[=] { norm(whole); }, "norm", {"i64"}},
      {[=] { logsumexp(whole); }, "logsumexp", {"floating"}},
      {[=] { cumsum(x, 2); }, "cumsum", {"2"}},
      {[=] { x.reshape({4}); }, "reshape", {"(2, 3)", "(4)"}},
      {[=] {
         x.permute({0, 0});
       },
       "permute",
       {"(2, 3)", "(0, 0)"}},
      {[=] {
         expand(x, {2, 4});
       },
       "expand",
       {"(2, 4)", "(2, 3)"}},
      {[=] { squeeze(x, 2); }, "squeeze", {"2"}},
      {[=] { movedim(x, 0, 2); }, "movedim", {"2"}},
      {[=] { diagonal(x, 0, 1, -1); }, "diagonal", {"two different", "(2, 3)"}},
      {[=] { slice(x, 1, 2, 1); }, "slice", {"(2, 3)", "2:1"}},
      {[=] { x.narrow(1, 2, 2); }, "narrow", {"(2, 3)", "2 and 2"}},
      {[=] { x.select(1, 3); }, "select", {"(2, 3)", "3"}},
      {[=] { cat({}); }, "cat", {"none"}},
      {[=] {
         cat(std::vector<Tensor>{x, zeros({3, 3})}, 1);
       },
       "cat",
       {"(2, 3)", "(3, 3)"}},
      {[=] { cat(std::vector<Tensor>{scalar}); }, "cat", {"stack"}},
      {[=] { stack({}); }, "stack", {"none"}},
      {[=] {
         split(x, {1, 1}, 1);
       },
       "split",
       {"3", "(1, 1)"}},
      {[=] { split(x, 0, 1); }, "split", {"0"}},
      {[=] { chunk(x, 0); }, "chunk", {"0"}},
      {[=] { index_select(x, 1, far); }, "index_select", {"[0, 3)", "5"}},
      {[=] { index_select(x, 0, x); }, "index_select", {"i64", "(2, 3)", "f32"}},
      {[=] { index_select(scalar, 0, far); }, "index_select", {"scalar"}},
      {[=] { gather(x, 0, far); }, "gather", {"(2, 3)", "(2)"}},
      {[=] {
         gather(x, 1, reshape(far, {1, 2}));
       },
       "gather",
       {"[0, 3)", "5"}},
      {[=] {
         scatter_add(x, 0, zeros({1, 4}, DType::kI64), zeros({1, 4}));
       },
       "scatter_add",
       {"(2, 3)", "(1, 4)"}},
      {[=] {
         scatter(x, 0, whole, zeros({2, 2}));
       },
       "scatter",
       {"(2, 3)", "(2, 2)"}},
      {[=] { masked_select(x, x); }, "masked_select", {"bool", "f32"}},
      {[=] {
         masked_fill(x, gt(zeros({4, 2, 3}), 0), 1);
       },
       "masked_fill",
       {"(4, 2, 3)"}},
      {[=] { one_hot(far, 3); }, "one_hot", {"0 to 2", "5"}},
      {[=] { one_hot(x, 3); }, "one_hot", {"i64", "f32"}},
      {[=] {
         x.index({0, 0, 0});
       },
       "index",
       {"at most 2", "(2, 3)"}},
      {[=] { x.index({far}); }, "index", {"-2 to 1", "5"}},
      {[=] { x.index({Slice(0, 2, -1)}); }, "index", {"step", "-1"}},
      {[=] { x.index({gt(zeros({3}), 0)}); }, "index", {"(3)", "(2, 3)"}},
      {[=] {
         Tensor y = x.clone();
         y.index_put_({0}, zeros({4}));
       },
       "index_put",
       {"(3)", "(4)"}},
      {[=] { pad(x, {1}); }, "pad", {"(1)"}},
      {[=] {
         pad(x, {-1, 0});
       },
       "pad",
       {"-1"}},
      {[=] {
         pad(x, {3, 0}, PadMode::kReflect);
       },
       "pad",
       {"at most 2", "(2, 3)", "3"}},
      {[=] { flip(x, {2}); }, "flip", {"2"}},
      {[=] { roll(scalar, 1, 0); }, "roll", {"scalar"}},
      {[=] { tril(zeros({3})); }, "tril", {"(3)"}},
      {[=] { tile(x, {2}); }, "tile", {"(2, 3)", "(2)"}},
      {[=] { sort(scalar); }, "sort", {"scalar"}},
      {[=] { topk(x, 4); }, "topk", {"0 to 3", "(2, 3)", "4"}},
      {[=] { matmul(x, x); }, "matmul", {"(2, 3) and (2, 3)"}},
      {[=] { matmul(scalar, x); }, "matmul", {"()"}},
      {[=] { linear(x, x, zeros({3})); }, "linear", {"(2, 3)", "(3)"}},
      {[=] { einsum("ij,jk", {x}); }, "einsum", {"operands", "'ij,jk'"}},
      {[=] { einsum("ijk", {x}); }, "einsum", {"one letter", "'ijk'"}},
      {[=] { einsum("ij->k", {x}); }, "einsum", {"result", "'ij->k'"}},
      {[=] { einsum("ij->ii", {x}); }, "einsum", {"once", "'ij->ii'"}},
      {[=] { einsum("ii", {x}); }, "einsum", {"twice", "'ii'"}},
      {[=] {
         einsum("ij,jk", {x, x});
       },
       "einsum",
       {"equal sizes", "'ij,jk'"}},
      {[=] { einsum("i1", {x}); }, "einsum", {"letters", "'i1'"}},
      {[=] {
         conv2d(image, zeros({3, 1, 3, 3}));
       },
       "conv2d",
       {"(1, 2, 4, 4)", "(3, 1, 3, 3)"}},
      {[=] { conv1d(x, x); }, "conv1d", {"three dimensions", "(2, 3)"}},
      {[=] {
         conv_transpose2d(image, zeros({3, 1, 2, 2}));
       },
       "conv_transpose2d",
       {"(1, 2, 4, 4)", "(3, 1, 2, 2)"}},
      {[=] {
         conv_transpose2d(image, zeros({2, 1, 2, 2}), Tensor(), {.output_padding = {1, 0}});
       },
       "conv_transpose2d",
       {"below the stride", "1"}},
      {[=] {
         conv_transpose2d(image, zeros({2, 1, 2, 2}), zeros({2}));
       },
       "conv_transpose2d",
       {"bias (1)", "(2)"}},
      {[=] { max_pool2d(x); }, "max_pool2d", {"(2, 3)"}},
      {[=] {
         adaptive_avg_pool2d(image, {0, 1});
       },
       "adaptive_avg_pool2d",
       {"(0, 1)"}},
      {[=] {
         upsample2d(x, {2, 2});
       },
       "upsample2d",
       {"(2, 3)"}},
      {[=] { Tensor::arange(0, 1, 0.25); }, "arange", {"floating", "0.25"}},
      {[=] { Tensor::arange(0, 1, 0); }, "arange", {"step"}},
      {[=] { Tensor::linspace(0, 1, -1); }, "linspace", {"-1"}},
      {[=] { bernoulli(1.5, {2}); }, "bernoulli", {"1.5"}},
      {[=] { bernoulli(Tensor::full({2}, 2)); }, "bernoulli", {"[0, 1]"}},
      {[=] { randint(3, 3, {2}); }, "randint", {"3 and 3"}},
  };
}

TEST(OpErrors, NameTheOpAndWhatDoesNotFit) {
  size_t number = 0;
  for (const Misuse& misuse : misuses()) {
    ++number;
    try {
      misuse.call();
      ADD_FAILURE() << misuse.op << ": no error from misuse " << number;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
      EXPECT_EQ(error.op(), misuse.op) << error.what();
      for (const std::string& part : misuse.parts) EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
}

}  // namespace
}  // namespace lockstep
