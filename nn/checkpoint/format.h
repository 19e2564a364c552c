#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
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

// A tensor that is to be written: borrowed, row-major, on the CPU.
struct TensorBytes {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  const void* data = nullptr;
};

// A tensor in a file.
struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  uint64_t offset = 0;  // from the file's start
  uint64_t bytes = 0;
  std::vector<uint64_t> checksums;  // XXH3 of each piece of kChunkBytes, the last may be shorter
};

struct Index {
  std::vector<StoredTensor> tensors;  // in the order of their offsets
  std::vector<NamedValue> values;
};

// The index as the file holds it. Throws Error(kInvalidArgument) that names a name or string which
// is not valid UTF-8, is empty, holds control characters or is too long, or a name that came twice.
std::string encode_index(const Index& index);

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
                            std::span<const NamedValue> values);

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

 private:
  void check_header() const;
  void read_footer_and_index();
  void check_padding(uint64_t begin, uint64_t end) const;

  InputFile file_;
  FileSummary summary_;
  uint64_t data_end_ = 0;
  std::string index_text_;
  Index index_;
};

}  // namespace lockstep::nn
