#include "lockstep/comm/store.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "lockstep/comm/auth.h"
#include "lockstep/comm/store_wire.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

// The server answers everything but get and barrier at once; longer than this is a dead host.
constexpr milliseconds kAnswerTime{60'000};
// Of a message that tells why a rank failed.
constexpr size_t kMaxFailureBytes = 4096;

void check_key(std::string_view key, std::string_view op) {
  check(key.size() <= kMaxKeyBytes, op, [&] {
    return concat("want a key of at most ", kMaxKeyBytes, " bytes, got ", key.size(), ", \"",
                  key.substr(0, 40), "…\"");
  });
}

// A reply, a status and what belongs to it.
std::string read_frame(const Fd& fd, std::string_view op, std::string_view who) {
  const Deadline deadline = deadline_after(kAnswerTime);
  uint32_t bytes = 0;
  read_full(fd, &bytes, sizeof bytes, deadline, op, who);
  if (bytes == 0 || bytes > kMaxFrameBytes) {
    throw Error(ErrorCode::kCorrupt, op, concat(who, " sent an answer of ", bytes, " bytes"));
  }
  std::string reply(bytes, '\0');
  read_full(fd, reply.data(), bytes, deadline, op, who);
  return reply;
}

// What a reply says, or the error that it is.
std::string value_of(std::string reply, std::string_view op, std::string_view who) {
  const auto status = static_cast<uint8_t>(reply[0]);
  reply.erase(0, 1);
  if (status == kStatusOk) return reply;
  check(status <= 1 + static_cast<int>(ErrorCode::kInternal), op,
        [&] { return concat(who, " sent the unknown status ", status); });
  throw Error(static_cast<ErrorCode>(status - 1), op, reply);
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
  auto store = std::make_shared<Store>(endpoint, world.token, world.job, timeout,
                                       world.store_hosted ? "the launcher" : "rank 0");
  store->server_ = std::move(server);
  store->rendezvous_.host = world.store_host;
  return store;
}

Store::Store(Endpoint endpoint, std::string token, std::string job, milliseconds timeout,
             std::string host)
    : endpoint_(std::move(endpoint)),
      rendezvous_(endpoint_),
      token_(std::move(token)),
      job_(std::move(job)),
      host_(std::move(host)) {
  constexpr std::string_view kOp = "Store::connect";
  const Deadline deadline = deadline_after(timeout);
  while (true) {
    Fd fd;
    try {
      fd = connect_tcp(endpoint_, deadline, kOp);
    } catch (const Error& error) {
      if (host_.empty()) throw;
      const std::string_view what = error.what();
      throw Error(error.code(), kOp, concat(what.substr(kOp.size() + 3), " It is ", name()));
    }
    try {
      authenticate_as_connector(fd, token_, store_context(job_),
                                std::min(deadline, deadline_after(StoreServer::kHandshakeTimeout)),
                                kOp, name());
      idle_.push_back(std::move(fd));
      return;
    } catch (const Error& error) {
      // A server that is just ending, or drops connections because too many came at once.
      const bool again =
          error.code() == ErrorCode::kPeerLost || error.code() == ErrorCode::kTimeout;
      if (!again) throw;
      if (Clock::now() >= deadline) {
        throw Error(ErrorCode::kTimeout, kOp,
                    concat(name(), " takes connections but did not answer within ",
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
    const std::string who = store_.name();
    std::string reason = "no answer";
    Fd fd = try_connect_tcp(store_.endpoint_, deadline, op, reason);
    if (!fd) {
      throw Error(ErrorCode::kPeerLost, op,
                  concat(who, " is gone (", reason, "): ",
                         store_.host_.empty() ? "the rank or launcher that ran it" : store_.host_,
                         " has ended"));
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
  const std::string who = name();
  std::string reply;
  try {
    Lease lease(*this, op);
    write_full(lease.fd(), frame.data(), frame.size(), deadline_after(kAnswerTime), op, who);
    if (wait && !wait_readable(lease.fd(), deadline_after(*wait))) {
      const std::string give_up = request(StoreOp::kGiveUp).number(wait->count()).take();
      write_full(lease.fd(), give_up.data(), give_up.size(), deadline_after(kAnswerTime), op, who);
    }
    reply = read_frame(lease.fd(), op, who);
    lease.keep();
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    throw_if_closed(op);  // close() shows as a connection that ended
    throw;
  }
  return value_of(std::move(reply), op, who);
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
    throw Error(ErrorCode::kCorrupt, kOp, concat(name(), " sent a sum \"", sum, "\""));
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

std::string Store::name() const {
  return concat("the store", host_.empty() ? "" : " of ", host_, " at ", to_string(endpoint_));
}

void Store::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  idle_.clear();
  for (const int fd : busy_) ::shutdown(fd, SHUT_RDWR);
}

namespace {
constexpr std::string_view kGatherOp = "connect";
}  // namespace

Gathering::Gathering(std::shared_ptr<Store> store, std::string group, int rank)
    : store_(std::move(store)), group_(std::move(group)) {
  check_key(group_, kGatherOp);
  lease_ = std::make_unique<Store::Lease>(*store_, kGatherOp);
  const std::string frame = request(StoreOp::kGather).text(group_).number(rank).take();
  write_full(lease_->fd(), frame.data(), frame.size(), deadline_after(kAnswerTime), kGatherOp,
             store_->name());
}

Gathering::~Gathering() {
  if (failure_) return;
  try {
    // With its answer, so that the connection can serve others.
    const std::string frame = request(StoreOp::kGiveUp).number(0).take();
    write_full(lease_->fd(), frame.data(), frame.size(), deadline_after(kAnswerTime), kGatherOp,
               store_->name());
    read_frame(lease_->fd(), kGatherOp, store_->name());
    lease_->keep();
  } catch (const std::exception&) {
    return;  // the group, or the store, has ended already
  }
}

const Fd& Gathering::fd() const { return lease_->fd(); }

void Gathering::check() {
  if (!failure_) {
    if (!comm::wait_readable(fd(), Clock::now())) return;
    try {
      const std::string who = store_->name();
      value_of(read_frame(fd(), kGatherOp, who), kGatherOp, who);
    } catch (const Error& error) {
      failure_ = error;
    }
  }
  if (failure_) throw Error(*failure_);
}

bool Gathering::wait_readable(const Fd& other, Deadline deadline) {
  std::array<pollfd, 2> polled{pollfd{other.get(), POLLIN, 0}, pollfd{fd().get(), POLLIN, 0}};
  while (true) {
    const int wait = poll_ms(deadline);
    const int ready = ::poll(polled.data(), polled.size(), wait);
    if (polled[1].revents != 0) check();
    if (ready > 0 && polled[0].revents != 0) return true;
    if (ready == 0 && wait == 0) return false;
  }
}

void Gathering::fail(ErrorCode code, std::string_view why) noexcept {
  try {
    const std::string_view text = why.substr(0, kMaxFailureBytes);
    store_->call(
        kGatherOp,
        request(StoreOp::kFail).text(group_).number(static_cast<int64_t>(code)).text(text).take());
  } catch (const std::exception&) {
    return;  // then the store is gone, which the others see too
  }
}

}  // namespace lockstep::comm
