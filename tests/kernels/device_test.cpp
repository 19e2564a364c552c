#include "lockstep/kernels/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/kernels/error.h"

namespace lockstep {
namespace {

TEST(Device, ReadsAndWritesItsName) {
  EXPECT_EQ(parse_device("cpu"), kCpu);
  EXPECT_EQ(parse_device("cuda"), (Device{DeviceType::kCuda, 0}));
  EXPECT_EQ(parse_device("cuda:13").name(), "cuda:13");
  for (const char* wrong : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "cpu:0"}) {
    EXPECT_THROW(parse_device(wrong), Error) << wrong;
  }
}

TEST(Device, SaysWhichDeviceIsMissing) {
  require_device(kCpu, "empty");
  EXPECT_THAT(
      [] {
        require_device({DeviceType::kCuda, 3}, "empty");
      },
      testing::ThrowsMessage<Error>(testing::HasSubstr("[empty] want device cuda:3")));
}

TEST(Error, CarriesCodeOpAndPlace) {
  try {
    check(false, "matmul", [] { return std::string("want a, got b"); });
    FAIL() << "want an error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[matmul] want a, got b");
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(name(error.code()), "invalid argument");
    EXPECT_THAT(error.where().file_name(), testing::EndsWith("device_test.cpp"));
  }
}

}  // namespace
}  // namespace lockstep
