#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/comm/socket.h"

namespace lockstep::comm {

// One connection of a ring: a stream of bytes from a rank to the next. Neither side waits.
class SendHop {
 public:
  virtual ~SendHop() = default;
  // How many bytes were taken; 0 where there is no room now, -1 where the other side is gone.
  virtual ssize_t try_send(const void* data, size_t bytes) = 0;
  // Adds what to poll until more may be sent; false where that may be now.
  virtual bool watch(std::vector<pollfd>& fds) = 0;
  // Nothing more comes.
  virtual void close() noexcept = 0;
};

class ReceiveHop {
 public:
  virtual ~ReceiveHop() = default;
  // How many bytes were read; 0 where there are none now, -1 where the other side is gone.
  virtual ssize_t try_receive(void* data, size_t bytes) = 0;
  // Adds what to poll until more may come; false where that may be now.
  virtual bool watch(std::vector<pollfd>& fds) = 0;
};

// Over sockets that take turns by stripes of the stream: a connection alone may not fill a link.
// Both sides have the same number of them, at least one, in the same order.
std::unique_ptr<SendHop> make_socket_send_hop(std::vector<Fd> sockets);
std::unique_ptr<ReceiveHop> make_socket_receive_hop(std::vector<Fd> sockets);

}  // namespace lockstep::comm
