#include "lockstep/nn/checkpoint/manifest.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint/checksum.h"
#include "lockstep/nn/checkpoint/strict_json.h"

namespace lockstep::nn {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "lockstep-checkpoint";
// The feature of a checkpoint that has not exactly one data file.
constexpr const char* kSharded = "sharded";
constexpr uint64_t kMaxManifestBytes = uint64_t{16} << 20;

// The text ends with a member that holds the checksum of all bytes before it.
constexpr std::string_view kSealBegin = ",\"xxh3\":\"";
constexpr std::string_view kSealEnd = "\"}\n";
constexpr size_t kSealBytes = kSealBegin.size() + 16 + kSealEnd.size();

[[noreturn]] void corrupt(std::string_view what, std::string_view message) {
  throw Error(ErrorCode::kCorrupt, "load_checkpoint", str_cat(what, ": ", message));
}

void check_seal(std::string_view text, std::string_view what) {
  if (text.size() < kSealBytes) corrupt(what, "was cut short");
  const std::string_view seal = text.substr(text.size() - kSealBytes);
  const auto checksum = parse_hex(seal.substr(kSealBegin.size(), 16));
  if (!seal.starts_with(kSealBegin) || !seal.ends_with(kSealEnd) || !checksum) {
    corrupt(what, "does not end with a checksum: it was cut short, or something was appended");
  }
  if (*checksum != xxh3(text.substr(0, text.size() - kSealBytes))) {
    corrupt(what, "does not match its checksum");
  }
}

int64_t bounded(const json& root, const char* key, int64_t least, int64_t most,
                std::string_view what) {
  const uint64_t value = json_unsigned(root, key, what);
  if (value > static_cast<uint64_t>(most) || value < static_cast<uint64_t>(least)) {
    corrupt(what, str_cat("'", key, "' is out of range: ", value));
  }
  return static_cast<int64_t>(value);
}

}  // namespace

std::string data_file_name(int index) {
  char name[32];
  std::snprintf(name, sizeof name, "data-%05d.lsck", index);
  return name;
}

std::string encode_manifest(const Manifest& manifest) {
  json files = json::array();
  for (const Manifest::File& file : manifest.files) {
    files.push_back({{"name", file.name},
                     {"bytes", file.summary.bytes},
                     {"index_xxh3", to_hex(file.summary.index_checksum)}});
  }
  std::string text = json{
      {"format", kFormat},
      {"version", kCheckpointVersion},
      {"features", manifest.files.size() == 1 ? json::array() : json::array({kSharded})},
      {"step", manifest.step},
      {"serial", manifest.serial},
      {"run", manifest.run},
      {"world_size", manifest.world_size},
      {"written", manifest.written},
      {"writer", manifest.writer},
      {"files",
       std::move(files)}}.dump();
  text.pop_back();
  return str_cat(text, kSealBegin, to_hex(xxh3(text)), kSealEnd);
}

Manifest decode_manifest(std::string_view text, std::string_view what) {
  check_seal(text, what);
  const json root = parse_strict_json(text, what);
  if (json_string(root, "format", what) != kFormat) corrupt(what, "is not a checkpoint's manifest");
  const uint64_t version = json_unsigned(root, "version", what);
  const json::array_t& features = json_array(root, "features", what);
  const bool known = std::all_of(features.begin(), features.end(),
                                 [](const json& feature) { return feature == kSharded; });
  if (version != kCheckpointVersion || !known) {
    throw Error(ErrorCode::kMismatch, "load_checkpoint",
                str_cat(what, " has version ", version, " of the format and the features ",
                        json(features).dump(-1, ' ', true), ", this program reads version ",
                        kCheckpointVersion, " with '", kSharded,
                        "': load it with the Lockstep that wrote it or a later one"));
  }
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  Manifest manifest;
  manifest.step = bounded(root, "step", 0, kMost, what);
  manifest.serial = static_cast<uint64_t>(bounded(root, "serial", 1, kMost - 1, what));
  manifest.world_size =
      static_cast<int>(bounded(root, "world_size", 1, std::numeric_limits<int>::max(), what));
  manifest.run = json_string(root, "run", what);
  manifest.written = json_string(root, "written", what);
  if (root.contains("writer")) manifest.writer = json_string(root, "writer", what);
  const json::array_t& files = json_array(root, "files", what);
  if (files.empty() || files.size() > kMaxFiles || (files.size() > 1) == features.empty()) {
    corrupt(what, str_cat("names ", files.size(), " files and ", features.size(),
                          " features: want 1 file, or as many as ranks and '", kSharded, "'"));
  }
  for (const json& entry : files) {
    Manifest::File file;
    file.name = json_string(entry, "name", what);
    file.summary.bytes = json_unsigned(entry, "bytes", what);
    file.summary.index_checksum = json_hex(json_member(entry, "index_xxh3", what), what);
    // Names that follow from the place can neither repeat nor point out of the directory.
    const std::string wanted = data_file_name(static_cast<int>(manifest.files.size()));
    if (file.name != wanted) corrupt(what, str_cat("names '", file.name, "', want ", wanted));
    manifest.files.push_back(std::move(file));
  }
  return manifest;
}

Manifest read_manifest(const std::filesystem::path& directory) {
  const InputFile file(directory / kManifestName);
  const std::string what = file.path().string();
  if (file.size() > kMaxManifestBytes) {
    corrupt(what, str_cat("has ", file.size(), " bytes, too many for a manifest"));
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, text.data(), text.size());
  Manifest manifest = decode_manifest(text, what);
  for (const Manifest::File& listed : manifest.files) {
    const InputFile data(directory / listed.name);
    if (data.size() != listed.summary.bytes) {
      corrupt(data.path().string(),
              str_cat("has ", data.size(), " bytes, the manifest says ", listed.summary.bytes,
                      data.size() < listed.summary.bytes ? ": it was cut short" : ""));
    }
  }
  return manifest;
}

}  // namespace lockstep::nn
