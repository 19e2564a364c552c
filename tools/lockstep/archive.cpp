#include "archive.h"

#include <optional>
#include <set>
#include <system_error>

#include "absl/strings/str_join.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint/directory.h"
#include "lockstep/nn/checkpoint/snapshot.h"
#include "lockstep/nn/files.h"
#include "lockstep/nn/numpy.h"
#include "lockstep/nn/safetensors/header.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOp = "read";

Entry entry_of(std::string name, Tensor tensor) {
  return {std::move(name), std::string(lockstep::name(tensor.dtype())), tensor.shape(),
          tensor.nbytes(), tensor};
}

void add_tensors(Archive& archive, const nn::NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) archive.tensors.push_back(entry_of(name, tensor));
}

void read_checkpoint(Archive& archive) {
  archive.format = Format::kCheckpoint;
  const nn::Manifest manifest = nn::read_manifest(archive.path);
  nn::Snapshot snapshot = nn::read_snapshot(archive.path);
  add_tensors(archive, snapshot.contents.tensors);
  archive.values = std::move(snapshot.contents.values);
  archive.about = {{"step", std::to_string(manifest.step)},
                   {"written", manifest.written},
                   {"world_size", std::to_string(manifest.world_size)},
                   {"run", manifest.run}};
}

// Not load_safetensors(): a file that has tensors of dtypes which Lockstep has not is shown, too.
void read_safetensors(Archive& archive, const nn::MappedFile& file) {
  archive.format = Format::kSafetensors;
  nn::SafetensorsHeader header = nn::decode_safetensors_header(file.text(), file.path.string());
  for (nn::SafetensorsEntry& stored : header.entries) {
    const std::optional<DType> dtype = nn::dtype_of_safetensors(stored.dtype);
    const auto bytes = static_cast<int64_t>(stored.end - stored.begin);
    if (!dtype) {
      archive.tensors.push_back({std::move(stored.name), stored.dtype, stored.shape, bytes, {}});
      continue;
    }
    Tensor tensor = nn::tensor_from(file, header.data_begin + stored.begin, stored.shape, *dtype,
                                    stored.name, "load_safetensors");
    archive.tensors.push_back(entry_of(std::move(stored.name), std::move(tensor)));
  }
  archive.about.assign(header.metadata.begin(), header.metadata.end());
}

// "model" of "model/fc.weight".
std::string part_of(const std::string& name) { return name.substr(0, name.find('/')); }

}  // namespace

std::string_view name(Format format) {
  constexpr std::string_view kNames[] = {"checkpoint", "safetensors", "npz", "npy"};
  return kNames[static_cast<size_t>(format)];
}

bool is_checkpoint_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error) && !fs::exists(path / nn::kManifestName, error) &&
         !nn::find_checkpoints(path).empty();
}

Archive read_archive(const fs::path& path) {
  Archive archive;
  archive.path = path;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    check(fs::exists(path / nn::kManifestName, error), kOp, [&] {
      return str_cat("the folder ", path.string(), " is no checkpoint: it has no ",
                     nn::kManifestName);
    });
    read_checkpoint(archive);
    return archive;
  }
  const nn::MappedFile file = nn::map_file(path, kOp);
  const std::string_view text = file.text();
  if (text.starts_with("\x93NUMPY")) {
    archive.format = Format::kNpy;
    archive.tensors.push_back(entry_of(path.stem().string(), nn::load_npy(path)));
  } else if (text.starts_with("PK")) {
    archive.format = Format::kNpz;
    add_tensors(archive, nn::load_npz(path));
  } else if (text.starts_with("\x89LSCK")) {
    throw Error(ErrorCode::kInvalidArgument, kOp,
                str_cat(path.string(), " is a part of a checkpoint: name its folder, ",
                        (path.has_parent_path() ? path.parent_path() : fs::path(".")).string()));
  } else if (text.size() > 8 && text[8] == '{') {
    read_safetensors(archive, file);
  } else {
    throw Error(ErrorCode::kInvalidArgument, kOp,
                str_cat(path.string(),
                        " is neither a checkpoint's folder nor a .safetensors, .npz or .npy file"));
  }
  return archive;
}

std::string keep_part(Archive& archive, std::string part) {
  std::set<std::string> parts;
  for (const Entry& entry : archive.tensors) parts.insert(part_of(entry.name));
  if (part.empty()) part = parts.size() == 1 && !parts.contains("model") ? *parts.begin() : "model";
  check(parts.contains(part), kOp, [&] {
    return str_cat(archive.path.string(), " has no tensors under '", part, "'; it has ",
                   parts.empty() ? "none" : absl::StrJoin(parts, ", "), ": choose with --part");
  });
  std::vector<Entry> kept;
  for (Entry& entry : archive.tensors) {
    if (part_of(entry.name) != part) continue;
    if (entry.name.size() > part.size()) entry.name.erase(0, part.size() + 1);
    kept.push_back(std::move(entry));
  }
  archive.tensors = std::move(kept);
  archive.values.clear();
  return part;
}

}  // namespace lockstep::cli
