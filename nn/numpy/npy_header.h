#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/shape.h"

// The header of a .npy file (numpy.lib.format): a magic, a version, a length, and the text of a
// Python dictionary.
namespace lockstep::nn {

// The longest header that is read, in bytes; NumPy itself stops at 10000.
inline constexpr uint64_t kMaxNpyHeader = 65536;

struct NpyHeader {
  DType dtype = DType::kF32;
  Shape shape;
  bool fortran_order = false;
  uint64_t data_begin = 0;  // from the file's start
  uint64_t data_bytes = 0;
};

// Reads the header that `file` begins with; `file` needs to hold no more than the header. `what`
// names it and `op` the public call, for errors. Throws Error(kCorrupt) unless it is one,
// Error(kMismatch) for a version or dtype that Lockstep has not. Whether the data is there is the
// caller's to check.
NpyHeader decode_npy_header(std::string_view file, std::string_view what, std::string_view op);

// Version 1.0, as NumPy writes it for short headers. Throws Error(kInvalidArgument) for bf16.
std::string encode_npy_header(DType dtype, const Shape& shape, std::string_view op);

}  // namespace lockstep::nn
