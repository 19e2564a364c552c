#include "lockstep/comm/tcp_transport.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/comm/futex.h"
#include "lockstep/comm/host_memory.h"
#include "lockstep/comm/one_shot.h"
#include "lockstep/comm/ring.h"
#include "lockstep/comm/tcp_mesh.h"
#include "lockstep/comm/tcp_pairs.h"
#include "lockstep/comm/text.h"

namespace lockstep::comm {
namespace {

static_assert(std::endian::native == std::endian::little, "headers travel as they are in memory");

// Longest payload of a message: what a rank must have room for, from every other.
constexpr size_t kMaxPayload = size_t{256} << 10;
// How long to try again before sleeping in poll(), where there are cores to spare.
constexpr std::chrono::microseconds kSpin{50};
// The reason why a rank left comes behind its connections' end at most by this.
constexpr std::chrono::milliseconds kReason{200};
constexpr size_t kMaxReason = 2048;
// Ranks that wait for each other give up at the same time, but for this.
constexpr std::chrono::milliseconds kOthersTime{500};

// `sequence` is the collective, of kLeft the last that was completed; `code` is Request::code(), of
// kLeft the ErrorCode.
using Header = Frame;
using MessageKind = Frame::Kind;

// One rank's part of an exchange: what is still to send and to receive on its control connection.
struct Exchange {
  size_t sent = 0;      // of header and payload
  size_t received = 0;  // likewise
  Header header{};
  std::vector<std::byte> payload;
  bool watched = true;  // after its message has come: whether it may still say that it leaves
};

class TcpTransport final : public Transport, private RingLink {
 public:
  TcpTransport(const Meeting& meeting, bool crowded)
      : Transport(meeting.rank, meeting.size, meeting.timeout),
        crowded_(crowded),
        mixed_(!meeting.hosts.empty()),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        mesh_(connect_mesh(meeting)),
        exchanges_(meeting.size),
        payloads_(meeting.size),
        pairs_({meeting.rank, meeting.size, meeting.timeout, crowded}, mesh_.control, wake_),
        gave_up_(meeting.size) {
    if (!wake_) throw Error(ErrorCode::kIo, "connect", "no eventfd");
  }

  std::string_view name() const override { return mixed_ ? "mixed" : "tcp"; }
  std::shared_ptr<void> allocate(size_t bytes) override { return allocate_pages(bytes); }

  void run(const Collective& collective) override;
  void meet(const Collective& collective, const void* mine, size_t bytes, void* all) override;
  int find_dead() override {
    for (int peer = 0; peer < size(); ++peer) {  // who leaves says so first, which is then unread
      if (peer != rank() && has_ended(mesh_.control[peer])) return peer;
    }
    return -1;
  }
  Costs measure_costs(int rounds) override;
  std::string pair_text(int peer) const override;
  std::string way_text(size_t bytes) const override {
    return prefers_one_shot(bytes) ? "one_shot" : "ring";
  }
  void run(std::span<Transfer* const> transfers) override;
  void nudge() noexcept override { pairs_.nudge(); }
  void leave(const Failure& why) noexcept override;
  void cancel() noexcept override {
    cancelled_.store(true);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
  }

 private:
  bool prefers_one_shot(size_t bytes) const {
    const auto b = static_cast<double>(bytes);
    return bytes <= kMaxPayload &&
           exchange_seconds(costs(), size(), b) <= ring_seconds(costs(), size(), b);
  }
  // Throws kCancelled once that was asked for.
  void begin(const Collective& collective);
  void exchange(const Collective& collective);
  void begin_exchange(const Collective& collective, const void* payload, size_t send_bytes);
  // Sends and receives what goes now; true once nothing is left to do with any rank.
  bool progress();
  bool progress(int peer);
  // False where the connection has ended.
  bool receive(int peer);
  void watch(int peer);
  void finish_exchange();
  size_t expected_payload(int peer) const;
  [[noreturn]] void raise_mismatch();
  [[noreturn]] void raise_left(int peer, const Header& header);
  // A connection to `peer` has ended: with its reason if there is one.
  [[noreturn]] void raise_lost(int peer);
  [[noreturn]] void raise_late(bool to_send, bool to_receive);
  // Who, of all others, does not say within a moment that it has given up too.
  std::vector<int> silent_ranks();
  void tell_why(const Failure& why) noexcept;
  // Reads what the others still send, until they leave as well, but not for long: a connection that
  // is closed before what came was read loses what was last said on it.
  void await_ends() noexcept;
  void idle(bool to_send, bool to_receive);

  size_t try_send(const void* data, size_t bytes) override;
  size_t try_receive(void* data, size_t bytes) override;
  void wait(bool to_send, bool to_receive) override;

  int next() const { return (rank() + 1) % size(); }
  int before() const { return (rank() + size() - 1) % size(); }

  const bool crowded_;
  const bool mixed_;  // neighbours that share memory use it
  const Fd wake_;     // readable once cancelled
  TcpMesh mesh_;
  std::atomic<bool> cancelled_{false};
  uint64_t completed_ = 0;

  // Of the collective that is run.
  const Collective* collective_ = nullptr;
  Header mine_{};
  const std::byte* payload_ = nullptr;
  size_t payload_bytes_ = 0;  // that each rank gives
  size_t message_bytes_ = 0;  // of this rank's header and payload, after it too
  bool all_give_ = false;     // whatever the collective is: in meet()
  std::vector<Exchange> exchanges_;
  std::vector<const std::byte*> payloads_;  // room for one per rank
  TcpPairs pairs_;
  Deadline deadline_;
  Deadline idle_since_;
  bool is_idle_ = false;
  bool told_why_ = false;      // the others were
  std::vector<bool> gave_up_;  // by rank: it said so
};

void TcpTransport::begin(const Collective& collective) {
  if (cancelled_.load()) {
    throw Error(ErrorCode::kCancelled, collective.request.name(), "the communicator was aborted");
  }
  collective_ = &collective;
  deadline_ = deadline_after(patience(collective_->request));
  is_idle_ = false;
  all_give_ = false;
}

void TcpTransport::meet(const Collective& collective, const void* mine, size_t bytes, void* all) {
  begin(collective);
  all_give_ = true;
  begin_exchange(collective, mine, bytes);
  finish_exchange();
  for (int peer = 0; peer < size() && bytes != 0; ++peer) {
    std::memcpy(static_cast<std::byte*>(all) + static_cast<size_t>(peer) * bytes,
                peer == rank() ? mine : exchanges_[peer].payload.data(), bytes);
  }
  completed_ = collective.sequence;
  collective_ = nullptr;
}

void TcpTransport::run(const Collective& collective) {
  begin(collective);
  const auto bytes = static_cast<size_t>(collective.send_bytes(size()));
  const Algorithm algorithm = collective.request.algorithm;
  const bool small = prefers_one_shot(bytes);
  if (collective.exchanges() && (!small || collective.counts != nullptr)) {
    exchange(collective);
  } else if (algorithm == Algorithm::kOneShot || collective.exchanges() ||
             (algorithm == Algorithm::kAuto && small)) {
    begin_exchange(collective, collective.send, bytes);
    finish_exchange();
    for (int peer = 0; peer < size(); ++peer) {
      payloads_[peer] = peer == rank() ? payload_ : exchanges_[peer].payload.data();
    }
    const int64_t elements = bytes / static_cast<size_t>(collective.element_size());
    finish_one_shot(collective, rank(), size(), 0, elements, payloads_.data());
  } else {
    begin_exchange(collective, nullptr, 0);
    run_ring(collective, rank(), size(), *this);
    finish_exchange();
  }
  completed_ = collective.sequence;
  collective_ = nullptr;
}

std::string TcpTransport::pair_text(int peer) const {
  std::string text = concat("messages by a socket to ", peer_name(mesh_.control[peer]));
  if (peer == next()) text += concat("; the ring to ", mesh_.next_text);
  return text;
}

Costs TcpTransport::measure_costs(int rounds) {
  constexpr int64_t kProbeBytes = int64_t{256} << 10;
  constexpr int kMeetings = 4;
  Costs costs{1, 1, 1, 0, 0};
  const auto keep_least = [](double& least, const auto& f) {
    const Clock::time_point start = Clock::now();
    f();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - start).count());
  };
  Collective meet;
  std::vector<std::byte> bytes(static_cast<size_t>(kProbeBytes * size()));
  Collective gather;
  gather.request.kind = Kind::kAllGather;
  gather.request.algorithm = Algorithm::kRing;
  gather.request.count = kProbeBytes;
  gather.send = bytes.data() + rank() * kProbeBytes;
  gather.recv = bytes.data();
  const kernels::FoldSpec spec{DType::kF32, kernels::FoldOp::kSum, 2};
  const void* sources[2] = {bytes.data(), bytes.data() + kProbeBytes};
  void* output = bytes.data();
  run(gather);
  for (int i = 0; i < 2 * rounds; ++i) {
    keep_least(costs.meet, [&] {
      for (int k = 0; k < kMeetings; ++k) run(meet);
    });
    keep_least(costs.fetch, [&] { run(gather); });
    keep_least(costs.copy, [&] { kernels::Fold::cpu(spec, sources, &output, 1, kProbeBytes / 4); });
  }
  costs.meet /= kMeetings;
  costs.fetch = std::max(costs.fetch - (size() - 1) * costs.meet, 0.0) /
                static_cast<double>((size() - 1) * kProbeBytes);
  costs.copy /= 2 * kProbeBytes;
  return costs;
}

// The ranks agree first, and tell each other their counts where these are not the same for all.
void TcpTransport::exchange(const Collective& collective) {
  const std::vector<int64_t> own =
      collective.counts != nullptr ? collective.counts->table() : std::vector<int64_t>();
  begin_exchange(collective, own.data(), own.size() * sizeof(int64_t));
  finish_exchange();
  if (collective.counts != nullptr) {
    std::vector<const int64_t*> tables(size());
    for (int peer = 0; peer < size(); ++peer) {
      tables[peer] = peer == rank()
                         ? own.data()
                         : reinterpret_cast<const int64_t*>(exchanges_[peer].payload.data());
    }
    check_tables(collective, tables);
  }
  pairs_.exchange(collective);
}

void TcpTransport::run(std::span<Transfer* const> transfers) {
  if (cancelled_.load()) {
    throw Error(ErrorCode::kCancelled, transfers[0]->request.name(),
                "the communicator was aborted");
  }
  pairs_.run(transfers);
}

void TcpTransport::begin_exchange(const Collective& collective, const void* payload,
                                  size_t send_bytes) {
  mine_ = {MessageKind::kArrival, 0, collective.sequence, collective.request.code(),
           collective.request.count};
  payload_ = static_cast<const std::byte*>(payload);
  payload_bytes_ = send_bytes;
  message_bytes_ = sizeof mine_ + expected_payload(rank());
  for (int peer = 0; peer < size(); ++peer) {
    Exchange& exchange = exchanges_[peer];
    exchange.sent = 0;
    exchange.received = 0;
    exchange.watched = true;
    exchange.payload.resize(peer == rank() ? 0 : expected_payload(peer));
  }
  progress();
}

// What a rank's message holds behind its header.
size_t TcpTransport::expected_payload(int peer) const {
  return all_give_ || collective_->gives(peer) ? payload_bytes_ : 0;
}

bool TcpTransport::progress() {
  bool all = true;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) all = progress(peer) && all;
  }
  return all;
}

bool TcpTransport::progress(int peer) {
  Exchange& exchange = exchanges_[peer];
  const size_t payload = message_bytes_ - sizeof mine_;
  if (exchange.sent < message_bytes_) {
    const size_t from = exchange.sent;
    std::array<iovec, 2> parts{};
    if (from < sizeof mine_) {
      parts[0] = {reinterpret_cast<std::byte*>(&mine_) + from, sizeof mine_ - from};
    }
    const size_t in_payload = from < sizeof mine_ ? 0 : from - sizeof mine_;
    parts[1] = {const_cast<std::byte*>(payload_) + in_payload, payload - in_payload};
    msghdr message{};
    message.msg_iov = parts[0].iov_len != 0 ? parts.data() : &parts[1];
    message.msg_iovlen = (parts[0].iov_len != 0 ? 1u : 0u) + (parts[1].iov_len != 0 ? 1u : 0u);
    const ssize_t bytes = sendmsg(mesh_.control[peer].get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (bytes > 0) {
      exchange.sent += static_cast<size_t>(bytes);
    } else if (errno != EAGAIN && errno != EINTR) {
      raise_lost(peer);
    }
  }
  if (exchange.received < sizeof(Header) + exchange.payload.size() && !receive(peer)) {
    raise_lost(peer);
  }
  return exchange.sent == message_bytes_ &&
         exchange.received == sizeof(Header) + exchange.payload.size();
}

bool TcpTransport::receive(int peer) {
  Exchange& exchange = exchanges_[peer];
  const size_t from = exchange.received;
  const int fd = mesh_.control[peer].get();
  std::array<iovec, 2> parts{};
  if (from < sizeof(Header)) {
    parts[0] = {reinterpret_cast<std::byte*>(&exchange.header) + from, sizeof(Header) - from};
  }
  const size_t in_payload = from < sizeof(Header) ? 0 : from - sizeof(Header);
  parts[1] = {exchange.payload.data() + in_payload, exchange.payload.size() - in_payload};
  const bool header = parts[0].iov_len != 0;
  // A rank that leaves or disagrees sends something else behind its header, or nothing: what comes
  // is read into both, and the header is looked at first.
  msghdr message{};
  message.msg_iov = header ? parts.data() : &parts[1];
  message.msg_iovlen = (header ? 1u : 0u) + (parts[1].iov_len != 0 ? 1u : 0u);
  const ssize_t bytes = recvmsg(fd, &message, MSG_DONTWAIT);
  if (bytes == 0) return false;
  if (bytes < 0) return errno == EAGAIN || errno == EINTR;
  is_idle_ = false;
  exchange.received += static_cast<size_t>(bytes);
  if (!header || exchange.received < sizeof(Header)) return true;
  if (exchange.header.kind == MessageKind::kLeft) raise_left(peer, exchange.header);
  if (exchange.header.kind == MessageKind::kPost) {
    throw mismatch(collective_->request.name(), {rank(), collective_->request},
                   {peer, Request::decode(exchange.header.code, exchange.header.count)});
  }
  if (exchange.header.kind != MessageKind::kArrival || exchange.header.sequence != mine_.sequence) {
    throw Error(ErrorCode::kInternal, collective_->request.name(),
                concat("rank ", peer, " sent a message out of order"));
  }
  if (exchange.header.code != mine_.code || exchange.header.count != mine_.count) {
    raise_mismatch();
  }
  return true;
}

// A rank whose message has come says no more in this collective, unless it gives up.
void TcpTransport::watch(int peer) {
  Exchange& exchange = exchanges_[peer];
  Header header{};
  const ssize_t bytes =
      recv(mesh_.control[peer].get(), &header, sizeof header, MSG_PEEK | MSG_DONTWAIT);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const bool left =
      bytes == static_cast<ssize_t>(sizeof header) && header.kind == MessageKind::kLeft;
  if (left && header.sequence < mine_.sequence) {
    [[maybe_unused]] const ssize_t taken =
        recv(mesh_.control[peer].get(), &header, sizeof header, MSG_DONTWAIT);
    exchange.received = 0;
    raise_left(peer, header);
  }
  // It is ahead, or has ended. Whether that matters, who waits for its bytes will see.
  exchange.watched = bytes > 0 && bytes < static_cast<ssize_t>(sizeof header);
}

void TcpTransport::finish_exchange() {
  while (!progress()) idle(false, false);
}

void TcpTransport::raise_mismatch() {
  std::vector<Asked> asked;
  for (int peer = 0; peer < size(); ++peer) {
    const Exchange& exchange = exchanges_[peer];
    if (peer == rank()) {
      asked.push_back({peer, collective_->request});
    } else if (exchange.received >= sizeof(Header)) {
      asked.push_back({peer, Request::decode(exchange.header.code, exchange.header.count)});
    }
  }
  throw mismatch(collective_->request.name(), mine_.sequence, asked);
}

void TcpTransport::raise_left(int peer, const Header& header) {
  const std::string_view op = collective_->request.name();
  std::string text(std::min<size_t>(header.text_bytes, kMaxReason), '\0');
  try {
    // Part of it may have been taken for the payload that was expected.
    Exchange& exchange = exchanges_[peer];
    const size_t have = exchange.received > sizeof(Header)
                            ? std::min(exchange.received - sizeof(Header), text.size())
                            : 0;
    if (have > 0) std::memcpy(text.data(), exchange.payload.data(), have);
    read_full(mesh_.control[peer], text.data() + have, text.size() - have, deadline_after(kReason),
              op, concat("rank ", peer));
  } catch (const Error&) {
    text = "it did not say why";
  }
  const auto code = static_cast<ErrorCode>(header.code);
  if (code == ErrorCode::kTimeout && !told_why_) {
    // It may have waited for one that waits like this rank; who does not is to blame.
    gave_up_[peer] = true;
    tell_why({code, std::string(op), text});
    const std::vector<int> silent = silent_ranks();
    if (!silent.empty()) {
      text += concat("; ", rank_list(silent), silent.size() == 1 ? " does" : " do", " not answer");
    }
  }
  raise_departure(code, op, peer, text);
}

void TcpTransport::raise_lost(int peer) {
  // What it sent before its connections ended says more: it disagreed, or left and gave its reason.
  const Deadline soon = deadline_after(kReason);
  Exchange& exchange = exchanges_[peer];
  const Fd& fd = mesh_.control[peer];
  do {
    if (exchange.received < sizeof(Header) + exchange.payload.size()) {
      if (!receive(peer)) break;
      continue;
    }
    Header header{};
    const ssize_t bytes = recv(fd.get(), &header, sizeof header, MSG_PEEK | MSG_DONTWAIT);
    const bool nothing_yet = bytes < 0 && (errno == EAGAIN || errno == EINTR);
    if (nothing_yet) continue;
    if (bytes != static_cast<ssize_t>(sizeof header) || header.kind != MessageKind::kLeft) break;
    [[maybe_unused]] const ssize_t taken = recv(fd.get(), &header, sizeof header, MSG_DONTWAIT);
    exchange.received = 0;
    raise_left(peer, header);
  } while (wait_readable(fd, soon));
  throw Error(ErrorCode::kPeerLost, collective_->request.name(),
              concat("rank ", peer, " died or cannot be reached any more: its connection ended"));
}

void TcpTransport::raise_late(bool to_send, bool to_receive) {
  std::vector<int> late;
  for (int peer = 0; peer < size(); ++peer) {
    const Exchange& exchange = exchanges_[peer];
    const bool silent =
        peer != rank() && exchange.received < sizeof(Header) + exchange.payload.size();
    if (silent) late.push_back(peer);
  }
  if (late.empty()) {
    // Around the ring every rank waits for one that may itself wait for another.
    tell_why({ErrorCode::kTimeout, std::string(collective_->request.name()),
              concat("rank ", rank(), " waited ", seconds_text(patience(collective_->request)))});
    late = silent_ranks();
  }
  if (late.empty() && to_receive) late.push_back(before());
  if (late.empty()) late.push_back(to_send ? next() : before());
  throw timed_out(collective_->request.name(), rank(), patience(collective_->request), late);
}

std::vector<int> TcpTransport::silent_ranks() {
  std::vector<int> silent;
  const Deadline deadline = deadline_after(kOthersTime);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() || gave_up_[peer]) continue;
    const Fd& fd = mesh_.control[peer];
    Header header{};
    ssize_t bytes = -1;
    do {
      bytes = recv(fd.get(), &header, sizeof header, MSG_PEEK | MSG_DONTWAIT);
    } while (bytes < 0 && (errno == EAGAIN || errno == EINTR) && wait_readable(fd, deadline));
    const bool gave_up =
        bytes == static_cast<ssize_t>(sizeof header) && header.kind == MessageKind::kLeft;
    if (!gave_up) silent.push_back(peer);
  }
  return silent;
}

// Returns when something may have changed. Tries again for a while before it sleeps.
void TcpTransport::idle(bool to_send, bool to_receive) {
  const Deadline now = Clock::now();
  if (!is_idle_) {
    is_idle_ = true;
    deadline_ = deadline_after(
        patience(collective_->request));  // of this wait, not of the whole collective
    idle_since_ = now;
  }
  if (!crowded_ && now - idle_since_ < kSpin) {
    relax();
    return;
  }
  std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Exchange& exchange = exchanges_[peer];
    const bool received = exchange.received == sizeof(Header) + exchange.payload.size();
    const bool sent = exchange.sent == sizeof mine_ + expected_payload(rank());
    short events = 0;
    if (!received || exchange.watched) events |= POLLIN;
    if (!sent) events |= POLLOUT;
    if (events != 0) fds.push_back({mesh_.control[peer].get(), events, 0});
  }
  if (to_send && !mesh_.to_next->watch(fds)) return;
  if (to_receive && !mesh_.from_before->watch(fds)) return;
  poll(fds.data(), fds.size(), poll_ms(deadline_));
  if (cancelled_.load()) {
    throw Error(ErrorCode::kCancelled, collective_->request.name(), "the communicator was aborted");
  }
  // Also where a socket says over and over that it is ready and nothing moves.
  if (Clock::now() >= deadline_) raise_late(to_send, to_receive);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Exchange& exchange = exchanges_[peer];
    const bool received = exchange.received == sizeof(Header) + exchange.payload.size();
    if (received && exchange.watched) watch(peer);
  }
}

size_t TcpTransport::try_send(const void* data, size_t bytes) {
  const ssize_t sent = mesh_.to_next->try_send(data, bytes);
  if (sent < 0) raise_lost(next());
  if (sent > 0) is_idle_ = false;
  return static_cast<size_t>(sent);
}

size_t TcpTransport::try_receive(void* data, size_t bytes) {
  const ssize_t received = mesh_.from_before->try_receive(data, bytes);
  if (received < 0) raise_lost(before());
  if (received > 0) is_idle_ = false;
  return static_cast<size_t>(received);
}

void TcpTransport::wait(bool to_send, bool to_receive) {
  progress();
  idle(to_send, to_receive);
}

void TcpTransport::leave(const Failure& why) noexcept {
  tell_why(why);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) shutdown(mesh_.control[peer].get(), SHUT_WR);
  }
  mesh_.to_next->close();
  if (why.code != ErrorCode::kCancelled) await_ends();
}

void TcpTransport::await_ends() noexcept {
  const Deadline soon = deadline_after(kReason);
  std::vector<std::byte> unread(kMaxPayload);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const Fd& fd = mesh_.control[peer];
    while (Clock::now() < soon && wait_readable(fd, soon) &&
           recv(fd.get(), unread.data(), unread.size(), MSG_DONTWAIT) > 0) {
    }
  }
}

// The first reason counts.
void TcpTransport::tell_why(const Failure& why) noexcept {
  if (std::exchange(told_why_, true)) return;
  std::string text = why.message.substr(0, kMaxReason);
  const Header header{MessageKind::kLeft, static_cast<uint32_t>(text.size()), completed_,
                      static_cast<uint64_t>(why.code), 0};
  text.insert(0, reinterpret_cast<const char*>(&header), sizeof header);
  const Deadline soon = deadline_after(kReason);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    // Not into the middle of a message: where its rest is not taken, the connection's end must do.
    if (!pairs_.finish_frame(peer, soon)) {
      shutdown(mesh_.control[peer].get(), SHUT_WR);
      continue;
    }
    const size_t sent_before = exchanges_[peer].sent;
    const bool between = sent_before == 0 || sent_before == message_bytes_;
    const int fd = mesh_.control[peer].get();
    if (between) {
      [[maybe_unused]] const ssize_t sent =
          send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
}

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(const Meeting& meeting, bool crowded) {
  return std::make_unique<TcpTransport>(meeting, crowded);
}

}  // namespace lockstep::comm
