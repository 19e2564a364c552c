#pragma once

#include <cstddef>
#include <memory>

namespace lockstep::comm {

// Whole pages of this process alone, zero at first, huge ones where the system has them. Zero bytes
// are a null pointer. Throws Error(kOutOfMemory).
std::shared_ptr<void> allocate_pages(size_t bytes);

}  // namespace lockstep::comm
