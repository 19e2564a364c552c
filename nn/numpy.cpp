#include "lockstep/nn/numpy.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <vector>

#include "lockstep/core/autograd.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint/utf8.h"
#include "lockstep/nn/files.h"
#include "lockstep/nn/host_copy.h"
#include "lockstep/nn/inflate.h"
#include "lockstep/nn/numpy/npy_header.h"
#include "lockstep/nn/numpy/zip.h"

namespace lockstep::nn {
namespace {

constexpr std::string_view kLoadNpy = "load_npy";
constexpr std::string_view kLoadNpz = "load_npz";
constexpr std::string_view kSaveNpy = "save_npy";
constexpr std::string_view kSaveNpz = "save_npz";
constexpr std::string_view kEnding = ".npy";

// The elements of a header's array lie in memory in the order that it says; makes it row-major.
// `stored_shape` gives the shape that those elements have in row-major order.
Shape stored_shape(const NpyHeader& header) {
  Shape shape = header.shape;
  if (header.fortran_order) std::reverse(shape.begin(), shape.end());
  return shape;
}

Tensor in_row_major(const NpyHeader& header, Tensor stored) {
  if (!header.fortran_order || header.shape.size() < 2) return stored;
  NoGrad no_grad;
  // Strides of a column-major array: the first dimension varies fastest.
  Strides strides(header.shape.size());
  int64_t step = 1;
  for (size_t i = 0; i < strides.size(); ++i) {
    strides[i] = step;
    step *= std::max<int64_t>(header.shape[i], 1);
  }
  return alias(stored, header.shape, strides, 0).contiguous();
}

void check_size(const NpyHeader& header, uint64_t bytes, std::string_view what,
                std::string_view op) {
  if (bytes - header.data_begin == header.data_bytes) return;
  throw Error(
      ErrorCode::kCorrupt, op,
      str_cat(what, ": has ", bytes - header.data_begin, " bytes of data, its shape ",
              to_string(header.shape), " of ", name(header.dtype), " wants ", header.data_bytes,
              bytes - header.data_begin < header.data_bytes ? ": it was cut short"
                                                            : ": something was appended"));
}

// The array that stands in a file from byte `begin` on, in `bytes` bytes.
Tensor array_at(const MappedFile& file, uint64_t begin, uint64_t bytes, std::string_view what,
                std::string_view tensor, std::string_view op) {
  const NpyHeader header = decode_npy_header(file.text().substr(begin, bytes), what, op);
  check_size(header, bytes, what, op);
  return in_row_major(header, tensor_from(file, begin + header.data_begin, stored_shape(header),
                                          header.dtype, tensor, op));
}

// Contents of a deflated member, which are verified once they are read.
class Contents {
 public:
  Contents(const MappedFile& file, const ZipMember& member, std::string_view what)
      : inflater_({reinterpret_cast<const uint8_t*>(file.memory.get()) + member.data_begin,
                   static_cast<size_t>(member.data_bytes)},
                  Compression::kDeflate, kLoadNpz),
        what_(what) {}

  void read(void* out, size_t bytes) {
    const size_t count = inflater_.read({static_cast<uint8_t*>(out), bytes});
    crc_ = crc32_z(crc_, static_cast<const Bytef*>(out), count);
    if (inflater_.error() != nullptr) corrupt(inflater_.error());
    if (count != bytes) corrupt("it ends too early");
  }

  void finish(uint32_t crc) {
    uint8_t more = 0;
    if (inflater_.read({&more, 1}) != 0 || !inflater_.ended() || inflater_.left() != 0) {
      corrupt(inflater_.error() != nullptr ? inflater_.error() : "it does not end where it should");
    }
    if (crc_ != crc) corrupt("its CRC-32 is another");
  }

 private:
  [[noreturn]] void corrupt(std::string_view message) const {
    throw Error(ErrorCode::kCorrupt, kLoadNpz,
                str_cat(what_, ": cannot be decompressed: ", message));
  }

  Inflater inflater_;
  std::string_view what_;
  uLong crc_ = 0;
};

Tensor inflate_array(const MappedFile& file, const ZipMember& member, std::string_view what,
                     std::string_view tensor) {
  Contents contents(file, member, what);
  // As much as any header that is read can take: what else is in there is data already.
  constexpr uint64_t kMaxHead = kMaxNpyHeader + 12;
  std::string head(std::min(member.bytes, kMaxHead), '\0');
  contents.read(head.data(), head.size());
  const NpyHeader header = decode_npy_header(head, what, kLoadNpz);
  check_size(header, member.bytes, what, kLoadNpz);
  const Tensor stored = Tensor::empty(stored_shape(header), {.dtype = header.dtype});
  auto* data = static_cast<char*>(stored.view().data);
  const size_t here = head.size() - header.data_begin;
  if (here != 0) std::memcpy(data, head.data() + header.data_begin, here);
  if (header.data_bytes > here) contents.read(data + here, header.data_bytes - here);
  contents.finish(member.crc);
  if (header.dtype == DType::kBool) check_bools(data, header.data_bytes, what, tensor, kLoadNpz);
  return in_row_major(header, stored);
}

std::string_view bytes_of(const Tensor& dense) {
  return {static_cast<const char*>(dense.view().data), static_cast<size_t>(dense.nbytes())};
}

void check_names(const NamedTensors& tensors) {
  constexpr size_t kMaxName = 0xffff - kEnding.size();
  std::unordered_set<std::string_view> seen;
  for (const auto& entry : tensors) {
    const std::string& name = entry.first;
    check(!name.empty() && name.size() <= kMaxName && is_utf8(name), kSaveNpz, [&] {
      return str_cat("want names of 1 to ", kMaxName, " bytes of UTF-8, got '", name, "'");
    });
    check(seen.insert(name).second, kSaveNpz,
          [&] { return str_cat("the name '", name, "' came twice"); });
    check(entry.second.defined(), kSaveNpz,
          [&] { return str_cat("'", name, "' is an undefined tensor"); });
  }
}

}  // namespace

Tensor load_npy(const std::filesystem::path& path) {
  const MappedFile file = map_file(path, kLoadNpy);
  return array_at(file, 0, file.bytes, path.string(), path.stem().string(), kLoadNpy);
}

void save_npy(const std::filesystem::path& path, const Tensor& tensor) {
  check(tensor.defined(), kSaveNpy, "want a tensor, got an undefined one");
  const std::string header = encode_npy_header(tensor.dtype(), tensor.shape(), kSaveNpy);
  replace_file(path, kSaveNpy, [&](OutputFile& file) {
    file.write(header);
    file.write(bytes_of(on_host(tensor)));
  });
}

NamedTensors load_npz(const std::filesystem::path& path) {
  const MappedFile file = map_file(path, kLoadNpz);
  NamedTensors tensors;
  std::unordered_set<std::string> seen;
  for (const ZipMember& member : decode_zip(file.text(), path.string(), kLoadNpz)) {
    const std::string what = str_cat(path.string(), ", member '", member.name, "'");
    std::string name = member.name;
    if (name.ends_with(kEnding)) name.resize(name.size() - kEnding.size());
    if (!seen.insert(name).second) {
      throw Error(ErrorCode::kCorrupt, kLoadNpz,
                  str_cat(what, ": another member has the same name without ", kEnding));
    }
    Tensor tensor;
    if (member.deflated) {
      tensor = inflate_array(file, member, what, name);
    } else {
      const auto* data = reinterpret_cast<const Bytef*>(file.memory.get()) + member.data_begin;
      if (crc32_z(0, data, member.data_bytes) != member.crc) {
        throw Error(ErrorCode::kCorrupt, kLoadNpz, str_cat(what, ": its CRC-32 is another"));
      }
      tensor = array_at(file, member.data_begin, member.data_bytes, what, name, kLoadNpz);
    }
    tensors.emplace_back(std::move(name), std::move(tensor));
  }
  return tensors;
}

void save_npz(const std::filesystem::path& path, const NamedTensors& tensors, bool compressed) {
  check_names(tensors);
  std::vector<std::string> headers;
  for (const auto& [name, tensor] : tensors) {
    headers.push_back(
        encode_npy_header(tensor.dtype(), tensor.shape(), str_cat("save_npz of '", name, "'")));
  }
  replace_file(path, kSaveNpz, [&](OutputFile& file) {
    ZipWriter zip(file);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto& [name, tensor] = tensors[i];
      const Tensor dense = on_host(tensor);
      zip.add(str_cat(name, kEnding), headers[i], bytes_of(dense), compressed);
    }
    zip.finish();
  });
}

}  // namespace lockstep::nn
