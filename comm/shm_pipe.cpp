#include "lockstep/comm/shm_pipe.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "lockstep/comm/shm_segment.h"
#include "lockstep/comm/text.h"
#include "lockstep/comm/unix_socket.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

// Several pieces of a ring, and in a cache.
constexpr size_t kCapacity = size_t{1} << 20;
// Longest copy between two looks at the other side.
constexpr size_t kCopy = size_t{128} << 10;
constexpr uint64_t kLayout = 0x6c6f636b73746570 + kCapacity;  // a build with another is refused

// In the memory that both sides map. Zero bytes are a valid beginning.
struct Pipe {
  // A side that sleeps in poll() has set its flag; the other then sends a byte after it moved on.
  struct alignas(64) Side {
    std::atomic<uint64_t> moved;  // bytes, ever
    std::atomic<uint32_t> sleeping;
  };
  Side writer;
  Side reader;
  alignas(4096) std::array<std::byte, kCapacity> bytes;
};

class PipeEnd {
 public:
  PipeEnd(Fd socket, Fd memory)
      : socket_(std::move(socket)),
        memory_(std::move(memory)),
        mapping_(memory_.get(), 0, sizeof(Pipe)) {}

 protected:
  Pipe& pipe() { return *reinterpret_cast<Pipe*>(mapping_.data()); }

  // Tells the other side that this one has moved on.
  void moved(Pipe::Side& mine, Pipe::Side& other, size_t bytes) {
    mine.moved.store(mine.moved.load(std::memory_order_relaxed) + bytes);
    if (other.sleeping.load() == 0) return;
    other.sleeping.store(0);
    const char bell = 1;
    [[maybe_unused]] const ssize_t sent =
        send(socket_.get(), &bell, sizeof bell, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // Whether the other side has gone; takes the bells that have come.
  bool gone() {
    std::array<char, 64> bells;
    while (true) {
      const ssize_t got = recv(socket_.get(), bells.data(), bells.size(), MSG_DONTWAIT);
      if (got > 0) continue;
      if (got < 0 && errno == EINTR) continue;
      return got == 0 || errno != EAGAIN;
    }
  }

  // Goes to sleep as `mine` unless ready() holds already.
  template <class Ready>
  bool sleep(Pipe::Side& mine, std::vector<pollfd>& fds, const Ready& ready) {
    mine.sleeping.store(1);
    if (ready()) {
      mine.sleeping.store(0);
      return false;
    }
    fds.push_back({socket_.get(), POLLIN, 0});
    return true;
  }

  // Where nothing moves for long, whether the other side is still there.
  bool lost() { return ++idle_ % kLooks == 0 && gone(); }
  void busy() { idle_ = 0; }
  int socket() const { return socket_.get(); }

 private:
  static constexpr uint32_t kLooks = 64;

  Fd socket_;
  Fd memory_;
  Mapping mapping_;
  uint32_t idle_ = 0;  // tries since something moved
};

class ShmSendHop final : public SendHop, private PipeEnd {
 public:
  ShmSendHop(Fd socket, Fd memory) : PipeEnd(std::move(socket), std::move(memory)) {}

  ssize_t try_send(const void* data, size_t bytes) override {
    const uint64_t put = pipe().writer.moved.load(std::memory_order_relaxed);
    const size_t offset = put % kCapacity;
    const size_t now = std::min({bytes, room(), kCapacity - offset, kCopy});
    if (now == 0) return slept_ && gone() ? -1 : lost() ? -1 : 0;
    std::memcpy(pipe().bytes.data() + offset, data, now);
    busy();
    slept_ = false;
    moved(pipe().writer, pipe().reader, now);
    return static_cast<ssize_t>(now);
  }
  bool watch(std::vector<pollfd>& fds) override {
    slept_ = true;
    return sleep(pipe().writer, fds, [&] { return room() != 0; });
  }
  void close() noexcept override { shutdown(socket(), SHUT_WR); }

 private:
  // A reader's count that cannot be is taken as no room.
  size_t room() {
    const uint64_t used =
        pipe().writer.moved.load(std::memory_order_relaxed) - pipe().reader.moved.load();
    return used <= kCapacity ? kCapacity - used : 0;
  }
  bool slept_ = false;
};

class ShmReceiveHop final : public ReceiveHop, private PipeEnd {
 public:
  ShmReceiveHop(Fd socket, Fd memory) : PipeEnd(std::move(socket), std::move(memory)) {}

  ssize_t try_receive(void* data, size_t bytes) override {
    const uint64_t taken = pipe().reader.moved.load(std::memory_order_relaxed);
    const size_t offset = taken % kCapacity;
    const size_t now = std::min({bytes, there(), kCapacity - offset, kCopy});
    if (now == 0) {
      // What it sent before it went counts.
      const bool ended = (slept_ && gone()) || lost();
      return ended && there() == 0 ? -1 : 0;
    }
    std::memcpy(data, pipe().bytes.data() + offset, now);
    busy();
    slept_ = false;
    moved(pipe().reader, pipe().writer, now);
    return static_cast<ssize_t>(now);
  }
  bool watch(std::vector<pollfd>& fds) override {
    slept_ = true;
    return sleep(pipe().reader, fds, [&] { return there() != 0; });
  }

 private:
  size_t there() {
    const uint64_t put =
        pipe().writer.moved.load() - pipe().reader.moved.load(std::memory_order_relaxed);
    return put <= kCapacity ? put : 0;
  }
  bool slept_ = false;
};

}  // namespace

std::unique_ptr<SendHop> make_shm_send_hop(Fd socket, int peer) {
  Fd memory(memfd_create("lockstep-pipe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  int result = memory ? 0 : -1;
  if (result == 0) result = fallocate(memory.get(), 0, 0, sizeof(Pipe));
  if (result == 0) result = fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL);
  if (result != 0) {
    throw Error(ErrorCode::kOutOfMemory, "connect",
                concat("the system gave no ", sizeof(Pipe), " bytes of shared memory: ",
                       std::strerror(errno), "; see the memory limit of this container"));
  }
  send_with_fd(socket, &kLayout, sizeof kLayout, memory.get(), concat("rank ", peer));
  return std::make_unique<ShmSendHop>(std::move(socket), std::move(memory));
}

std::unique_ptr<ReceiveHop> make_shm_receive_hop(Fd socket, int peer, Deadline deadline) {
  uint64_t layout = 0;
  Fd memory = receive_with_fd(socket, &layout, sizeof layout, deadline, concat("rank ", peer));
  struct stat status {};
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  if (layout != kLayout || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
      fstat(memory.get(), &status) != 0 || status.st_size < static_cast<off_t>(sizeof(Pipe))) {
    throw Error(ErrorCode::kMismatch, "connect",
                concat("rank ", peer, " of another build connected"));
  }
  return std::make_unique<ShmReceiveHop>(std::move(socket), std::move(memory));
}

}  // namespace lockstep::comm
