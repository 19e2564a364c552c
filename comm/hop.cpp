#include "lockstep/comm/hop.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace lockstep::comm {
namespace {

// Long enough for few calls, short enough that the sockets' buffers hold a stripe of each.
constexpr size_t kStripe = size_t{128} << 10;

// Sockets of a stream, and where it is.
class Stripes {
 public:
  explicit Stripes(std::vector<Fd> sockets) : sockets_(std::move(sockets)) {}

  int now() const { return sockets_[position_ / kStripe % sockets_.size()].get(); }
  // Of the wanted bytes, those of the present stripe.
  size_t room(size_t wanted) const {
    if (sockets_.size() == 1) return wanted;
    return std::min(wanted, kStripe - position_ % kStripe);
  }
  void advance(size_t bytes) { position_ += bytes; }
  const std::vector<Fd>& sockets() const { return sockets_; }

 private:
  std::vector<Fd> sockets_;
  size_t position_ = 0;  // bytes so far
};

// Moves bytes stripe by stripe until one moves no more: call(fd, data, bytes).
template <class Byte, class Call>
ssize_t move(Stripes& stripes, Byte* data, size_t bytes, bool zero_is_end, const Call& call) {
  size_t moved = 0;
  while (moved < bytes) {
    const size_t wanted = stripes.room(bytes - moved);
    const ssize_t now = call(stripes.now(), data + moved, wanted);
    if (now < 0 && errno == EINTR) continue;
    if (now < 0 && errno == EAGAIN) break;
    if (now < 0 || (now == 0 && zero_is_end)) return moved != 0 ? static_cast<ssize_t>(moved) : -1;
    stripes.advance(static_cast<size_t>(now));
    moved += static_cast<size_t>(now);
    if (static_cast<size_t>(now) < wanted) break;
  }
  return static_cast<ssize_t>(moved);
}

class SocketSendHop final : public SendHop {
 public:
  explicit SocketSendHop(std::vector<Fd> sockets) : stripes_(std::move(sockets)) {}

  ssize_t try_send(const void* data, size_t bytes) override {
    return move(stripes_, static_cast<const char*>(data), bytes, false,
                [](int fd, const char* from, size_t length) {
                  return send(fd, from, length, MSG_NOSIGNAL | MSG_DONTWAIT);
                });
  }
  bool watch(std::vector<pollfd>& fds) override {
    fds.push_back({stripes_.now(), POLLOUT, 0});
    return true;
  }
  void close() noexcept override {
    for (const Fd& fd : stripes_.sockets()) shutdown(fd.get(), SHUT_WR);
  }

 private:
  Stripes stripes_;
};

class SocketReceiveHop final : public ReceiveHop {
 public:
  explicit SocketReceiveHop(std::vector<Fd> sockets) : stripes_(std::move(sockets)) {}

  ssize_t try_receive(void* data, size_t bytes) override {
    return move(stripes_, static_cast<char*>(data), bytes, true,
                [](int fd, char* to, size_t length) { return recv(fd, to, length, MSG_DONTWAIT); });
  }
  bool watch(std::vector<pollfd>& fds) override {
    fds.push_back({stripes_.now(), POLLIN, 0});
    return true;
  }

 private:
  Stripes stripes_;
};

}  // namespace

std::unique_ptr<SendHop> make_socket_send_hop(std::vector<Fd> sockets) {
  return std::make_unique<SocketSendHop>(std::move(sockets));
}
std::unique_ptr<ReceiveHop> make_socket_receive_hop(std::vector<Fd> sockets) {
  return std::make_unique<SocketReceiveHop>(std::move(sockets));
}

}  // namespace lockstep::comm
