// What a stranger may send to a socket of a job, as the one that connects or the one that is
// connected to: both halves of the handshake end with an Error, in bounded time, and never let the
// stranger in.

#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>

#include "lockstep/comm/auth.h"
#include "lockstep/kernels/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace lockstep::comm;
  if (bytes == 0 || bytes > 4096) return 0;
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) != 0) std::abort();
  const Fd job(fds[0]);
  const Fd stranger(fds[1]);
  if (::send(stranger.get(), data + 1, bytes - 1, MSG_NOSIGNAL) < 0) std::abort();
  ::shutdown(stranger.get(), SHUT_WR);
  try {
    const Deadline deadline = deadline_after(std::chrono::seconds(5));
    if (data[0] % 2 == 0) {
      authenticate_as_listener(job, "token", "context", deadline, "fuzz", "a stranger");
    } else {
      authenticate_as_connector(job, "token", "context", deadline, "fuzz", "a stranger");
    }
  } catch (const lockstep::Error&) {
    return 0;
  }
  std::abort();
}
