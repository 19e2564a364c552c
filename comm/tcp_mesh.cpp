#include "lockstep/comm/tcp_mesh.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <mutex>
#include <set>
#include <thread>

#include "lockstep/comm/auth.h"
#include "lockstep/comm/interface.h"
#include "lockstep/comm/text.h"
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

enum class Purpose : int32_t { kControl = 0, kRing = 1 };

// What a rank says once it has proved itself.
struct Introduction {
  int32_t rank;
  Purpose purpose;
};

std::string context_of(const Meeting& meeting, int rank) {
  return concat(meeting.prefix, "tcp/", rank);
}

// Answers the ranks that call this one, each connection in a thread of its own, until all expected
// ones are there.
class Answering {
 public:
  Answering(const Meeting& meeting, const Fd& listener, TcpMesh& mesh)
      : meeting_(meeting), listener_(listener), mesh_(mesh), acceptor_([this] { accept(); }) {}

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
    if (!mesh_.from_before) ranks.insert(before());
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
    Introduction said{-1, Purpose::kControl};
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
    if (!proved) return;
    const bool caller = said.rank > meeting_.rank && said.rank < meeting_.size;
    if (said.purpose == Purpose::kControl && caller && !mesh_.control[said.rank]) {
      mesh_.control[said.rank] = std::move(fd);
    } else if (said.purpose == Purpose::kRing && said.rank == before() && !mesh_.from_before) {
      mesh_.from_before = std::move(fd);
    }
    changed_.notify_all();
  }

  const Meeting& meeting_;
  const Fd& listener_;
  TcpMesh& mesh_;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards what follows, and the mesh's connections from others
  std::condition_variable changed_;
  std::deque<int> open_;             // descriptors that are being authenticated, oldest first
  std::list<Handshake> handshakes_;  // of the acceptor's thread until it has ended
  std::exception_ptr failure_;
  std::thread acceptor_;
};

Fd call(const Meeting& meeting, int peer, const Endpoint& where, Purpose purpose,
        Deadline deadline) {
  const std::string who = concat("rank ", peer, " at ", to_string(where));
  Fd fd;
  std::string reason = "no answer";
  while (!fd) {
    fd = try_connect_tcp(where, std::min(deadline, deadline_after(kTry)), kOp, reason);
    try {
      if (fd) {
        authenticate_as_connector(fd, meeting.secret, context_of(meeting, peer), deadline, kOp,
                                  who);
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
  const Introduction introduction{meeting.rank, purpose};
  write_full(fd, &introduction, sizeof introduction, deadline, kOp, who);
  return fd;
}

}  // namespace

TcpMesh connect_mesh(const Meeting& meeting) {
  const Deadline deadline = deadline_after(meeting.timeout);
  const std::string address = reachable_address(meeting.store->endpoint());
  const Fd listener = listen_tcp(address, 0, kOp);
  meeting.store->set(context_of(meeting, meeting.rank),
                     to_string(Endpoint{address, local_port(listener)}));
  TcpMesh mesh;
  mesh.control.resize(meeting.size);
  const int next = (meeting.rank + 1) % meeting.size;
  std::vector<Fd> called(meeting.size);
  {
    Answering answering(meeting, listener, mesh);
    for (int peer = 0; peer < meeting.size; ++peer) {
      if (peer >= meeting.rank && peer != next) continue;
      const Endpoint where =
          parse_endpoint(meeting.store->get(context_of(meeting, peer),
                                            std::chrono::milliseconds(poll_ms(deadline))),
                         kOp);
      if (peer < meeting.rank) {
        called[peer] = call(meeting, peer, where, Purpose::kControl, deadline);
      }
      if (peer == next) mesh.to_next = call(meeting, peer, where, Purpose::kRing, deadline);
    }
    answering.wait(deadline);
  }
  for (int peer = 0; peer < meeting.rank; ++peer) mesh.control[peer] = std::move(called[peer]);
  return mesh;
}

}  // namespace lockstep::comm
