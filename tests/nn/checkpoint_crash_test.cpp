// A writer that is killed at any system call of a save: whoever loads afterwards has the old state
// or the new one, in full.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "../sanitized.h"
#include "checkpoint_files.h"
#include "checkpoint_model.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/store.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/nn/checkpoint.h"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;
using testing::bytes_of;
using testing::Net;
using testing::TemporaryDirectory;

constexpr int kKilledHere = 1000;
constexpr int kToldOfAPeer = 10;

// A program that is traced says where its save begins and ends by a call that nothing else makes.
constexpr long kMark = 0x5afe;
void mark() { ::syscall(SYS_getpgid, kMark); }

// The calls that touch a file system; what else a rank calls depends on timing.
bool is_file_call(long number) {
  static const std::set<long> calls = {
      SYS_open,   SYS_openat,   SYS_write,     SYS_pwrite64, SYS_fsync,     SYS_fdatasync,
      SYS_rename, SYS_renameat, SYS_renameat2, SYS_mkdir,    SYS_unlink,    SYS_unlinkat,
      SYS_rmdir,  SYS_flock,    SYS_ftruncate, SYS_close,    SYS_getdents64};
  return calls.contains(number);
}

// A child process that stops at its system calls.
class Traced {
 public:
  // Throws std::system_error; EPERM and ENOSYS where this machine lets nobody trace.
  explicit Traced(const std::function<void()>& body) {
    pid_ = ::fork();
    if (pid_ == 0) {
      if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(errno);
      ::raise(SIGSTOP);
      body();
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    if (!WIFSTOPPED(status)) {
      throw std::system_error(WIFEXITED(status) ? WEXITSTATUS(status) : EIO,
                              std::generic_category(), "ptrace");
    }
    ::ptrace(PTRACE_SETOPTIONS, pid_, nullptr,
             reinterpret_cast<void*>(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
  }

  // Lets it run, and kills it as it is about to begin its call number `kill_at` of those between
  // the marks that `counts` counts; 0: never. Returns the exit status, or kKilledHere.
  int run(int kill_at, const std::function<bool(long)>& counts) {
    int deliver = 0;
    bool entering = true;
    bool between_marks = false;
    while (true) {
      ::ptrace(PTRACE_SYSCALL, pid_, nullptr, reinterpret_cast<void*>(deliver));
      int status = 0;
      ::waitpid(pid_, &status, 0);
      if (WIFEXITED(status)) return WEXITSTATUS(status);
      if (WIFSIGNALED(status)) return kKilledHere + WTERMSIG(status);
      deliver = WSTOPSIG(status);
      if (deliver != (SIGTRAP | 0x80)) continue;
      deliver = 0;
      if (entering) {
        __ptrace_syscall_info info{};
        ::ptrace(static_cast<__ptrace_request>(PTRACE_GET_SYSCALL_INFO), pid_,
                 reinterpret_cast<void*>(sizeof info), &info);
        const auto number = static_cast<long>(info.entry.nr);
        if (number == SYS_getpgid && info.entry.args[0] == kMark) {
          between_marks = !between_marks;
        } else if (between_marks && counts(number)) {
          ++calls_;
          if (calls_ == kill_at) {
            ::kill(pid_, SIGKILL);
            ::waitpid(pid_, &status, 0);
            return kKilledHere;
          }
        }
      }
      entering = !entering;
    }
  }

  int calls() const { return calls_; }

 private:
  pid_t pid_ = -1;
  int calls_ = 0;
};

bool may_trace() {
  try {
    EXPECT_EQ(Traced([] {}).run(0, [](long) { return true; }), 0);
    return true;
  } catch (const std::system_error& error) {
    const int code = error.code().value();
    EXPECT_TRUE(code == EPERM || code == ENOSYS) << error.what();
    return false;
  }
}

// A run at step 10 or 20: everything in it follows from the step.
struct Training {
  explicit Training(int64_t at) : net(static_cast<int>(at)), step(at) {
    state.add("model", net);
    state.add("step", step);
  }
  Net net;
  int64_t step;
  TrainingState state;
};

// The step of the state that is loaded; fails unless it is the whole of it.
int64_t loaded_step(const fs::path& folder) {
  Training run(1);
  const std::optional<LoadReport> report =
      load_latest(folder, run.state, {.warn = [](const std::string&) {}});
  if (!report) return 0;
  EXPECT_EQ(report->step, run.step);
  EXPECT_EQ(bytes_of(state_dict(run.net)), bytes_of(state_dict(Training(run.step).net)));
  return run.step;
}

// A folder with step 10 of a run, and copies of it.
class OldFolder {
 public:
  OldFolder() {
    Training run(10);
    save_checkpoint(dir_ / "old", 10, run.state);
  }
  fs::path copy() {
    fs::remove_all(dir_ / "copy");
    fs::copy(dir_ / "old", dir_ / "copy", fs::copy_options::recursive);
    return dir_ / "copy";
  }

 private:
  TemporaryDirectory dir_;
};

// A later save works, and leaves nothing behind of the one that died.
void expect_a_way_on(const fs::path& folder) {
  Training run(1);
  load_latest(folder, run.state, {.warn = [](const std::string&) {}});
  Training next(30);
  run.step = 30;
  load_state_dict(run.net, state_dict(next.net));
  save_checkpoint(folder, 30, run.state, {.keep = 1});
  EXPECT_EQ(loaded_step(folder), 30);
  EXPECT_EQ(testing::names_in(folder), (std::set<std::string>{"latest", "step-00000030"}));
}

TEST(CheckpointCrash, AWriterKilledAtAnySystemCallLeavesTheOldOrTheNew) {
  if (!may_trace()) GTEST_SKIP() << "this machine does not allow ptrace";
  set_num_threads(
      1);  // a child of fork() has none of its parent's OpenMP threads, and waits for them
  OldFolder old;
  // A new step beside the old one, which then goes; and the same step again.
  for (const int64_t step : {20, 10}) {
    int before = 0;
    int after = 0;
    for (int at = 1;; ++at) {
      const fs::path folder = old.copy();
      Traced child([&] {
        Training run(10);
        load_latest(folder, run.state);
        run.step = step;
        load_state_dict(run.net, state_dict(Training(step).net));
        mark();
        save_checkpoint(folder, step, run.state, {.keep = 1});
        mark();
      });
      const int result = child.run(at, [](long) { return true; });
      const int64_t found = loaded_step(folder);
      if (result == 0) {
        EXPECT_EQ(found, step);
        EXPECT_GT(at, 40) << "there are fewer system calls than a save needs";
        break;
      }
      ASSERT_EQ(result, kKilledHere) << at;
      ASSERT_TRUE(found == 10 || found == step) << "call " << at << ": loaded " << found;
      // What is new is there for good.
      ASSERT_TRUE(found == step || after == 0) << at;
      (found == step ? after : before) += 1;
      if (at % 5 == 0) expect_a_way_on(folder);
    }
    EXPECT_GT(after, 5);
    EXPECT_GT(before, step == 10 ? -1 : 20);
  }
}

// One of two processes that save together, each its own file.
[[noreturn]] void run_rank(int rank, int port, const fs::path& folder) {
  ::alarm(60);
  int status = 0;
  try {
    const comm::World world{rank, 2, rank, 2, "127.0.0.1", port, true, "token", ""};
    comm::Options options;
    options.timeout = std::chrono::seconds(30);
    const auto group = comm::connect(world, comm::Store::connect(world, options.timeout), options);
    Training run(10);
    load_latest(folder, run.state, {.group = group.get()});
    run.step = 20;
    load_state_dict(run.net, state_dict(Training(20).net));
    group->barrier().wait();
    mark();
    save_checkpoint(folder, 20, run.state, {.keep = 1, .group = group.get(), .sharded = true});
    mark();
  } catch (const Error& error) {
    status = error.code() == ErrorCode::kPeerLost ? kToldOfAPeer : 1;
  }
  ::_exit(status);
}

TEST(CheckpointCrash, ARankKilledAtAnyFileCallOfAShardedSaveLeavesTheOldOrTheNew) {
  if (!may_trace()) GTEST_SKIP() << "this machine does not allow ptrace";
  set_num_threads(
      1);  // a child of fork() has none of its parent's OpenMP threads, and waits for them
  OldFolder old;
  for (const int victim : {0, 1}) {
    int killed = 0;
    for (int at = 1;; ++at) {
      const fs::path folder = old.copy();
      std::array<int, 2> port_pipe{};
      ASSERT_EQ(::pipe(port_pipe.data()), 0);
      const auto body = [&](int rank) {
        int port = 0;
        if (::read(port_pipe[0], &port, sizeof port) != sizeof port) ::_exit(2);
        run_rank(rank, port, folder);
      };
      const pid_t other = ::fork();
      if (other == 0) body(1 - victim);
      Traced traced([&] { body(victim); });
      const comm::StoreServer server({"127.0.0.1", 0, "token", ""});
      const std::array<int, 2> ports = {server.port(), server.port()};
      ASSERT_EQ(::write(port_pipe[1], ports.data(), sizeof ports), 8);
      const int result = traced.run(at, is_file_call);
      int status = 0;
      ASSERT_EQ(::waitpid(other, &status, 0), other);
      ::close(port_pipe[0]);
      ::close(port_pipe[1]);
      const int64_t found = loaded_step(folder);
      if (result == 0) {
        EXPECT_EQ(status, 0);
        EXPECT_EQ(found, 20);
        break;
      }
      ASSERT_EQ(result, kKilledHere) << "rank " << victim << ", call " << at;
      ++killed;
      // The other rank was told, or had all that it needed.
      ASSERT_TRUE(WIFEXITED(status)) << status;
      EXPECT_TRUE(WEXITSTATUS(status) == kToldOfAPeer || WEXITSTATUS(status) == 0)
          << WEXITSTATUS(status);
      ASSERT_TRUE(found == 10 || found == 20) << "rank " << victim << ", call " << at;
      EXPECT_TRUE(found == 20 || WEXITSTATUS(status) != 0);
      if (at % 4 == 0) expect_a_way_on(folder);
    }
    EXPECT_GT(killed, victim == 0 ? 20 : 3);
  }
}

// What a load says of a folder whose newest checkpoint is damaged somewhere: it is the old state
// and a warning that names the place, or the new one.
void expect_old_or_new(const fs::path& folder, const std::string& what) {
  Training run(1);
  const LoadReport report = *load_latest(folder, run.state, {.warn = [](const std::string&) {}});
  ASSERT_TRUE(report.step == 10 || report.step == 20) << what;
  ASSERT_EQ(report.step, run.step) << what;
  ASSERT_EQ(report.skipped.size(), report.step == 10 ? 1u : 0u) << what;
  if (report.step == 10) {
    ASSERT_THAT(report.skipped[0], ::testing::HasSubstr("step-00000020")) << what;
  }
  static const std::string old_bytes = bytes_of(state_dict(Training(10).net));
  static const std::string new_bytes = bytes_of(state_dict(Training(20).net));
  ASSERT_EQ(bytes_of(state_dict(run.net)), report.step == 10 ? old_bytes : new_bytes) << what;
}

TEST(CheckpointDamage, AnyCutAndAnyFlippedBitOfAnyFileIsSeen) {
  const TemporaryDirectory dir;
  {
    Training run(10);
    save_checkpoint(dir.path(), 10, run.state);
    run.step = 20;
    load_state_dict(run.net, state_dict(Training(20).net));
    save_checkpoint(dir.path(), 20, run.state);
  }
  expect_old_or_new(dir.path(), "whole");
  const size_t cuts = kSanitized ? 5 : 1;
  const size_t flips = kSanitized ? 13 : 1;
  for (const char* name : {"manifest.json", "data-00000.lsck"}) {
    const fs::path path = dir / "step-00000020" / name;
    const std::string whole = testing::read_file(path);
    for (size_t length = 0; length < whole.size(); length += cuts) {
      testing::write_file(path, whole.substr(0, length));
      expect_old_or_new(dir.path(), std::string(name) + " cut at " + std::to_string(length));
      if (HasFatalFailure()) return;
    }
    testing::write_file(path, whole);
    for (size_t bit = 0; bit < 8 * whole.size(); bit += flips) {
      const auto flipped = static_cast<char>(whole[bit / 8] ^ (1 << bit % 8));
      testing::write_byte(path, bit / 8, flipped);
      expect_old_or_new(dir.path(), std::string(name) + " bit " + std::to_string(bit));
      if (HasFatalFailure()) return;
      testing::write_byte(path, bit / 8, whole[bit / 8]);
    }
  }
  Training run(1);
  EXPECT_EQ(load_latest(dir.path(), run.state)->step, 20);
}

bool write_all(const char* file, const std::string& text) {
  std::ofstream out(file);
  return static_cast<bool>(out << text << std::flush);
}

// Mounts that are this process's own. A user without rights has a namespace of users for that, in
// which it is who it is outside: a file system there holds no files of users that it has not.
bool has_own_mounts() {
  if (::unshare(CLONE_NEWNS) == 0) return true;
  const std::string user = std::to_string(::geteuid());
  const std::string group = std::to_string(::getegid());
  return ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && write_all("/proc/self/setgroups", "deny") &&
         write_all("/proc/self/uid_map", user + " " + user + " 1") &&
         write_all("/proc/self/gid_map", group + " " + group + " 1");
}

// Runs `body` in a child that has a file system of a mebibyte of its own at `place`. Its result is
// the child's exit status; nullopt where this machine lets nobody mount.
std::optional<int> with_small_disk(const fs::path& place, const std::function<int()>& body) {
  constexpr int kNotAllowed = 99, kNotMounted = 98;
  const pid_t child = ::fork();
  if (child == 0) {
    if (!has_own_mounts() || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", place.c_str(), "tmpfs", 0, "size=1m") != 0) {
      // Whoever has no rights to mount; a user with a namespace of its own may have no right to
      // that.
      const bool forbidden = errno == EPERM || errno == EACCES || errno == ENOSYS;
      if (!forbidden) std::perror("with_small_disk");
      ::_exit(forbidden ? kNotAllowed : kNotMounted);
    }
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotAllowed) return std::nullopt;
  return WIFEXITED(status) ? WEXITSTATUS(status) : kKilledHere;
}

// 0 where saving more than fits, or where nothing may be written, is an error with `text` after
// which the old state is there.
int save_too_much(const fs::path& folder, const char* text, bool read_only) {
  Training run(10);
  save_checkpoint(folder, 10, run.state);
  if (read_only && ::mount(nullptr, folder.parent_path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY,
                           nullptr) != 0) {
    return 1;
  }
  Tensor large = Tensor::zeros({1 << 19});
  TrainingState more;
  more.add("model", run.net);
  more.add("step", run.step);
  more.add("large", large);
  load_latest(folder, more, {.strict = false});
  try {
    save_checkpoint(folder, 20, more, {.keep = 1});
    return 2;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo ||
        std::string(error.what()).find(text) == std::string::npos) {
      std::fprintf(stderr, "%s\n", error.what());
      return 3;
    }
  }
  if (loaded_step(folder) != 10) return 4;
  if (testing::names_in(folder) != std::set<std::string>{"latest", "step-00000010"}) return 5;
  if (read_only) return 0;
  run.step = 20;
  load_state_dict(run.net, state_dict(Training(20).net));
  save_checkpoint(folder, 20, run.state, {.keep = 1});  // what fits is saved as before
  return loaded_step(folder) == 20 ? 0 : 6;
}

TEST(CheckpointDisk, AFullDiskIsAnErrorAndTheOldCheckpointStays) {
  const TemporaryDirectory dir;
  const auto status = with_small_disk(dir.path(), [&] {
    return save_too_much(dir / "out", "No space left on device; free some space", false);
  });
  if (!status) GTEST_SKIP() << "this machine does not allow mounting";
  EXPECT_EQ(*status, 0);
}

TEST(CheckpointDisk, AReadOnlyDiskIsAnErrorAndTheOldCheckpointStays) {
  const TemporaryDirectory dir;
  const auto status = with_small_disk(dir.path(), [&] {
    return save_too_much(dir / "out", "Read-only file system; choose a folder", true);
  });
  if (!status) GTEST_SKIP() << "this machine does not allow mounting";
  EXPECT_EQ(*status, 0);
}

}  // namespace
}  // namespace lockstep::nn
