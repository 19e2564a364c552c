#pragma once

#include <filesystem>

#include "lockstep/core/tensor.h"
#include "lockstep/nn/module.h"

// NumPy's own files: .npy holds one array, .npz is a zip archive of them. The format is
// numpy.lib.format's, versions 1.0 to 3.0
// (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
//
// Arrays of bool, int8, uint8, int32, int64, float16, float32 and float64 are read and written,
// little endian; the rest is an Error(kMismatch) that says how to convert it. Python objects are
// never read: nothing in a file is executed. NumPy has no bf16: to(DType::kF32) first.
namespace lockstep::nn {

// Row-major, also where the file is in Fortran's order. Where nothing has to be reordered, a view
// of the mapped file, as load_safetensors() gives.
//
// Throws Error(kIo) where the file cannot be read, Error(kCorrupt) where it is damaged or is no
// .npy file, Error(kMismatch) for an array that Lockstep cannot hold.
Tensor load_npy(const std::filesystem::path& path);

// As np.save: durable, in place of a file that is there.
void save_npy(const std::filesystem::path& path, const Tensor& tensor);

// The arrays of an archive by name ("weight" for its member weight.npy), in its order; stored or
// deflated, each checked against its CRC-32. Throws as load_npy.
NamedTensors load_npz(const std::filesystem::path& path);

// As np.savez, or np.savez_compressed. Throws Error(kInvalidArgument) for a name that came twice,
// is empty or is not UTF-8.
void save_npz(const std::filesystem::path& path, const NamedTensors& tensors,
              bool compressed = false);

}  // namespace lockstep::nn
