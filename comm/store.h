#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/comm/socket.h"
#include "lockstep/comm/world.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {

// Bounds of the store: more is refused, with an error, on both sides.
inline constexpr size_t kMaxKeyBytes = 1024;
inline constexpr size_t kMaxValueBytes = size_t{16} << 20;

// The job's meeting place: a key-value store of bytes, served by one thread over TCP. It lives in
// the launcher, or else in rank 0 (Store::connect).
//
// A connection must prove within kHandshakeTimeout that it knows the job's token (auth.h).
// Strangers, port scans and connections that say nothing are dropped then, at once if they say
// something else; nothing is allocated for a length a stranger sent, and no rank notices any of it.
class StoreServer {
 public:
  static constexpr std::chrono::milliseconds kHandshakeTimeout{10'000};

  struct Options {
    std::string host;  // empty: every interface
    int port = 0;      // 0: a free one
    std::string token;
    std::string job;
    std::chrono::milliseconds handshake_timeout = kHandshakeTimeout;
  };

  // Listens before it returns. Throws kIo where it cannot, naming the port and the way out.
  explicit StoreServer(Options options);
  // Stops serving: every call that waits at a client ends with kPeerLost.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  int port() const { return port_; }

 private:
  int port_ = 0;
  Fd wake_;  // an eventfd: readable once the server must stop
  std::thread thread_;
};

// A client of the store. Thread-safe: a call that waits does not hold up the others (each call that
// is under way has a connection of its own; idle ones are kept). Shared by shared_ptr.
//
// Besides what is said below, every call throws kPeerLost where the store is gone, kInvalidArgument
// for a key or value over the bounds, and kCancelled after close().
class Store {
 public:
  // The world's store. Rank 0 starts the server first where nobody hosts it (world.store_hosted),
  // owned by the returned Store; the others keep trying until the timeout, which throws kTimeout.
  // REQUIRES: world.store_port is not 0 unless the world has one rank.
  static std::shared_ptr<Store> connect(const World& world, std::chrono::milliseconds timeout);

  // A client of the server at `endpoint`. Throws kTimeout where none answers within the timeout,
  // kMismatch where the one that answers has another token or another job.
  // `host` says in messages whose store it is, such as "rank 0".
  Store(Endpoint endpoint, std::string token, std::string job, std::chrono::milliseconds timeout,
        std::string host = "");
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  void set(std::string_view key, std::string_view value);
  // Waits until the key is set. Throws kTimeout naming the key.
  std::string get(std::string_view key, std::chrono::milliseconds timeout);
  // nullopt where the key is not set.
  std::optional<std::string> try_get(std::string_view key);
  // Adds to a counter, which begins at 0, and returns its new value; one step, whoever else adds.
  // A counter reads as decimal text through get(). Throws kInvalidArgument where the key holds
  // something else or the sum does not fit.
  int64_t add(std::string_view key, int64_t delta);
  // True if there was something to erase.
  bool erase(std::string_view key);

  // Returns once all `size` ranks have called it with this name; the name is free again then.
  // The first rank whose timeout passes ends it for every rank: kTimeout, naming each rank that
  // has not come. A rank that dies in it ends it at once: kPeerLost. A rank that comes twice, or
  // with another size: kMismatch for all. After such an end the name keeps failing; use another.
  void barrier(std::string_view name, int rank, int size, std::chrono::milliseconds timeout);

  // Ends every call that is under way, and every later one, with kCancelled. From any thread.
  void close();

  // Where the server listens, as this client reaches it.
  const Endpoint& endpoint() const { return endpoint_; }
  // Where all ranks find it: on the rank that hosts it too, the name that the others use.
  const Endpoint& rendezvous() const { return rendezvous_; }

 private:
  friend class Gathering;
  class Lease;

  // "the store of rank 0 at 10.0.0.1:29500": for messages.
  std::string name() const;
  // Sends one request and returns the reply's value, or throws the error it says. With `wait`, the
  // server is told to give up once that long has passed.
  std::string call(std::string_view op, const std::string& frame,
                   std::optional<std::chrono::milliseconds> wait = std::nullopt);
  void throw_if_closed(std::string_view op) const;  // REQUIRES: mutex_ held

  const Endpoint endpoint_;
  Endpoint rendezvous_;
  const std::string token_;
  const std::string job_;
  const std::string host_;  // who runs the server, or empty where that is not known
  std::unique_ptr<StoreServer> server_;

  std::mutex mutex_;  // guards what follows
  std::vector<Fd> idle_;
  std::vector<int> busy_;  // descriptors of calls under way, for close()
  bool closed_ = false;
};

// This rank's stay in a group of ranks that find each other by keys of a store. While it lasts, all
// of them fail together: once one calls fail(), or ends without leaving, the others' check(),
// wait_readable(), and every get() and barrier() of a name that begins with the group's throws what
// it said, or kPeerLost naming it.
//
// Not thread-safe, but the store may be used meanwhile.
class Gathering {
 public:
  // `group` ends in '/'. Throws what the store throws, and where the group has failed already.
  Gathering(std::shared_ptr<Store> store, std::string group, int rank);
  // Leaves: the end of this rank means nothing to the others any more.
  ~Gathering();
  Gathering(const Gathering&) = delete;
  Gathering& operator=(const Gathering&) = delete;

  void check();
  // comm::wait_readable, cut short by a failure of the group.
  bool wait_readable(const Fd& fd, Deadline deadline);
  // Readable once check() will throw.
  const Fd& fd() const;
  // Tells the others that this rank cannot go on. kTimeout and kMismatch are theirs too; any other
  // code is a kPeerLost to them. The first of several counts.
  void fail(ErrorCode code, std::string_view why) noexcept;

 private:
  const std::shared_ptr<Store> store_;
  const std::string group_;
  std::unique_ptr<Store::Lease> lease_;
  std::optional<Error> failure_;
};

}  // namespace lockstep::comm
