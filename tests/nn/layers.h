#pragma once

#include <gtest/gtest.h>

#include <string>

#include "../golden/golden.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/tensor.h"
#include "lockstep/kernels/error.h"

namespace lockstep::nn {

// Writes `values` into a parameter.
inline void assign(Tensor& parameter, const Tensor& values) {
  NoGrad no_grad;
  parameter.copy_(values);
}

// The message of the Error of this code that f throws.
template <class F>
std::string error_of(F&& f, ErrorCode code = ErrorCode::kInvalidArgument) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

}  // namespace lockstep::nn
