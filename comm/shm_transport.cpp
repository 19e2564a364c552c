#include "lockstep/comm/shm_transport.h"

#include <poll.h>
#include <sched.h>

#include <bit>
#include <random>

#include "lockstep/comm/auth.h"
#include "lockstep/comm/peer_read.h"
#include "lockstep/comm/shm_segment.h"
#include "lockstep/comm/text.h"
#include "lockstep/comm/unix_socket.h"

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
  uint64_t probe;   // a random number, and where it is in this rank's memory
  uint64_t probe_address;
};

class ShmTransport final : public SharedGroup {
 public:
  explicit ShmTransport(const Meeting& meeting)
      : SharedGroup(meeting.rank, meeting.size, meeting.timeout),
        segment_(std::make_shared<ShmSegment>(staging_bytes(meeting.size))),
        segments_(meeting.size),
        sockets_(meeting.size),
        processes_(meeting.size) {
    peers_[rank()] = {&segment_->header().member, segment_->staging()};
    own_.layout = sizeof(ShmHeader) + staging_bytes(size());
    own_.rank = rank();
    CPU_ZERO(&own_.cores);
    sched_getaffinity(0, sizeof own_.cores, &own_.cores);
    cores_ = own_.cores;
    own_.probe = std::random_device()();
    own_.probe_address = std::bit_cast<uint64_t>(&own_.probe);
    reads_ = peer_reading_allowed();
    meet(meeting);
    peers_[rank()].member->reads.store(reads_ ? 1 : 0);
    crowded_ = size() > CPU_COUNT(&cores_);
  }

  std::string_view name() const override { return "shm"; }
  std::shared_ptr<void> allocate(size_t bytes) override { return segment_->allocate(bytes); }
  std::string pair_text(int peer) const override {
    return concat("shm: its process ", processes_[peer],
                  " is on this host; memory of allocate() is ", "mapped, other memory ",
                  reads_ ? "can be read" : "cannot be read (refused, or ",
                  reads_ ? "" : "LOCKSTEP_PEER_READ=0) and is staged");
  }

 protected:
  Place place_of(const void* data, size_t bytes) override {
    return segment_->place_of(data, bytes);
  }
  std::byte* reach(int peer, Place place) override { return segments_[peer].reach(place); }

  bool read_peer(int peer, uint64_t address, void* to, size_t bytes) override {
    return read_memory(processes_[peer], address, to, bytes, peer);
  }

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
    Fd fd = accept_unix(listener);
    if (!fd) return false;
    const Deadline soon = std::min(deadline, deadline_after(kHandshake));
    try {
      authenticate_as_listener(fd, meeting.secret, name, soon, kOp, "a process");
    } catch (const Error&) {
      return false;
    }
    try {
      join(std::move(fd), -1, soon);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kPeerLost) throw;
      return false;  // it died before it said who it is, which those tell that are missing
    }
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
    const std::string who = expected < 0 ? "a rank" : concat("rank ", expected);
    send_with_fd(fd, &own_, sizeof own_, segment_->fd().get(), who);
    Hello hello{};
    Fd received = receive_with_fd(fd, &hello, sizeof hello, deadline, who);
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
    processes_[peer] = peer_of(fd).pid;
    reads_ = reads_ && can_read_memory(processes_[peer], hello.probe_address, hello.probe);
    sockets_[peer] = std::move(fd);
  }

  std::shared_ptr<ShmSegment> segment_;
  std::vector<PeerSegment> segments_;
  std::vector<Fd> sockets_;  // by rank; they say nothing more, and close when a rank dies
  std::vector<pid_t> processes_;
  bool reads_ = true;  // the memory of all of them
  Hello own_{};
  cpu_set_t cores_{};  // of all ranks together
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport(const Meeting& meeting) {
  return std::make_unique<ShmTransport>(meeting);
}

}  // namespace lockstep::comm
