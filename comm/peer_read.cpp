#include "lockstep/comm/peer_read.h"

#include <sys/uio.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {

bool peer_reading_allowed() {
  const char* value = std::getenv("LOCKSTEP_PEER_READ");
  const std::string_view text = value != nullptr ? value : "";
  check(text.empty() || text == "0" || text == "1", "connect",
        [&] { return concat("LOCKSTEP_PEER_READ wants 0 or 1, got \"", text, "\""); });
  return text != "0";
}

bool can_read_memory(pid_t process, uint64_t address, uint64_t expected) {
  if (process == 0) return false;
  uint64_t value = ~expected;
  iovec local{&value, sizeof value};
  iovec remote{reinterpret_cast<void*>(address), sizeof value};
  return process_vm_readv(process, &local, 1, &remote, 1, 0) == sizeof value && value == expected;
}

bool read_memory(pid_t process, uint64_t address, void* to, size_t bytes, int rank) {
  size_t done = 0;
  while (done < bytes) {
    iovec local{static_cast<char*>(to) + done, bytes - done};
    iovec remote{reinterpret_cast<void*>(address + done), bytes - done};
    const ssize_t got = process_vm_readv(process, &local, 1, &remote, 1, 0);
    if (got > 0) {
      done += static_cast<size_t>(got);
    } else if (got < 0 && errno == ESRCH) {
      return false;
    } else if (got == 0 || errno != EINTR) {
      throw Error(ErrorCode::kInvalidArgument, "peer_read",
                  concat("cannot read ", bytes, " bytes of rank ", rank,
                         "'s buffer: ", got == 0 ? "nothing came" : std::strerror(errno),
                         "; memory of a device needs LOCKSTEP_PEER_READ=0"));
    }
  }
  return true;
}

}  // namespace lockstep::comm
