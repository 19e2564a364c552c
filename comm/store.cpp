#include "lockstep/comm/store.h"

#include <sys/socket.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "lockstep/comm/auth.h"
#include "lockstep/comm/store_wire.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

// The server answers everything but get and barrier at once; longer than this is a dead host.
constexpr milliseconds kAnswerTime{60'000};

std::string name_of(const Endpoint& endpoint) {
  return concat("the store at ", to_string(endpoint));
}

void check_key(std::string_view key, std::string_view op) {
  check(key.size() <= kMaxKeyBytes, op, [&] {
    return concat("want a key of at most ", kMaxKeyBytes, " bytes, got ", key.size(), ", \"",
                  key.substr(0, 40), "…\"");
  });
}

FrameWriter request(StoreOp op) { return FrameWriter(static_cast<uint8_t>(op)); }

}  // namespace

std::shared_ptr<Store> Store::connect(const World& world, milliseconds timeout) {
  check(world.size >= 1 && world.rank >= 0 && world.rank < world.size, "Store::connect", [&] {
    return concat("want a rank of a world of 1 and more, got rank ", world.rank, " of ",
                  world.size);
  });
  check(world.store_port != 0 || world.size == 1, "Store::connect",
        "the world's store has no port: the other ranks cannot know a free port that rank 0 would "
        "find, so name one, or start the ranks with `lockstep run`");
  Endpoint endpoint{world.store_host, world.store_port};
  std::unique_ptr<StoreServer> server;
  if (world.rank == 0 && !world.store_hosted) {
    // The name by which the others find this host need not be one of its own addresses.
    const bool local = is_loopback(world.store_host);
    server = std::make_unique<StoreServer>(StoreServer::Options{
        local ? world.store_host : "", world.store_port, world.token, world.job});
    endpoint = {local ? world.store_host : "127.0.0.1", server->port()};
  }
  auto store = std::make_shared<Store>(endpoint, world.token, world.job, timeout);
  store->server_ = std::move(server);
  return store;
}

Store::Store(Endpoint endpoint, std::string token, std::string job, milliseconds timeout)
    : endpoint_(std::move(endpoint)), token_(std::move(token)), job_(std::move(job)) {
  constexpr std::string_view kOp = "Store::connect";
  const Deadline deadline = deadline_after(timeout);
  std::string reason;
  while (true) {
    Fd fd = connect_tcp(endpoint_, deadline, kOp);
    try {
      authenticate_as_connector(fd, token_, store_context(job_),
                                std::min(deadline, deadline_after(StoreServer::kHandshakeTimeout)),
                                kOp, name_of(endpoint_));
      idle_.push_back(std::move(fd));
      return;
    } catch (const Error& error) {
      // A server that is just ending, or drops connections because too many came at once.
      const bool again =
          error.code() == ErrorCode::kPeerLost || error.code() == ErrorCode::kTimeout;
      if (!again) throw;
      if (Clock::now() >= deadline) {
        throw Error(ErrorCode::kTimeout, kOp,
                    concat(name_of(endpoint_), " takes connections but did not answer within ",
                           seconds_text(timeout), ": does another program have that port?"));
      }
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
}

Store::~Store() = default;

// A connection for one call: from the idle ones or new, known to close(), given back by keep().
class Store::Lease {
 public:
  Lease(Store& store, std::string_view op) : store_(store) {
    {
      const std::lock_guard lock(store_.mutex_);
      store_.throw_if_closed(op);
      if (!store_.idle_.empty()) {
        fd_ = std::move(store_.idle_.back());
        store_.idle_.pop_back();
        store_.busy_.push_back(fd_.get());
        return;
      }
    }
    const Deadline deadline = deadline_after(kAnswerTime);
    const std::string who = name_of(store_.endpoint_);
    std::string reason = "no answer";
    Fd fd = try_connect_tcp(store_.endpoint_, deadline, op, reason);
    if (!fd) {
      throw Error(
          ErrorCode::kPeerLost, op,
          concat(who, " is gone (", reason, "): the rank or launcher that ran it has ended"));
    }
    authenticate_as_connector(fd, store_.token_, store_context(store_.job_), deadline, op, who);
    const std::lock_guard lock(store_.mutex_);
    store_.throw_if_closed(op);
    fd_ = std::move(fd);
    store_.busy_.push_back(fd_.get());
  }

  ~Lease() {
    // Both under the lock: close() must never shut down a number that has a new owner.
    const std::lock_guard lock(store_.mutex_);
    std::erase(store_.busy_, fd_.get());
    if (keep_ && !store_.closed_) {
      store_.idle_.push_back(std::move(fd_));
    } else {
      fd_.reset();
    }
  }

  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  const Fd& fd() const { return fd_; }
  void keep() { keep_ = true; }

 private:
  Store& store_;
  Fd fd_;
  bool keep_ = false;
};

void Store::throw_if_closed(std::string_view op) const {
  if (closed_) throw Error(ErrorCode::kCancelled, op, "the store was closed in this process");
}

std::string Store::call(std::string_view op, const std::string& frame,
                        std::optional<milliseconds> wait) {
  const std::string who = name_of(endpoint_);
  std::string reply;
  try {
    Lease lease(*this, op);
    write_full(lease.fd(), frame.data(), frame.size(), deadline_after(kAnswerTime), op, who);
    if (wait && !wait_readable(lease.fd(), deadline_after(*wait))) {
      const std::string give_up = request(StoreOp::kGiveUp).number(wait->count()).take();
      write_full(lease.fd(), give_up.data(), give_up.size(), deadline_after(kAnswerTime), op, who);
    }
    const Deadline deadline = deadline_after(kAnswerTime);
    uint32_t bytes = 0;
    read_full(lease.fd(), &bytes, sizeof bytes, deadline, op, who);
    if (bytes == 0 || bytes > kMaxFrameBytes) {
      throw Error(ErrorCode::kCorrupt, op, concat(who, " sent an answer of ", bytes, " bytes"));
    }
    reply.resize(bytes);
    read_full(lease.fd(), reply.data(), bytes, deadline, op, who);
    lease.keep();
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    throw_if_closed(op);  // close() shows as a connection that ended
    throw;
  }
  const auto status = static_cast<uint8_t>(reply[0]);
  reply.erase(0, 1);
  if (status == kStatusOk) return reply;
  check(status <= 1 + static_cast<int>(ErrorCode::kInternal), op,
        [&] { return concat(who, " sent the unknown status ", status); });
  throw Error(static_cast<ErrorCode>(status - 1), op, reply);
}

void Store::set(std::string_view key, std::string_view value) {
  constexpr std::string_view kOp = "Store::set";
  check_key(key, kOp);
  check(value.size() <= kMaxValueBytes, kOp, [&] {
    return concat("want a value of at most ", kMaxValueBytes, " bytes for key \"", key, "\", got ",
                  value.size());
  });
  call(kOp, request(StoreOp::kSet).text(key).text(value).take());
}

std::string Store::get(std::string_view key, milliseconds timeout) {
  constexpr std::string_view kOp = "Store::get";
  check_key(key, kOp);
  return call(kOp, request(StoreOp::kGet).text(key).take(), timeout);
}

std::optional<std::string> Store::try_get(std::string_view key) {
  constexpr std::string_view kOp = "Store::try_get";
  check_key(key, kOp);
  std::string found = call(kOp, request(StoreOp::kTryGet).text(key).take());
  if (found.empty()) return std::nullopt;
  return found.substr(1);
}

int64_t Store::add(std::string_view key, int64_t delta) {
  constexpr std::string_view kOp = "Store::add";
  check_key(key, kOp);
  const std::string sum = call(kOp, request(StoreOp::kAdd).text(key).number(delta).take());
  int64_t value = 0;
  if (!parse_number(sum, value)) {
    throw Error(ErrorCode::kCorrupt, kOp, concat(name_of(endpoint_), " sent a sum \"", sum, "\""));
  }
  return value;
}

bool Store::erase(std::string_view key) {
  constexpr std::string_view kOp = "Store::erase";
  check_key(key, kOp);
  return call(kOp, request(StoreOp::kErase).text(key).take()) == "1";
}

void Store::barrier(std::string_view name, int rank, int size, milliseconds timeout) {
  constexpr std::string_view kOp = "Store::barrier";
  check_key(name, kOp);
  call(kOp, request(StoreOp::kBarrier).text(name).number(rank).number(size).take(), timeout);
}

void Store::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  idle_.clear();
  for (const int fd : busy_) ::shutdown(fd, SHUT_RDWR);
}

}  // namespace lockstep::comm
