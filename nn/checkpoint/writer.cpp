#include <algorithm>
#include <future>

#include "lockstep/nn/checkpoint/checksum.h"
#include "lockstep/nn/checkpoint/format.h"
#include "lockstep/nn/checkpoint/layout.h"

namespace lockstep::nn {
namespace {

using Checksums = std::vector<uint64_t>;

std::vector<Checksums> checksums_of(std::span<const TensorBytes> tensors) {
  std::vector<Checksums> out;
  for (const TensorBytes& tensor : tensors) {
    Checksums& checksums = out.emplace_back();
    const auto* data = static_cast<const std::byte*>(tensor.data);
    const uint64_t end = tensor.range.count * size_of(tensor.dtype);
    for (uint64_t at = 0; at < end; at += kChunkBytes) {
      checksums.push_back(xxh3(data + at, static_cast<size_t>(std::min(kChunkBytes, end - at))));
    }
  }
  return out;
}

}  // namespace

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

  // Beside the writing, where there is enough to be worth a thread and one can be had.
  const auto when =
      end > kChunkBytes ? std::launch::async | std::launch::deferred : std::launch::deferred;
  std::future<std::vector<Checksums>> checksums =
      std::async(when, [&] { return checksums_of(tensors); });
  OutputFile file(disk, path);
  FileHeader header;
  header.version = kCheckpointVersion;
  header.features = features_of(index);
  header.checksum = xxh3(&header, offsetof(FileHeader, checksum));
  file.write(&header, sizeof header);
  for (size_t i = 0; i < tensors.size(); ++i) {
    file.pad_to(index.tensors[i].offset);
    file.write(tensors[i].data, static_cast<size_t>(index.tensors[i].bytes));
  }
  std::vector<Checksums> all = checksums.get();
  for (size_t i = 0; i < tensors.size(); ++i) index.tensors[i].checksums = std::move(all[i]);
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
