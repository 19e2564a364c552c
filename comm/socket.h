#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::comm {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

// `timeout` from now; a timeout too large for the clock is the clock's end.
Deadline deadline_after(std::chrono::milliseconds timeout);
// Milliseconds for poll(2): 0 once `deadline` has passed, rounded up before it.
int poll_ms(Deadline deadline);

// "600 s", "0.25 s": for messages.
std::string seconds_text(std::chrono::milliseconds timeout);

// Owns a file descriptor; -1 is none. Movable, not copyable. Not thread-safe, except that the
// descriptor may be read from one thread and written from another.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  // Closes the descriptor, if there is one.
  void reset();

 private:
  int fd_ = -1;
};

struct Endpoint {
  std::string host;  // a name, an IPv4 address, or an IPv6 address without brackets
  int port = 0;
};

// "10.0.0.1:29500", "node7:29500", "[fe80::1]:29500". Throws kInvalidArgument that begins with
// `what` (the name of the option or variable the text came from).
Endpoint parse_endpoint(std::string_view text, std::string_view what);
// The reverse of parse_endpoint.
std::string to_string(const Endpoint& endpoint);
// True for 127.0.0.0/8, ::1 and localhost, by their text alone.
bool is_loopback(std::string_view host);

// All sockets below are non-blocking and closed on exec; connections have TCP_NODELAY, and
// keep-alive that notices within half a minute when the other host is gone. `op` is the public call
// that wants the socket; it begins the message of an Error.

// Listens on `host` (empty: every interface, IPv4 and IPv6) and `port` (0: a free one). Throws
// kIo that names the address, the port and the way out where the port is in use.
Fd listen_tcp(const std::string& host, int port, std::string_view op);
// The port a listening or connected TCP socket has on this side.
int local_port(const Fd& socket);
// The address and port of the other side, as text; "unknown" if it has none.
std::string peer_name(const Fd& socket);

// Waits for a connection. Throws kTimeout at the deadline, kIo otherwise.
Fd accept_tcp(const Fd& listener, Deadline deadline, std::string_view op);
// A connection that is already waiting, or an empty Fd. Throws kIo only where the process is out
// of descriptors or memory; a stranger that connected and left is nothing.
Fd try_accept(const Fd& listener, std::string_view op);

// One try at each address of the host; an empty Fd and the reason where none takes it.
Fd try_connect_tcp(const Endpoint& endpoint, Deadline deadline, std::string_view op,
                   std::string& reason);
// Tries every address of the host, again and again while nobody listens there yet, until the
// deadline: then throws kTimeout with the address, the port and the last reason. A host name that
// does not resolve is tried again too: a cluster's names may come up late.
Fd connect_tcp(const Endpoint& endpoint, Deadline deadline, std::string_view op);

// True once there is something to read, an end of file or an error; false at the deadline.
bool wait_readable(const Fd& fd, Deadline deadline);

// True where the other side has ended the connection and nothing that it sent is left to read.
bool has_ended(const Fd& fd);

// Reads or writes exactly `bytes`. Throws kTimeout at the deadline, kPeerLost where the other side
// closed or reset the connection, kIo otherwise; `who` names the other side in the message.
void read_full(const Fd& fd, void* data, size_t bytes, Deadline deadline, std::string_view op,
               std::string_view who);
void write_full(const Fd& fd, const void* data, size_t bytes, Deadline deadline,
                std::string_view op, std::string_view who);

}  // namespace lockstep::comm
