#pragma once

#include <gtest/gtest.h>

#include <string>

#include "lockstep/kernels/error.h"

namespace lockstep {

// What call() throws; a failure of the test where it throws nothing.
template <class F>
Error error_of(const F& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error came";
  return Error(ErrorCode::kInternal, "test", "none");
}

// Its message, where it has this code.
template <class F>
std::string message_of(ErrorCode code, const F& call) {
  const Error error = error_of(call);
  EXPECT_EQ(name(error.code()), name(code)) << error.what();
  return error.what();
}

}  // namespace lockstep
