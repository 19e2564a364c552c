#include "lockstep/nn/checkpoint/snapshot.h"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_join.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint/checksum.h"
#include "lockstep/nn/checkpoint/directory.h"
#include "lockstep/nn/checkpoint/merge.h"
#include "lockstep/nn/checkpoint/together.h"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kLoad = "load_checkpoint";

// The files of a checkpoint, and what they hold together.
class OpenFiles {
 public:
  OpenFiles(const fs::path& path, const Manifest& manifest, const ReadOptions& options)
      : options_(options) {
    std::vector<Index> indexes;
    for (const Manifest::File& listed : manifest.files) {
      files_.push_back(std::make_unique<DataFile>(path / listed.name));
      const FileSummary summary = files_.back()->summary();
      if (summary.bytes != listed.summary.bytes ||
          summary.index_checksum != listed.summary.index_checksum) {
        throw Error(ErrorCode::kCorrupt, kLoad,
                    str_cat((path / listed.name).string(),
                            ": is whole, but not the file that the manifest names"));
      }
      indexes.push_back(files_.back()->index());
    }
    merged_ = merge_indexes(indexes, path.string());
    maps_.resize(files_.size());
  }

  const MergedIndex& merged() const { return merged_; }
  const DataFile& file(size_t i) const { return *files_[i]; }
  size_t size() const { return files_.size(); }

  // The tensors, in the order of merged().
  std::vector<Tensor> read() {
    std::vector<Tensor> tensors;
    std::vector<Task> tasks;
    for (const MergedTensor& tensor : merged_.tensors) tensors.push_back(prepare(tensor, tasks));
    run(tasks);
    return tensors;
  }

 private:
  // One piece of a tensor's data that is to be read, or to be verified where it is mapped.
  struct Task {
    const DataFile* file;
    const StoredTensor* stored;
    size_t piece;
    std::byte* data;  // of the stored range
    bool mapped;
  };

  Tensor prepare(const MergedTensor& tensor, std::vector<Task>& tasks) {
    const bool mapped = options_.mmap && tensor.pieces.size() == 1 && numel(tensor.shape) > 0;
    Tensor result = mapped ? map(tensor) : Tensor::empty(tensor.shape, {tensor.dtype});
    auto* data = static_cast<std::byte*>(result.view().data);
    for (const MergedTensor::Piece& part : tensor.pieces) {
      const DataFile& file = *files_[part.file];
      const StoredTensor& stored = file.index().tensors[part.entry];
      for (size_t piece = 0; piece < DataFile::piece_count(stored); ++piece) {
        tasks.push_back(
            {&file, &stored, piece, data + stored.range.first * size_of(tensor.dtype), mapped});
      }
    }
    return result;
  }

  Tensor map(const MergedTensor& tensor) {
    const MergedTensor::Piece part = tensor.pieces[0];
    std::shared_ptr<std::byte>& map = maps_[part.file];
    if (map == nullptr) map = files_[part.file]->map();
    std::byte* data = map.get() + files_[part.file]->index().tensors[part.entry].offset;
    return Tensor::wrap(std::shared_ptr<void>(map, data), tensor.shape, {tensor.dtype});
  }

  // Throws what the first task that failed threw.
  void run(const std::vector<Task>& tasks) const {
    std::mutex mutex;
    size_t failed = tasks.size();
    std::exception_ptr error;
    parallel_for(static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        const Task& task = tasks[i];
        try {
          if (!task.mapped) {
            task.file->read_piece(*task.stored, task.piece, task.data);
          } else {
            task.file->verify_piece(*task.stored, task.piece, task.data, options_.verify);
          }
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (i < failed) error = std::current_exception();
          failed = std::min(failed, i);
          return;
        }
      }
    });
    if (error != nullptr) std::rethrow_exception(error);
  }

  ReadOptions options_;
  std::vector<std::unique_ptr<DataFile>> files_;
  std::vector<std::shared_ptr<std::byte>> maps_;
  MergedIndex merged_;
};

// The tensors of the program: those that are stored under names of their own, then the views.
Contents make_contents(const MergedIndex& merged, const std::vector<Tensor>& stored) {
  Contents contents;
  std::map<std::string, Tensor> by_name;
  for (size_t i = 0; i < stored.size(); ++i) {
    const std::string& name = merged.tensors[i].name;
    if (name[0] != kHiddenPrefix) contents.tensors.emplace_back(name, stored[i]);
    if (!merged.views.empty()) by_name.emplace(name, stored[i]);
  }
  for (const StoredView& view : merged.views) {
    const Tensor& of = by_name.at(view.of);
    contents.tensors.emplace_back(view.name, alias(of, view.shape, view.strides, view.start));
  }
  contents.values = merged.values;
  return contents;
}

Snapshot read_checked(const fs::path& path, const Manifest& manifest, const ReadOptions& options) {
  OpenFiles files(path, manifest, options);
  Snapshot snapshot;
  snapshot.path = path;
  snapshot.step = manifest.step;
  snapshot.run = manifest.run;
  snapshot.world_size = manifest.world_size;
  snapshot.written = manifest.written;
  snapshot.writer = manifest.writer;
  for (size_t i = 0; i < files.size(); ++i) {
    snapshot.indexes.push_back({std::string(files.file(i).index_text()), files.file(i).data_end()});
  }
  snapshot.stored = files.read();
  snapshot.contents = make_contents(files.merged(), snapshot.stored);
  return snapshot;
}

// What must be the same on every rank that reads: the index has the checksums of all data.
uint64_t identity(const Snapshot& snapshot) {
  std::string text = str_cat(snapshot.run, " ", snapshot.step);
  for (const auto& index : snapshot.indexes) text += str_cat(" ", to_hex(xxh3(index.text)));
  return xxh3(text);
}

// Collective. Every rank gets rank 0's.
void share_snapshot(comm::Communicator* group, Snapshot& snapshot) {
  if (size_of_group(group) == 1) return;
  std::vector<uint64_t> ends;
  for (const auto& index : snapshot.indexes) ends.push_back(index.data_end);
  std::string head = json{{"step", snapshot.step},
                          {"run", snapshot.run},
                          {"world_size", snapshot.world_size},
                          {"written", snapshot.written},
                          {"writer", snapshot.writer},
                          {"data_ends", ends}}
                         .dump(-1, ' ', false, json::error_handler_t::replace);
  share_text(group, head);
  const json fields = json::parse(head);
  snapshot.indexes.resize(fields.at("data_ends").size());
  for (auto& index : snapshot.indexes) share_text(group, index.text);
  together(group, kLoad, [&] {
    if (group->rank() == 0) return;
    snapshot.step = fields.at("step").get<int64_t>();
    snapshot.run = fields.at("run").get<std::string>();
    snapshot.world_size = fields.at("world_size").get<int>();
    snapshot.written = fields.at("written").get<std::string>();
    snapshot.writer = fields.at("writer").get<std::string>();
    std::vector<Index> indexes;
    for (size_t i = 0; i < snapshot.indexes.size(); ++i) {
      auto& index = snapshot.indexes[i];
      index.data_end = fields.at("data_ends")[i].get<uint64_t>();
      indexes.push_back(decode_index(index.text, index.data_end, snapshot.path.string()));
    }
    const MergedIndex merged = merge_indexes(indexes, snapshot.path.string());
    for (const MergedTensor& tensor : merged.tensors) {
      snapshot.stored.push_back(Tensor::empty(tensor.shape, {tensor.dtype}));
    }
    snapshot.contents = make_contents(merged, snapshot.stored);
  });
  for (Tensor& tensor : snapshot.stored) {
    share_bytes(group, tensor.view().data, static_cast<size_t>(tensor.nbytes()));
  }
}

// Collective. `path` may differ between ranks that have disks of their own.
Snapshot read_together(const fs::path& path, std::string_view op,
                       const SharedReadOptions& options) {
  Snapshot snapshot;
  together(options.group, op, [&] {
    const bool reads = options.all_read || rank_of(options.group) == 0;
    if (reads) snapshot = read_snapshot(path, options.read);
    snapshot.path = path;
  });
  if (!options.all_read) {
    share_snapshot(options.group, snapshot);
    return snapshot;
  }
  const std::vector<uint64_t> all = gather_words(options.group, {identity(snapshot)});
  const auto other = std::find_if(all.begin(), all.end(), [&](uint64_t w) { return w != all[0]; });
  if (other != all.end()) {
    throw Error(ErrorCode::kMismatch, op,
                str_cat("rank ", other - all.begin(), " reads another checkpoint than rank 0 as ",
                        path.filename().string(),
                        ": give every rank the same files, or let one rank read for all"));
  }
  return snapshot;
}

// What is in a folder, newest first.
struct Candidates {
  std::vector<std::string> names;
  std::vector<std::string> damage;  // of those whose manifest says nothing
  std::vector<std::string> all;     // with the damaged ones
};

Candidates find_candidates(const fs::path& folder) {
  Candidates result;
  const std::vector<StoredCheckpoint> found = find_checkpoints(folder);
  for (const StoredCheckpoint& stored : found) {
    check(!stored.manifest || stored.manifest->run == found[0].manifest->run, "load_latest", [&] {
      return str_cat(folder.string(), " holds checkpoints of several runs, among them ",
                     found[0].path.filename().string(), " and ", stored.path.filename().string(),
                     ": name the one to load in load_checkpoint()");
    });
    result.all.push_back(stored.path.filename().string());
    if (stored.manifest) {
      result.names.push_back(result.all.back());
    } else {
      // Which of these are newer than the one that is taken cannot be known.
      result.damage.push_back(stored.damage);
    }
  }
  return result;
}

// Collective. Every rank gets rank 0's.
void share_lines(comm::Communicator* group, std::vector<std::string>& lines) {
  std::string text = json(lines).dump(-1, ' ', false, json::error_handler_t::replace);
  share_text(group, text);
  lines = json::parse(text).get<std::vector<std::string>>();
}

}  // namespace

Snapshot read_snapshot(const fs::path& path, const ReadOptions& options) {
  std::error_code error;
  if (!fs::exists(path / kManifestName, error) && !find_checkpoints(path).empty()) {
    throw Error(ErrorCode::kInvalidArgument, kLoad,
                str_cat(path.string(), " is a folder of checkpoints: name one, as in ",
                        find_checkpoints(path)[0].path.string(), ", or call load_latest()"));
  }
  return read_checked(path, read_manifest(path), options);
}

Snapshot read_snapshot_together(const fs::path& path, const SharedReadOptions& options) {
  return read_together(path, kLoad, options);
}

Snapshot read_latest_together(const fs::path& folder, const SharedReadOptions& options) {
  constexpr std::string_view kOp = "load_latest";
  std::vector<std::string> before;
  while (true) {
    Candidates found;
    together(options.group, kOp, [&] {
      if (rank_of(options.group) == 0) found = find_candidates(folder);
    });
    share_lines(options.group, found.names);
    share_lines(options.group, found.damage);
    share_lines(options.group, found.all);
    if (found.all.empty()) return {};
    for (const std::string& name : found.names) {
      try {
        Snapshot snapshot = read_together(folder / name, kOp, options);
        snapshot.skipped = found.damage;
        return snapshot;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kCorrupt) throw;
        found.damage.push_back(error.what());
      }
    }
    // A writer may have removed all that were there, having saved newer ones.
    if (found.all == before) {
      throw Error(ErrorCode::kCorrupt, kOp,
                  str_cat("every checkpoint in ", folder.string(), " is damaged:\n  ",
                          absl::StrJoin(found.damage, "\n  ")));
    }
    before = found.all;
  }
}

}  // namespace lockstep::nn
