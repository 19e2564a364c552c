// The store's server: one thread, one poll loop, a handshake per connection, then a table of
// values.

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/comm/auth.h"
#include "lockstep/comm/store.h"
#include "lockstep/comm/store_table.h"
#include "lockstep/comm/store_wire.h"
#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

constexpr size_t kReadBytes = size_t{64} << 10;
// Connections that have not proved themselves; beyond it the oldest is dropped for a new one.
constexpr size_t kMaxStrangers = 512;
// Connections accepted in one turn: what a rank has said is heard long before it is the oldest.
constexpr int kAcceptedAtOnce = 64;

struct Connection {
  enum class State { kHello, kProof, kMember };

  Fd fd;
  State state = State::kHello;
  Deadline handshake_ends;
  std::string proof;  // the right one
  std::string in;     // received, not yet handled
  std::string out;    // to be sent
  size_t sent = 0;
};

class Loop {
 public:
  Loop(Fd listener, int wake, StoreServer::Options options)
      : listener_(std::move(listener)), wake_(wake), options_(std::move(options)) {}

  void run() {
    while (step()) {
    }
    // Answers that were given must arrive although the server ends now: a barrier's last word.
    for (auto& [id, c] : connections_) {
      try {
        write_full(c.fd, c.out.data() + c.sent, c.out.size() - c.sent,
                   deadline_after(milliseconds(1000)), "store", "a rank");
      } catch (const Error&) {
        continue;  // that rank is gone
      }
    }
  }

 private:
  // One turn; false once the server must stop.
  bool step() {
    polled_.clear();
    ids_.clear();
    polled_.push_back({wake_, POLLIN, 0});
    polled_.push_back({Clock::now() < deaf_until_ ? -1 : listener_.get(), POLLIN, 0});
    Deadline next = deaf_until_ > Clock::now() ? deaf_until_ : Deadline::max();
    for (const auto& [id, c] : connections_) {
      const bool sending = c.sent < c.out.size();
      polled_.push_back({c.fd.get(), static_cast<short>(sending ? POLLOUT : POLLIN), 0});
      ids_.push_back(id);
      if (c.state != Connection::State::kMember) next = std::min(next, c.handshake_ends);
    }
    if (::poll(polled_.data(), polled_.size(), next == Deadline::max() ? -1 : poll_ms(next)) < 0) {
      return true;  // interrupted, or short of memory for an instant
    }
    if (polled_[0].revents != 0) return false;
    for (size_t i = 0; i < ids_.size(); ++i) {
      if (polled_[i + 2].revents != 0) guarded(ids_[i], [&](Connection& c) { serve(ids_[i], c); });
    }
    drop_doomed();
    drop_late_strangers();
    if (polled_[1].revents != 0) accept_waiting();
    return true;
  }

  // Runs f on a connection, if it is still there; whatever goes wrong costs that connection alone.
  template <class F>
  void guarded(int64_t id, F f) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    try {
      f(found->second);
    } catch (const std::exception&) {
      doomed_.push_back(id);  // not dropped here: f's caller may be at work on the same connection
    }
  }

  void drop_doomed() {
    while (!doomed_.empty()) {  // dropping one may doom another
      const int64_t id = doomed_.back();
      doomed_.pop_back();
      drop(id);
    }
  }

  void accept_waiting() {
    try {
      for (int i = 0; i < kAcceptedAtOnce; ++i) {
        Fd fd = try_accept(listener_, "store");
        if (!fd) return;
        size_t strangers = 0;
        for (const auto& [id, c] : connections_) {
          strangers += c.state != Connection::State::kMember ? 1 : 0;
        }
        if (strangers >= kMaxStrangers) drop_oldest_stranger();
        Connection& c = connections_[next_id_++];
        c.fd = std::move(fd);
        c.handshake_ends = deadline_after(options_.handshake_timeout);
      }
    } catch (const std::exception&) {
      // Out of descriptors or memory. Members keep what they have; a stranger gives way, else new
      // connections wait a little.
      if (!drop_oldest_stranger()) deaf_until_ = deadline_after(milliseconds(100));
    }
  }

  // Of those who have not said hello, if there are any.
  bool drop_oldest_stranger() {
    for (const auto state : {Connection::State::kHello, Connection::State::kProof}) {
      for (const auto& [id, c] : connections_) {  // in the order they came
        if (c.state != state) continue;
        drop(id);
        return true;
      }
    }
    return false;
  }

  void drop_late_strangers() {
    const Deadline now = Clock::now();
    std::erase_if(connections_, [&](const auto& entry) {
      const Connection& c = entry.second;
      return c.state != Connection::State::kMember && c.handshake_ends <= now;
    });
  }

  void drop(int64_t id) {
    connections_.erase(id);
    table_.leave(id);
  }

  void serve(int64_t id, Connection& c) {
    if (c.sent < c.out.size()) {
      flush(c);
    } else {
      receive(c);
    }
    // A connection that still has something to send is not listened to: its answers cannot pile up.
    while (c.sent == c.out.size() && handle_one(id, c)) {
    }
  }

  // How much a stranger may send: what the handshake needs and not a byte more.
  static size_t wanted(const Connection& c) {
    switch (c.state) {
      case Connection::State::kHello:
        return kHelloBytes - c.in.size();
      case Connection::State::kProof:
        return kProofBytes - c.in.size();
      case Connection::State::kMember:
        break;
    }
    return kReadBytes;
  }

  void receive(Connection& c) {
    const size_t bytes = wanted(c);
    buffer_.resize(kReadBytes);
    const ssize_t got = ::recv(c.fd.get(), buffer_.data(), bytes, 0);
    if (got > 0) {
      c.in.append(buffer_.data(), static_cast<size_t>(got));
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      throw Error(ErrorCode::kPeerLost, "store", "the connection was closed");
    }
  }

  static void flush(Connection& c) {
    while (c.sent < c.out.size()) {
      const ssize_t put =
          ::send(c.fd.get(), c.out.data() + c.sent, c.out.size() - c.sent, MSG_NOSIGNAL);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (put < 0) throw Error(ErrorCode::kPeerLost, "store", "the connection was closed");
      c.sent += static_cast<size_t>(put);
    }
    c.out.clear();
    c.sent = 0;
  }

  static void send(Connection& c, std::string_view bytes) {
    c.out += bytes;
    flush(c);
  }

  // Handles one message of c.in, if it is whole; throws where it is not one.
  bool handle_one(int64_t id, Connection& c) {
    if (c.state != Connection::State::kMember) return shake_hands(c);
    const std::optional<std::string> request = take_frame(c.in);
    if (request) table_.handle(id, *request);
    return request.has_value();
  }

  bool shake_hands(Connection& c) {
    if (c.state == Connection::State::kHello) {
      if (!is_hello(c.in)) throw Error(ErrorCode::kMismatch, "store", "a stranger");
      if (c.in.size() < kHelloBytes) return false;
      Challenge made = challenge(c.in, options_.token, store_context(options_.job));
      c.proof = std::move(made.want);
      c.state = Connection::State::kProof;
      c.in.clear();
      send(c, made.message);
      return true;
    }
    if (c.in.size() < kProofBytes) return false;
    if (!equal_secret(c.in, c.proof)) throw Error(ErrorCode::kMismatch, "store", "a stranger");
    c.state = Connection::State::kMember;
    c.in.clear();
    send(c, std::string(1, kAccepted));
    return true;
  }

  Fd listener_;
  const int wake_;
  const StoreServer::Options options_;
  Deadline deaf_until_ = Deadline::min();

  int64_t next_id_ = 0;
  std::map<int64_t, Connection> connections_;  // by age
  std::vector<int64_t> doomed_;
  StoreTable table_{[this](int64_t id, const std::string& frame) {
    guarded(id, [&](Connection& c) { send(c, frame); });
  }};

  std::vector<pollfd> polled_;
  std::vector<int64_t> ids_;
  std::string buffer_;
};

}  // namespace

StoreServer::StoreServer(Options options) : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw Error(ErrorCode::kIo, "store", concat("eventfd: ", std::strerror(errno)));
  Fd listener = listen_tcp(options.host, options.port, "store");
  port_ = local_port(listener);
  auto loop = std::make_unique<Loop>(std::move(listener), wake_.get(), std::move(options));
  thread_ = std::thread([loop = std::move(loop)] { loop->run(); });
}

StoreServer::~StoreServer() {
  const uint64_t one = 1;
  while (::write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
}

}  // namespace lockstep::comm
