#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/shape.h"

// The header of a safetensors file (https://github.com/huggingface/safetensors, "Format"): its
// length in 8 bytes, little endian, then a JSON object that says where each tensor lies in the
// bytes after it.
namespace lockstep::nn {

// The largest header that the reference implementation reads, in bytes.
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as the file spells it, "F32"
  Shape shape;
  uint64_t begin = 0;  // from the end of the header
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;        // in the order of their data
  std::map<std::string, std::string> metadata;  // the member "__metadata__"
  uint64_t data_begin = 0;                      // from the file's start
};

// Reads the header of the file whose bytes are `file`; `what` names it. Throws Error(kCorrupt)
// unless every number fits the file, and the tensors fill the bytes after the header without holes
// or overlaps; Error(kMismatch) for a dtype that the format did not have when this was written.
SafetensorsHeader decode_safetensors_header(std::string_view file, std::string_view what);

// The file's first bytes, up to its data. `entries` need no places: they are put one after the
// other. Throws Error(kInvalidArgument) for a name or string that is not UTF-8, the name
// "__metadata__", a name that came twice, and a header of more than kMaxSafetensorsHeader bytes.
std::string encode_safetensors_header(std::span<SafetensorsEntry> entries,
                                      const std::map<std::string, std::string>& metadata);

// Empty for a dtype that Lockstep's tensors cannot have.
std::optional<DType> dtype_of_safetensors(std::string_view dtype);
std::string_view safetensors_name(DType dtype);

// The place of a dtype in the reference's order of them: its files hold the greater first, which
// aligns every tensor.
int safetensors_rank(std::string_view dtype);

}  // namespace lockstep::nn
