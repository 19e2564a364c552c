#pragma once

// What collectives of device memory do whichever transport they take; each rank calls these.

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <vector>

#include "../errors.h"
#include "device_buffers.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

inline View floats(const std::shared_ptr<void>& memory, int64_t count, Device device) {
  return {memory.get(), DType::kF32, device, {count}, {1}};
}

// To the next rank, from the one before.
inline void check_send_and_receive(Communicator& comm) {
  const Device device = comm.device();
  const int64_t count = 777;
  const int n = comm.size();
  const int next = (comm.rank() + 1) % n;
  const int before = (comm.rank() + n - 1) % n;
  for (int round = 0; round < 3; ++round) {
    const Bytes mine = input_of(DType::kF32, comm.rank() + round, count);
    const auto send = on_device(device, mine);
    const auto recv = on_device(device, Bytes(mine.size()));
    Work sent = comm.send(send.get(), count, DType::kF32, next);
    Work received = comm.recv(recv.get(), count, DType::kF32, before);
    received.wait();
    ASSERT_EQ(from_device(device, recv, mine.size()), input_of(DType::kF32, before + round, count));
    sent.wait();
  }
}

// No host waits between what makes the inputs, the collectives and what uses their results.
inline void check_order_with_the_callers_stream(Communicator& comm, int64_t count) {
  const Device device = comm.device();
  const int n = comm.size();
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  const auto x = comm.allocate(bytes, device);
  const auto y = allocate(bytes, device);
  const auto z = allocate(bytes, device);
  const Stream side = Stream::create(device);
  const StreamGuard guard(side);
  side.wait(Stream(device).record());  // x is zero
  for (int step = 0; step < 3; ++step) {
    launch<kernels::Fill>(device, floats(x, count, device), comm.rank() + step + 1.0);
    Work work = comm.all_reduce(x.get(), y.get(), count, DType::kF32, ReduceOp::kSum);
    launch<kernels::Fill>(device, floats(z, count, device), 0.0);  // meanwhile
    work.wait();
    launch<kernels::Fill>(device, floats(x, count, device), -1.0);
    comm.all_to_all(y.get(), y.get(), count / n, DType::kF32).wait();
    launch<kernels::Copy>(device, floats(y, count, device), floats(z, count, device));
  }
  const Bytes out = from_device(device, z, bytes);
  std::vector<float> values(static_cast<size_t>(count));
  std::memcpy(values.data(), out.data(), out.size());
  EXPECT_THAT(values, ::testing::Each(static_cast<float>(n * (n + 1) / 2 + n * 2)));
  if (n > 1) {
    const int before = (comm.rank() + n - 1) % n;
    for (int step = 0; step < 3; ++step) {
      launch<kernels::Fill>(device, floats(z, count, device), comm.rank() + step + 1.0);
      Work sent = comm.send(z.get(), count, DType::kF32, (comm.rank() + 1) % n);
      comm.recv(y.get(), count, DType::kF32, before).wait();
      sent.wait();
    }
    const Bytes last = from_device(device, y, bytes);
    std::memcpy(values.data(), last.data(), last.size());
    EXPECT_THAT(values, ::testing::Each(static_cast<float>(before + 3)));
  }
  used_on(y.get(), side);
  used_on(z.get(), side);
}

// Rank 1, a process of its own, stops where all have come; `timeout` is the group's, as it is told.
inline void check_a_stopped_rank_ends_at_the_timeout(Communicator& comm, const char* timeout) {
  const Device device = comm.device();
  const auto x = comm.allocate(4096, device);
  const auto reduce = [&] {
    return comm.all_reduce(x.get(), x.get(), 1001, DType::kF32, ReduceOp::kSum);
  };
  reduce().wait();
  Stream(device).synchronize();
  reduce().wait();
  if (comm.rank() == 1) {
    kill(getpid(), SIGSTOP);
    return;
  }
  Stream(device).synchronize();
  // The other's device does not go on.
  const std::string said = message_of(ErrorCode::kTimeout, [&] {
    while (true) reduce().wait();
  });
  EXPECT_THAT(said, ::testing::HasSubstr(std::string("waited ") + timeout));
}

}  // namespace lockstep::comm
