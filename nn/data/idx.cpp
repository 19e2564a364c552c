#include "lockstep/nn/data/idx.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

#include "lockstep/kernels/text.h"
#include "lockstep/nn/inflate.h"

namespace lockstep::nn {
namespace {

constexpr const char* kOp = "read_idx";
constexpr size_t kMaxDims = 8;

// What went wrong, in a file that has a name and can be got again.
class Place {
 public:
  Place(const std::string& path, std::string_view hint) : path_(path), hint_(hint) {}

  [[noreturn]] void fail(ErrorCode code, const std::string& message) const {
    throw Error(code, kOp, str_cat("'", path_, "' ", message, hint_.empty() ? "" : "; ", hint_));
  }

 private:
  std::string path_;
  std::string hint_;
};

std::vector<uint8_t> read_whole(const std::string& path, const Place& place) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) place.fail(ErrorCode::kIo, "does not exist");
  if (!std::filesystem::is_regular_file(status)) place.fail(ErrorCode::kIo, "is not a file");
  const uintmax_t size = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) {
    const int why = error ? error.value() : errno;
    place.fail(ErrorCode::kIo, str_cat("cannot be opened: ", std::strerror(why)));
  }
  std::vector<uint8_t> bytes(size);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
  if (static_cast<uintmax_t>(file.gcount()) != size) {
    place.fail(ErrorCode::kIo, "cannot be read to its end");
  }
  return bytes;
}

// The bytes that a file holds, front to back, decompressed where it is gzip.
class Contents {
 public:
  Contents(std::span<const uint8_t> file, const Place& place) : left_(file), place_(place) {
    max_bytes_ = file.size();
    if (file.size() < 2 || file[0] != 0x1f || file[1] != 0x8b) return;
    max_bytes_ *= kMaxExpansion;
    gzip_.emplace(file, Compression::kGzip, kOp);
  }

  // No more bytes than this can be in it.
  uint64_t max_bytes() const { return max_bytes_; }

  // Fills `out`, or as much of it as there is; returns how much.
  size_t read(std::span<uint8_t> out) {
    if (gzip_) {
      const size_t count = gzip_->read(out);
      if (gzip_->error() != nullptr) {
        place_.fail(ErrorCode::kCorrupt, str_cat("cannot be decompressed: ", gzip_->error()));
      }
      return count;
    }
    const size_t count = std::min(out.size(), left_.size());
    std::copy_n(left_.begin(), count, out.begin());
    left_ = left_.subspan(count);
    return count;
  }

  // Fails unless all was read and, with gzip, its checksum is right.
  void expect_end() {
    uint8_t more = 0;
    if (read({&more, 1}) != 0) place_.fail(ErrorCode::kCorrupt, "has bytes after its elements");
    if (!gzip_) return;
    if (!gzip_->ended()) place_.fail(ErrorCode::kCorrupt, "is cut off before its checksum");
    if (gzip_->left() != 0) {
      place_.fail(ErrorCode::kCorrupt,
                  str_cat("has ", gzip_->left(), " bytes after its compressed contents"));
    }
  }

 private:
  std::span<const uint8_t> left_;
  const Place& place_;
  std::optional<Inflater> gzip_;
  uint64_t max_bytes_ = 0;
};

std::optional<DType> dtype_of_code(uint8_t code) {
  switch (code) {
    case 0x08:
      return DType::kU8;
    case 0x09:
      return DType::kI8;
    case 0x0c:
      return DType::kI32;
    case 0x0d:
      return DType::kF32;
    case 0x0e:
      return DType::kF64;
    default:
      return std::nullopt;
  }
}

struct Header {
  DType dtype = DType::kU8;
  Shape shape;
  size_t element_bytes = 1;
  uint64_t bytes = 0;  // of all elements
};

Header read_header(Contents& contents, const Place& place) {
  uint8_t magic[4];
  if (contents.read(magic) < sizeof magic) {
    place.fail(ErrorCode::kCorrupt, "is too short for an IDX file");
  }
  const std::optional<DType> dtype = dtype_of_code(magic[2]);
  if (magic[0] != 0 || magic[1] != 0 || !dtype || magic[3] == 0 || magic[3] > kMaxDims) {
    place.fail(
        ErrorCode::kCorrupt,
        str_cat("is not an IDX file of a known type: want the bytes 00 00, a type of "
                "08, 09, 0c, 0d or 0e, and 1 to ",
                kMaxDims, " dimensions, got ", absl::Hex(magic[0], absl::kZeroPad2), " ",
                absl::Hex(magic[1], absl::kZeroPad2), " ", absl::Hex(magic[2], absl::kZeroPad2),
                " ", absl::Hex(magic[3], absl::kZeroPad2)));
  }
  Header header{.dtype = *dtype, .shape = {}, .element_bytes = size_of(*dtype), .bytes = 0};
  uint8_t sizes[4 * kMaxDims];
  const size_t dims = magic[3];
  if (contents.read(std::span(sizes).first(4 * dims)) < 4 * dims) {
    place.fail(ErrorCode::kCorrupt, "is cut off in its header");
  }
  uint64_t bytes = header.element_bytes;
  bool fits = true;
  for (size_t i = 0; i < dims; ++i) {
    const uint8_t* b = sizes + 4 * i;
    const uint64_t size = uint64_t{b[0]} << 24 | uint64_t{b[1]} << 16 | uint64_t{b[2]} << 8 | b[3];
    header.shape.push_back(static_cast<int64_t>(size));
    // Stops before the product can leave 64 bits: both factors are within the file's bound.
    fits = fits && (size == 0 || bytes <= contents.max_bytes() / size);
    if (fits) bytes *= size;
  }
  if (!fits) {
    place.fail(ErrorCode::kCorrupt, str_cat("says that it holds ", to_string(header.shape),
                                            " elements of ", header.element_bytes,
                                            " bytes, more than there can be in a file of its "
                                            "length: it is cut off or damaged"));
  }
  header.bytes = bytes;
  return header;
}

void swap_bytes(std::span<uint8_t> data, size_t element_bytes) {
  for (size_t i = 0; i < data.size(); i += element_bytes) {
    std::reverse(data.begin() + i, data.begin() + i + element_bytes);
  }
}

}  // namespace

Tensor read_idx(const std::string& path, std::string_view hint) {
  const Place place(path, hint);
  const std::vector<uint8_t> file = read_whole(path, place);
  Contents contents(file, place);
  const Header header = read_header(contents, place);
  const Tensor tensor = Tensor::empty(header.shape, {.dtype = header.dtype});
  const std::span<uint8_t> data(static_cast<uint8_t*>(tensor.view().data), header.bytes);
  const size_t count = contents.read(data);
  if (count < data.size()) {
    place.fail(ErrorCode::kCorrupt,
               str_cat("is cut off: its sizes ", to_string(header.shape), " want ", data.size(),
                       " bytes of elements, it has ", count));
  }
  contents.expect_end();
  if constexpr (std::endian::native == std::endian::little) swap_bytes(data, header.element_bytes);
  return tensor;
}

}  // namespace lockstep::nn
