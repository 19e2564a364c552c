// The header of a safetensors file: whatever it says, it is an Error, or tensors that fill the
// file's data and come back from a header of our own.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "lockstep/kernels/error.h"
#include "lockstep/nn/safetensors/header.h"

namespace {

using namespace lockstep::nn;

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string_view file(reinterpret_cast<const char*>(data), bytes);
  SafetensorsHeader header;
  try {
    header = decode_safetensors_header(file, "fuzz");
  } catch (const lockstep::Error&) {
    return 0;
  }
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    require(entry.begin == end && entry.end >= end);
    end = entry.end;
  }
  require(header.data_begin + end == bytes);
  std::vector<SafetensorsEntry> entries = header.entries;
  const std::string ours =
      encode_safetensors_header(entries, header.metadata) + std::string(end, '\0');
  const SafetensorsHeader again = decode_safetensors_header(ours, "ours");
  require(again.entries.size() == entries.size() && again.metadata == header.metadata);
  return 0;
}
