#include "lockstep/nn/checkpoint/directory.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <system_error>
#include <utility>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kTemporary = ".tmp";
constexpr const char* kLatest = "latest";

// The names in a folder, sorted; empty where there is no such folder.
std::vector<std::string> list_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw Error(ErrorCode::kIo, "checkpoint",
                str_cat("cannot list ", folder.string(), ": ", error.message()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The step of "step-00000123"; nullopt for any other spelling.
std::optional<int64_t> parse_name(std::string_view name) {
  if (!name.starts_with(kPrefix) || name.size() > kPrefix.size() + 18) return std::nullopt;
  int64_t step = 0;
  for (char digit : name.substr(kPrefix.size())) {
    if (digit < '0' || digit > '9') return std::nullopt;
    step = step * 10 + (digit - '0');
  }
  return checkpoint_name(step) == name ? std::optional(step) : std::nullopt;
}

std::optional<int64_t> parse_temporary_name(std::string_view name) {
  if (!name.ends_with(kTemporary)) return std::nullopt;
  return parse_name(name.substr(0, name.size() - kTemporary.size()));
}

bool is_data_file_name(const std::string& name) {
  int index = -1;
  return std::sscanf(name.c_str(), "data-%5d", &index) == 1 && index >= 0 &&
         name == data_file_name(index);
}

// A file in a checkpoint's directory that is not a checkpoint's; empty where there is none.
std::string foreign_file(const fs::path& directory) {
  for (const std::string& name : list_names(directory)) {
    std::error_code error;
    const bool ours = (name == kManifestName || is_data_file_name(name)) &&
                      fs::is_regular_file(fs::symlink_status(directory / name, error));
    if (!ours) return name;
  }
  return "";
}

bool is_removable(const fs::path& directory) {
  std::error_code error;
  return fs::is_directory(fs::symlink_status(directory, error)) && foreign_file(directory).empty();
}

// A temporary directory that has only a checkpoint's files.
void remove_temporary(Disk& disk, const fs::path& directory) {
  const std::string foreign = foreign_file(directory);
  if (!foreign.empty()) {
    throw Error(ErrorCode::kIo, "save_checkpoint",
                str_cat(directory.string(), " holds '", foreign,
                        "', which no checkpoint has: move it away or remove the folder"));
  }
  for (const std::string& name : list_names(directory)) disk.remove_file(directory / name);
  disk.remove_directory(directory);
}

// It is renamed first, so that a crash in between leaves no directory that looks complete.
void remove_checkpoint(Disk& disk, const fs::path& path) {
  fs::path temporary = path;
  temporary += kTemporary;
  disk.rename(path, temporary);
  remove_temporary(disk, temporary);
}

void make_folder(Disk& disk, const fs::path& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return;
  const fs::path parent = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  if (parent != folder) make_folder(disk, parent);
  // "a/b/" ends in an empty name: its parent is the folder itself.
  if (!folder.has_filename()) return;
  disk.make_directory(folder);
  disk.sync_directory(parent);
}

void check_same_run(const fs::path& folder, const std::vector<StoredCheckpoint>& found,
                    const std::string& run) {
  for (const StoredCheckpoint& other : found) {
    check(!other.manifest || other.manifest->run == run, "save_checkpoint", [&] {
      return str_cat(folder.string(), " holds checkpoints of another run, the newest is ",
                     other.path.filename().string(), " of ", other.manifest->written,
                     ": go on from it with load_latest(), choose another folder, or call "
                     "remove_checkpoints() first. (A TrainingState is one run: make it once and "
                     "keep it.)");
    });
  }
}

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

void write_hint(Disk& disk, const fs::path& folder, const std::string& name) {
  const fs::path temporary = folder / str_cat(kLatest, kTemporary);
  std::error_code error;
  if (fs::exists(fs::symlink_status(temporary, error))) disk.remove_file(temporary);
  OutputFile file(disk, temporary);
  file.write(name + "\n");
  file.finish();
  disk.rename(temporary, folder / kLatest);
}

}  // namespace

std::string checkpoint_name(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return name;
}

fs::path temporary_path(const fs::path& folder, int64_t step) {
  return folder / str_cat(checkpoint_name(step), kTemporary);
}

std::vector<StoredCheckpoint> find_checkpoints(const fs::path& folder) {
  std::vector<StoredCheckpoint> found;
  for (const std::string& name : list_names(folder)) {
    const std::optional<int64_t> step = parse_name(name);
    if (!step) continue;
    StoredCheckpoint& stored = found.emplace_back();
    stored.path = folder / name;
    stored.step = *step;
    try {
      Manifest manifest = read_manifest(stored.path);
      if (manifest.step == *step) {
        stored.manifest = std::move(manifest);
      } else {
        stored.damage = str_cat(stored.path.string(), ": its manifest is of step ", manifest.step);
      }
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCorrupt) throw;
      stored.damage = error.what();
    }
  }
  const auto newness = [](const StoredCheckpoint& stored) {
    return std::pair(stored.manifest ? stored.manifest->serial : 0, stored.step);
  };
  std::sort(found.begin(), found.end(),
            [&](const auto& a, const auto& b) { return newness(a) > newness(b); });
  return found;
}

CheckpointSave::CheckpointSave(Disk& disk, fs::path folder, SaveRequest request)
    : disk_(disk), folder_(std::move(folder)), request_(std::move(request)) {
  make_folder(disk_, folder_);
  lock_ = std::make_unique<DirectoryLock>(folder_);
  const std::vector<StoredCheckpoint> before = find_checkpoints(folder_);
  check_same_run(folder_, before, request_.run);
  serial_ = 1 + (before.empty() || !before[0].manifest ? 0 : before[0].manifest->serial);
  target_ = folder_ / checkpoint_name(request_.step);
  replaces_ = std::any_of(before.begin(), before.end(), [&](const auto& stored) {
    return stored.step == request_.step && stored.manifest;
  });
  temporary_ = temporary_path(folder_, request_.step);
  std::error_code error;
  if (fs::exists(fs::symlink_status(temporary_, error))) remove_temporary(disk_, temporary_);
  disk_.make_directory(temporary_);
}

CheckpointSave::~CheckpointSave() {
  if (finished_) return;
  // A disk that is full needs its space back. What cannot be removed the next save removes.
  try {
    if (is_removable(temporary_)) remove_temporary(disk_, temporary_);
  } catch (const std::exception&) {
  }
}

void CheckpointSave::write_manifest(const std::vector<FileSummary>& files) {
  Manifest manifest;
  manifest.step = request_.step;
  manifest.serial = serial_;
  manifest.run = request_.run;
  manifest.world_size = request_.world_size;
  manifest.written = now_utc();
  manifest.writer = "lockstep " LOCKSTEP_VERSION;
  for (const FileSummary& summary : files) {
    const std::string name = data_file_name(static_cast<int>(manifest.files.size()));
    std::error_code error;
    if (fs::file_size(temporary_ / name, error) != summary.bytes || error) {
      throw Error(ErrorCode::kIo, "save_checkpoint",
                  str_cat("rank ", manifest.files.size(), " has written ", name,
                          ", but rank 0 does not see it whole in ", temporary_.string(),
                          ": a sharded save needs a folder that all ranks share"));
    }
    manifest.files.push_back({name, summary});
  }
  OutputFile file(disk_, temporary_ / kManifestName);
  file.write(encode_manifest(manifest));
  file.finish();
  disk_.sync_directory(temporary_);
}

// What had the name is in the temporary directory afterwards. Returns whether there was something.
bool CheckpointSave::publish() {
  std::error_code error;
  const bool taken = fs::exists(fs::symlink_status(target_, error));
  if (!taken) {
    disk_.rename(temporary_, target_);
  } else if (!disk_.exchange(temporary_, target_)) {
    throw Error(ErrorCode::kIo, "save_checkpoint",
                str_cat(target_.string(),
                        " is there, and this file system cannot replace a folder in one step: "
                        "move it away first"));
  }
  // From here on what is in temporary_ is not this save's.
  finished_ = true;
  disk_.sync_directory(target_.parent_path());
  return taken;
}

// What had the new checkpoint's name: an older save of the same step is removed, anything else
// kept.
void CheckpointSave::put_away(bool same_step) {
  if (same_step && is_removable(temporary_)) return remove_temporary(disk_, temporary_);
  fs::path aside = target_;
  std::error_code error;
  for (int i = 1; fs::exists(fs::symlink_status(aside, error)); ++i) {
    aside = target_;
    aside += str_cat(".aside-", i);
  }
  disk_.rename(temporary_, aside);
}

void CheckpointSave::remove_older() {
  // What dead writers left goes first: its names are needed for what goes next.
  for (const std::string& name : list_names(folder_)) {
    if (parse_temporary_name(name) && is_removable(folder_ / name)) {
      remove_temporary(disk_, folder_ / name);
    }
  }
  int kept = 0;
  for (const StoredCheckpoint& stored : find_checkpoints(folder_)) {
    if (!stored.manifest || ++kept <= request_.keep || request_.keep == 0) continue;
    if (request_.keep_every > 0 && stored.step % request_.keep_every == 0) continue;
    if (is_removable(stored.path)) remove_checkpoint(disk_, stored.path);
  }
  disk_.sync_directory(folder_);
}

void CheckpointSave::finish(const std::vector<FileSummary>& files,
                            const std::function<void(const std::string&)>& warn) {
  write_manifest(files);
  const bool taken = publish();
  // The checkpoint is durable: nothing below may fail the save.
  try {
    if (taken) put_away(replaces_);
    write_hint(disk_, folder_, checkpoint_name(request_.step));
    remove_older();
  } catch (const Error& late) {
    warn(str_cat(target_.string(),
                 " is saved, but the folder could not be tidied up: ", late.what()));
  }
}

void remove_all_checkpoints(Disk& disk, const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return;
  const DirectoryLock lock(folder);
  const auto names = list_names(folder);
  for (const std::string& name : names) {
    if (parse_temporary_name(name) && is_removable(folder / name)) {
      remove_temporary(disk, folder / name);
    }
  }
  for (const std::string& name : names) {
    if (parse_name(name) && is_removable(folder / name)) remove_checkpoint(disk, folder / name);
  }
  if (std::find(names.begin(), names.end(), kLatest) != names.end()) {
    disk.remove_file(folder / kLatest);
  }
  disk.sync_directory(folder);
}

}  // namespace lockstep::nn
