#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/shape.h"
#include "lockstep/nn/checkpoint/disk.h"

// One data file of a checkpoint, as docs/checkpoint-format.md specifies it byte by byte: a header,
// the tensors, an index in JSON, a footer.
namespace lockstep::nn {

inline constexpr uint32_t kCheckpointVersion = 1;
// Tensor data has a checksum for each piece of this size.
inline constexpr uint64_t kChunkBytes = uint64_t{4} << 20;

// What is saved besides tensors.
using Value = std::variant<int64_t, uint64_t, double, std::string>;

struct NamedValue {
  std::string name;
  Value value;
};

// "i64", "u64", "f64", "string".
std::string_view type_name(const Value& value);

// Some of a tensor's elements, in row-major order. All of them: {0, numel}.
struct ElementRange {
  uint64_t first = 0;
  uint64_t count = 0;
};

// A tensor, or a range of its elements, that is to be written: borrowed, row-major, on the CPU.
struct TensorBytes {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;  // of the whole tensor
  ElementRange range;
  const void* data = nullptr;  // of the range's first element
};

inline TensorBytes whole_tensor(std::string name, DType dtype, const Shape& shape,
                                const void* data) {
  const auto count = static_cast<uint64_t>(numel(shape, "save_checkpoint"));
  return {std::move(name), dtype, shape, {0, count}, data};
}

// A tensor in a file, or a range of its elements: the rest is in the checkpoint's other files.
struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;  // of the whole tensor
  ElementRange range;
  uint64_t offset = 0;  // from the file's start
  uint64_t bytes = 0;
  std::vector<uint64_t> checksums;  // XXH3 of each piece of kChunkBytes, the last may be shorter
};

// A tensor that shares the elements of one that is stored: element (i, j, …) is element
// start + i strides[0] + j strides[1] + … of `of` in row-major order.
struct StoredView {
  std::string name;
  std::string of;
  Shape shape;
  Strides strides;
  int64_t start = 0;
};

// Memory that several tensors share, and that none of them covers, is stored under a name that
// begins so. No part of a program's state has such a name.
inline constexpr char kHiddenPrefix = '/';

struct Index {
  std::vector<StoredTensor> tensors;  // in the order of their offsets
  std::vector<StoredView> views;
  std::vector<NamedValue> values;
};

// Bits of a data file's header: what its reader must know.
inline constexpr uint32_t kFeatureRanges = 1;  // some tensor is there in part
inline constexpr uint32_t kFeatureViews = 2;
inline constexpr uint32_t kKnownFeatures = kFeatureRanges | kFeatureViews;
uint32_t features_of(const Index& index);

// The index as the file holds it. Throws Error(kInvalidArgument) that names a name or string which
// is not valid UTF-8, is empty, holds control characters or is too long, or a name that came twice.
std::string encode_index(const Index& index);

// How many elements `range` may be of, at most, and how many sizes a shape may have.
inline constexpr uint64_t kMaxElements = uint64_t{1} << 59;
inline constexpr size_t kMaxDims = 64;
// Far more than the index of any file that a disk holds.
inline constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;

// Reads what encode_index wrote. `data_end` is where the index begins in its file; `what` names the
// file. Throws Error(kCorrupt) unless every name, dtype, shape, size and place is valid and the
// tensors fill the file up to data_end.
Index decode_index(std::string_view text, uint64_t data_end, std::string_view what);

// Where data of `bytes` bytes goes if what precedes it ends at `end`.
uint64_t place_tensor(uint64_t end, uint64_t bytes);

// Where the index goes if the data ends at `end`.
uint64_t place_index(uint64_t end);

// What a manifest says about a data file.
struct FileSummary {
  uint64_t bytes = 0;
  uint64_t index_checksum = 0;
};

// Writes a new file and syncs it. Throws what Disk and encode_index throw.
FileSummary write_data_file(Disk& disk, const std::filesystem::path& path,
                            std::span<const TensorBytes> tensors,
                            std::span<const NamedValue> values,
                            std::span<const StoredView> views = {});

// A data file that is open for reading. Everything in it but the tensors' data is verified when it
// is opened. Thread-safe.
//
// Throws Error(kCorrupt) that says what is damaged, Error(kMismatch) for a file of a later version
// or with features that this reader does not know.
class DataFile {
 public:
  explicit DataFile(const std::filesystem::path& path);

  const Index& index() const { return index_; }
  std::string_view index_text() const { return index_text_; }
  // Where the index begins.
  uint64_t data_end() const { return data_end_; }
  FileSummary summary() const { return summary_; }

  // Reads the data of a tensor of index() to `out`, which has room for its bytes, and verifies it.
  // What was read before an error is in `out`.
  void read(const StoredTensor& tensor, void* out) const;
  // The file's bytes in memory, read from the disk as they are touched: private to the caller, who
  // may write to them. The file must not be cut while they are used.
  std::shared_ptr<std::byte> map() const { return file_.map(); }
  // A tensor's data comes in pieces of kChunkBytes, each with a checksum.
  static size_t piece_count(const StoredTensor& tensor) { return tensor.checksums.size(); }
  // Reads and verifies one piece to its place in `out`, which has room for all of them.
  void read_piece(const StoredTensor& tensor, size_t piece, std::byte* out) const;
  // Verifies a piece of data that came from map(): its checksum where `checksums`, and that a bool
  // is one.
  void verify_piece(const StoredTensor& tensor, size_t piece, const std::byte* data,
                    bool checksums) const;

 private:
  // Returns the features.
  uint32_t check_header() const;
  void read_footer_and_index();
  void check_padding(uint64_t begin, uint64_t end) const;

  InputFile file_;
  FileSummary summary_;
  uint64_t data_end_ = 0;
  std::string index_text_;
  Index index_;
};

}  // namespace lockstep::nn
