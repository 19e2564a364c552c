#include "lockstep/nn/checkpoint/directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "../errors.h"
#include "checkpoint_files.h"
#include "lockstep/kernels/error.h"
#include "lockstep/nn/checkpoint/checksum.h"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::names_in;
using ::testing::Not;
using testing::read_file;
using testing::TemporaryDirectory;
using ::testing::UnorderedElementsAre;
using testing::write_file;

const std::string kRun = "0123456789abcdef0123456789abcdef";

// A save whose contents tell its step, large enough for several writes.
struct Save {
  int64_t step = 0;
  int keep = 0;
  int64_t keep_every = 0;
  std::string run = kRun;
  size_t elements = 300001;
};

void save(Disk& disk, const fs::path& folder, const Save& s,
          std::vector<std::string>* warnings = nullptr) {
  std::vector<int32_t> data(s.elements);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<int32_t>(i * 31) ^ int32_t(s.step);
  const TensorBytes tensors[] = {
      whole_tensor("weight", DType::kI32, {static_cast<int64_t>(data.size())}, data.data())};
  const NamedValue values[] = {{"step", s.step}};
  CheckpointSave writer(disk, folder, {s.step, s.run, 1, s.keep, s.keep_every});
  const FileSummary summary =
      write_data_file(disk, writer.directory() / data_file_name(0), tensors, values);
  writer.finish({summary}, [&](const std::string& text) {
    if (warnings != nullptr) {
      warnings->push_back(text);
    } else {
      ADD_FAILURE() << text;
    }
  });
}

void save(const fs::path& folder, const Save& s) {
  Disk disk;
  save(disk, folder, s);
}

// The steps of a folder's checkpoints that verify in full and hold what was saved, newest first.
std::vector<int64_t> whole_steps(const fs::path& folder) {
  std::vector<int64_t> steps;
  for (const StoredCheckpoint& stored : find_checkpoints(folder)) {
    if (!stored.manifest) continue;
    const DataFile file(stored.path / stored.manifest->files[0].name);
    EXPECT_EQ(file.summary().index_checksum, stored.manifest->files[0].summary.index_checksum);
    const StoredTensor& tensor = file.index().tensors[0];
    std::vector<int32_t> data(tensor.bytes / sizeof(int32_t));
    file.read(tensor, data.data());
    for (size_t i = 0; i < data.size(); i += 1009) {
      EXPECT_EQ(data[i], static_cast<int32_t>(i * 31) ^ int32_t(stored.step));
    }
    EXPECT_EQ(std::get<int64_t>(file.index().values[0].value), stored.step);
    steps.push_back(stored.step);
  }
  return steps;
}

// Counts the steps of a save, and ends the process or fails at one of them.
class FaultyDisk : public Disk {
 public:
  enum class Kind { kNone, kExit, kThrow, kThrowFromHereOn };
  FaultyDisk(Kind kind, int at, bool sync_files = true)
      : Disk("save_checkpoint", sync_files), kind_(kind), at_(at) {}

  void before(std::string_view step, const fs::path& path) override {
    ++count_;
    log_.push_back(std::string(step) + " " + path.filename().string());
    if (kind_ == Kind::kExit && count_ == at_) ::_exit(77);
    if ((kind_ == Kind::kThrow && count_ == at_) ||
        (kind_ == Kind::kThrowFromHereOn && count_ >= at_)) {
      throw Error(ErrorCode::kIo, "save_checkpoint", "No space left on device (injected)");
    }
  }
  int count() const { return count_; }
  const std::vector<std::string>& log() const { return log_; }

 private:
  Kind kind_;
  int at_;
  int count_ = 0;
  std::vector<std::string> log_;
};

int steps_of_a_save(const fs::path& folder, const Save& s) {
  FaultyDisk counter(FaultyDisk::Kind::kNone, 0);
  save(counter, folder, s);
  return counter.count();
}

TEST(CheckpointDirectory, ASaveIsAFolderOfDataAndManifestAndAHint) {
  const TemporaryDirectory dir;
  save(dir / "a/b/c/", {.step = 123});
  EXPECT_THAT(names_in(dir / "a/b/c"), UnorderedElementsAre("step-00000123", "latest"));
  EXPECT_THAT(names_in(dir / "a/b/c/step-00000123"),
              UnorderedElementsAre("data-00000.lsck", "manifest.json"));
  EXPECT_EQ(read_file(dir / "a/b/c/latest"), "step-00000123\n");
  EXPECT_THAT(whole_steps(dir / "a/b/c"), ElementsAre(123));
}

TEST(CheckpointDirectory, EverythingIsSyncedBeforeTheRenameAndTheFolderAfterIt) {
  const TemporaryDirectory dir;
  FaultyDisk disk(FaultyDisk::Kind::kNone, 0);
  save(disk, dir.path(), {.step = 7});
  std::vector<std::string> log;
  for (const std::string& line : disk.log()) {
    if (!line.starts_with("write ")) log.push_back(line);
  }
  const std::string top = dir.path().filename().string();
  EXPECT_THAT(
      log, ElementsAre("mkdir step-00000007.tmp", "open data-00000.lsck", "fsync data-00000.lsck",
                       "open manifest.json", "fsync manifest.json", "fsync step-00000007.tmp",
                       "rename step-00000007", "fsync " + top, "open latest.tmp",
                       "fsync latest.tmp", "rename latest", "fsync " + top));
}

TEST(CheckpointDirectory, WithoutSyncFilesNothingIsSynced) {
  const TemporaryDirectory dir;
  FaultyDisk disk(FaultyDisk::Kind::kNone, 0, false);
  save(disk, dir.path(), {.step = 7});
  EXPECT_THAT(disk.log(), Contains("rename step-00000007"));
  EXPECT_THAT(disk.log(), Not(Contains(HasSubstr("fsync"))));
  EXPECT_THAT(whole_steps(dir.path()), ElementsAre(7));
}

TEST(CheckpointDirectory, AMissingFolderNeverHidesCheckpoints) {
  const TemporaryDirectory dir;
  EXPECT_THAT(find_checkpoints(dir / "nowhere"), IsEmpty());
  EXPECT_THAT(find_checkpoints(dir.path()), IsEmpty());
  fs::create_directory(dir / "step-00000009.tmp");
  fs::create_directory(dir / "step-9");
  fs::create_directory(dir / "step-000000009");
  fs::create_directory(dir / "step-0000000x");
  EXPECT_THAT(find_checkpoints(dir.path()), IsEmpty());
  EXPECT_EQ(checkpoint_name(5), "step-00000005");
  EXPECT_EQ(checkpoint_name(123456789012), "step-123456789012");
}

// Whatever instant the writer dies at: the old checkpoints are whole, the new one is whole or not
// there, and the next save works.
void expect_crash_safety(const Save& first, const Save& second) {
  int steps = 0;
  {
    const TemporaryDirectory dir;
    save(dir.path(), first);
    steps = steps_of_a_save(dir.path(), second);
  }
  ASSERT_GT(steps, 10);
  int published = 0;
  for (int at = 1; at <= steps; ++at) {
    const TemporaryDirectory dir;
    save(dir.path(), first);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      FaultyDisk disk(FaultyDisk::Kind::kExit, at);
      save(disk, dir.path(), second);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 77) << at << " of " << steps;
    const std::vector<int64_t> found = whole_steps(dir.path());
    ASSERT_FALSE(found.empty()) << "a save that died at step " << at << " left nothing";
    EXPECT_THAT(found[0], AnyOf(first.step, second.step));
    // What is old goes only once what is new is there.
    if (found[0] != second.step) {
      EXPECT_THAT(found, ElementsAre(first.step));
    }
    published += found[0] == second.step ? 1 : 0;

    Save third = second;
    third.step = 30;
    third.keep = 1;
    save(dir.path(), third);
    EXPECT_THAT(whole_steps(dir.path()), ElementsAre(30));
    EXPECT_THAT(names_in(dir.path()), UnorderedElementsAre("step-00000030", "latest"));
  }
  EXPECT_GT(published, 0);
  EXPECT_TRUE(published < steps || first.step == second.step);
}

TEST(CheckpointDirectory, AWriterThatDiesAtAnyStepLeavesTheOldOrTheNew) {
  expect_crash_safety({.step = 10}, {.step = 20});
}

TEST(CheckpointDirectory, AWriterThatDiesWhileItRemovesTheOldLeavesTheNew) {
  expect_crash_safety({.step = 10}, {.step = 20, .keep = 1});
}

TEST(CheckpointDirectory, AWriterThatDiesWhileItReplacesAStepLeavesOneOfBoth) {
  expect_crash_safety({.step = 20}, {.step = 20});
}

TEST(CheckpointDirectory, AFailureAtAnyStepLeavesTheOldAndAWayOn) {
  for (const auto kind : {FaultyDisk::Kind::kThrow, FaultyDisk::Kind::kThrowFromHereOn}) {
    int steps = 0;
    {
      const TemporaryDirectory dir;
      save(dir.path(), {.step = 10});
      steps = steps_of_a_save(dir.path(), {.step = 20, .keep = 1});
    }
    for (int at = 1; at <= steps; ++at) {
      const TemporaryDirectory dir;
      save(dir.path(), {.step = 10});
      FaultyDisk disk(kind, at);
      std::vector<std::string> warnings;
      bool failed = false;
      try {
        save(disk, dir.path(), {.step = 20, .keep = 1}, &warnings);
      } catch (const Error& error) {
        failed = true;
        EXPECT_EQ(error.code(), ErrorCode::kIo);
        EXPECT_THAT(error.what(), HasSubstr("No space left"));
      }
      // A fault is an error until the checkpoint is durable, and a warning from then on.
      EXPECT_NE(failed, !warnings.empty()) << at;
      const std::vector<int64_t> found = whole_steps(dir.path());
      ASSERT_FALSE(found.empty()) << at;
      EXPECT_TRUE(failed || found[0] == 20) << at;
      if (found[0] != 20) {
        EXPECT_THAT(found, ElementsAre(10)) << at;
        // One fault alone leaves no half of a save that takes up space.
        if (kind == FaultyDisk::Kind::kThrow && disk.log()[at - 1] != "rename step-00000020") {
          EXPECT_THAT(names_in(dir.path()), UnorderedElementsAre("step-00000010", "latest")) << at;
        }
      }
      save(dir.path(), {.step = 30, .keep = 1});
      EXPECT_THAT(names_in(dir.path()), UnorderedElementsAre("step-00000030", "latest")) << at;
    }
  }
}

TEST(CheckpointDirectory, AFileThatTheSystemRefusesToLetGrowIsAnErrorThatSaysSo) {
  const TemporaryDirectory dir;
  save(dir.path(), {.step = 10});
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int code = 1;
    try {
      save(dir.path(), {.step = 20, .keep = 1});
    } catch (const Error& error) {
      const bool told = std::strstr(error.what(), "File too large") != nullptr &&
                        std::strstr(error.what(), "free some space") != nullptr;
      code = error.code() == ErrorCode::kIo && told ? 0 : 2;
    }
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_THAT(whole_steps(dir.path()), ElementsAre(10));
  EXPECT_THAT(names_in(dir.path()), UnorderedElementsAre("step-00000010", "latest"));
}

TEST(CheckpointDirectory, AFolderThatCannotBeMadeOrWrittenIsAnErrorThatNamesIt) {
  const TemporaryDirectory dir;
  write_file(dir / "file", "x");
  EXPECT_EQ(error_of([&] { save(dir / "file", {.step = 1}); }).code(), ErrorCode::kIo);
  const Error below = error_of([&] { save(dir / "file/folder", {.step = 1}); });
  EXPECT_EQ(below.code(), ErrorCode::kIo);
  EXPECT_THAT(below.what(), HasSubstr((dir / "file").string()));
  if (::geteuid() == 0) return;  // root may write anywhere but on a disk that is read-only
  fs::create_directory(dir / "locked");
  fs::permissions(dir / "locked", fs::perms::owner_read | fs::perms::owner_exec);
  const Error locked = error_of([&] { save(dir / "locked", {.step = 1}); });
  EXPECT_EQ(locked.code(), ErrorCode::kIo);
  EXPECT_THAT(locked.what(), HasSubstr("may write to"));
  fs::permissions(dir / "locked", fs::perms::owner_all);
}

TEST(CheckpointDirectory, TheNewestKStay) {
  const TemporaryDirectory dir;
  for (int64_t step = 1; step <= 6; ++step) save(dir.path(), {.step = step, .keep = 3});
  EXPECT_THAT(whole_steps(dir.path()), ElementsAre(6, 5, 4));
  save(dir.path(), {.step = 7, .keep = 0});
  EXPECT_THAT(whole_steps(dir.path()), ElementsAre(7, 6, 5, 4));
  save(dir.path(), {.step = 8, .keep = 1});
  EXPECT_THAT(whole_steps(dir.path()), ElementsAre(8));
}

TEST(CheckpointDirectory, EveryNthStaysBesidesTheNewest) {
  const TemporaryDirectory dir;
  for (int64_t step = 5; step <= 45; step += 5) {
    save(dir.path(), {.step = step, .keep = 2, .keep_every = 15});
  }
  EXPECT_THAT(whole_steps(dir.path()), ElementsAre(45, 40, 30, 15));
}

TEST(CheckpointDirectory, ARunThatWentBackHasItsLastSaveAsTheNewest) {
  const TemporaryDirectory dir;
  save(dir.path(), {.step = 100});
  save(dir.path(), {.step = 200});
  save(dir.path(), {.step = 110});  // from step 100 again
  EXPECT_THAT(whole_steps(dir.path()), ElementsAre(110, 200, 100));
  save(dir.path(), {.step = 120, .keep = 2});
  EXPECT_THAT(whole_steps(dir.path()), ElementsAre(120, 110));
}

TEST(CheckpointDirectory, WhatIsNoCheckpointStaysWhereItIs) {
  const TemporaryDirectory dir;
  write_file(dir / "notes.txt", "mine");
  fs::create_directory(dir / "step-00000001.tmp");  // has a user's file: no leftover of ours
  write_file(dir / "step-00000001.tmp/keep.me", "mine");
  fs::create_directory(dir / "step-00000002.tmp");  // left by a writer that died
  write_file(dir / "step-00000002.tmp/data-00000.lsck", "half");
  save(dir.path(), {.step = 3});
  write_file(dir / "step-00000003/notes.txt", "mine too");
  save(dir.path(), {.step = 4, .keep = 1});
  save(dir.path(), {.step = 5, .keep = 1});
  EXPECT_THAT(names_in(dir.path()),
              UnorderedElementsAre("notes.txt", "step-00000001.tmp", "step-00000003",
                                   "step-00000005", "latest"));
  EXPECT_EQ(read_file(dir / "step-00000003/notes.txt"), "mine too");

  const Error error = error_of([&] { save(dir.path(), {.step = 1}); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_THAT(error.what(), HasSubstr("keep.me"));
  EXPECT_EQ(read_file(dir / "step-00000001.tmp/keep.me"), "mine");

  Disk disk;
  remove_all_checkpoints(disk, dir.path());
  EXPECT_THAT(names_in(dir.path()),
              UnorderedElementsAre("notes.txt", "step-00000001.tmp", "step-00000003"));
}

TEST(CheckpointDirectory, ALinkIsNotFollowedWhenCheckpointsAreRemoved) {
  const TemporaryDirectory dir;
  fs::create_directory(dir / "elsewhere");
  write_file(dir / "elsewhere/manifest.json", "mine");
  fs::create_directory(dir / "ckpt");
  fs::create_directory_symlink(dir / "elsewhere", dir / "ckpt/step-00000001");
  fs::create_directory_symlink(dir / "elsewhere", dir / "ckpt/step-00000002.tmp");
  save(dir / "ckpt", {.step = 3, .keep = 1});
  Disk disk;
  remove_all_checkpoints(disk, dir / "ckpt");
  EXPECT_EQ(read_file(dir / "elsewhere/manifest.json"), "mine");
  EXPECT_THAT(names_in(dir / "ckpt"), UnorderedElementsAre("step-00000001", "step-00000002.tmp"));
}

TEST(CheckpointDirectory, ADamagedCheckpointInTheWayIsMovedAside) {
  const TemporaryDirectory dir;
  save(dir.path(), {.step = 10});
  save(dir.path(), {.step = 20});
  write_file(dir / "step-00000020/manifest.json", "{");
  for (int i = 0; i < 2; ++i) {
    save(dir.path(), {.step = 20});
    EXPECT_THAT(whole_steps(dir.path()), ElementsAre(20, 10));
    write_file(dir / "step-00000020/manifest.json", "{");
  }
  EXPECT_THAT(names_in(dir.path()),
              UnorderedElementsAre("step-00000010", "step-00000020", "step-00000020.aside-1",
                                   "step-00000020.aside-2", "latest"));
}

TEST(CheckpointDirectory, AnotherRunsCheckpointsAreRefusedBeforeAnythingIsTouched) {
  const TemporaryDirectory dir;
  save(dir.path(), {.step = 10});
  const auto before = names_in(dir.path());
  FaultyDisk disk(FaultyDisk::Kind::kNone, 0);
  const Error error = error_of(
      [&] { save(disk, dir.path(), {.step = 1, .run = "ffffffffffffffffffffffffffffffff"}); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("another run, the newest is step-00000010"));
  EXPECT_EQ(disk.count(), 0);
  EXPECT_EQ(names_in(dir.path()), before);
}

TEST(CheckpointDirectory, TwoWritersOfOneFolderAreTold) {
  const TemporaryDirectory dir;
  const DirectoryLock lock(dir.path());
  const Error error = error_of([&] { save(dir.path(), {.step = 1}); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_THAT(error.what(), HasSubstr("another process or rank is saving"));
  EXPECT_THAT(names_in(dir.path()), IsEmpty());
}

TEST(CheckpointDirectory, AHintThatIsDamagedOrInTheWayHarmsNothing) {
  const TemporaryDirectory dir;
  write_file(dir / "latest", "\xff nonsense");
  write_file(dir / "latest.tmp", "half");
  save(dir.path(), {.step = 1});
  EXPECT_EQ(read_file(dir / "latest"), "step-00000001\n");
  fs::remove(dir / "latest");
  fs::create_directory(dir / "latest");
  std::vector<std::string> warnings;
  Disk disk;
  save(disk, dir.path(), {.step = 2}, &warnings);
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("is saved, but")));
  EXPECT_THAT(whole_steps(dir.path()), ElementsAre(2, 1));
}

TEST(CheckpointManifest, AnyCutOrFlippedBitIsDamage) {
  const TemporaryDirectory dir;
  save(dir.path(), {.step = 10, .elements = 3});
  const fs::path path = dir / "step-00000010/manifest.json";
  const std::string whole = read_file(path);
  const auto is_damaged = [&](const std::string& text) {
    try {
      decode_manifest(text, "manifest.json");
    } catch (const Error& error) {
      return error.code() == ErrorCode::kCorrupt;
    }
    return false;
  };
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_TRUE(is_damaged(whole.substr(0, length))) << length;
  }
  EXPECT_TRUE(is_damaged(whole + " "));
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_TRUE(is_damaged(flipped)) << "byte " << bit / 8 << " bit " << bit % 8;
  }
  EXPECT_FALSE(is_damaged(whole));
  write_file(path, whole.substr(1));
  EXPECT_THAT(find_checkpoints(dir.path())[0].damage, HasSubstr("manifest.json"));
}

// The manifest of a file of 100 bytes, with `from` replaced and the checksum made right again.
std::string edited_manifest(const std::string& from, const std::string& to) {
  Manifest manifest;
  manifest.step = 3;
  manifest.serial = 1;
  manifest.run = kRun;
  manifest.written = "2026-01-31T12:00:00Z";
  manifest.files = {{data_file_name(0), {100, 7}}};
  std::string text = encode_manifest(manifest);
  text.resize(text.find(",\"xxh3\":\""));
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  return text + ",\"xxh3\":\"" + to_hex(xxh3(text)) + "\"}\n";
}

TEST(CheckpointManifest, WhatHasNoMeaningIsRefusedWithItsReason) {
  const auto verdict = [&](const std::string& from, const std::string& to) {
    return error_of([&] { decode_manifest(edited_manifest(from, to), "manifest.json"); });
  };
  EXPECT_EQ(decode_manifest(edited_manifest("\"step\":3", "\"step\":4"), "m").step, 4);
  EXPECT_THAT(verdict("data-00000.lsck", "../passwd").what(), HasSubstr("'../passwd'"));
  EXPECT_THAT(verdict("\"step\":3", "\"step\":-3").what(), HasSubstr("'step'"));
  EXPECT_THAT(verdict("\"step\":3", "\"step\":18446744073709551615").what(),
              HasSubstr("out of range"));
  EXPECT_THAT(verdict("\"step\":3", "\"step\":3,\"step\":4").what(), HasSubstr("twice"));
  EXPECT_THAT(verdict("\"world_size\":1", "\"world_size\":0").what(), HasSubstr("'world_size'"));
  EXPECT_THAT(verdict("lockstep-checkpoint", "another").what(), HasSubstr("manifest"));
  EXPECT_THAT(verdict("\"files\":[{", "\"files\":[],\"others\":[{").what(),
              HasSubstr("names 0 files"));
  EXPECT_THAT(verdict("\"features\":[]", "\"features\":[\"sharded\"]").what(),
              HasSubstr("names 1 files and 1 features"));
  EXPECT_EQ(verdict("\"version\":1", "\"version\":2").code(), ErrorCode::kMismatch);
  EXPECT_EQ(verdict("\"features\":[]", "\"features\":[\"later\"]").code(), ErrorCode::kMismatch);
}

TEST(CheckpointManifest, ADataFileThatIsGoneOrOfAnotherSizeIsDamage) {
  const TemporaryDirectory dir;
  save(dir.path(), {.step = 10});
  const fs::path data = dir / "step-00000010/data-00000.lsck";
  fs::resize_file(data, fs::file_size(data) - 1);
  EXPECT_THAT(find_checkpoints(dir.path())[0].damage, HasSubstr("cut short"));
  fs::remove(data);
  EXPECT_THAT(find_checkpoints(dir.path())[0].damage, HasSubstr("there is no file"));
}

}  // namespace
}  // namespace lockstep::nn
