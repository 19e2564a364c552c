// .npy headers and .npz archives: whatever they say, it is an Error, or something that lies within
// the file. An input that begins with 'N' is an archive after that byte, any other a .npy file.

#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "lockstep/kernels/error.h"
#include "lockstep/nn/inflate.h"
#include "lockstep/nn/numpy/npy_header.h"
#include "lockstep/nn/numpy/zip.h"

namespace {

using namespace lockstep::nn;

void require(bool holds) {
  if (!holds) std::abort();
}

void read_npy(std::string_view file) {
  const NpyHeader header = decode_npy_header(file, "fuzz", "load_npy");
  require(header.data_begin <= file.size() && header.shape.size() <= 64);
  require(header.data_bytes ==
          static_cast<uint64_t>(lockstep::numel(header.shape)) * lockstep::size_of(header.dtype));
}

void read_npz(std::string_view file) {
  for (const ZipMember& member : decode_zip(file, "fuzz", "load_npz")) {
    require(member.data_begin <= file.size() &&
            member.data_bytes <= file.size() - member.data_begin);
    if (!member.deflated) {
      require(member.bytes == member.data_bytes);
      continue;
    }
    const auto* compressed = reinterpret_cast<const uint8_t*>(file.data()) + member.data_begin;
    Inflater inflater({compressed, member.data_bytes}, Compression::kDeflate, "load_npz");
    std::vector<uint8_t> head(1000);
    inflater.read(head);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string_view file(reinterpret_cast<const char*>(data), bytes);
  try {
    if (file.starts_with('N')) {
      read_npz(file.substr(1));
    } else {
      read_npy(file);
    }
  } catch (const lockstep::Error&) {
  }
  return 0;
}
