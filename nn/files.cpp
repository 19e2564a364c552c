#include "lockstep/nn/files.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"

namespace lockstep::nn {

namespace fs = std::filesystem;

MappedFile map_file(const fs::path& path, std::string_view op) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    throw Error(ErrorCode::kIo, op, str_cat("there is no file ", path.string()));
  }
  if (!fs::is_regular_file(status)) {
    throw Error(ErrorCode::kIo, op, str_cat(path.string(), " is not a regular file"));
  }
  const InputFile file(path, std::string(op));
  return {path, file.map(), file.size()};
}

void check_bools(const void* data, uint64_t bytes, std::string_view what, std::string_view tensor,
                 std::string_view op) {
  // Reading another value as a C++ bool is undefined behaviour.
  const auto* begin = static_cast<const uint8_t*>(data);
  if (std::any_of(begin, begin + bytes, [](uint8_t b) { return b > 1; })) {
    throw Error(ErrorCode::kCorrupt, op,
                str_cat(what, ": tensor '", tensor, "' of bool holds a byte that is not 0 or 1"));
  }
}

Tensor tensor_from(const MappedFile& file, uint64_t offset, const Shape& shape, DType dtype,
                   std::string_view tensor, std::string_view op) {
  std::byte* data = file.memory.get() + offset;
  const auto bytes = static_cast<size_t>(numel(shape, op)) * size_of(dtype);
  if (dtype == DType::kBool) check_bools(data, bytes, file.path.string(), tensor, op);
  if (reinterpret_cast<uintptr_t>(data) % size_of(dtype) == 0) {
    return Tensor::wrap(std::shared_ptr<void>(file.memory, data), shape, {.dtype = dtype});
  }
  Tensor copy = Tensor::empty(shape, {.dtype = dtype});
  if (bytes != 0) std::memcpy(copy.view().data, data, bytes);
  return copy;
}

void replace_file(const fs::path& path, std::string_view op,
                  const std::function<void(OutputFile&)>& write) {
  check(path.has_filename(), op,
        [&] { return str_cat("want the path of a file, got '", path.string(), "'"); });
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  // Of its own for each process: two that write the same file do not write into each other's.
  const fs::path temporary =
      folder / str_cat(".", path.filename().string(), ".", ::getpid(), ".tmp");
  Disk disk{std::string(op)};
  std::error_code ignored;
  fs::remove(temporary, ignored);  // of a process that died and had the same number
  try {
    {
      OutputFile file(disk, temporary);
      write(file);
      file.finish();
    }
    disk.rename(temporary, path);
  } catch (...) {
    fs::remove(temporary, ignored);
    throw;
  }
  disk.sync_directory(folder);
}

}  // namespace lockstep::nn
