#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/transport.h"

namespace lockstep::comm {

// A group whose ranks are threads of this process, one transport for each. Buffers are reduced
// where they are.
std::vector<std::unique_ptr<Transport>> make_thread_transports(int size,
                                                               std::chrono::milliseconds timeout);

}  // namespace lockstep::comm
