#include "lockstep/comm/tcp_pairs.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/comm/futex.h"
#include "lockstep/comm/text.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {
namespace {

// How long to try again before sleeping in poll(), where there are cores to spare.
constexpr std::chrono::microseconds kSpin{50};
// The reason why a rank left comes behind its announcement at most by this.
constexpr std::chrono::milliseconds kReason{200};
constexpr uint32_t kMaxReason = 2048;

bool would_wait() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

TcpPairs::TcpPairs(const Options& options, const std::vector<Fd>& connections, const Fd& cancelled)
    : options_(options),
      connections_(connections),
      cancelled_(cancelled),
      nudged_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      streams_(options.rank, options.size) {
  if (!nudged_) throw Error(ErrorCode::kIo, "connect", "no eventfd");
}

void TcpPairs::begin(const Request& request) {
  asked_ = request;
  is_idle_ = false;
}

void TcpPairs::run(std::span<Transfer* const> transfers) {
  begin(transfers[0]->request);
  for (;;) {
    const bool moved = streams_.progress(transfers, *this);
    if (std::any_of(transfers.begin(), transfers.end(), [](auto* one) { return one->done(); })) {
      return;
    }
    if (!moved) streams_.wait(transfers, *this);
    if (take_nudge()) return;
  }
}

bool TcpPairs::take_nudge() {
  uint64_t nudges = 0;
  return read(nudged_.get(), &nudges, sizeof nudges) == sizeof nudges;
}

void TcpPairs::nudge() noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(nudged_.get(), &one, sizeof one);
}

void TcpPairs::exchange(const Collective& collective) {
  begin(collective.request);
  take_nudge();  // it was about transfers
  streams_.exchange(collective, *this);
}

size_t TcpPairs::try_send(int peer, const void* data, size_t bytes) {
  const ssize_t sent = send(connections_[peer].get(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (would_wait()) return 0;
    raise_lost(peer);
  }
  is_idle_ = false;
  return static_cast<size_t>(sent);
}

size_t TcpPairs::try_receive(int peer, void* data, size_t bytes) {
  const ssize_t received = recv(connections_[peer].get(), data, bytes, MSG_DONTWAIT);
  if (received < 0 && would_wait()) return 0;
  if (received <= 0) raise_ended(peer);
  is_idle_ = false;
  return static_cast<size_t>(received);
}

bool TcpPairs::finish_frame(int peer, Deadline deadline) noexcept {
  try {
    while (!streams_.finish_frame(peer, *this)) {
      pollfd room{connections_[peer].get(), POLLOUT, 0};
      if (poll(&room, 1, poll_ms(deadline)) == 0) return false;
    }
    return true;
  } catch (const Error&) {
    return false;  // it is gone
  }
}

void TcpPairs::wait(std::span<const Want> wants) {
  const Deadline now = Clock::now();
  if (!is_idle_) {
    is_idle_ = true;
    idle_since_ = now;
    deadline_ = deadline_after(options_.timeout);
  }
  if (!options_.crowded && now - idle_since_ < kSpin) {
    relax();
    return;
  }
  std::vector<pollfd> fds = {{cancelled_.get(), POLLIN, 0}, {nudged_.get(), POLLIN, 0}};
  for (const Want& want : wants) {
    const int events = (want.to_send ? POLLOUT : 0) | (want.to_receive ? POLLIN : 0);
    fds.push_back({connections_[want.peer].get(), static_cast<short>(events), 0});
  }
  const int changed = poll(fds.data(), fds.size(), poll_ms(deadline_));
  if (fds[0].revents != 0) {
    throw Error(ErrorCode::kCancelled, asked_.name(), "the communicator was aborted");
  }
  if (changed == 0 && Clock::now() >= deadline_) {
    std::vector<int> late;
    for (const Want& want : wants) late.push_back(want.peer);
    throw timed_out(asked_.name(), options_.rank, options_.timeout, late);
  }
}

void TcpPairs::raise_frame(int peer, const Frame& frame, const Request& asked) {
  if (frame.kind == Frame::Kind::kArrival) {
    throw mismatch(asked.name(), {options_.rank, asked},
                   {peer, Request::decode(frame.code, frame.count)});
  }
  if (frame.kind != Frame::Kind::kLeft) {
    throw Error(ErrorCode::kInternal, asked.name(),
                concat("rank ", peer, " sent a message out of order"));
  }
  std::string text(std::min(frame.text_bytes, kMaxReason), '\0');
  try {
    read_full(connections_[peer], text.data(), text.size(), deadline_after(kReason), asked.name(),
              concat("rank ", peer));
  } catch (const Error&) {
    text = "it did not say why";
  }
  raise_departure(static_cast<ErrorCode>(frame.code), asked.name(), peer, text);
}

void TcpPairs::raise_lost(int peer) {
  // What came from it before the connection ended may say more.
  Frame frame;
  const Fd& fd = connections_[peer];
  if (!streams_.is_receiving_frame(peer) && wait_readable(fd, deadline_after(kReason)) &&
      recv(fd.get(), &frame, sizeof frame, MSG_DONTWAIT) == static_cast<ssize_t>(sizeof frame) &&
      frame.kind == Frame::Kind::kLeft) {
    raise_frame(peer, frame, asked_);
  }
  raise_ended(peer);
}

void TcpPairs::raise_ended(int peer) {
  throw Error(ErrorCode::kPeerLost, asked_.name(),
              concat("rank ", peer, " died or cannot be reached any more: its connection ended"));
}

}  // namespace lockstep::comm
