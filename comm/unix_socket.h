#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "lockstep/comm/socket.h"

namespace lockstep::comm {

// Unix sockets between ranks of one host, by names in the abstract namespace: nothing is in a file
// system, and everything ends with its processes. All throw kIo where the system gives none.

Fd listen_unix(const std::string& name, int backlog);

// To `name`, where `rank` listens. Throws kPeerLost where nobody does.
Fd connect_unix(const std::string& name, int rank, Deadline deadline);

// The next connection, if it is of this user's; an empty Fd otherwise. REQUIRES: one waits.
Fd accept_unix(const Fd& listener);

// Who is at the other end, as this process numbers processes; pid 0 is one that it cannot see.
ucred peer_of(const Fd& fd);

// Sends `bytes` bytes with a descriptor to `who` ("rank 3"), over a connection with room for them.
// Throws kPeerLost where the other side is gone.
void send_with_fd(const Fd& socket, const void* data, size_t bytes, int fd, std::string_view who);
// Receives them. Throws kTimeout at the deadline, kPeerLost where the other side is gone, and
// kMismatch where something else came.
Fd receive_with_fd(const Fd& socket, void* data, size_t bytes, Deadline deadline,
                   std::string_view who);

}  // namespace lockstep::comm
