#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/core/tensor.h"
#include "lockstep/nn/checkpoint/disk.h"

// What the readers and writers of foreign files share. `op` is the public call that errors name.
namespace lockstep::nn {

struct MappedFile {
  std::filesystem::path path;
  std::shared_ptr<std::byte> memory;  // this process's own copy, page by page
  uint64_t bytes = 0;

  std::string_view text() const {
    return {reinterpret_cast<const char*>(memory.get()), static_cast<size_t>(bytes)};
  }
};

// Throws Error(kIo) where there is no such file, it is not a regular one or cannot be read.
MappedFile map_file(const std::filesystem::path& path, std::string_view op);

// `shape` elements of a file from byte `offset`, row-major: a view of its memory, or a copy where
// they are not aligned. Throws Error(kCorrupt) that names `tensor` where an element of bool is
// neither 0 nor 1. REQUIRES: they lie within the file.
Tensor tensor_from(const MappedFile& file, uint64_t offset, const Shape& shape, DType dtype,
                   std::string_view tensor, std::string_view op);

// Throws as tensor_from. `what` names the file.
void check_bools(const void* data, uint64_t bytes, std::string_view what, std::string_view tensor,
                 std::string_view op);

// Has a file written under another name, syncs it, and gives it the name `path`, in place of what
// had it. Durable when it returns; where `write` or the disk fails, `path` stays as it was. Throws
// Error(kIo).
void replace_file(const std::filesystem::path& path, std::string_view op,
                  const std::function<void(OutputFile&)>& write);

}  // namespace lockstep::nn
