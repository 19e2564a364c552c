#include "lockstep/nn/module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layers.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/nn/activation.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/sequential.h"

namespace lockstep::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> names(const NamedTensors& tensors) {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : tensors) out.push_back(name);
  return out;
}

class Leaf : public Module {
 public:
  explicit Leaf(double value = 1) : weight(Tensor::full({2, 3}, value)) {
    register_parameter("weight", weight);
    register_buffer("seen", seen);
    register_buffer("scratch", scratch, false);
  }
  Tensor forward(const Tensor& x) override { return x * weight; }

  Tensor weight;
  Tensor seen = Tensor::zeros({}, {DType::kI64});
  Tensor scratch = Tensor::zeros({5});
};

class Tree : public Module {
 public:
  Tree() {
    left = register_module("left", std::make_shared<Leaf>(2));
    register_parameter("scale", scale);
    right = register_module("right", std::make_shared<Leaf>(3));
  }
  std::shared_ptr<Leaf> left;
  std::shared_ptr<Leaf> right;
  Tensor scale = Tensor::ones({4});
};

// What a module does that registers whatever it is told to.
class Open : public Module {
 public:
  using Module::register_buffer;
  using Module::register_module;
  using Module::register_parameter;
};

TEST(Module, ListsItsOwnEntriesAndThenItsChildrensByDottedPaths) {
  const Tree tree;
  EXPECT_THAT(names(tree.named_parameters()), ElementsAre("scale", "left.weight", "right.weight"));
  EXPECT_THAT(names(tree.named_buffers()),
              ElementsAre("left.seen", "left.scratch", "right.seen", "right.scratch"));
  EXPECT_THAT(names(tree.named_buffers(true)), ElementsAre("left.seen", "right.seen"));
  EXPECT_EQ(tree.parameter_count(), 4 + 6 + 6);
}

TEST(Module, ListsTheTensorThatAMemberHoldsNow) {
  Tree tree;
  const Tensor other = Tensor::full({2, 3}, 7);
  tree.left->weight = other;
  const NamedTensors listed = tree.named_parameters();
  ASSERT_EQ(listed.size(), 3u);
  EXPECT_TRUE(listed[1].second.is_same(other));
  EXPECT_EQ(listed[1].first, "left.weight");

  tree.left->weight = Tensor();
  EXPECT_THAT(names(tree.named_parameters()), ElementsAre("scale", "right.weight"));
}

TEST(Module, ListsASharedTensorOnceUnderItsFirstName) {
  Tree tree;
  tree.right->weight = tree.left->weight;
  EXPECT_THAT(names(tree.named_parameters()), ElementsAre("scale", "left.weight"));
}

TEST(Module, ListsASharedModuleOnceUnderItsFirstName) {
  const auto shared = std::make_shared<Leaf>();
  Open tree;
  tree.register_module("a", shared);
  tree.register_module("b", shared);
  EXPECT_THAT(names(tree.named_parameters()), ElementsAre("a.weight"));
  int calls = 0;
  tree.apply([&](Module&) { ++calls; });
  EXPECT_EQ(calls, 2);  // the tree, and the one module
}

TEST(Module, NamesTensorsByTheLongestPathAskedFor) {
  auto tree = std::make_shared<Tree>();
  EXPECT_EQ(tree->left->weight.name(), "weight");
  tree->named_parameters();
  EXPECT_EQ(tree->left->weight.name(), "left.weight");
  tree->left->named_parameters();
  EXPECT_EQ(tree->left->weight.name(), "left.weight");
  Open root;
  root.register_module("net", tree);
  root.named_parameters();
  EXPECT_EQ(tree->left->weight.name(), "net.left.weight");
}

TEST(Module, AnEmptyNameAddsNoPrefix) {
  Open wrapper;
  wrapper.register_module("", std::make_shared<Tree>());
  EXPECT_THAT(names(wrapper.named_parameters()),
              ElementsAre("scale", "left.weight", "right.weight"));
  Tensor extra = Tensor::ones({1});
  EXPECT_THAT(error_of([&] { wrapper.register_parameter("scale", extra); }),
              HasSubstr("empty name"));
}

TEST(Module, ParametersRequireAGradientAndBuffersDoNot) {
  const Leaf leaf;
  EXPECT_TRUE(leaf.weight.requires_grad());
  EXPECT_FALSE(leaf.seen.requires_grad());
}

TEST(Module, RefusesNamesThatAreTakenEmptyOrDotted) {
  Open module;
  Tensor a = Tensor::ones({2});
  Tensor b = Tensor::ones({2});
  module.register_parameter("a", a);
  EXPECT_THAT(error_of([&] { module.register_parameter("a", b); }), HasSubstr("'a' is taken"));
  EXPECT_THAT(error_of([&] { module.register_buffer("a", b); }), HasSubstr("'a' is taken"));
  EXPECT_THAT(error_of([&] { module.register_module("a", std::make_shared<ReLU>()); }),
              HasSubstr("'a' is taken"));
  EXPECT_THAT(error_of([&] { module.register_parameter("b.c", b); }), HasSubstr("'b.c'"));
  EXPECT_THAT(error_of([&] { module.register_parameter("", b); }), HasSubstr("empty"));
  EXPECT_THAT(error_of([&] { module.register_module("", std::make_shared<ReLU>()); }),
              HasSubstr("only thing"));
  EXPECT_THAT(names(module.named_parameters()), ElementsAre("a"));
}

TEST(Module, RefusesWhatIsNotThere) {
  Open module;
  Tensor nothing;
  EXPECT_THAT(error_of([&] { module.register_parameter("a", nothing); }), HasSubstr("undefined"));
  EXPECT_THAT(error_of([&] { module.register_module("a", std::shared_ptr<Leaf>()); }),
              HasSubstr("null"));
  Tensor integers = Tensor::zeros({2}, {DType::kI64});
  EXPECT_THAT(error_of([&] { module.register_parameter("count", integers); }), HasSubstr("count"));
  EXPECT_TRUE(module.named_parameters().empty());
}

TEST(Module, CannotContainItself) {
  const auto outer = std::make_shared<Open>();
  const auto inner = std::make_shared<Open>();
  outer->register_module("inner", inner);
  EXPECT_THAT(error_of([&] { inner->register_module("outer", outer); }), HasSubstr("itself"));
  EXPECT_THAT(error_of([&] { outer->register_module("self", outer); }), HasSubstr("itself"));
}

TEST(Module, TrainAndEvalReachEveryModule) {
  Tree tree;
  tree.eval();
  EXPECT_FALSE(tree.is_training() || tree.left->is_training() || tree.right->is_training());
  tree.left->train();
  EXPECT_FALSE(tree.is_training());
  EXPECT_TRUE(tree.left->is_training());
  tree.train();
  EXPECT_TRUE(tree.is_training() && tree.left->is_training() && tree.right->is_training());
}

TEST(Module, ZeroGradMakesGradientsNull) {
  Tree tree;
  sum(tree.left->forward(Tensor::ones({2, 3}))).backward();
  ASSERT_TRUE(tree.left->weight.has_grad());
  tree.zero_grad();
  EXPECT_FALSE(tree.left->weight.has_grad());
}

TEST(Module, WithoutAForwardOfOneTensorTheErrorNamesTheClass) {
  Tree tree;
  EXPECT_THAT(error_of([&] { tree(Tensor::ones({1})); }), HasSubstr("Tree has no forward"));
}

TEST(Module, NamedModulesHoldTheWholeTree) {
  const auto tree = std::make_shared<Tree>();
  std::vector<std::string> paths;
  for (const auto& [path, module] : tree->named_modules()) paths.push_back(path);
  EXPECT_THAT(paths, ElementsAre("", "left", "right"));
  Tree on_the_stack;
  EXPECT_THAT(error_of([&] { on_the_stack.named_modules(); }), HasSubstr("make_shared"));
}

TEST(Module, ToConvertsFloatsInPlaceOfTheSameTensors) {
  BatchNorm1d norm(3);
  const Tensor weight = norm.weight;
  norm.weight.set_grad(Tensor::full({3}, 0.5));
  norm.to(DType::kF64);
  EXPECT_TRUE(norm.weight.is_same(weight));
  EXPECT_EQ(weight.dtype(), DType::kF64);
  EXPECT_EQ(weight.grad().dtype(), DType::kF64);
  EXPECT_EQ(weight.grad().to_vector<double>(), std::vector<double>(3, 0.5));
  EXPECT_EQ(norm.running_var.dtype(), DType::kF64);
  EXPECT_EQ(norm.running_var.to_vector<double>(), std::vector<double>(3, 1.0));
  EXPECT_EQ(norm.num_batches_tracked.dtype(), DType::kI64);
  EXPECT_TRUE(weight.requires_grad());
  EXPECT_THAT(error_of([&] { norm.to(DType::kI32); }), HasSubstr("i32"));
}

TEST(Module, PrintsItsTree) {
  const auto net = std::make_shared<Sequential>(
      std::make_shared<Linear>(4, 3),
      std::make_shared<Sequential>(std::make_shared<ReLU>(),
                                   std::make_shared<Linear>(3, 2, false)));
  EXPECT_EQ(net->to_string(),
            "Sequential(\n"
            "  (0): Linear(in_features=4, out_features=3, bias=true)\n"
            "  (1): Sequential(\n"
            "    (0): ReLU()\n"
            "    (1): Linear(in_features=3, out_features=2, bias=false)\n"
            "  )\n"
            ")");
}

template <class T>
class Templated : public Module {};

std::string name_of_a_local_class(const std::vector<std::string>&) {
  struct Local : Module {};
  return [] { return Local().type_name(); }();
}

TEST(Module, TypeNameIsTheClassWithoutItsNamespaces) {
  EXPECT_EQ(Linear(1, 1).type_name(), "Linear");
  EXPECT_EQ(Tree().type_name(), "Tree");
  EXPECT_THAT(Templated<std::string>().type_name(), testing::StartsWith("Templated<"));
  EXPECT_EQ(name_of_a_local_class({}), "Local");
}

}  // namespace
}  // namespace lockstep::nn
