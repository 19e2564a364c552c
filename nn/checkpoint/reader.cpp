#include <algorithm>
#include <memory>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint/checksum.h"
#include "lockstep/nn/checkpoint/format.h"
#include "lockstep/nn/checkpoint/layout.h"

namespace lockstep::nn {
namespace {

[[noreturn]] void corrupt(const InputFile& file, std::string_view message) {
  throw Error(ErrorCode::kCorrupt, "load_checkpoint", str_cat(file.path().string(), ": ", message));
}

}  // namespace

DataFile::DataFile(const std::filesystem::path& path) : file_(path) {
  if (file_.size() < sizeof(FileHeader) + sizeof(FileFooter)) {
    corrupt(file_, str_cat("has ", file_.size(), " bytes, fewer than the smallest data file"));
  }
  const uint32_t features = check_header();
  read_footer_and_index();
  index_ = decode_index(index_text_, data_end_, path.string());
  if (features != features_of(index_)) {
    corrupt(file_, str_cat("the header says features ", to_hex(features), ", its index uses ",
                           to_hex(features_of(index_))));
  }
  uint64_t end = sizeof(FileHeader);
  for (const StoredTensor& tensor : index_.tensors) {
    check_padding(end, tensor.offset);
    end = tensor.offset + tensor.bytes;
  }
  check_padding(end, data_end_);
}

uint32_t DataFile::check_header() const {
  FileHeader header;
  file_.read(0, &header, sizeof header);
  if (header.magic != kHeaderMagic) corrupt(file_, "does not begin as a data file does");
  if (header.checksum != xxh3(&header, offsetof(FileHeader, checksum))) {
    corrupt(file_, "the header does not match its checksum");
  }
  if (header.version != kCheckpointVersion || (header.features & ~kKnownFeatures) != 0) {
    throw Error(ErrorCode::kMismatch, "load_checkpoint",
                str_cat(file_.path().string(), " has version ", header.version,
                        " of the format and features ", to_hex(header.features),
                        ", this program reads version ", kCheckpointVersion, " with features of ",
                        to_hex(kKnownFeatures),
                        ": load it with the Lockstep that wrote it or a later one"));
  }
  if (header.reserved != decltype(header.reserved){}) {
    corrupt(file_, "the header's reserved bytes are not zero");
  }
  return header.features;
}

void DataFile::read_footer_and_index() {
  FileFooter footer;
  file_.read(file_.size() - sizeof footer, &footer, sizeof footer);
  if (footer.magic != kFooterMagic) {
    corrupt(file_, "does not end with a footer: it was cut short, or something was appended");
  }
  if (footer.checksum != xxh3(&footer, offsetof(FileFooter, checksum))) {
    corrupt(file_, "the footer does not match its checksum");
  }
  if (footer.file_bytes != file_.size()) {
    corrupt(file_, str_cat("has ", file_.size(), " bytes, its footer says ", footer.file_bytes));
  }
  if (footer.reserved != decltype(footer.reserved){}) {
    corrupt(file_, "the footer's reserved bytes are not zero");
  }
  const uint64_t index_end = file_.size() - sizeof footer;
  if (footer.index_offset < sizeof(FileHeader) || footer.index_offset > index_end ||
      footer.index_bytes != index_end - footer.index_offset) {
    corrupt(file_,
            str_cat("the footer says that the index has ", footer.index_bytes, " bytes from byte ",
                    footer.index_offset, ", which ends not at ", index_end));
  }
  if (footer.index_bytes > kMaxIndexBytes) {
    corrupt(file_, str_cat("has an index of ", footer.index_bytes, " bytes, at most ",
                           kMaxIndexBytes, " are allowed"));
  }
  index_text_.resize(static_cast<size_t>(footer.index_bytes));
  file_.read(footer.index_offset, index_text_.data(), index_text_.size());
  if (xxh3(index_text_) != footer.index_checksum) {
    corrupt(file_, "the index does not match its checksum");
  }
  data_end_ = footer.index_offset;
  summary_ = {footer.file_bytes, footer.index_checksum};
}

void DataFile::check_padding(uint64_t begin, uint64_t end) const {
  std::byte padding[4096];
  const auto bytes = static_cast<size_t>(end - begin);
  file_.read(begin, padding, bytes);
  if (std::any_of(padding, padding + bytes, [](std::byte b) { return b != std::byte{0}; })) {
    corrupt(file_, str_cat("the padding from byte ", begin, " to ", end, " is not zero"));
  }
}

namespace {

uint64_t piece_bytes(const StoredTensor& tensor, size_t piece) {
  return std::min(kChunkBytes, tensor.bytes - piece * kChunkBytes);
}

}  // namespace

void DataFile::verify_piece(const StoredTensor& tensor, size_t piece, const std::byte* data,
                            bool checksums) const {
  const uint64_t at = piece * kChunkBytes;
  const auto bytes = static_cast<size_t>(piece_bytes(tensor, piece));
  const std::byte* begin = data + at;
  if (checksums && xxh3(begin, bytes) != tensor.checksums[piece]) {
    corrupt(file_, str_cat("tensor '", tensor.name, "': its bytes ", at, " to ", at + bytes,
                           " do not match their checksum"));
  }
  // Reading another value as a C++ bool is undefined behaviour.
  if (tensor.dtype == DType::kBool &&
      std::any_of(begin, begin + bytes, [](std::byte b) { return b > std::byte{1}; })) {
    corrupt(file_, str_cat("tensor '", tensor.name, "' of bool holds a byte that is not 0 or 1"));
  }
}

void DataFile::read_piece(const StoredTensor& tensor, size_t piece, std::byte* out) const {
  const uint64_t at = piece * kChunkBytes;
  file_.read(tensor.offset + at, out + at, static_cast<size_t>(piece_bytes(tensor, piece)));
  verify_piece(tensor, piece, out, true);
}

void DataFile::read(const StoredTensor& tensor, void* out) const {
  for (size_t piece = 0; piece < piece_count(tensor); ++piece) {
    read_piece(tensor, piece, static_cast<std::byte*>(out));
  }
}

}  // namespace lockstep::nn
