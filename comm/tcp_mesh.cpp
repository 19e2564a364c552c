#include "lockstep/comm/tcp_mesh.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <future>
#include <list>
#include <mutex>
#include <set>
#include <thread>

#include "lockstep/comm/auth.h"
#include "lockstep/comm/interface.h"
#include "lockstep/comm/shm_pipe.h"
#include "lockstep/comm/text.h"
#include "lockstep/comm/unix_socket.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kOp = "connect";
constexpr std::chrono::seconds kHandshake{5};
// Connections that are being authenticated at once; for more the oldest gives way.
constexpr size_t kHandshakes = 128;
constexpr std::chrono::milliseconds kLook{20};
// One try to connect, before a look at whether the group has failed.
constexpr std::chrono::milliseconds kTry{1000};

constexpr int kMaxSockets = 16;

enum class Purpose : int32_t { kControl = 0, kRing = 1 };

// What a rank says once it has proved itself. It is answered by kTaken once the connection is in
// its place: until then it may be dropped for a stranger's sake, and the rank calls again.
struct Introduction {
  int32_t rank = -1;
  Purpose purpose = Purpose::kControl;
  int32_t index = 0;  // among `count` sockets of a hop
  int32_t count = 1;
};
constexpr char kTaken = 'T';

std::string context_of(const Meeting& meeting, int rank) {
  return concat(meeting.prefix, "tcp/", rank);
}

// Answers the ranks that call this one, each connection in a thread of its own, until all expected
// ones are there.
class Answering {
 public:
  // `ring` becomes the sockets of the hop from the rank before, unless `no_ring`.
  Answering(const Meeting& meeting, const Fd& listener, TcpMesh& mesh, std::vector<Fd>& ring,
            bool no_ring)
      : meeting_(meeting),
        listener_(listener),
        mesh_(mesh),
        ring_(ring),
        no_ring_(no_ring),
        acceptor_([this] { accept(); }) {}

  ~Answering() {
    stop_.store(true);
    acceptor_.join();
    {
      const std::lock_guard lock(mutex_);
      for (const int fd : open_) shutdown(fd, SHUT_RDWR);
    }
    for (Handshake& handshake : handshakes_) handshake.thread.join();
  }

  // Throws kTimeout naming the ranks that have not called.
  void wait(Deadline deadline) {
    std::unique_lock lock(mutex_);
    while (!missing().empty()) {
      if (failure_) std::rethrow_exception(failure_);
      if (Clock::now() >= deadline) {
        throw Error(ErrorCode::kTimeout, kOp,
                    concat("rank ", meeting_.rank, " waited ", seconds_text(meeting_.timeout),
                           " for ", rank_list(missing()), " to connect"));
      }
      changed_.wait_for(lock, kLook);
      meeting_.gathering->check();
    }
  }

 private:
  struct Handshake {
    std::thread thread;
    std::atomic<bool> done{false};
  };

  int before() const { return (meeting_.rank + meeting_.size - 1) % meeting_.size; }

  // REQUIRES: locked.
  std::vector<int> missing() const {
    std::set<int> ranks;
    for (int peer = meeting_.rank + 1; peer < meeting_.size; ++peer) {
      if (!mesh_.control[peer]) ranks.insert(peer);
    }
    const bool whole = !ring_.empty() && std::all_of(ring_.begin(), ring_.end(),
                                                     [](const Fd& fd) { return bool{fd}; });
    if (!whole && !no_ring_) ranks.insert(before());
    return {ranks.begin(), ranks.end()};
  }

  void accept() {
    try {
      while (!stop_.load()) {
        if (!wait_readable(listener_, deadline_after(kLook))) continue;
        Fd fd = try_accept(listener_, kOp);
        if (!fd) continue;
        const std::lock_guard lock(mutex_);
        // The oldest gives way: silent strangers must not keep a rank out.
        if (open_.size() >= kHandshakes) shutdown(open_.front(), SHUT_RDWR);
        open_.push_back(fd.get());
        handshakes_.remove_if([](Handshake& handshake) {
          if (handshake.done.load()) handshake.thread.join();
          return !handshake.thread.joinable();
        });
        Handshake& handshake = handshakes_.emplace_back();
        handshake.thread = std::thread([this, &handshake, connection = std::move(fd)]() mutable {
          answer(std::move(connection));
          handshake.done.store(true);
        });
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
  }

  void answer(Fd fd) {
    const int number = fd.get();
    Introduction said;
    bool proved = false;
    try {
      const Deadline soon = deadline_after(kHandshake);
      authenticate_as_listener(fd, meeting_.secret, context_of(meeting_, meeting_.rank), soon, kOp,
                               "a process");
      {
        const std::lock_guard lock(mutex_);
        std::erase(open_, number);  // no stranger: it gives way to nobody
      }
      read_full(fd, &said, sizeof said, soon, kOp, "a rank");
      proved = true;
    } catch (const std::exception&) {
      // A stranger, or a rank that died: who waits for it will say so.
    }
    const std::lock_guard lock(mutex_);
    std::erase(open_, number);
    Fd* const place = proved ? place_of(said) : nullptr;
    if (place == nullptr || *place) return;
    if (::send(fd.get(), &kTaken, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) return;
    *place = std::move(fd);
    changed_.notify_all();
  }

  // Where the connection of who says this goes; null where it has no place. REQUIRES: locked.
  Fd* place_of(const Introduction& said) {
    if (said.purpose == Purpose::kControl) {
      const bool caller = said.rank > meeting_.rank && said.rank < meeting_.size;
      return caller ? &mesh_.control[said.rank] : nullptr;
    }
    if (said.purpose != Purpose::kRing || said.rank != before() || said.count < 1 ||
        said.count > kMaxSockets || said.index < 0 || said.index >= said.count) {
      return nullptr;
    }
    if (ring_.empty()) ring_.resize(said.count);
    const auto index = static_cast<size_t>(said.index);
    return index < ring_.size() ? &ring_[index] : nullptr;
  }

  const Meeting& meeting_;
  const Fd& listener_;
  TcpMesh& mesh_;
  std::vector<Fd>& ring_;
  const bool no_ring_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards what follows, and the mesh's connections from others
  std::condition_variable changed_;
  std::deque<int> open_;             // descriptors that are being authenticated, oldest first
  std::list<Handshake> handshakes_;  // of the acceptor's thread until it has ended
  std::exception_ptr failure_;
  std::thread acceptor_;
};

Fd call(const Meeting& meeting, int peer, const Endpoint& where, Introduction introduction,
        Deadline deadline) {
  introduction.rank = meeting.rank;
  const std::string who = concat("rank ", peer, " at ", to_string(where));
  Fd fd;
  std::string reason = "no answer";
  while (!fd) {
    fd = try_connect_tcp(where, std::min(deadline, deadline_after(kTry)), kOp, reason);
    try {
      if (fd) {
        authenticate_as_connector(fd, meeting.secret, context_of(meeting, peer), deadline, kOp,
                                  who);
        write_full(fd, &introduction, sizeof introduction, deadline, kOp, who);
        char taken = 0;
        read_full(fd, &taken, 1, deadline, kOp, who);
      }
    } catch (const Error& error) {
      // It drops connections where strangers make too many; where it died, the group fails.
      if (error.code() != ErrorCode::kPeerLost) throw;
      reason = error.what();
      fd.reset();
    }
    if (fd) break;
    meeting.gathering->check();
    if (Clock::now() >= deadline) {
      throw Error(ErrorCode::kTimeout, kOp,
                  concat("cannot connect to ", who, " in time (", reason, ")"));
    }
    std::this_thread::sleep_for(kLook);
  }
  return fd;
}

// How many sockets go to a rank. One fills a loopback; links between hosts often want more.
int socket_count(bool same_machine) {
  const char* wanted = std::getenv("LOCKSTEP_SOCKETS");
  if (wanted == nullptr || *wanted == '\0') return same_machine ? 1 : 2;
  int count = 0;
  check(parse_number(std::string_view(wanted), count) && count >= 1 && count <= kMaxSockets, kOp,
        [&] {
          return concat("LOCKSTEP_SOCKETS wants a number from 1 to ", kMaxSockets, ", got \"",
                        wanted, "\"");
        });
  return count;
}

// The hop to the next rank through memory, and the one from the rank before; every rank that shares
// memory with one of them calls this.
class MemoryHops {
 public:
  // Answers the rank before, where it shares memory with this one, in a thread of its own.
  MemoryHops(const Meeting& meeting, Deadline deadline) : meeting_(meeting), deadline_(deadline) {
    const int before = (meeting.rank + meeting.size - 1) % meeting.size;
    if (!meeting.shares_memory(before, meeting.rank)) return;
    const std::string name = concat("lockstep-", random_token());
    answer_ = std::async(std::launch::async, [this, before, name, listener = listen_unix(name, 4)] {
      return make_shm_receive_hop(answered(listener, name), before, deadline_);
    });
    meeting.store->set(key(meeting.rank), name);
  }

  ~MemoryHops() { stop_.store(true); }  // the future then waits for its thread
  MemoryHops(const MemoryHops&) = delete;
  MemoryHops& operator=(const MemoryHops&) = delete;

  std::unique_ptr<SendHop> call(int next) {
    const std::string name =
        meeting_.store->get(key(next), std::chrono::milliseconds(poll_ms(deadline_)));
    Fd fd = connect_unix(name, next, deadline_);
    authenticate_as_connector(fd, meeting_.secret, name, deadline_, kOp, concat("rank ", next));
    return make_shm_send_hop(std::move(fd), next);
  }
  // Null where the rank before shares no memory with this one.
  std::unique_ptr<ReceiveHop> answer() {
    if (!answer_.valid()) return nullptr;
    while (answer_.wait_for(kLook) != std::future_status::ready) meeting_.gathering->check();
    return answer_.get();
  }

 private:
  std::string key(int rank) const { return concat(meeting_.prefix, "pipe/", rank); }

  // The connection of whoever proves the group's secret.
  Fd answered(const Fd& listener, const std::string& name) {
    while (!stop_.load() && Clock::now() < deadline_) {
      if (!wait_readable(listener, std::min(deadline_, deadline_after(kLook)))) continue;
      Fd fd = accept_unix(listener);
      if (!fd) continue;
      try {
        const Deadline soon = std::min(deadline_, deadline_after(kHandshake));
        authenticate_as_listener(fd, meeting_.secret, name, soon, kOp, "a process");
        return fd;
      } catch (const Error&) {
        // A stranger.
      }
    }
    const int before = (meeting_.rank + meeting_.size - 1) % meeting_.size;
    throw Error(ErrorCode::kTimeout, kOp,
                concat("rank ", meeting_.rank, " waited ", seconds_text(meeting_.timeout), " for ",
                       "rank ", before, " to connect"));
  }

  const Meeting& meeting_;
  const Deadline deadline_;
  std::atomic<bool> stop_{false};
  std::future<std::unique_ptr<ReceiveHop>> answer_;
};

}  // namespace

TcpMesh connect_mesh(const Meeting& meeting) {
  const Deadline deadline = deadline_after(meeting.timeout);
  const std::string address = reachable_address(meeting.store->rendezvous());
  const Fd listener = listen_tcp(address, 0, kOp);
  meeting.store->set(context_of(meeting, meeting.rank),
                     to_string(Endpoint{address, local_port(listener)}));
  TcpMesh mesh;
  mesh.control.resize(meeting.size);
  const int next = (meeting.rank + 1) % meeting.size;
  const int before = (meeting.rank + meeting.size - 1) % meeting.size;
  const bool by_memory = meeting.shares_memory(meeting.rank, next);
  MemoryHops memory(meeting, deadline);
  std::vector<Fd> called(meeting.size);
  std::vector<Fd> ring_out;
  std::vector<Fd> ring_in;
  {
    Answering answering(meeting, listener, mesh, ring_in,
                        meeting.shares_memory(before, meeting.rank));
    for (int peer = 0; peer < meeting.size; ++peer) {
      const bool hop = peer == next && !by_memory;
      if (peer >= meeting.rank && !hop) continue;
      const Endpoint where =
          parse_endpoint(meeting.store->get(context_of(meeting, peer),
                                            std::chrono::milliseconds(poll_ms(deadline))),
                         kOp);
      if (peer < meeting.rank) called[peer] = call(meeting, peer, where, {}, deadline);
      const int sockets = hop ? socket_count(is_loopback(where.host) || where.host == address) : 0;
      for (int i = 0; i < sockets; ++i) {
        ring_out.push_back(call(meeting, peer, where, {0, Purpose::kRing, i, sockets}, deadline));
      }
      if (hop) {
        mesh.next_text =
            concat("rank ", next, " by ", sockets, sockets == 1 ? " socket" : " sockets", " from ",
                   address, " to ", where.host);
      }
    }
    answering.wait(deadline);
  }
  for (int peer = 0; peer < meeting.rank; ++peer) mesh.control[peer] = std::move(called[peer]);
  if (by_memory) {
    mesh.to_next = memory.call(next);
    mesh.next_text = concat("rank ", next, " by shared memory");
  } else {
    mesh.to_next = make_socket_send_hop(std::move(ring_out));
  }
  mesh.from_before = memory.answer();
  if (!mesh.from_before) mesh.from_before = make_socket_receive_hop(std::move(ring_in));
  return mesh;
}

}  // namespace lockstep::comm
