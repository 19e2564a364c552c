// The store's server: one thread, one poll loop, a small state machine per connection.

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "lockstep/comm/auth.h"
#include "lockstep/comm/store.h"
#include "lockstep/comm/store_wire.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

constexpr size_t kReadBytes = size_t{64} << 10;
// Connections that have not proved themselves; beyond it the oldest is dropped for a new one.
constexpr size_t kMaxStrangers = 512;

struct Connection {
  enum class State { kHello, kProof, kMember };

  Fd fd;
  State state = State::kHello;
  Deadline handshake_ends;
  std::string proof;  // the right one
  std::string in;     // received, not yet handled
  std::string out;    // to be sent
  size_t sent = 0;
  StoreOp waits = StoreOp::kGiveUp;  // kGet or kBarrier while such a call waits
  std::string waits_for;             // its key or name
  int rank = -1;                     // in the barrier

  bool waiting() const { return waits != StoreOp::kGiveUp; }
};

struct Barrier {
  int size = 0;
  std::map<int, int64_t> arrived;  // rank -> connection
  // Set once the barrier has failed, for those who come later.
  ErrorCode code = ErrorCode::kInternal;
  std::string failure;
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
      while (Fd fd = try_accept(listener_, "store")) {
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

  bool drop_oldest_stranger() {
    for (const auto& [id, c] : connections_) {  // in the order they came
      if (c.state == Connection::State::kMember) continue;
      drop(id);
      return true;
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
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    const Connection c = std::move(found->second);
    connections_.erase(found);
    if (c.waits == StoreOp::kGet) forget_waiter(c.waits_for, id);
    if (c.waits == StoreOp::kBarrier) {
      Barrier& barrier = barriers_[c.waits_for];
      barrier.arrived.erase(c.rank);
      fail_barrier(c.waits_for, barrier, ErrorCode::kPeerLost,
                   concat("rank ", c.rank, " died, or left, while it waited in barrier \"",
                          c.waits_for, "\""));
    }
  }

  void forget_waiter(const std::string& key, int64_t id) {
    const auto found = waiters_.find(key);
    if (found == waiters_.end()) return;
    found->second.erase(id);
    if (found->second.empty()) waiters_.erase(found);
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

  static void send(Connection& c, std::string bytes) {
    c.out += bytes;
    flush(c);
  }

  // Handles one message of c.in, if it is whole; throws where it is not one.
  bool handle_one(int64_t id, Connection& c) {
    if (c.state != Connection::State::kMember) return shake_hands(c);
    uint32_t bytes = 0;
    if (c.in.size() < sizeof bytes) return false;
    std::memcpy(&bytes, c.in.data(), sizeof bytes);
    if (bytes > kMaxFrameBytes) throw Error(ErrorCode::kCorrupt, "store", "a frame is too long");
    if (c.in.size() - sizeof bytes < bytes) return false;
    const std::string frame = c.in.substr(sizeof bytes, bytes);
    c.in.erase(0, sizeof bytes + bytes);
    handle(id, c, FrameReader(frame));
    return true;
  }

  bool shake_hands(Connection& c) {
    if (c.state == Connection::State::kHello) {
      if (!is_hello(c.in)) throw Error(ErrorCode::kMismatch, "store", "a stranger");
      if (c.in.size() < kHelloBytes) return false;
      Challenge made = challenge(c.in, options_.token, store_context(options_.job));
      c.proof = std::move(made.want);
      c.state = Connection::State::kProof;
      c.in.clear();
      send(c, std::move(made.message));
      return true;
    }
    if (c.in.size() < kProofBytes) return false;
    if (!equal_secret(c.in, c.proof)) throw Error(ErrorCode::kMismatch, "store", "a stranger");
    c.state = Connection::State::kMember;
    c.in.clear();
    send(c, std::string(1, kAccepted));
    return true;
  }

  static void answer(Connection& c, std::string_view value) {
    c.waits = StoreOp::kGiveUp;
    send(c, FrameWriter(kStatusOk).rest(value).take());
  }

  static void refuse(Connection& c, ErrorCode code, std::string_view message) {
    c.waits = StoreOp::kGiveUp;
    send(c, FrameWriter(static_cast<uint8_t>(1 + static_cast<int>(code))).rest(message).take());
  }

  void handle(int64_t id, Connection& c, FrameReader frame) {
    const auto op = static_cast<StoreOp>(frame.byte());
    if (op == StoreOp::kGiveUp) {
      if (c.waiting()) give_up(id, c, milliseconds(frame.number()));
      return;
    }
    if (c.waiting()) throw Error(ErrorCode::kCorrupt, "store", "a request while another waits");
    const std::string key(frame.text());
    switch (op) {
      case StoreOp::kSet:
        return set(c, key, std::string(frame.text()));
      case StoreOp::kGet:
        return get(id, c, key);
      case StoreOp::kTryGet: {
        // One byte tells an empty value from none.
        const auto found = values_.find(key);
        return answer(c, found == values_.end() ? "" : concat("=", found->second));
      }
      case StoreOp::kAdd:
        return add(c, key, frame.number());
      case StoreOp::kErase:
        return answer(c, values_.erase(key) > 0 ? "1" : "0");
      case StoreOp::kBarrier: {
        const int64_t rank = frame.number();
        const int64_t size = frame.number();
        if (size < 1 || size > std::numeric_limits<int>::max() || rank < 0 || rank >= size) {
          return refuse(
              c, ErrorCode::kInvalidArgument,
              concat("want a rank of a group of 1 and more, got rank ", rank, " of ", size));
        }
        return enter_barrier(id, c, key, static_cast<int>(rank), static_cast<int>(size));
      }
      case StoreOp::kGiveUp:
        break;
    }
    throw Error(ErrorCode::kCorrupt, "store", "an unknown request");
  }

  // Keeps the value, gives `reply` to who sent it, and the value to those who waited for it.
  void set(Connection& c, const std::string& key, std::string value, std::string_view reply = "") {
    const std::string& kept = values_[key] = std::move(value);
    answer(c, reply);
    const auto found = waiters_.find(key);
    if (found == waiters_.end()) return;
    const std::set<int64_t> waiters = std::move(found->second);
    waiters_.erase(found);
    for (const int64_t id : waiters) {
      guarded(id, [&](Connection& waiter) { answer(waiter, kept); });
    }
  }

  void get(int64_t id, Connection& c, const std::string& key) {
    const auto found = values_.find(key);
    if (found != values_.end()) return answer(c, found->second);
    c.waits = StoreOp::kGet;
    c.waits_for = key;
    waiters_[key].insert(id);
  }

  void add(Connection& c, const std::string& key, int64_t delta) {
    const auto found = values_.find(key);
    int64_t value = 0;
    if (found != values_.end() && !parse_number(found->second, value)) {
      return refuse(c, ErrorCode::kInvalidArgument,
                    concat("key \"", key, "\" holds no number, so nothing can be added to it"));
    }
    int64_t sum = 0;
    if (__builtin_add_overflow(value, delta, &sum)) {
      return refuse(
          c, ErrorCode::kInvalidArgument,
          concat("counter \"", key, "\" is ", value, "; adding ", delta, " does not fit 64 bits"));
    }
    const std::string text = std::to_string(sum);
    set(c, key, text, text);
  }

  void enter_barrier(int64_t id, Connection& c, const std::string& name, int rank, int size) {
    Barrier& barrier = barriers_[name];
    if (!barrier.failure.empty()) return refuse(c, barrier.code, barrier.failure);
    if (barrier.size == 0) barrier.size = size;
    c.waits = StoreOp::kBarrier;
    c.waits_for = name;
    c.rank = rank;
    if (barrier.size != size || barrier.arrived.contains(rank)) {
      const int other = barrier.arrived.begin()->first;
      const std::string message =
          barrier.size != size ? concat("rank ", rank, " came to barrier \"", name, "\" of ", size,
                                        " ranks, but rank ", other, " to one of ", barrier.size)
                               : concat("rank ", rank, " came to barrier \"", name,
                                        "\" twice: have two processes "
                                        "the same rank?");
      fail_barrier(name, barrier, ErrorCode::kMismatch, message);
      return refuse(c, ErrorCode::kMismatch, message);
    }
    barrier.arrived[rank] = id;
    if (static_cast<int>(barrier.arrived.size()) < size) return;
    const std::map<int, int64_t> everyone = std::move(barrier.arrived);
    barriers_.erase(name);
    for (const auto& [member, connection] : everyone) {
      guarded(connection, [&](Connection& waiter) { answer(waiter, ""); });
    }
  }

  void fail_barrier(const std::string& name, Barrier& barrier, ErrorCode code,
                    const std::string& message) {
    if (!barrier.failure.empty()) return;
    barrier.code = code;
    barrier.failure = message;
    const std::map<int, int64_t> everyone = std::move(barrier.arrived);
    barrier.arrived.clear();
    for (const auto& [member, connection] : everyone) {
      guarded(connection, [&](Connection& waiter) {
        if (waiter.waits == StoreOp::kBarrier && waiter.waits_for == name) {
          refuse(waiter, code, message);
        }
      });
    }
  }

  void give_up(int64_t id, Connection& c, milliseconds waited) {
    if (c.waits == StoreOp::kGet) {
      forget_waiter(c.waits_for, id);
      return refuse(c, ErrorCode::kTimeout,
                    concat("waited ", seconds_text(waited), " for key \"", c.waits_for,
                           "\", and no rank has set it"));
    }
    Barrier& barrier = barriers_[c.waits_for];
    std::vector<int> missing;
    for (int rank = 0; rank < barrier.size; ++rank) {
      if (!barrier.arrived.contains(rank)) missing.push_back(rank);
    }
    fail_barrier(c.waits_for, barrier, ErrorCode::kTimeout,
                 concat("rank ", c.rank, " waited ", seconds_text(waited), " in barrier \"",
                        c.waits_for, "\", and of ", barrier.size, " ranks ", rank_list(missing),
                        missing.size() == 1 ? " has" : " have", " not come"));
  }

  Fd listener_;
  const int wake_;
  const StoreServer::Options options_;
  Deadline deaf_until_ = Deadline::min();

  int64_t next_id_ = 0;
  std::map<int64_t, Connection> connections_;  // by age
  std::vector<int64_t> doomed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::set<int64_t>> waiters_;  // key -> connections in get
  std::map<std::string, Barrier> barriers_;

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
