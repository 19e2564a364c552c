#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint/checksum.h"
#include "lockstep/nn/checkpoint/format.h"
#include "lockstep/nn/checkpoint/layout.h"
#include "lockstep/nn/checkpoint/strict_json.h"
#include "lockstep/nn/checkpoint/utf8.h"

namespace lockstep::nn {
namespace {

using nlohmann::json;

constexpr uint64_t kAlignment = 256;
constexpr uint64_t kPageAlignment = 4096;
constexpr uint64_t kPageAlignedBytes = uint64_t{64} << 10;
constexpr size_t kMaxNameBytes = 1024;

[[noreturn]] void corrupt(std::string_view what, std::string_view message) {
  throw Error(ErrorCode::kCorrupt, "load_checkpoint", str_cat(what, ": ", message));
}

uint64_t align_up(uint64_t offset, uint64_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

// Empty where a name is fine.
std::string_view name_fault(std::string_view name) {
  if (name.empty()) return "an empty name";
  if (name.size() > kMaxNameBytes) return "a name of more than 1024 bytes";
  if (!is_utf8(name)) return "a name that is not UTF-8";
  const bool control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  return control ? "a name with control characters" : "";
}

void check_name(const std::string& name, std::unordered_set<std::string>& seen) {
  const std::string_view fault = name_fault(name);
  check(fault.empty(), "save_checkpoint", [&] { return str_cat(fault, ": '", name, "'"); });
  check(seen.insert(name).second, "save_checkpoint",
        [&] { return str_cat("the name '", name, "' came twice"); });
}

json encode_value(const NamedValue& named) {
  json value;
  if (const auto* text = std::get_if<std::string>(&named.value)) {
    check(is_utf8(*text), "save_checkpoint", [&] {
      return str_cat("the string '", named.name, "' is not UTF-8; save other bytes as a u8 tensor");
    });
    value = *text;
  } else if (const auto* number = std::get_if<double>(&named.value)) {
    if (std::isfinite(*number)) {
      value = *number;
    } else {
      value = std::isnan(*number) ? "nan" : *number > 0 ? "inf" : "-inf";
    }
  } else if (const auto* whole = std::get_if<uint64_t>(&named.value)) {
    value = *whole;
  } else {
    value = std::get<int64_t>(named.value);
  }
  return {{"name", named.name}, {"type", type_name(named.value)}, {"value", std::move(value)}};
}

// Empty where the value has not the type that it says.
std::optional<Value> decode_typed(const json& value, std::string_view type) {
  if (type == "string" && value.is_string()) return value.get<std::string>();
  if (type == "u64" && value.is_number_unsigned()) return value.get<uint64_t>();
  if (type == "i64" && value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (type == "i64" && value.is_number_integer()) return value.get<int64_t>();
  if (type == "f64" && value.is_number()) return value.get<double>();
  if (type == "f64" && value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (type == "f64" && value == "inf") return std::numeric_limits<double>::infinity();
  if (type == "f64" && value == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

NamedValue decode_value(const json& entry, std::string_view what) {
  const std::string& name = json_string(entry, "name", what);
  std::optional<Value> value =
      decode_typed(json_member(entry, "value", what), json_string(entry, "type", what));
  if (!value) corrupt(what, str_cat("the value '", name, "' has not the type that it says"));
  return {name, *std::move(value)};
}

DType decode_dtype(const std::string& text, const std::string& tensor, std::string_view what) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (name(static_cast<DType>(i)) == text) return static_cast<DType>(i);
  }
  corrupt(what, str_cat("tensor '", tensor, "' has a dtype that is not known: '", text, "'"));
}

// The number of elements; fills `shape`. Sizes of 0 count as 1 for the bound, so that strides fit
// too.
uint64_t decode_shape(const json::array_t& sizes, const std::string& tensor, Shape& shape,
                      std::string_view what) {
  if (sizes.size() > kMaxDims) {
    corrupt(what, str_cat("tensor '", tensor, "' has ", sizes.size(), " dimensions, at most ",
                          kMaxDims, " are allowed"));
  }
  uint64_t bound = kMaxElements;
  uint64_t elements = 1;
  for (const json& size : sizes) {
    if (!size.is_number_unsigned()) {
      corrupt(what, str_cat("tensor '", tensor, "' has a size that is not a whole number of 0 and ",
                            "more: ", size.dump(-1, ' ', true, json::error_handler_t::replace)));
    }
    const auto n = size.get<uint64_t>();
    if (n > bound) {
      corrupt(what, str_cat("tensor '", tensor, "' has a shape whose product overflows: more than ",
                            "2^59 elements"));
    }
    bound /= std::max<uint64_t>(n, 1);
    elements *= n;
    shape.push_back(static_cast<int64_t>(n));
  }
  return elements;
}

// All elements where the entry says nothing else.
ElementRange decode_range(const json& entry, uint64_t elements, const std::string& tensor,
                          std::string_view what) {
  if (!entry.contains("range")) return {0, elements};
  const json::array_t& range = json_array(entry, "range", what);
  const bool numbers =
      range.size() == 2 && range[0].is_number_unsigned() && range[1].is_number_unsigned();
  if (!numbers) corrupt(what, str_cat("tensor '", tensor, "' has a range that is not two numbers"));
  const ElementRange result{range[0].get<uint64_t>(), range[1].get<uint64_t>()};
  if (result.count == 0 || result.first > elements || result.count > elements - result.first) {
    corrupt(what, str_cat("tensor '", tensor, "' has the range of ", result.count,
                          " elements from ", result.first, ", but ", elements, " in all"));
  }
  return result;
}

StoredTensor decode_tensor(const json& entry, uint64_t end, uint64_t data_end,
                           std::string_view what) {
  StoredTensor tensor;
  tensor.name = json_string(entry, "name", what);
  tensor.dtype = decode_dtype(json_string(entry, "dtype", what), tensor.name, what);
  const uint64_t elements =
      decode_shape(json_array(entry, "shape", what), tensor.name, tensor.shape, what);
  tensor.range = decode_range(entry, elements, tensor.name, what);
  tensor.offset = json_unsigned(entry, "offset", what);
  tensor.bytes = json_unsigned(entry, "bytes", what);
  const auto fault = [&](std::string_view message) {
    corrupt(what, str_cat("tensor '", tensor.name, "' ", message));
  };
  const uint64_t bytes = tensor.range.count * size_of(tensor.dtype);
  if (tensor.bytes != bytes) {
    fault(str_cat("has ", tensor.range.count, " elements of ", name(tensor.dtype), ", that is ",
                  bytes, " bytes, but is said to have ", tensor.bytes));
  }
  if (tensor.offset > data_end || tensor.bytes > data_end - tensor.offset) {
    fault(str_cat("lies outside of the file's data, which ends at byte ", data_end));
  }
  const uint64_t wanted = place_tensor(end, tensor.bytes);
  if (tensor.offset < end) fault("overlaps the one before it");
  if (tensor.offset != wanted) {
    fault(
        str_cat("is at byte ", tensor.offset, ", want ", wanted, " (a hole or a wrong alignment)"));
  }
  const json::array_t& checksums = json_array(entry, "xxh3", what);
  if (checksums.size() != (tensor.bytes + kChunkBytes - 1) / kChunkBytes) {
    fault(str_cat("has ", checksums.size(), " checksums for its ", tensor.bytes, " bytes"));
  }
  for (const json& checksum : checksums) tensor.checksums.push_back(json_hex(checksum, what));
  return tensor;
}

// Whether its elements lie within those of `of` only the whole checkpoint tells (contents.h); that
// the arithmetic fits is made sure of here.
StoredView decode_view(const json& entry, std::string_view what) {
  StoredView view;
  view.name = json_string(entry, "name", what);
  view.of = json_string(entry, "of", what);
  decode_shape(json_array(entry, "shape", what), view.name, view.shape, what);
  const auto number = [&](const json& value) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kMaxElements) {
      corrupt(what, str_cat("view '", view.name, "' has a stride or a start that is no number up ",
                            "to 2^59"));
    }
    return static_cast<int64_t>(value.get<uint64_t>());
  };
  view.start = number(json_member(entry, "start", what));
  for (const json& stride : json_array(entry, "strides", what)) {
    view.strides.push_back(number(stride));
  }
  if (view.strides.size() != view.shape.size()) {
    corrupt(what, str_cat("view '", view.name, "' has ", view.shape.size(), " sizes and ",
                          view.strides.size(), " strides"));
  }
  return view;
}

json sizes_json(const Shape& sizes) { return std::vector<int64_t>(sizes.begin(), sizes.end()); }

bool is_whole(const StoredTensor& tensor) {
  return tensor.range.first == 0 &&
         tensor.range.count == static_cast<uint64_t>(numel(tensor.shape));
}

}  // namespace

std::string_view type_name(const Value& value) {
  constexpr std::string_view kNames[] = {"i64", "u64", "f64", "string"};
  return kNames[value.index()];
}

uint64_t place_tensor(uint64_t end, uint64_t bytes) {
  return align_up(end, bytes >= kPageAlignedBytes ? kPageAlignment : kAlignment);
}

uint64_t place_index(uint64_t end) { return align_up(end, kAlignment); }

uint32_t features_of(const Index& index) {
  const bool ranges = !std::all_of(index.tensors.begin(), index.tensors.end(), is_whole);
  return (ranges ? kFeatureRanges : 0) | (index.views.empty() ? 0 : kFeatureViews);
}

std::string encode_index(const Index& index) {
  std::unordered_set<std::string> seen;
  json tensors = json::array();
  for (const StoredTensor& tensor : index.tensors) {
    check_name(tensor.name, seen);
    json checksums = json::array();
    for (uint64_t checksum : tensor.checksums) checksums.push_back(to_hex(checksum));
    json& entry = tensors.emplace_back(json{{"name", tensor.name},
                                            {"dtype", name(tensor.dtype)},
                                            {"shape", sizes_json(tensor.shape)},
                                            {"offset", tensor.offset},
                                            {"bytes", tensor.bytes},
                                            {"xxh3", std::move(checksums)}});
    if (!is_whole(tensor)) entry["range"] = {tensor.range.first, tensor.range.count};
  }
  json views = json::array();
  for (const StoredView& view : index.views) {
    check_name(view.name, seen);
    views.push_back({{"name", view.name},
                     {"of", view.of},
                     {"shape", sizes_json(view.shape)},
                     {"strides", sizes_json(view.strides)},
                     {"start", view.start}});
  }
  json values = json::array();
  for (const NamedValue& value : index.values) {
    check_name(value.name, seen);
    values.push_back(encode_value(value));
  }
  json root = {{"tensors", std::move(tensors)}, {"values", std::move(values)}};
  if (!views.empty()) root["views"] = std::move(views);
  return root.dump();
}

Index decode_index(std::string_view text, uint64_t data_end, std::string_view what) {
  const std::string where = str_cat(what, ", index");
  const json root = parse_strict_json(text, where);
  Index index;
  std::unordered_set<std::string> seen;
  const auto check_stored_name = [&](const std::string& stored) {
    const std::string_view fault = name_fault(stored);
    if (!fault.empty()) corrupt(where, fault);
    if (!seen.insert(stored).second)
      corrupt(where, str_cat("the name '", stored, "' is there twice"));
  };
  uint64_t end = sizeof(FileHeader);
  for (const json& entry : json_array(root, "tensors", where)) {
    index.tensors.push_back(decode_tensor(entry, end, data_end, where));
    check_stored_name(index.tensors.back().name);
    end = index.tensors.back().offset + index.tensors.back().bytes;
  }
  if (place_index(end) != data_end) {
    corrupt(where, str_cat("the last tensor ends at byte ", end, " and the index is at ", data_end,
                           ", want ", place_index(end)));
  }
  if (root.contains("views")) {
    for (const json& entry : json_array(root, "views", where)) {
      index.views.push_back(decode_view(entry, where));
      check_stored_name(index.views.back().name);
    }
  }
  for (const json& entry : json_array(root, "values", where)) {
    index.values.push_back(decode_value(entry, where));
    check_stored_name(index.values.back().name);
  }
  return index;
}

}  // namespace lockstep::nn
