#include <algorithm>

#include "lockstep/nn/checkpoint/checksum.h"
#include "lockstep/nn/checkpoint/format.h"
#include "lockstep/nn/checkpoint/layout.h"

namespace lockstep::nn {

FileSummary write_data_file(Disk& disk, const std::filesystem::path& path,
                            std::span<const TensorBytes> tensors,
                            std::span<const NamedValue> values, std::span<const StoredView> views) {
  Index index;
  index.views.assign(views.begin(), views.end());
  index.values.assign(values.begin(), values.end());
  uint64_t end = sizeof(FileHeader);
  for (const TensorBytes& tensor : tensors) {
    StoredTensor& stored = index.tensors.emplace_back();
    stored.name = tensor.name;
    stored.dtype = tensor.dtype;
    stored.shape = tensor.shape;
    stored.range = tensor.range;
    stored.bytes = tensor.range.count * size_of(tensor.dtype);
    stored.offset = place_tensor(end, stored.bytes);
    end = stored.offset + stored.bytes;
  }
  // A name that cannot be written is found before anything is.
  encode_index(index);

  OutputFile file(disk, path);
  FileHeader header;
  header.version = kCheckpointVersion;
  header.features = features_of(index);
  header.checksum = xxh3(&header, offsetof(FileHeader, checksum));
  file.write(&header, sizeof header);
  for (size_t i = 0; i < tensors.size(); ++i) {
    StoredTensor& stored = index.tensors[i];
    file.pad_to(stored.offset);
    const auto* data = static_cast<const std::byte*>(tensors[i].data);
    for (uint64_t at = 0; at < stored.bytes; at += kChunkBytes) {
      const auto bytes = static_cast<size_t>(std::min(kChunkBytes, stored.bytes - at));
      stored.checksums.push_back(xxh3(data + at, bytes));
      file.write(data + at, bytes);
    }
  }
  FileFooter footer;
  footer.index_offset = place_index(end);
  file.pad_to(footer.index_offset);
  const std::string text = encode_index(index);
  file.write(text);
  footer.index_bytes = text.size();
  footer.index_checksum = xxh3(text);
  footer.file_bytes = file.size() + sizeof footer;
  footer.checksum = xxh3(&footer, offsetof(FileFooter, checksum));
  file.write(&footer, sizeof footer);
  file.finish();
  return {footer.file_bytes, footer.index_checksum};
}

}  // namespace lockstep::nn
