#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::nn {

// How a checkpoint changes a file system: each member is one system call that is done or throws
// Error(kIo) with the path, the reason and what to do.
//
// before() is the seam for tests, which make a call fail, or the process end, at each step in turn.
class Disk {
 public:
  // Errors name `op`, the public call that writes. Without sync_files the syncs are left out, and
  // what is written reaches the disk when the system likes.
  explicit Disk(std::string op = "save_checkpoint", bool sync_files = true)
      : op_(std::move(op)), sync_files_(sync_files) {}
  virtual ~Disk() = default;
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  // Called before each call that changes something, with its name ("mkdir", "open", "write",
  // "fsync", "rename", "exchange", "unlink", "rmdir"). What it throws stands for the call's
  // failure.
  virtual void before(std::string_view step, const std::filesystem::path& path);

  void make_directory(const std::filesystem::path& path);
  void sync_directory(const std::filesystem::path& path);
  // A file that is there at `to` is replaced.
  void rename(const std::filesystem::path& from, const std::filesystem::path& to);
  // Both must be there. False where the file system cannot do it in one step; nothing has changed.
  bool exchange(const std::filesystem::path& a, const std::filesystem::path& b);
  void remove_file(const std::filesystem::path& path);
  // An empty one.
  void remove_directory(const std::filesystem::path& path);

  const std::string& op() const { return op_; }
  bool sync_files() const { return sync_files_; }

 private:
  std::string op_;
  bool sync_files_;
};

// A new file that is written from front to back. Small writes are gathered.
class OutputFile {
 public:
  // Throws Error(kIo) where there is a file already.
  OutputFile(Disk& disk, std::filesystem::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // Writes zeros up to `offset`. REQUIRES: offset >= size().
  void pad_to(uint64_t offset);
  // Bytes written so far.
  uint64_t size() const { return size_; }
  // The file is durable after this, once its directory is synced, if the disk syncs files. No write
  // may follow.
  void finish();

 private:
  void flush();
  void write_through(const std::byte* data, size_t bytes);

  Disk& disk_;
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::vector<std::byte> buffer_;
  uint64_t size_ = 0;
};

// A regular file that is read at any place. Thread-safe.
class InputFile {
 public:
  // Throws Error(kCorrupt) where there is no such file or it is not a regular one, Error(kIo) where
  // it cannot be opened for another reason. Errors name `op`, the public call that reads.
  explicit InputFile(std::filesystem::path path, std::string op = "load_checkpoint");
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // When it was opened.
  uint64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }
  // Exactly `bytes` bytes from `offset`. Throws Error(kCorrupt) where the file ends before that or
  // the medium cannot be read.
  void read(uint64_t offset, void* out, size_t bytes) const;
  // The whole file as memory, which outlives this object; null for an empty one. Pages are read
  // when they are touched; writing to them changes this process's own copy. A file that another
  // program shortens or rewrites meanwhile changes under the reader's hands.
  std::shared_ptr<std::byte> map() const;

 private:
  std::filesystem::path path_;
  std::string op_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

// Keeps other savers out of a directory while it lives, in this process and others; the system
// lets go when a process ends. File systems without locks keep nobody out.
class DirectoryLock {
 public:
  // Throws Error(kIo) where another holds it.
  explicit DirectoryLock(const std::filesystem::path& path);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace lockstep::nn
