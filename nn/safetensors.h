#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "lockstep/nn/module.h"

// Files of the safetensors format (https://github.com/huggingface/safetensors), which Python's
// `safetensors` package and many others write and read. A state dict that PyTorch saved goes into a
// module by
//
//   load_state_dict(*net, load_safetensors("model.safetensors"));
//
// where names, shapes and dtypes must fit (nn/checkpoint.h). Lockstep's layers have PyTorch's
// names.
namespace lockstep::nn {

using Metadata = std::map<std::string, std::string>;

// The tensors of a file, in the order of their data; `metadata`, if given, gets the file's strings.
//
// The tensors are views of the mapped file, which is read when they are first used and stays mapped
// as long as one of them lives; writing to them changes this process's copy alone. (Data that is
// not aligned to its elements, which other writers may leave, is copied.) A file that another
// program shortens or rewrites in place meanwhile takes them along; replacing it does no harm.
//
// Throws Error(kIo) where the file cannot be read; Error(kCorrupt) where it is damaged or is no
// safetensors file; Error(kMismatch) that names a tensor of a dtype which Lockstep has not.
NamedTensors load_safetensors(const std::filesystem::path& path, Metadata* metadata = nullptr);

// Writes a file, in place of one that is there, and returns when it is durable: until then a reader
// finds the old file in full. Tensors of any strides are written row-major, sorted as the reference
// implementation does. PyTorch's tools look for {"format", "pt"} in the metadata.
//
// Throws Error(kInvalidArgument) for a name that came twice or is not UTF-8, Error(kIo) where the
// disk fails.
void save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                      const Metadata& metadata = {});

}  // namespace lockstep::nn
