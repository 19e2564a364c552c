#include "lockstep/kernels/dtype.h"
#include <gtest/gtest.h>
namespace lockstep { namespace {
TEST(DType, x){ EXPECT_EQ(float(Half(1.5f)),1.5f);} }}
