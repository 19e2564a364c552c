#pragma once

#include <functional>
#include <memory>

#include "lockstep/comm/communicator.h"

namespace lockstep::nn {

// Runs fn on n ranks that are threads of this process; the communicator outlives fn.
inline void with_ranks(int n, const std::function<void(std::shared_ptr<comm::Communicator>)>& fn) {
  comm::run_ranks(n, [&](comm::Communicator& group) {
    fn(std::shared_ptr<comm::Communicator>(&group, [](comm::Communicator*) {}));
  });
}

}  // namespace lockstep::nn
