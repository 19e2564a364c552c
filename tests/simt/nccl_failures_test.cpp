// What goes wrong with collectives by NCCL, for which nccl.cpp stands in, between threads: all
// ranks are told, by name, and nobody waits for ever. nccl_ipc_test.cpp has processes that die.
#include <gmock/gmock.h>

#include <atomic>
#include <stdexcept>

#include "../errors.h"
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/runtime.h"
#include "nccl_faults.h"
#include "nccl_ranks.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Ranks, NcclOfSeveral, ::testing::Values(2, 3, 4));

// What all ranks are told.
std::vector<std::string> refusals(const std::vector<int>& devices, ErrorCode code) {
  const auto n = static_cast<int>(devices.size());
  std::vector<std::string> said(devices.size());
  StoreServer server({"127.0.0.1", 0, "token", ""});
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < n; ++rank) {
    ranks.emplace_back([&, rank] {
      const World world{rank, n, rank, n, "127.0.0.1", server.port(), true, "token", ""};
      Options options = options_of({"nccl", ""}, std::chrono::seconds(60));
      if (devices[static_cast<size_t>(rank)] >= 0) {
        options.device = device_at(devices[static_cast<size_t>(rank)]);
      }
      said[static_cast<size_t>(rank)] = message_of(
          code, [&] { connect(world, Store::connect(world, options.timeout), options); });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return said;
}

TEST(NcclChoice, WhatKeepsItFromBeingTakenIsSaidWhereItIsNamed) {
  EXPECT_THAT(refusals({2, 1, 2}, ErrorCode::kInvalidArgument),
              Each(AllOf(HasSubstr("rank 2 shares its device, cuda:2, with rank 0"),
                         HasSubstr("transport \"cuda\""))));
  EXPECT_THAT(refusals({-1, -1}, ErrorCode::kInvalidArgument),
              Each(AllOf(HasSubstr("\"nccl\""), HasSubstr("without a device"),
                         HasSubstr("Options::device"))));
  simt::set_nccl_faults({.missing = "there is no libnccl.so.2 here"});
  EXPECT_THAT(refusals({0, 1}, ErrorCode::kInvalidArgument),
              Each(HasSubstr("rank 0: there is no libnccl.so.2 here")));
  on_devices({0, 1}, "", [](Communicator& comm) { EXPECT_EQ(comm.transport(), "cuda"); });
  simt::set_nccl_faults({});
}

TEST(NcclChoice, ARankThatCannotConnectIsNamedOnAllAndWithoutANameTheyGoOnWithoutIt) {
  const auto reduce = [](Communicator& comm) {
    const auto x = on_device(comm.device(), bytes_of(std::vector<float>{1.0f}));
    comm.all_reduce(x.get(), x.get(), 1, DType::kF32, ReduceOp::kSum).wait();
    EXPECT_EQ(from_device(comm.device(), x, 4), bytes_of(std::vector<float>{3.0f}));
  };
  simt::set_nccl_faults({.connecting = {{1, "no socket interface found"}}});
  const auto named = [&] { on_devices({0, 1, 2}, "nccl", reduce, std::chrono::seconds(2)); };
  EXPECT_THAT(message_of(ErrorCode::kDevice, named),
              AllOf(HasSubstr("rank 1"), HasSubstr("no socket interface found")));
  EXPECT_EQ(simt::take_report(), "");
  on_devices(
      {0, 1, 2}, "",
      [&](Communicator& comm) {
        EXPECT_EQ(comm.transport(), "cuda");
        reduce(comm);
      },
      std::chrono::seconds(2));
  simt::set_nccl_faults({});
}

Work add_up(Communicator& comm, const std::shared_ptr<void>& x, int64_t count) {
  return comm.all_reduce(x.get(), x.get(), count, DType::kI64, ReduceOp::kSum);
}

TEST_P(NcclOfSeveral, RanksThatDisagreeAreToldAndWhatTheyAgreedAboutIsWhole) {
  const int n = size();
  on_ranks([&](Communicator& comm) {
    const bool last = comm.rank() == n - 1;
    const Bytes mine = input_of(DType::kI64, comm.rank(), 40);
    const auto x = on_device(comm.device(), mine);
    const auto y = on_device(comm.device(), mine);
    add_up(comm, x, 40).wait();
    EXPECT_THAT(message_of(ErrorCode::kMismatch, [&] { add_up(comm, y, last ? 33 : 40).wait(); }),
                AllOf(HasSubstr("all_reduce sum of 40 i64"), HasSubstr("all_reduce sum of 33 i64"),
                      HasSubstr("collective 2")));
    EXPECT_THAT(message_of(ErrorCode::kMismatch, [&] { comm.barrier().wait(); }), HasSubstr("33"));
    const Bytes want = folded_inputs(DType::kI64, ReduceOp::kSum, Blocks::of_all(40, n));
    EXPECT_EQ(from_device(comm.device(), x, want.size()), want);
  });
}

TEST_P(NcclOfSeveral, RanksOfWhichOneGivesHostMemoryAreTold) {
  on_ranks([&](Communicator& comm) {
    std::vector<int64_t> host(40);
    const auto x = on_device(comm.device(), input_of(DType::kI64, comm.rank(), 40));
    void* data = comm.rank() == 0 ? host.data() : x.get();
    EXPECT_THAT(
        message_of(ErrorCode::kMismatch,
                   [&] { comm.all_reduce(data, data, 40, DType::kI64, ReduceOp::kSum).wait(); }),
        HasSubstr("between devices"));
  });
  on_ranks([&](Communicator& comm) {
    const std::vector<int64_t> counts(static_cast<size_t>(size()), 3);
    std::vector<int64_t> host(40);
    const auto x = on_device(comm.device(), input_of(DType::kI64, comm.rank(), 40));
    auto* data = static_cast<int64_t*>(comm.rank() == 1 ? host.data() : x.get());
    EXPECT_THAT(message_of(ErrorCode::kMismatch,
                           [&] { comm.all_gather_v(data, data + 20, counts, DType::kI64).wait(); }),
                AllOf(HasSubstr("rank 1 gives memory of the host"), HasSubstr("rank 0 of its")));
  });
}

TEST_P(NcclOfSeveral, ARankThatThrowsIsNamedAndTheOthersGoOn) {
  const int n = size();
  const auto fails = [&](Communicator& comm) {
    const Device device = comm.device();
    const auto x = on_device(device, input_of(DType::kI64, comm.rank(), 40));
    add_up(comm, x, 40).wait();
    if (comm.rank() == n - 1) throw std::runtime_error("it has had enough");
    EXPECT_THAT(message_of(ErrorCode::kPeerLost,
                           [&] {
                             while (true) add_up(comm, x, 40).wait();
                           }),
                HasSubstr("rank " + std::to_string(n - 1)));
    Stream(device).synchronize();
    const auto rest = comm.shrink(std::chrono::seconds(5));
    EXPECT_EQ(rest->size(), n - 1);
    EXPECT_EQ(rest->transport(), "nccl");
    const auto y = on_device(device, input_of(DType::kI64, comm.rank(), 40));
    add_up(*rest, y, 40).wait();
    const Bytes want = folded_inputs(DType::kI64, ReduceOp::kSum, Blocks::of_all(40, n - 1));
    EXPECT_EQ(from_device(device, y, want.size()), want);
  };
  try {
    on_ranks(fails);
    ADD_FAILURE() << "no error came";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("had enough"));
  }
  EXPECT_EQ(simt::take_report(), "");
}

TEST_P(NcclOfSeveral, ARankThatNeverCallsIsNamedAtTheTimeout) {
  const int last = size() - 1;
  std::atomic<int> told{0};
  on_ranks(
      [&](Communicator& comm) {
        if (comm.rank() == last) {
          while (told.load() < last) std::this_thread::yield();
          return;
        }
        const auto x = on_device(comm.device(), input_of(DType::kI64, comm.rank(), 40));
        EXPECT_THAT(message_of(ErrorCode::kTimeout, [&] { add_up(comm, x, 40).wait(); }),
                    HasSubstr("rank " + std::to_string(last)));
        ++told;
      },
      std::chrono::milliseconds(400));
}

TEST(NcclOfMachines, ARankThatNeverCallsIsNamedAtTheTimeout) {
  std::atomic<int> told{0};
  on_machines(
      3,
      [&](Communicator& comm) {
        if (comm.rank() == 1) {
          while (told.load() < 2) std::this_thread::yield();
          return;
        }
        const auto x = on_device(comm.device(), input_of(DType::kI64, comm.rank(), 40));
        EXPECT_THAT(message_of(ErrorCode::kTimeout, [&] { add_up(comm, x, 40).wait(); }),
                    HasSubstr("rank 1"));
        ++told;
      },
      std::chrono::milliseconds(1500));
}

// A kernel that ends when the host says so: what a device does that hangs.
__global__ void hang_kernel(const int* ends) {
  while (__atomic_load_n(ends, __ATOMIC_ACQUIRE) == 0) __nanosleep(100);
}

// All hosts come, and one device does not: all have an error, and the other devices are free again.
TEST_P(NcclOfSeveral, ADeviceThatHangsEndsAtTheTimeout) {
  const int n = size();
  const auto flag = allocate_pinned(sizeof(int));
  int* ends = static_cast<int*>(flag.get());
  *ends = 0;
  std::atomic<int> told{0};
  on_ranks(
      [&](Communicator& comm) {
        const Device device = comm.device();
        const auto x = on_device(device, input_of(DType::kI64, comm.rank(), 40));
        if (comm.rank() == 0) {
          const cuda::DeviceGuard guard(device);
          cuda::launch_kernel(dim3(1), dim3(1), hang_kernel, static_cast<const int*>(ends));
        }
        add_up(comm, x, 40).wait();
        EXPECT_THAT(message_of(ErrorCode::kTimeout,
                               [&] {
                                 while (true) {
                                   add_up(comm, x, 40).wait();
                                   std::this_thread::sleep_for(std::chrono::milliseconds(20));
                                 }
                               }),
                    HasSubstr("waited 0.5"));
        if (comm.rank() != 0) Stream(device).synchronize();
        if (++told == n) __atomic_store_n(ends, 1, __ATOMIC_RELEASE);
        Stream(device).synchronize();
      },
      std::chrono::milliseconds(500));
}

TEST_P(NcclOfSeveral, WhatNcclNoticesByItselfEndsTheGroup) {
  const auto flag = allocate_pinned(sizeof(int));
  int* ends = static_cast<int*>(flag.get());
  *ends = 0;
  std::atomic<int> told{0};
  on_ranks([&](Communicator& comm) {
    const Device device = comm.device();
    const auto x = on_device(device, input_of(DType::kI64, comm.rank(), 40));
    if (comm.rank() == 0) {  // whose device is late, so that NCCL has something to wait for
      const cuda::DeviceGuard guard(device);
      cuda::launch_kernel(dim3(1), dim3(1), hang_kernel, static_cast<const int*>(ends));
    }
    add_up(comm, x, 40).wait();
    simt::set_nccl_faults({.later = {{1, "remote process exited or there was a network error"}}});
    const std::string said = message_of(ErrorCode::kPeerLost, [&] {
      while (true) add_up(comm, x, 40).wait();
    });
    EXPECT_THAT(said, HasSubstr(comm.rank() == 1 ? "NCCL: remote process exited" : "rank 1"));
    if (++told == size()) __atomic_store_n(ends, 1, __ATOMIC_RELEASE);
    Stream(device).synchronize();
  });
  simt::set_nccl_faults({});
}

TEST_P(NcclOfSeveral, ARankThatAbortsIsNamedAndTheOthersGoOn) {
  const int n = size();
  on_ranks([&](Communicator& comm) {
    const int last = n - 1;
    const Device device = comm.device();
    const Bytes mine = input_of(DType::kI64, comm.rank(), 40);
    const auto x = on_device(device, mine);
    comm.broadcast(x.get(), 40, DType::kI64, last).wait();
    if (comm.rank() == last) return comm.abort("it has had enough");
    const auto y = on_device(device, mine);
    EXPECT_THAT(message_of(ErrorCode::kPeerLost,
                           [&] {
                             while (true) comm.broadcast(y.get(), 40, DType::kI64, 0).wait();
                           }),
                AllOf(HasSubstr("rank " + std::to_string(last)), HasSubstr("had enough")));
    // What all had come to is whole.
    EXPECT_EQ(from_device(device, x, mine.size()), input_of(DType::kI64, last, 40));
    const auto rest = comm.shrink(std::chrono::seconds(5));
    EXPECT_EQ(rest->size(), last);
    EXPECT_EQ(rest->device(), device);
    EXPECT_EQ(rest->transport(), "nccl");
    rest->broadcast(x.get(), 40, DType::kI64, 0).wait();
    Stream(device).synchronize();
  });
}

}  // namespace
}  // namespace lockstep::comm
