#include "lockstep/nn/safetensors.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/files.h"
#include "lockstep/nn/host_copy.h"
#include "lockstep/nn/safetensors/header.h"

namespace lockstep::nn {
namespace {

constexpr std::string_view kLoad = "load_safetensors";
constexpr std::string_view kSave = "save_safetensors";

}  // namespace

NamedTensors load_safetensors(const std::filesystem::path& path, Metadata* metadata) {
  const MappedFile file = map_file(path, kLoad);
  SafetensorsHeader header = decode_safetensors_header(file.text(), path.string());
  NamedTensors tensors;
  for (const SafetensorsEntry& entry : header.entries) {
    const std::optional<DType> dtype = dtype_of_safetensors(entry.dtype);
    if (!dtype) {
      throw Error(ErrorCode::kMismatch, kLoad,
                  str_cat(path.string(), ": tensor '", entry.name, "' has the dtype ", entry.dtype,
                          ", which Lockstep has not: save it as another one"));
    }
    tensors.emplace_back(entry.name, tensor_from(file, header.data_begin + entry.begin, entry.shape,
                                                 *dtype, entry.name, kLoad));
  }
  if (metadata != nullptr) *metadata = std::move(header.metadata);
  return tensors;
}

void save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                      const Metadata& metadata) {
  std::vector<SafetensorsEntry> entries;
  std::vector<size_t> order;
  for (const auto& [name, tensor] : tensors) {
    check(tensor.defined(), kSave,
          [&, &name = name] { return str_cat("'", name, "' is an undefined tensor"); });
    order.push_back(order.size());
  }
  const auto rank = [&](size_t i) {
    return safetensors_rank(safetensors_name(tensors[i].second.dtype()));
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tuple(-rank(a), std::string_view(tensors[a].first)) <
           std::tuple(-rank(b), std::string_view(tensors[b].first));
  });
  for (size_t i : order) {
    const auto& [name, tensor] = tensors[i];
    entries.push_back({name, std::string(safetensors_name(tensor.dtype())), tensor.shape(), 0,
                       static_cast<uint64_t>(tensor.nbytes())});
  }
  const std::string header = encode_safetensors_header(entries, metadata);
  replace_file(path, kSave, [&](OutputFile& file) {
    file.write(header);
    for (size_t i : order) {
      const Tensor dense = on_host(tensors[i].second);
      file.write(dense.view().data, static_cast<size_t>(dense.nbytes()));
    }
  });
}

}  // namespace lockstep::nn
