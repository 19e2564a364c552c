#include "lockstep/nn/sequential.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layers.h"
#include "lockstep/nn/activation.h"
#include "lockstep/nn/flatten.h"
#include "lockstep/nn/linear.h"

namespace lockstep::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Sequential, PassesEachResultOn) {
  auto first = std::make_shared<Linear>(2, 2, false);
  assign(first->weight, Tensor::from<float>({1, -1, 2, 3}, {2, 2}));
  Sequential net(first, std::make_shared<ReLU>());
  const auto last = net.add<Linear>(2, 1, false);
  assign(last->weight, Tensor::from<float>({10, 100}, {1, 2}));
  // (3, 4) -> (-1, 18) -> (0, 18) -> 1800
  EXPECT_EQ(net(Tensor::from<float>({3, 4}, {1, 2})).item(), 1800);
}

TEST(Sequential, NamesModulesByTheirPlaces) {
  Sequential net;
  net.push_back(std::make_shared<ReLU>());
  net.push_back(std::make_shared<Sequential>(std::make_shared<Linear>(2, 3)));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : net.named_parameters()) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("1.0.weight", "1.0.bias"));
  EXPECT_EQ(net.size(), 2u);
  EXPECT_EQ(net[0]->type_name(), "ReLU");
  EXPECT_THAT(error_of([&] { net[2]; }), HasSubstr("below 2"));
}

TEST(Sequential, OfNothingReturnsItsInput) {
  const Tensor x = Tensor::ones({2});
  EXPECT_TRUE(Sequential()(x).is_same(x));
}

TEST(Flatten, KeepsRowMajorOrderWhateverTheMemoryOrder) {
  std::vector<float> values(2 * 3 * 2 * 2);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Tensor x = Tensor::from(values, {2, 3, 2, 2});
  for (const Tensor& input : {x, x.channels_last()}) {
    const Tensor y = Flatten()(input);
    EXPECT_EQ(y.shape(), Shape({2, 12}));
    EXPECT_EQ(y.to_vector<float>(), values);
  }
  EXPECT_EQ(Flatten(2)(x).shape(), Shape({2, 3, 4}));
}

}  // namespace
}  // namespace lockstep::nn
