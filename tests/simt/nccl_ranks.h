#pragma once

// Threads that have a device each, for tests of collectives by NCCL.

#include <gtest/gtest.h>

#include <thread>

#include "device_buffers.h"
#include "devices.h"
#include "lockstep/comm/communicator.h"
#include "simt/simt.h"

namespace lockstep::comm {

// Before anybody asks how many there are, which is asked once.
inline const bool kHasDevices = (simt::set_device_count(4), true);

inline Device device_at(int index) { return {DeviceType::kCuda, index}; }

inline void on_devices(const std::vector<int>& devices, const std::string& transport,
                       const std::function<void(Communicator&)>& fn,
                       std::chrono::milliseconds timeout = std::chrono::seconds(100)) {
  std::vector<Device> all;
  for (const int index : devices) all.push_back(device_at(index));
  run_ranks(all, fn, options_of({transport, ""}, timeout));
  EXPECT_EQ(simt::take_report(), "");
}

// Threads with a device each, whose host memory goes by sockets, as between machines.
inline void on_machines(int n, const std::function<void(Communicator&)>& fn,
                        std::chrono::milliseconds timeout = std::chrono::seconds(100)) {
  StoreServer server({"127.0.0.1", 0, "token", ""});
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < n; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        const World world{rank, n, rank, n, "127.0.0.1", server.port(), true, "token", ""};
        Options options = options_of({"nccl", ""}, timeout);
        options.device = device_at(rank);
        options.host = "machine " + std::to_string(rank);
        const auto comm = connect(world, Store::connect(world, timeout), options);
        fn(*comm);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(simt::take_report(), "");
}

class Nccl : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { LOCKSTEP_WANT_DEVICES(size()); }
  void TearDown() override { EXPECT_EQ(simt::take_report(), ""); }
  int size() const { return GetParam(); }
  void on_ranks(const std::function<void(Communicator&)>& fn,
                std::chrono::milliseconds timeout = std::chrono::seconds(100)) {
    std::vector<int> devices;
    for (int rank = 0; rank < size(); ++rank) devices.push_back(size() - 1 - rank);
    on_devices(devices, "nccl", fn, timeout);
  }
};
class NcclOfSeveral : public Nccl {};

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes out(values.size() * sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), values.data(), out.size());
  return out;
}

}  // namespace lockstep::comm
