#include "lockstep/comm/shm_transport.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "lockstep/comm/auth.h"
#include "lockstep/comm/shm_segment.h"
#include "lockstep/comm/text.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kOp = "connect";
// A stranger who connects holds up the others no longer than this.
constexpr std::chrono::seconds kHandshake{5};

// What ranks tell each other with their segment's descriptor.
struct Hello {
  uint64_t layout;  // of the segments
  int64_t rank;
  cpu_set_t cores;  // that this rank may run on
};

[[noreturn]] void throw_io(std::string_view what) {
  throw Error(ErrorCode::kIo, kOp, concat(what, ": ", std::strerror(errno)));
}

// `name` in the abstract namespace, which is in no file system.
socklen_t set_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Fd unix_socket() {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) throw_io("no Unix socket");
  return fd;
}

Fd listen_unix(const std::string& name, int backlog) {
  Fd fd = unix_socket();
  sockaddr_un address;
  const socklen_t bytes = set_address(name, address);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
      listen(fd.get(), backlog) != 0) {
    throw_io("cannot listen on a Unix socket");
  }
  return fd;
}

Fd connect_unix(const std::string& name, int rank, Deadline deadline) {
  Fd fd = unix_socket();
  sockaddr_un address;
  const socklen_t bytes = set_address(name, address);
  while (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN || Clock::now() >= deadline) {  // EAGAIN: too many wait there already
      throw Error(ErrorCode::kPeerLost, kOp,
                  concat("rank ", rank, " listens on no Unix socket that this process can reach (",
                         std::strerror(errno), "): it died, or is in another network namespace; ",
                         "LOCKSTEP_TRANSPORT=tcp reaches it there"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return fd;
}

bool same_user(const Fd& fd) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  return getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

void send_hello(const Fd& fd, const Hello& hello, int segment) {
  iovec data{const_cast<Hello*>(&hello), sizeof hello};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &segment, sizeof segment);
  // The socket is fresh, so that there is room for all of it.
  if (sendmsg(fd.get(), &message, MSG_NOSIGNAL) != sizeof hello) {
    throw_io("cannot pass a segment to another rank");
  }
}

Fd receive_hello(const Fd& fd, Hello& hello, Deadline deadline) {
  if (!wait_readable(fd, deadline)) {
    throw Error(ErrorCode::kTimeout, kOp, "a rank connected but did not pass its segment in time");
  }
  iovec data{&hello, sizeof hello};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t bytes = recvmsg(fd.get(), &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
  const cmsghdr* rights = CMSG_FIRSTHDR(&message);
  Fd segment;
  if (bytes > 0 && rights != nullptr && rights->cmsg_level == SOL_SOCKET &&
      rights->cmsg_type == SCM_RIGHTS && rights->cmsg_len == CMSG_LEN(sizeof(int))) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(rights), sizeof received);
    segment = Fd(received);
  }
  if (bytes == 0) throw Error(ErrorCode::kPeerLost, kOp, "a rank died while it connected");
  if (bytes != sizeof hello || !segment) {
    throw Error(ErrorCode::kMismatch, kOp, "a rank of another build connected");
  }
  return segment;
}

class ShmTransport final : public SharedGroup {
 public:
  explicit ShmTransport(const Meeting& meeting)
      : SharedGroup(meeting.rank, meeting.size, meeting.timeout),
        segment_(std::make_shared<ShmSegment>(staging_bytes(meeting.size))),
        segments_(meeting.size),
        sockets_(meeting.size) {
    peers_[rank()] = {&segment_->header().member, segment_->staging()};
    own_.layout = sizeof(ShmHeader) + staging_bytes(size());
    own_.rank = rank();
    CPU_ZERO(&own_.cores);
    sched_getaffinity(0, sizeof own_.cores, &own_.cores);
    cores_ = own_.cores;
    meet(meeting);
    crowded_ = size() > CPU_COUNT(&cores_);
  }

  std::string_view name() const override { return "shm"; }
  std::shared_ptr<void> allocate(size_t bytes) override { return segment_->allocate(bytes); }

 protected:
  Place place_of(const void* data, size_t bytes) override {
    return segment_->place_of(data, bytes);
  }
  std::byte* reach(int peer, Place place) override { return segments_[peer].reach(place); }

  bool is_dead(int peer) override {
    if (peer == rank()) return false;
    pollfd state{sockets_[peer].get(), POLLRDHUP, 0};
    return poll(&state, 1, 0) > 0 && (state.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
  }

 private:
  // One connection to every other rank: this one calls those before it, and is called by the rest.
  void meet(const Meeting& meeting) {
    const Deadline deadline = deadline_after(meeting.timeout);
    const std::string name = concat("lockstep-", random_token());
    const Fd listener = listen_unix(name, size());
    meeting.store->set(key(meeting, rank()), name);
    for (int peer = 0; peer < rank(); ++peer) {
      const std::string where =
          meeting.store->get(key(meeting, peer), std::chrono::milliseconds(poll_ms(deadline)));
      Fd fd = connect_unix(where, peer, deadline);
      authenticate_as_connector(fd, meeting.secret, where, deadline, kOp, concat("rank ", peer));
      join(std::move(fd), peer, deadline);
    }
    for (int missing = size() - 1 - rank(); missing > 0;) {
      if (answer(meeting, listener, name, deadline)) --missing;
    }
  }

  static std::string key(const Meeting& meeting, int rank) {
    return concat(meeting.prefix, "shm/", rank);
  }

  // Takes one connection; false where it was a stranger's.
  bool answer(const Meeting& meeting, const Fd& listener, const std::string& name,
              Deadline deadline) {
    if (!meeting.gathering->wait_readable(listener, deadline)) throw_missing();
    Fd fd(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd || !same_user(fd)) return false;
    const Deadline soon = std::min(deadline, deadline_after(kHandshake));
    try {
      authenticate_as_listener(fd, meeting.secret, name, soon, kOp, "a process");
    } catch (const Error&) {
      return false;
    }
    join(std::move(fd), -1, soon);
    return true;
  }

  [[noreturn]] void throw_missing() {
    std::vector<int> missing;
    for (int peer = rank() + 1; peer < size(); ++peer) {
      if (!sockets_[peer]) missing.push_back(peer);
    }
    throw Error(ErrorCode::kTimeout, kOp,
                concat("rank ", rank(), " waited ", seconds_text(timeout()), " for ",
                       rank_list(missing), " to connect"));
  }

  // Exchanges segments with a rank that has proved itself; -1 is one that says who it is.
  void join(Fd fd, int expected, Deadline deadline) {
    send_hello(fd, own_, segment_->fd().get());
    Hello hello{};
    Fd received = receive_hello(fd, hello, deadline);
    const bool known = hello.rank >= 0 && hello.rank < size() && hello.rank != rank();
    if (hello.layout != own_.layout || !known || (expected >= 0 && hello.rank != expected) ||
        sockets_[hello.rank]) {
      throw Error(ErrorCode::kMismatch, kOp,
                  concat("rank ", hello.rank, " connected out of place or from another build"));
    }
    const int peer = static_cast<int>(hello.rank);
    segments_[peer] = PeerSegment(std::move(received), staging_bytes(size()), peer);
    peers_[peer] = {&segments_[peer].header().member, segments_[peer].staging()};
    CPU_OR(&cores_, &cores_, &hello.cores);
    sockets_[peer] = std::move(fd);
  }

  std::shared_ptr<ShmSegment> segment_;
  std::vector<PeerSegment> segments_;
  std::vector<Fd> sockets_;  // by rank; they say nothing more, and close when a rank dies
  Hello own_{};
  cpu_set_t cores_{};  // of all ranks together
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport(const Meeting& meeting) {
  return std::make_unique<ShmTransport>(meeting);
}

}  // namespace lockstep::comm
