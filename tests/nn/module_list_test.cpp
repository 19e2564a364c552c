#include "lockstep/nn/module_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layers.h"
#include "lockstep/nn/linear.h"

namespace lockstep::nn {
namespace {

TEST(ModuleList, NamesItsModulesByTheirPlacesAndKeepsTheirType) {
  ModuleList<Linear> list;
  list.push_back(std::make_shared<Linear>(2, 3));
  const std::shared_ptr<Linear> second = list.add(3, 1, false);
  EXPECT_EQ(list.size(), 2);
  EXPECT_EQ(list[1], second);
  Tensor x = Tensor::ones({4, 2});
  for (const auto& linear : list) x = linear->forward(x);
  EXPECT_EQ(x.shape(), (Shape{4, 1}));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : list.named_parameters()) names.push_back(name);
  EXPECT_THAT(names, ::testing::ElementsAre("0.weight", "0.bias", "1.weight"));
  EXPECT_EQ(list.type_name(), "ModuleList<lockstep::nn::Linear>");
}

TEST(ModuleList, APlaceOutOfRangeIsAnError) {
  const ModuleList<> list;
  EXPECT_THAT(error_of([&] { list[0]; }), ::testing::HasSubstr("below 0"));
}

}  // namespace
}  // namespace lockstep::nn
