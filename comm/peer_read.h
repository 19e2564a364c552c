#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace lockstep::comm {

// Reading another process's memory with process_vm_readv(2), where the system allows it: the same
// user, no seccomp filter or Yama setting against it. No cooperation of the other process is needed
// and nothing of it is changed.

// What LOCKSTEP_PEER_READ says: "1" (or nothing) where it may be done, "0" where not. Throws
// kInvalidArgument for anything else.
bool peer_reading_allowed();

// Whether this process can read the memory of `process`, found by reading a number that the other
// said it has at `address`. `process` 0 is one that this process cannot see.
bool can_read_memory(pid_t process, uint64_t address, uint64_t expected);

// False where the process is gone. Throws kInvalidArgument, naming `rank`, where its memory at that
// address cannot be read: memory of a device, or none at all.
bool read_memory(pid_t process, uint64_t address, void* to, size_t bytes, int rank);

}  // namespace lockstep::comm
