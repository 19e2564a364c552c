#pragma once

#include "op_table.h"

// The rest of the table: shapes, indices, products, convolutions, pooling.
namespace lockstep::op_table {

// Indices on the device of the inputs `x`.
inline Tensor places(const Tensors& x, std::initializer_list<int64_t> values, const Shape& shape) {
  return Tensor::from<int64_t>(values, shape).to(x[0].device());
}

inline void add_shapes(std::vector<Case>& all) {
  const Tensor block = sample({3, 4, 5});
  const auto add = [&](std::string name, Function f, Tensors inputs, std::vector<Shape> empty = {},
                       Shape empty_result = {}) {
    all.push_back({std::move(name), std::move(f), std::move(inputs), Kind::kOther, 1, true,
                   std::move(empty), std::move(empty_result)});
  };
  add("reshape", [](const Tensors& x) { return exp(x[0]).reshape({5, 12}); }, {block});
  add("view", [](const Tensors& x) { return view(exp(x[0].contiguous()), {5, -1}); }, {block});
  add("permute",
      [](const Tensors& x) {
        return exp(x[0].permute({2, 0, 1}));
      },
      {block}, {{3, 0, 2}}, {2, 3, 0});
  add("expand",
      [](const Tensors& x) {
        return exp(expand(x[0], {2, -1, 4}));
      },
      {sample({3, 1})}, {{0, 1}}, {2, 0, 4});
  add("squeeze", [](const Tensors& x) { return exp(squeeze(x[0])); }, {sample({1, 3, 1, 2})},
      {{1, 0}}, {0});
  add("movedim", [](const Tensors& x) { return exp(movedim(x[0], 0, -1)); }, {block}, {{3, 0}},
      {0, 3});
  add("diagonal", [](const Tensors& x) { return exp(diagonal(x[0], -1, 2, 0)); }, {block},
      {{0, 2, 3}}, {2, 0});
  add("slice", [](const Tensors& x) { return exp(slice(x[0], 1, 1, 4, 2)); }, {block}, {{0, 4}},
      {0, 2});
  add("select", [](const Tensors& x) { return exp(x[0].select(1, -2)); }, {block}, {{0, 4}}, {0});
  add("cat",
      [](const Tensors& x) {
        const Tensor parts[] = {exp(x[0]), x[1] * x[1], x[0]};
        return cat(parts, 1);
      },
      {sample({2, 3}), sample({2, 4}, -1, 1, 1)}, {{2, 0}, {2, 0}}, {2, 0});
  add("stack",
      [](const Tensors& x) {
        const Tensor both[] = {exp(x[0]), x[1] * x[0]};
        return stack(both, 1);
      },
      {sample({2, 3}), sample({2, 3}, -1, 1, 1)}, {{0, 3}, {0, 3}}, {0, 2, 3});
  add("split",
      [](const Tensors& x) {
        return exp(split(x[0], {1, 0, 4}, 2)[2]);
      },
      {block}, {{0, 1, 5}}, {0, 1, 4});
  add("chunk", [](const Tensors& x) { return exp(chunk(x[0], 3, -1)[2]); }, {block}, {{0, 5}},
      {0, 1});
  add("unbind", [](const Tensors& x) { return unbind(x[0], 1)[0] * exp(unbind(x[0], 1)[3]); },
      {block}, {{0, 4}}, {0});
  add("index_select",
      [](const Tensors& x) {
        return exp(index_select(x[0], 1, places(x, {2, 0, 2}, {3})));
      },
      {block}, {{0, 3}}, {0, 3});
  add("index_add",
      [](const Tensors& x) {
        return exp(index_add({2, 4}, 1, places(x, {2, 0, 2}, {3}), x[0]));
      },
      {sample({2, 3})});
  add("gather",
      [](const Tensors& x) {
        return exp(gather(x[0], 1, places(x, {2, 0, 2, 1, 1, 1}, {2, 3})));
      },
      {sample({3, 4})});
  add("scatter_add",
      [](const Tensors& x) {
        return exp(scatter_add(x[0], 0, places(x, {2, 0, 2, 1, 1, 1}, {2, 3}), x[1]));
      },
      {sample({3, 4}), sample({2, 3}, -1, 1, 1)});
  add("scatter",
      [](const Tensors& x) {
        return exp(scatter(x[0], 0, places(x, {2, 0, 1, 1, 1, 0}, {2, 3}), x[1]));
      },
      {sample({3, 4}), sample({2, 3}, -1, 1, 1)});
  add("masked_select",
      [](const Tensors& x) {
        return exp(
            masked_select(x[0], Tensor::from<bool>({true, false, true}, {3, 1}).to(x[0].device())));
      },
      {sample({3, 5})}, {{3, 0}}, {0});
  add("nonzero", [](const Tensors& x) { return nonzero(gt(x[0], 0.2)); }, {sample({3, 5})},
      {{0, 5}}, {0, 2});
  add("one_hot",
      [](const Tensors& x) {
        return one_hot(places(x, {2, 0, 1, 3}, {2, 2}), 4);
      },
      {sample({1})});
  add("index",
      [](const Tensors& x) {
        return exp(x[0].index({Slice(1), kNewAxis, kEllipsis, places(x, {0, -1, 3}, {3})}));
      },
      {block}, {{1, 2, 4}}, {0, 1, 2, 3});
  add("index_pairs",
      [](const Tensors& x) {
        return exp(x[0].index({places(x, {2, 0, -1}, {3}), Slice(), places(x, {1, 1, 4}, {3})}));
      },
      {block}, {{3, 0, 5}}, {3, 0});
  add("index_mask", [](const Tensors& x) { return exp(x[0].index({gt(x[0].detach(), 0.3)})); },
      {block}, {{3, 0}}, {0});
  add("index_put",
      [](const Tensors& x) {
        const Index at[] = {Slice(1), kEllipsis, Slice(1, -1, 2)};
        return exp(index_put(x[0], at, x[1]));
      },
      {block, sample({4, 1}, -1, 1, 1)});
  add("index_put_places",
      [](const Tensors& x) {
        const Index at[] = {places(x, {2, 0, 1}, {3}), places(x, {1, 1, 3}, {3})};
        return exp(index_put(x[0], at, x[1]));
      },
      {block, sample({3, 5}, -1, 1, 1)});
  add("index_put_accumulate",
      [](const Tensors& x) {
        const Index at[] = {places(x, {2, 0, 2}, {3}), places(x, {1, 1, 1}, {3})};
        return exp(index_put(x[0], at, x[1], true));
      },
      {block, sample({3, 5}, -1, 1, 1)});
  add("pad",
      [](const Tensors& x) {
        return exp(pad(x[0], {1, 2, 0, 3}, PadMode::kConstant, 0.7));
      },
      {block}, {{0, 2}}, {3, 5});
  add("pad_reflect",
      [](const Tensors& x) {
        return exp(pad(x[0], {3, 1}, PadMode::kReflect));
      },
      {block}, {{0, 4}}, {0, 8});
  add("pad_replicate",
      [](const Tensors& x) {
        return exp(pad(x[0], {3, 1}, PadMode::kReplicate));
      },
      {block}, {{0, 4}}, {0, 8});
  add("flip", [](const Tensors& x) { return exp(flip(x[0], {0, -1})); }, {block}, {{0, 4}}, {0, 4});
  add("roll", [](const Tensors& x) { return exp(roll(x[0], -2, 1)); }, {block}, {{3, 0}}, {3, 0});
  add("tril", [](const Tensors& x) { return exp(tril(x[0], 1)); }, {block}, {{0, 4}}, {0, 4});
  add("triu", [](const Tensors& x) { return exp(triu(x[0], -1)); }, {block}, {{4, 0}}, {4, 0});
  add("tile",
      [](const Tensors& x) {
        return exp(tile(x[0], {2, 1, 3}));
      },
      {sample({3, 2})}, {{0, 2}}, {2, 0, 6});
  add("sort", [](const Tensors& x) { return exp(sort(x[0], 1, true).values) * x[0]; }, {block},
      {{3, 0}}, {3, 0});
  add("argsort", [](const Tensors& x) { return argsort(x[0]); }, {block}, {{0, 3}}, {0, 3});
  add("topk", [](const Tensors& x) { return exp(topk(x[0], 2, 1).values); }, {block}, {{0, 2}},
      {0, 2});
  add("topk_smallest", [](const Tensors& x) { return exp(topk(x[0], 3, 0, false).values); },
      {block}, {{3, 0}}, {3, 0});
}

inline void add_products(std::vector<Case>& all) {
  const auto add = [&](std::string name, Function f, Tensors inputs, double loose = 4,
                       std::vector<Shape> empty = {}, Shape empty_result = {}) {
    all.push_back({std::move(name), std::move(f), std::move(inputs), Kind::kOther, loose, true,
                   std::move(empty), std::move(empty_result)});
  };
  const auto product = [](const Tensors& x) { return matmul(x[0], x[1]); };
  add("matmul", product, {sample({3, 4}), sample({4, 5}, -1, 1, 1)}, 4, {{3, 0}, {0, 5}}, {3, 5});
  add("matmul_batch", product, {sample({2, 1, 3, 4}), sample({3, 4, 2}, -1, 1, 1)}, 4,
      {{0, 3, 4}, {0, 4, 2}}, {0, 3, 2});
  add("matmul_vector", product, {sample({2, 3, 4}), sample({4}, -1, 1, 1)}, 4, {{0, 3, 4}, {4}},
      {0, 3});
  add("linear", [](const Tensors& x) { return linear(x[0], x[1], x[2]); },
      {sample({2, 3, 4}), sample({5, 4}, -1, 1, 1), sample({5}, -1, 1, 2)}, 4,
      {{0, 4}, {5, 4}, {5}}, {0, 5});
  add("linear_gelu", [](const Tensors& x) { return linear_gelu(x[0], x[1], x[2]); },
      {sample({2, 3, 4}), sample({8, 4}, -1, 1, 1), sample({8}, -1, 1, 2)}, 4,
      {{0, 4}, {8, 4}, {8}}, {0, 8});
  add("linear_gelu_odd", [](const Tensors& x) { return linear_gelu(x[0], x[1]); },
      {sample({3, 4}), sample({5, 4}, -1, 1, 1)}, 4, {{0, 4}, {5, 4}}, {0, 5});
  const auto einsum_case = [&](const std::string& name, const std::string& equation,
                               const std::vector<Shape>& shapes) {
    Tensors inputs;
    for (size_t i = 0; i < shapes.size(); ++i) {
      inputs.push_back(sample(shapes[i], -1, 1, static_cast<int>(i)));
    }
    add(
        "einsum_" + name, [equation](const Tensors& x) { return einsum(equation, x); }, inputs, 8);
  };
  einsum_case("product", "ij,jk->ik", {{3, 4}, {4, 5}});
  einsum_case("trace", "ii", {{4, 4}});
  einsum_case("diagonal", "iji->ij", {{3, 2, 3}});
  einsum_case("outer", "i,j", {{3}, {4}});
  einsum_case("attention", "bihd,bjhd->bhij", {{2, 3, 2, 4}, {2, 5, 2, 4}});
  einsum_case("ellipsis", "...ij,jk", {{2, 3, 4}, {4, 5}});
  einsum_case("sum", "ijk->j", {{2, 3, 4}});
  einsum_case("three", "ab,bc,cd->da", {{2, 3}, {3, 4}, {4, 2}});
  einsum_case("implicit", "ba,cb", {{2, 3}, {4, 2}});
}

inline void add_images(std::vector<Case>& all) {
  const auto add = [&](std::string name, Function f, Tensors inputs, double loose = 1,
                       std::vector<Shape> empty = {}, Shape empty_result = {}) {
    all.push_back({std::move(name), std::move(f), std::move(inputs), Kind::kOther, loose, true,
                   std::move(empty), std::move(empty_result)});
  };
  for (const int64_t groups : {1, 2}) {
    const std::string g = "_" + std::to_string(groups);
    const Tensor bias = sample({6}, -1, 1, 2);
    add("conv2d" + g,
        [groups](const Tensors& x) {
          return conv2d(x[0], x[1], x[2], {{2, 1}, {1, 2}, {1, 2}, groups});
        },
        {sample({2, 4, 5, 6}), sample({6, 4 / groups, 3, 2}, -1, 1, 1), bias}, 8,
        {{0, 4, 5, 6}, {6, 4 / groups, 3, 2}, {6}}, {0, 6, 3, 8});
    add(
        "conv1d" + g,
        [groups](const Tensors& x) {
          return conv1d(x[0], x[1], x[2], {2, 1, 2, groups});
        },
        {sample({2, 4, 9}), sample({6, 4 / groups, 3}, -1, 1, 1), bias}, 8);
    add(
        "conv_transpose2d" + g,
        [groups](const Tensors& x) {
          return conv_transpose2d(x[0], x[1], x[2], {{2, 3}, {1, 0}, {1, 2}, {1, 2}, groups});
        },
        {sample({2, 4, 3, 2}), sample({4, 6 / groups, 3, 2}, -1, 1, 1), bias}, 8);
    add(
        "conv_transpose1d" + g,
        [groups](const Tensors& x) {
          return conv_transpose1d(x[0], x[1], x[2], {3, 1, 2, 2, groups});
        },
        {sample({2, 4, 5}), sample({4, 6 / groups, 3}, -1, 1, 1), bias}, 8);
  }
  add("max_pool2d",
      [](const Tensors& x) {
        return max_pool2d(x[0], {{3, 2}, {2, 1}, {1, 0}});
      },
      {sample({2, 3, 5, 4})}, 1, {{0, 3, 5, 4}}, {0, 3, 3, 3});
  for (const bool inside : {false, true}) {
    add(inside ? "avg_pool2d_inside" : "avg_pool2d",
        [inside](const Tensors& x) {
          return avg_pool2d(x[0], {{3, 2}, {2, 1}, {1, 1}, {1, 1}, !inside});
        },
        {sample({2, 3, 5, 4})}, 1, {{0, 3, 5, 4}}, {0, 3, 3, 5});
  }
  add("adaptive_avg_pool2d",
      [](const Tensors& x) {
        return adaptive_avg_pool2d(x[0], {3, 4});
      },
      {sample({2, 3, 7, 5})}, 1, {{0, 3, 7, 5}}, {0, 3, 3, 4});
  add("adaptive_avg_pool2d_even",
      [](const Tensors& x) {
        return adaptive_avg_pool2d(x[0], {2, 1});
      },
      {sample({2, 3, 4, 5})});
  add("upsample_nearest",
      [](const Tensors& x) {
        return upsample2d(x[0], {7, 3});
      },
      {sample({2, 2, 3, 5})}, 1, {{2, 0, 3, 5}}, {2, 0, 7, 3});
  for (const bool corners : {false, true}) {
    add(corners ? "upsample_corners" : "upsample_bilinear",
        [corners](const Tensors& x) {
          return upsample2d(x[0], {7, 3}, UpsampleMode::kBilinear, corners);
        },
        {sample({2, 2, 3, 5})});
  }
}

inline std::vector<Case> cases() {
  std::vector<Case> all;
  add_elementwise(all);
  add_reductions(all);
  add_shapes(all);
  add_products(all);
  add_images(all);
  return all;
}

}  // namespace lockstep::op_table
