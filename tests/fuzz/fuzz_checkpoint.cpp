// What a checkpoint's files say, whatever it is: each is read in full or is an Error. The first
// byte of an input tells what the rest is:
//
//   m  a manifest without its seal, which is made right
//   i  indexes, a zero byte between them, each after the 4 bytes of its file's data_end
//   f  a data file whose header and footer are made right, or not (F)

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/kernels/error.h"
#include "lockstep/nn/checkpoint/checksum.h"
#include "lockstep/nn/checkpoint/format.h"
#include "lockstep/nn/checkpoint/layout.h"
#include "lockstep/nn/checkpoint/manifest.h"
#include "lockstep/nn/checkpoint/merge.h"

namespace {

using namespace lockstep;
using namespace lockstep::nn;

void require(bool holds) {
  if (!holds) std::abort();
}

void read_manifest_text(std::string_view body) {
  const std::string seal = ",\"xxh3\":\"" + to_hex(xxh3(body)) + "\"}\n";
  const Manifest manifest = decode_manifest(std::string(body) + seal, "manifest");
  // What was read can be written, and reads as the same.
  const Manifest again = decode_manifest(encode_manifest(manifest), "again");
  require(again.step == manifest.step && again.run == manifest.run &&
          again.files.size() == manifest.files.size());
}

// Every element of a view is one of its tensor's.
void check_views(const MergedIndex& merged) {
  for (const StoredView& view : merged.views) {
    bool found = false;
    for (const MergedTensor& tensor : merged.tensors) {
      if (tensor.name != view.of) continue;
      found = true;
      const auto elements = static_cast<__int128>(numel(tensor.shape));
      __int128 last = view.start;
      for (size_t i = 0; i < view.shape.size(); ++i) {
        last += static_cast<__int128>(view.shape[i] - 1) * view.strides[i];
      }
      require(numel(view.shape) == 0 || (view.start >= 0 && last < elements));
    }
    require(found);
  }
}

void read_indexes(std::string_view rest) {
  std::vector<Index> indexes;
  while (rest.size() >= sizeof(uint32_t)) {
    uint32_t data_end = 0;
    std::memcpy(&data_end, rest.data(), sizeof data_end);
    rest.remove_prefix(sizeof data_end);
    const std::string_view text = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(rest.size(), text.size() + 1));
    indexes.push_back(decode_index(text, data_end, "file"));
    const Index& index = indexes.back();
    uint64_t end = sizeof(FileHeader);
    for (const StoredTensor& tensor : index.tensors) {
      require(tensor.offset >= end && tensor.offset + tensor.bytes <= data_end);
      require(tensor.bytes == tensor.range.count * size_of(tensor.dtype));
      end = tensor.offset + tensor.bytes;
    }
    const Index again = decode_index(encode_index(index), data_end, "again");
    require(again.tensors.size() == index.tensors.size() &&
            again.views.size() == index.views.size() && again.values.size() == index.values.size());
  }
  check_views(merge_indexes(indexes, "checkpoint"));
}

// The checksums of header, index and footer.
void mend(std::string& file) {
  if (file.size() < sizeof(FileHeader) + sizeof(FileFooter)) return;
  FileHeader header;
  std::memcpy(&header, file.data(), sizeof header);
  header.magic = kHeaderMagic;
  header.version = kCheckpointVersion;
  header.reserved = {};
  header.checksum = xxh3(&header, offsetof(FileHeader, checksum));
  std::memcpy(file.data(), &header, sizeof header);
  FileFooter footer;
  char* place = file.data() + file.size() - sizeof footer;
  std::memcpy(&footer, place, sizeof footer);
  footer.magic = kFooterMagic;
  footer.reserved = {};
  footer.file_bytes = file.size();
  if (footer.index_offset <= file.size() - sizeof footer) {
    footer.index_bytes = file.size() - sizeof footer - footer.index_offset;
    footer.index_checksum =
        xxh3(file.data() + footer.index_offset, static_cast<size_t>(footer.index_bytes));
  }
  footer.checksum = xxh3(&footer, offsetof(FileFooter, checksum));
  std::memcpy(place, &footer, sizeof footer);
}

void read_file(std::string file, bool mended) {
  if (mended) mend(file);
  static const int memory = ::memfd_create("fuzz", 0);
  require(memory >= 0 && ::ftruncate(memory, 0) == 0);
  require(::pwrite(memory, file.data(), file.size(), 0) == static_cast<ssize_t>(file.size()));
  const DataFile data("/proc/self/fd/" + std::to_string(memory));
  for (const StoredTensor& tensor : data.index().tensors) {
    std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes));
    data.read(tensor, bytes.data());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  try {
    if (data[0] == 'm') read_manifest_text(rest);
    if (data[0] == 'i') read_indexes(rest);
    if (data[0] == 'f' || data[0] == 'F') read_file(std::string(rest), data[0] == 'f');
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kMismatch);
  }
  return 0;
}
