#include "lockstep/nn/checkpoint/disk.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"

namespace lockstep::nn {
namespace {

constexpr std::string_view kSave = "save_checkpoint";
constexpr size_t kBufferBytes = size_t{1} << 20;
// The system takes no more than about 2 GiB in one call.
constexpr size_t kLargestCall = size_t{1} << 30;

std::string_view advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "; free some space or keep fewer checkpoints";
    case EACCES:
    case EPERM:
      return "; the folder must be one that this user may write to";
    case EROFS:
      return "; choose a folder that is not read-only";
    default:
      return "";
  }
}

[[noreturn]] void fail(std::string_view op, std::string_view step,
                       const std::filesystem::path& path, int error) {
  throw Error(ErrorCode::kIo, op,
              str_cat("cannot ", step, " ", path.string(), ": ",
                      std::generic_category().message(error), advice(error)));
}

}  // namespace

void Disk::before(std::string_view, const std::filesystem::path&) {}

void Disk::make_directory(const std::filesystem::path& path) {
  before("mkdir", path);
  if (::mkdir(path.c_str(), 0777) != 0) fail(op_, "make the folder", path, errno);
}

void Disk::sync_directory(const std::filesystem::path& path) {
  if (!sync_files_) return;
  before("fsync", path);
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail(op_, "open the folder", path, errno);
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  // Some file systems have no such call for folders: theirs are durable by themselves.
  if (result != 0 && error != EINVAL && error != ENOTSUP) fail(op_, "sync", path, error);
}

void Disk::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  before("rename", to);
  if (::rename(from.c_str(), to.c_str()) != 0) fail(op_, "rename to", to, errno);
}

bool Disk::exchange(const std::filesystem::path& a, const std::filesystem::path& b) {
  before("exchange", b);
  if (::syscall(SYS_renameat2, AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) {
    return true;
  }
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return false;
  fail(op_, "exchange", b, errno);
}

void Disk::remove_file(const std::filesystem::path& path) {
  before("unlink", path);
  if (::unlink(path.c_str()) != 0) fail(op_, "remove", path, errno);
}

void Disk::remove_directory(const std::filesystem::path& path) {
  before("rmdir", path);
  if (::rmdir(path.c_str()) != 0) fail(op_, "remove the folder", path, errno);
}

OutputFile::OutputFile(Disk& disk, std::filesystem::path path)
    : disk_(disk), path_(std::move(path)) {
  buffer_.reserve(kBufferBytes);
  disk_.before("open", path_);
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail(disk_.op(), "create", path_, errno);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::write(const void* data, size_t bytes) {
  const auto* source = static_cast<const std::byte*>(data);
  if (buffer_.size() + bytes > kBufferBytes) flush();
  if (bytes >= kBufferBytes) {
    write_through(source, bytes);
  } else {
    buffer_.insert(buffer_.end(), source, source + bytes);
  }
  size_ += bytes;
}

void OutputFile::pad_to(uint64_t offset) {
  static constexpr std::byte kZeros[256] = {};
  while (size_ < offset) {
    write(kZeros, static_cast<size_t>(std::min<uint64_t>(sizeof kZeros, offset - size_)));
  }
}

void OutputFile::finish() {
  flush();
  if (disk_.sync_files()) {
    disk_.before("fsync", path_);
    if (::fsync(descriptor_) != 0) fail(disk_.op(), "sync", path_, errno);
  }
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(disk_.op(), "close", path_, errno);
}

void OutputFile::flush() {
  if (!buffer_.empty()) write_through(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void OutputFile::write_through(const std::byte* data, size_t bytes) {
  while (bytes > 0) {
    disk_.before("write", path_);
    const ssize_t count = ::write(descriptor_, data, std::min(bytes, kLargestCall));
    if (count < 0) {
      if (errno == EINTR) continue;
      fail(disk_.op(), "write", path_, errno);
    }
    data += count;
    bytes -= static_cast<size_t>(count);
  }
}

InputFile::InputFile(std::filesystem::path path, std::string op)
    : path_(std::move(path)), op_(std::move(op)) {
  // Without O_NONBLOCK, opening a named pipe would wait for a writer.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor_ < 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) {
      throw Error(ErrorCode::kCorrupt, op_, str_cat("there is no file ", path_.string()));
    }
    fail(op_, "open", path_, error);
  }
  struct stat status {};
  const bool regular = ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
  if (!regular) {
    ::close(descriptor_);
    throw Error(ErrorCode::kCorrupt, op_, str_cat(path_.string(), " is not a regular file"));
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read(uint64_t offset, void* out, size_t bytes) const {
  auto* target = static_cast<std::byte*>(out);
  while (bytes > 0) {
    const ssize_t count =
        ::pread(descriptor_, target, std::min(bytes, kLargestCall), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EIO) {
      throw Error(ErrorCode::kCorrupt, op_,
                  str_cat(path_.string(), " cannot be read at byte ", offset,
                          ": the medium has a fault there"));
    }
    if (count < 0) fail(op_, "read", path_, errno);
    if (count == 0) {
      throw Error(ErrorCode::kCorrupt, op_,
                  str_cat(path_.string(), " ends at byte ", offset, ", ", bytes,
                          " bytes too early: it was cut short"));
    }
    target += count;
    offset += static_cast<uint64_t>(count);
    bytes -= static_cast<size_t>(count);
  }
}

std::shared_ptr<std::byte> InputFile::map() const {
  if (size_ == 0) return nullptr;
  void* memory =
      ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor_, 0);
  if (memory == MAP_FAILED) fail(op_, "map", path_, errno);
  return {static_cast<std::byte*>(memory), [bytes = size_](std::byte* p) { ::munmap(p, bytes); }};
}

DirectoryLock::DirectoryLock(const std::filesystem::path& path) {
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0) fail(kSave, "open the folder", path, errno);
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(descriptor_);
    throw Error(ErrorCode::kIo, kSave,
                str_cat("another process or rank is saving into ", path.string(),
                        "; ranks that save together pass their group in CheckpointOptions, "
                        "other jobs need folders of their own"));
  }
}

DirectoryLock::~DirectoryLock() { ::close(descriptor_); }

}  // namespace lockstep::nn
