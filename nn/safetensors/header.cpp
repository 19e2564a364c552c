#include "lockstep/nn/safetensors/header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint/strict_json.h"
#include "lockstep/nn/checkpoint/utf8.h"

namespace lockstep::nn {
namespace {

using nlohmann::json;

constexpr std::string_view kLoad = "load_safetensors";
constexpr std::string_view kSave = "save_safetensors";
constexpr std::string_view kMetadata = "__metadata__";
constexpr size_t kMaxDims = 64;

struct Spelling {
  std::string_view name;
  uint64_t bits;  // of an element
  std::optional<DType> dtype;
};

// In the reference's order (enum Dtype of its tensor.rs).
constexpr Spelling kSpellings[] = {
    {"BOOL", 8, DType::kBool},
    {"F4", 4, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"U8", 8, DType::kU8},
    {"I8", 8, DType::kI8},
    {"F8_E5M2", 8, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"I16", 16, {}},
    {"U16", 16, {}},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"I32", 32, DType::kI32},
    {"U32", 32, {}},
    {"F32", 32, DType::kF32},
    {"C64", 64, {}},
    {"F64", 64, DType::kF64},
    {"I64", 64, DType::kI64},
    {"U64", 64, {}},
};

const Spelling* find_spelling(std::string_view dtype) {
  const auto* found = std::find_if(std::begin(kSpellings), std::end(kSpellings),
                                   [&](const Spelling& s) { return s.name == dtype; });
  return found == std::end(kSpellings) ? nullptr : found;
}

// What is read, for errors.
class Place {
 public:
  explicit Place(std::string_view what) : what_(what) {}

  [[noreturn]] void corrupt(std::string_view message) const {
    throw Error(ErrorCode::kCorrupt, kLoad, str_cat(what_, ": ", message));
  }
  [[noreturn]] void corrupt(std::string_view tensor, std::string_view message) const {
    corrupt(str_cat("tensor '", tensor, "' ", message));
  }
  std::string_view what() const { return what_; }

 private:
  std::string_view what_;
};

const json& member(const json& info, const char* key, const std::string& tensor,
                   const Place& place) {
  const auto found = info.find(key);
  if (found == info.end()) place.corrupt(tensor, str_cat("has no '", key, "'"));
  return *found;
}

// Elements; fills `shape`. Sizes of 0 count as 1 for the bound, so that strides fit too.
uint64_t decode_shape(const json& sizes, const std::string& tensor, Shape& shape,
                      const Place& place) {
  if (!sizes.is_array() || sizes.size() > kMaxDims) {
    place.corrupt(tensor,
                  str_cat("has a shape that is not an array of at most ", kMaxDims, " sizes"));
  }
  uint64_t bound = uint64_t{1} << 59;
  uint64_t elements = 1;
  for (const json& size : sizes) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > bound) {
      place.corrupt(tensor,
                    "has a size that is not a whole number in bounds: want at most 2^59 "
                    "elements");
    }
    const auto n = size.get<uint64_t>();
    bound /= std::max<uint64_t>(n, 1);
    elements *= n;
    shape.push_back(static_cast<int64_t>(n));
  }
  return elements;
}

SafetensorsEntry decode_entry(const std::string& name, const json& info, uint64_t data_bytes,
                              const Place& place) {
  if (!info.is_object()) place.corrupt(name, "is not described by an object");
  SafetensorsEntry entry;
  entry.name = name;
  const json& dtype = member(info, "dtype", name, place);
  if (!dtype.is_string()) place.corrupt(name, "has a dtype that is not a string");
  entry.dtype = dtype.get<std::string>();
  const Spelling* spelling = find_spelling(entry.dtype);
  if (spelling == nullptr) {
    throw Error(ErrorCode::kMismatch, kLoad,
                str_cat(place.what(), ": tensor '", name, "' has the dtype '", entry.dtype,
                        "', which safetensors files did not have when this reader was written"));
  }
  const uint64_t elements =
      decode_shape(member(info, "shape", name, place), name, entry.shape, place);
  const json& offsets = member(info, "data_offsets", name, place);
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    place.corrupt(name, "has data_offsets that are not two whole numbers");
  }
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  if (entry.begin > entry.end || entry.end > data_bytes) {
    place.corrupt(name, str_cat("is said to lie from byte ", entry.begin, " to ", entry.end,
                                " of the file's ", data_bytes, " bytes of data"));
  }
  // At most 2^59 elements of 2^6 bits need 65 bits.
  const bool whole_bytes = spelling->bits >= 8 || elements * spelling->bits % 8 == 0;
  const uint64_t bytes =
      spelling->bits >= 8 ? elements * (spelling->bits / 8) : elements * spelling->bits / 8;
  if (!whole_bytes || bytes != entry.end - entry.begin) {
    place.corrupt(name, str_cat("has shape ", to_string(entry.shape), " of ", entry.dtype, ", ",
                                elements, " elements, which are not the ", entry.end - entry.begin,
                                " bytes that it is said to have"));
  }
  return entry;
}

std::map<std::string, std::string> decode_metadata(const json& member, const Place& place) {
  std::map<std::string, std::string> metadata;
  if (!member.is_object()) place.corrupt("__metadata__ is not an object");
  for (const auto& [key, value] : member.items()) {
    if (!value.is_string()) {
      place.corrupt(str_cat("__metadata__ has '", key, "', whose value is not a string"));
    }
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

void check_contiguous(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes,
                      const Place& place) {
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin < end) {
      place.corrupt(entry.name, str_cat("begins at byte ", entry.begin,
                                        " and overlaps the one before it, which ends at ", end));
    }
    if (entry.begin > end) {
      place.corrupt(entry.name,
                    str_cat("begins at byte ", entry.begin, ", after a hole from ", end));
    }
    end = entry.end;
  }
  if (end != data_bytes) {
    place.corrupt(
        str_cat("has ", data_bytes - end, " bytes after its last tensor: something was appended"));
  }
}

void check_text(std::string_view kind, const std::string& text) {
  check(is_utf8(text), kSave,
        [&] { return str_cat("want UTF-8, got the ", kind, " '", text, "'"); });
}

}  // namespace

SafetensorsHeader decode_safetensors_header(std::string_view file, std::string_view what) {
  const Place place(what);
  uint64_t bytes = 0;
  if (file.size() < sizeof bytes) {
    place.corrupt(
        str_cat("has ", file.size(), " bytes, no safetensors file has fewer than ", sizeof bytes));
  }
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(&bytes, file.data(), sizeof bytes);
  if (bytes > kMaxSafetensorsHeader) {
    place.corrupt(str_cat("is no safetensors file, or is damaged: its header would have ", bytes,
                          " bytes, more than the ", kMaxSafetensorsHeader,
                          " that the format allows"));
  }
  if (bytes > file.size() - sizeof bytes) {
    place.corrupt(str_cat("has ", file.size(), " bytes, its header alone would have ", bytes,
                          ": it was cut short, or is no safetensors file"));
  }
  const std::string_view text = file.substr(sizeof bytes, bytes);
  if (!text.starts_with('{')) place.corrupt("has a header that does not begin with '{'");
  const json root = parse_strict_json(text, str_cat(what, ", header"), kLoad);

  SafetensorsHeader header;
  header.data_begin = sizeof bytes + bytes;
  const uint64_t data_bytes = file.size() - header.data_begin;
  for (const auto& [name, info] : root.items()) {
    if (name == kMetadata) {
      header.metadata = decode_metadata(info, place);
    } else {
      header.entries.push_back(decode_entry(name, info, data_bytes, place));
    }
  }
  std::stable_sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_contiguous(header.entries, data_bytes, place);
  return header;
}

std::string encode_safetensors_header(std::span<SafetensorsEntry> entries,
                                      const std::map<std::string, std::string>& metadata) {
  for (const auto& [key, value] : metadata) {
    check_text("key", key);
    check_text("value", value);
  }
  std::unordered_set<std::string_view> seen;
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  if (!metadata.empty()) root[std::string(kMetadata)] = metadata;
  uint64_t end = 0;
  for (SafetensorsEntry& entry : entries) {
    check_text("name", entry.name);
    check(entry.name != kMetadata, kSave, [&] {
      return str_cat("want another name than '", kMetadata, "', which the format keeps for itself");
    });
    check(seen.insert(entry.name).second, kSave,
          [&] { return str_cat("the name '", entry.name, "' came twice"); });
    const uint64_t bytes = entry.end - entry.begin;
    entry.begin = end;
    entry.end = end += bytes;
    // Not root[name]: that searches all members before it.
    nlohmann::ordered_json info;
    info["dtype"] = entry.dtype;
    info["shape"] = std::vector<int64_t>(entry.shape.begin(), entry.shape.end());
    info["data_offsets"] = {entry.begin, entry.end};
    root.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(entry.name, std::move(info));
  }
  std::string text = root.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // data begins aligned
  check(text.size() <= kMaxSafetensorsHeader, kSave, [&] {
    return str_cat("want a header of at most ", kMaxSafetensorsHeader, " bytes, got ", text.size(),
                   ": save fewer tensors in a file");
  });
  const uint64_t bytes = text.size();
  std::string out(sizeof bytes, '\0');
  std::memcpy(out.data(), &bytes, sizeof bytes);
  return out + text;
}

std::optional<DType> dtype_of_safetensors(std::string_view dtype) {
  const Spelling* spelling = find_spelling(dtype);
  return spelling == nullptr ? std::nullopt : spelling->dtype;
}

std::string_view safetensors_name(DType dtype) {
  for (const Spelling& spelling : kSpellings) {
    if (spelling.dtype == dtype) return spelling.name;
  }
  throw Error(ErrorCode::kInternal, kSave, str_cat("safetensors files have no ", name(dtype)));
}

int safetensors_rank(std::string_view dtype) {
  return static_cast<int>(find_spelling(dtype) - kSpellings);
}

}  // namespace lockstep::nn
