#pragma once

#include <string>
#include <string_view>

#include "lockstep/core/tensor.h"

namespace lockstep::nn {

// Reads an IDX file, the format of the MNIST family (LeCun, Cortes and Burges, "The MNIST database
// of handwritten digits"), plain or compressed by gzip, whatever its name says:
//
//   two zero bytes, the element type (one byte), the number of dimensions (one byte),
//   each size (u32, big endian), then the elements, row-major, big endian
//
// Types: 0x08 u8, 0x09 i8, 0x0c i32, 0x0d f32, 0x0e f64; 0x0b (16-bit integers) is refused, since
// no tensor holds them. Returns a tensor of that dtype and shape.
//
// Throws Error that names the file and ends with `hint`, which should say how to get the file:
// kIo where it cannot be read; kCorrupt where it is not an IDX file, or has fewer or more bytes
// than its sizes say, or a wrong checksum. The sizes are checked against the file's length before
// any memory is taken for them (with gzip, against the most that a file of that length can hold).
Tensor read_idx(const std::string& path, std::string_view hint = "");

}  // namespace lockstep::nn
