#include "lockstep/comm/host_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {

std::shared_ptr<void> allocate_pages(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw Error(ErrorCode::kOutOfMemory, "allocate",
                concat("the system gave no ", bytes, " bytes: ", std::strerror(errno)));
  }
  madvise(data, bytes, MADV_HUGEPAGE);
  return {data, [bytes](void* mapped) { munmap(mapped, bytes); }};
}

}  // namespace lockstep::comm
