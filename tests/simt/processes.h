#pragma once

// Ranks that are processes, for tests of collectives over device memory.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../comm/collective_cases.h"
#include "children.h"
#include "devices.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

using Connect = std::function<std::shared_ptr<Communicator>(const Options&)>;

// Runs fn as each rank of n processes, which may join with `connect`: see run_children().
inline std::vector<int> run_joining(
    int n, const std::function<void(int rank, const Connect& connect)>& fn) {
  std::unique_ptr<StoreServer> server;
  const auto port = [&] {
    server = std::make_unique<StoreServer>(StoreServer::Options{"127.0.0.1", 0, "token", ""});
    return std::to_string(server->port());
  };
  return ChildrenTest::current().run_children(n, port, [&](int rank, const std::string& given) {
    const World world{rank, n, rank, n, "127.0.0.1", std::stoi(given), true, "token", ""};
    fn(rank, [&](const Options& options) {
      return connect(world, Store::connect(world, options.timeout), options);
    });
  });
}

inline Options options_on(Device device, const std::string& transport,
                          std::chrono::milliseconds timeout) {
  Options options = options_of({transport, ""}, timeout);
  options.device = device;
  return options;
}

// Of `devices`, 1 or 2, in turn.
inline Device device_of_rank(int rank, int devices) {
  return rank % devices == 0 ? kFirst : kSecond;
}

// The same of ranks that all join, on so many devices.
inline std::vector<int> run_processes(int n, int devices, const std::string& transport,
                                      std::chrono::milliseconds timeout,
                                      const std::function<void(Communicator&)>& fn) {
  return run_joining(n, [&](int rank, const Connect& connect) {
    const auto comm = connect(options_on(device_of_rank(rank, devices), transport, timeout));
    fn(*comm);
  });
}

}  // namespace lockstep::comm
