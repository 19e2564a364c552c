#include "lockstep/comm/unix_socket.h"

#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <thread>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kOp = "connect";

[[noreturn]] void throw_io(std::string_view what) {
  throw Error(ErrorCode::kIo, kOp, concat(what, ": ", std::strerror(errno)));
}

socklen_t set_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  check(name.size() < sizeof address.sun_path, kOp,
        [&] { return concat("a Unix socket's name of ", name.size(), " bytes is too long"); });
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Fd unix_socket() {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) throw_io("no Unix socket");
  return fd;
}

// A message of some bytes and room for one descriptor.
struct Message {
  Message(void* bytes, size_t count) : data{bytes, count} {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }

  iovec data;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
};

[[noreturn]] void throw_lost(std::string_view who) {
  throw Error(ErrorCode::kPeerLost, kOp, concat(who, " died while it connected"));
}

}  // namespace

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

Fd accept_unix(const Fd& listener) {
  Fd fd(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd && peer_of(fd).uid != geteuid()) return {};
  return fd;
}

ucred peer_of(const Fd& fd) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    return {0, ~uid_t{0}, ~gid_t{0}};
  }
  return peer;
}

void send_with_fd(const Fd& socket, const void* data, size_t bytes, int fd, std::string_view who) {
  Message message(const_cast<void*>(data), bytes);
  cmsghdr* rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  if (sendmsg(socket.get(), &message.header, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) {
    if (errno == EPIPE || errno == ECONNRESET) throw_lost(who);
    throw_io("cannot pass a segment to another rank");
  }
}

Fd receive_with_fd(const Fd& socket, void* data, size_t bytes, Deadline deadline,
                   std::string_view who) {
  if (!wait_readable(socket, deadline)) {
    throw Error(ErrorCode::kTimeout, kOp,
                concat(who, " connected but did not pass its segment in time"));
  }
  Message message(data, bytes);
  const ssize_t got = recvmsg(socket.get(), &message.header, MSG_CMSG_CLOEXEC | MSG_WAITALL);
  const cmsghdr* rights = CMSG_FIRSTHDR(&message.header);
  Fd received;
  if (got > 0 && rights != nullptr && rights->cmsg_level == SOL_SOCKET &&
      rights->cmsg_type == SCM_RIGHTS && rights->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
    received = Fd(fd);
  }
  // With what this rank sent still unread, the end of a process resets its sockets.
  if (got == 0 || (got < 0 && errno == ECONNRESET)) throw_lost(who);
  if (got < 0) throw_io("cannot receive the segment of another rank");
  if (got != static_cast<ssize_t>(bytes) || !received) {
    throw Error(ErrorCode::kMismatch, kOp, concat(who, " of another build connected"));
  }
  return received;
}

}  // namespace lockstep::comm
