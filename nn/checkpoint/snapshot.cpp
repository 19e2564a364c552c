#include "lockstep/nn/checkpoint/snapshot.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_join.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint/directory.h"
#include "lockstep/nn/checkpoint/together.h"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Tensors for what an index lists, not filled, and its values.
Contents make_contents(const Index& index) {
  Contents contents;
  for (const StoredTensor& stored : index.tensors) {
    contents.tensors.emplace_back(stored.name, Tensor::empty(stored.shape, {stored.dtype}));
  }
  contents.values = index.values;
  return contents;
}

Snapshot read_checked(const fs::path& path, const Manifest& manifest) {
  const Manifest::File& listed = manifest.files[0];
  const DataFile file(path / listed.name);
  if (file.summary().bytes != listed.summary.bytes ||
      file.summary().index_checksum != listed.summary.index_checksum) {
    throw Error(ErrorCode::kCorrupt, "load_checkpoint",
                str_cat((path / listed.name).string(),
                        ": is whole, but not the file that the manifest names"));
  }
  Snapshot snapshot;
  snapshot.path = path;
  snapshot.step = manifest.step;
  snapshot.run = manifest.run;
  snapshot.index_text = file.index_text();
  snapshot.data_end = file.data_end();
  snapshot.contents = make_contents(file.index());
  for (size_t i = 0; i < file.index().tensors.size(); ++i) {
    file.read(file.index().tensors[i], snapshot.contents.tensors[i].second.view().data);
  }
  return snapshot;
}

// nullopt where all are damaged; `damage` says how.
std::optional<Snapshot> read_newest(const fs::path& folder,
                                    const std::vector<StoredCheckpoint>& found,
                                    std::vector<std::string>& damage) {
  for (const StoredCheckpoint& stored : found) {
    check(!stored.manifest || stored.manifest->run == found[0].manifest->run, "load_latest", [&] {
      return str_cat(folder.string(), " holds checkpoints of several runs, among them ",
                     found[0].path.filename().string(), " and ", stored.path.filename().string(),
                     ": name the one to load in load_checkpoint()");
    });
    // Which of those without a manifest are newer than the one that is taken cannot be known.
    if (!stored.manifest) damage.push_back(stored.damage);
  }
  for (const StoredCheckpoint& stored : found) {
    if (!stored.manifest) break;
    try {
      Snapshot snapshot = read_checked(stored.path, *stored.manifest);
      snapshot.skipped = damage;
      return snapshot;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt) throw;
      damage.push_back(error.what());
    }
  }
  return std::nullopt;
}

std::vector<fs::path> paths_of(const std::vector<StoredCheckpoint>& found) {
  std::vector<fs::path> paths;
  for (const StoredCheckpoint& stored : found) paths.push_back(stored.path);
  return paths;
}

}  // namespace

Snapshot read_snapshot(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path / kManifestName, error) && !find_checkpoints(path).empty()) {
    throw Error(ErrorCode::kInvalidArgument, "load_checkpoint",
                str_cat(path.string(), " is a folder of checkpoints: name one, as in ",
                        find_checkpoints(path)[0].path.string(), ", or call load_latest()"));
  }
  return read_checked(path, read_manifest(path));
}

Snapshot read_latest(const fs::path& folder) {
  std::vector<StoredCheckpoint> found = find_checkpoints(folder);
  while (true) {
    std::vector<std::string> damage;
    std::optional<Snapshot> snapshot = read_newest(folder, found, damage);
    if (snapshot) return *std::move(snapshot);
    if (found.empty()) return {};
    // A writer may have removed all that were there, having saved newer ones.
    std::vector<StoredCheckpoint> now = find_checkpoints(folder);
    if (paths_of(now) == paths_of(found)) {
      throw Error(ErrorCode::kCorrupt, "load_latest",
                  str_cat("every checkpoint in ", folder.string(), " is damaged:\n  ",
                          absl::StrJoin(damage, "\n  ")));
    }
    found = std::move(now);
  }
}

void share_snapshot(comm::Communicator* group, Snapshot& snapshot) {
  if (size_of_group(group) == 1) return;
  std::string head = json{{"path", snapshot.path.string()},
                          {"step", snapshot.step},
                          {"run", snapshot.run},
                          {"skipped", snapshot.skipped},
                          {"data_end", snapshot.data_end}}
                         .dump(-1, ' ', false, json::error_handler_t::replace);
  share_text(group, head);
  share_text(group, snapshot.index_text);
  together(group, "load_checkpoint", [&] {
    if (group->rank() == 0) return;
    const json fields = json::parse(head);
    snapshot.path = fields.at("path").get<std::string>();
    snapshot.step = fields.at("step").get<int64_t>();
    snapshot.run = fields.at("run").get<std::string>();
    snapshot.skipped = fields.at("skipped").get<std::vector<std::string>>();
    snapshot.data_end = fields.at("data_end").get<uint64_t>();
    if (snapshot.path.empty()) return;
    snapshot.contents =
        make_contents(decode_index(snapshot.index_text, snapshot.data_end, snapshot.path.string()));
  });
  for (auto& [name, tensor] : snapshot.contents.tensors) {
    share_bytes(group, tensor.view().data, static_cast<size_t>(tensor.nbytes()));
  }
}

}  // namespace lockstep::nn
