#pragma once

#include <memory>
#include <utility>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/operation_queue.h"

namespace lockstep::comm {

// The one way to a communicator: from a transport whose ranks are connected.
struct CommunicatorMaker {
  static std::shared_ptr<Communicator> make(std::unique_ptr<Transport> transport,
                                            Algorithm algorithm) {
    auto queue = std::make_shared<OperationQueue>(std::move(transport));
    return std::shared_ptr<Communicator>(new Communicator(std::move(queue), algorithm));
  }
};

}  // namespace lockstep::comm
