#include "lockstep/comm/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// The addresses of a host, or none and the reason. An empty host is every interface.
Addresses resolve(const std::string& host, int port, std::string& reason) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (host.empty() ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const int status = getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                 std::to_string(port).c_str(), &hints, &list);
  if (status != 0) {
    reason = status == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(status);
    return nullptr;
  }
  return Addresses(list);
}

Fd new_socket(const addrinfo& address) {
  return Fd(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
}

void set_option(const Fd& fd, int level, int option, int value) {
  ::setsockopt(fd.get(), level, option, &value, sizeof value);
}

// Waits for `events`; false at the deadline.
bool wait_for(const Fd& fd, short events, Deadline deadline) {
  while (true) {
    pollfd entry{fd.get(), events, 0};
    const int wait = poll_ms(deadline);
    const int ready = ::poll(&entry, 1, wait);
    if (ready > 0) return true;
    if (ready == 0 && wait == 0) return false;
    // Any other failure shows in the call that follows, with its own errno.
    if (ready < 0 && errno != EINTR) return true;
  }
}

// Small messages leave at once, and a host that vanished is noticed within half a minute.
void tune_connection(const Fd& fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

// One attempt at one address; an empty Fd and the reason where it fails.
Fd try_connect(const addrinfo& address, Deadline deadline, std::string& reason) {
  Fd fd = new_socket(address);
  if (!fd) {
    reason = std::strerror(errno);
    return {};
  }
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) {
      reason = std::strerror(errno);
      return {};
    }
    if (!wait_for(fd, POLLOUT, deadline)) {
      reason = "no answer";
      return {};
    }
    int error = 0;
    socklen_t bytes = sizeof error;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) {
      reason = std::strerror(error);
      return {};
    }
  }
  tune_connection(fd);
  // A free port of this machine may be given to the connecting socket itself, which then talks to
  // itself: TCP's simultaneous open. Nobody listens there.
  sockaddr_storage here{};
  sockaddr_storage there{};
  socklen_t here_bytes = sizeof here;
  socklen_t there_bytes = sizeof there;
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&here), &here_bytes);
  ::getpeername(fd.get(), reinterpret_cast<sockaddr*>(&there), &there_bytes);
  if (here_bytes == there_bytes && std::memcmp(&here, &there, here_bytes) == 0) {
    reason = std::strerror(ECONNREFUSED);
    return {};
  }
  return fd;
}

[[noreturn]] void throw_transfer(int error, std::string_view op, std::string_view who,
                                 std::string_view doing) {
  const bool lost = error == ECONNRESET || error == EPIPE || error == ETIMEDOUT;
  throw Error(lost ? ErrorCode::kPeerLost : ErrorCode::kIo, op,
              concat(doing, " ", who, " failed: ", std::strerror(error)));
}

[[noreturn]] void throw_late(size_t done, size_t bytes, std::string_view op, std::string_view who,
                             std::string_view doing) {
  throw Error(ErrorCode::kTimeout, op,
              concat(doing, " ", who, " took too long: ", done, " of ", bytes,
                     " bytes went through before the deadline"));
}

}  // namespace

Deadline deadline_after(milliseconds timeout) {
  const Deadline now = Clock::now();
  const auto left = std::chrono::duration_cast<milliseconds>(Deadline::max() - now);
  return timeout >= left ? Deadline::max() : now + timeout;
}

int poll_ms(Deadline deadline) {
  const auto left = deadline - Clock::now();
  if (left <= Clock::duration::zero()) return 0;
  const auto ms = std::chrono::ceil<milliseconds>(left).count();
  return static_cast<int>(std::min<int64_t>(ms, INT_MAX));
}

std::string seconds_text(milliseconds timeout) {
  return concat(static_cast<double>(timeout.count()) / 1000.0, " s");
}

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

void Fd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Endpoint parse_endpoint(std::string_view text, std::string_view what) {
  const auto wrong = [&] {
    return concat(what, " wants host:port, such as 10.0.0.1:29500 or [fe80::1]:29500, got \"", text,
                  "\"");
  };
  Endpoint endpoint;
  const size_t colon = text.rfind(':');
  check(colon != std::string_view::npos && colon > 0, "endpoint", wrong);
  std::string_view host = text.substr(0, colon);
  if (host.front() == '[') {
    check(host.size() > 2 && host.back() == ']', "endpoint", wrong);
    host = host.substr(1, host.size() - 2);
  } else {
    check(host.find(':') == std::string_view::npos, "endpoint", wrong);
  }
  check(host.find_first_of("[]") == host.npos, "endpoint", wrong);
  endpoint.host = std::string(host);
  const std::string_view port = text.substr(colon + 1);
  const bool digits = !port.empty() && port.find_first_not_of("0123456789") == port.npos;
  check(digits && parse_number(port, endpoint.port) && endpoint.port <= 65535, "endpoint", wrong);
  return endpoint;
}

std::string to_string(const Endpoint& endpoint) {
  if (endpoint.host.find(':') != std::string::npos) {
    return concat("[", endpoint.host, "]:", endpoint.port);
  }
  return concat(endpoint.host.empty() ? "*" : endpoint.host, ":", endpoint.port);
}

bool is_loopback(std::string_view host) {
  if (host == "localhost" || host == "::1") return true;
  in_addr address{};
  return inet_pton(AF_INET, std::string(host).c_str(), &address) == 1 &&
         (ntohl(address.s_addr) >> 24) == 127;
}

Fd listen_tcp(const std::string& host, int port, std::string_view op) {
  const Endpoint wanted{host, port};
  check(port >= 0 && port <= 65535, op,
        [&] { return concat("want a port from 0 to 65535, got ", port); });
  std::string reason = "no address";
  int error = 0;
  const Addresses list = resolve(host, port, reason);
  // Every interface is one IPv6 socket that takes IPv4 too, where the machine has IPv6.
  std::vector<const addrinfo*> order;
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) order.push_back(a);
  std::stable_sort(order.begin(), order.end(), [&](const addrinfo* a, const addrinfo* b) {
    return host.empty() && a->ai_family == AF_INET6 && b->ai_family != AF_INET6;
  });
  for (const addrinfo* address : order) {
    Fd fd = new_socket(*address);
    if (fd) {
      // Without this a port stays closed for a minute after a job that used it.
      set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
      if (address->ai_family == AF_INET6) set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
      if (::bind(fd.get(), address->ai_addr, address->ai_addrlen) == 0 &&
          ::listen(fd.get(), SOMAXCONN) == 0) {
        return fd;
      }
    }
    error = errno;
    reason = std::strerror(error);
    if (error == EADDRINUSE) break;
  }
  if (error == EADDRINUSE) {
    throw Error(ErrorCode::kIo, op,
                concat("port ", port, " of ", host.empty() ? "this host" : host,
                       " is in use, perhaps by another job: choose another port, or port 0 "
                       "for a free one"));
  }
  throw Error(ErrorCode::kIo, op, concat("cannot listen on ", to_string(wanted), ": ", reason));
}

int local_port(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return 0;
}

std::string peer_name(const Fd& socket) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), bytes, host, sizeof host, port,
                    sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  return std::strchr(host, ':') != nullptr ? concat("[", host, "]:", port)
                                           : concat(host, ":", port);
}

Fd try_accept(const Fd& listener, std::string_view op) {
  while (true) {
    Fd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      tune_connection(fd);
      return fd;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
    // Errors of one connection that has already gone again (accept(2)).
    const bool gone = errno == EINTR || errno == ECONNABORTED || errno == EPROTO ||
                      errno == EPERM || errno == ENETDOWN || errno == ENETUNREACH ||
                      errno == EHOSTDOWN || errno == EHOSTUNREACH || errno == ENOPROTOOPT;
    if (!gone) {
      throw Error(ErrorCode::kIo, op, concat("cannot accept a connection: ", std::strerror(errno)));
    }
  }
}

Fd accept_tcp(const Fd& listener, Deadline deadline, std::string_view op) {
  while (wait_for(listener, POLLIN, deadline)) {
    Fd fd = try_accept(listener, op);
    if (fd) return fd;
  }
  throw Error(ErrorCode::kTimeout, op,
              concat("nobody connected to port ", local_port(listener), " in time"));
}

Fd try_connect_tcp(const Endpoint& endpoint, Deadline deadline, std::string_view op,
                   std::string& reason) {
  check(endpoint.port > 0 && endpoint.port <= 65535 && !endpoint.host.empty(), op, [&] {
    return concat("want a host and a port from 1 to 65535 to connect to, got \"",
                  to_string(endpoint), "\"");
  });
  const Addresses list = resolve(endpoint.host, endpoint.port, reason);
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    // A host that swallows packets must not use up the time of its other addresses.
    const Deadline attempt =
        a->ai_next == nullptr ? deadline : std::min(deadline, deadline_after(milliseconds(3000)));
    Fd fd = try_connect(*a, attempt, reason);
    if (fd) return fd;
  }
  return {};
}

Fd connect_tcp(const Endpoint& endpoint, Deadline deadline, std::string_view op) {
  std::string reason = "no answer";
  milliseconds pause{5};
  while (true) {
    Fd fd = try_connect_tcp(endpoint, deadline, op, reason);
    if (fd) return fd;
    const Deadline now = Clock::now();
    if (now >= deadline) break;
    std::this_thread::sleep_for(std::min<Clock::duration>(pause, deadline - now));
    pause = std::min(pause * 2, milliseconds(200));
  }
  throw Error(ErrorCode::kTimeout, op,
              concat("cannot connect to ", to_string(endpoint), " in time (", reason,
                     "): is that the right address and port, and has that side started?"));
}

bool wait_readable(const Fd& fd, Deadline deadline) { return wait_for(fd, POLLIN, deadline); }

bool has_ended(const Fd& fd) {
  char next = 0;
  const ssize_t got = ::recv(fd.get(), &next, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void read_full(const Fd& fd, void* data, size_t bytes, Deadline deadline, std::string_view op,
               std::string_view who) {
  constexpr std::string_view kDoing = "reading from";
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::recv(fd.get(), static_cast<char*>(data) + done, bytes - done, 0);
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (got == 0) {
      throw Error(ErrorCode::kPeerLost, op, concat(who, " closed the connection"));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(fd, POLLIN, deadline)) throw_late(done, bytes, op, who, kDoing);
    } else if (errno != EINTR) {
      throw_transfer(errno, op, who, kDoing);
    }
  }
}

void write_full(const Fd& fd, const void* data, size_t bytes, Deadline deadline,
                std::string_view op, std::string_view who) {
  constexpr std::string_view kDoing = "writing to";
  size_t done = 0;
  while (done < bytes) {
    const ssize_t put =
        ::send(fd.get(), static_cast<const char*>(data) + done, bytes - done, MSG_NOSIGNAL);
    if (put >= 0) {
      done += static_cast<size_t>(put);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(fd, POLLOUT, deadline)) throw_late(done, bytes, op, who, kDoing);
    } else if (errno != EINTR) {
      throw_transfer(errno, op, who, kDoing);
    }
  }
}

}  // namespace lockstep::comm
