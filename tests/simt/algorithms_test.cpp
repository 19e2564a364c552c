// The three ways of an all_reduce between devices, by their names: the bits of all other
// transports, between threads and between processes, and what the others see of a rank that leaves
// or dies in one.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "../errors.h"
#include "device_checks.h"
#include "devices.h"
#include "lockstep/comm/communicator.h"
#include "processes.h"
#include "schedules.h"
#include "simt/simt.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr std::array<const char*, 3> kNames = {"one_shot", "two_shot", "ring"};

std::vector<Device> devices_of(int ranks, int devices) {
  std::vector<Device> out;
  for (int rank = 0; rank < ranks; ++rank) out.push_back(device_of_rank(rank, devices));
  return out;
}

void on_threads(const std::vector<Device>& devices, const std::string& algorithm,
                const std::function<void(Communicator&)>& fn) {
  run_ranks(devices, fn, options_of({"cuda", algorithm}, seconds(100)));
  EXPECT_EQ(simt::take_report(), "");
}

// Each rank an all_reduce out of place and one in place.
void check_all_reduce(Communicator& comm, DType dtype, ReduceOp op, int64_t count,
                      bool registered) {
  SCOPED_TRACE(::testing::Message() << (registered ? "registered " : "plain ") << name(dtype) << " "
                                    << kernels::name(op) << " of " << count);
  const Device device = comm.device();
  const Bytes want = folded_inputs(dtype, op, Blocks::of_all(count, comm.size()));
  const Bytes mine = input_of(dtype, comm.rank(), count);
  const auto make = [&](const Bytes& bytes) {
    if (!registered) return on_device(device, bytes);
    std::shared_ptr<void> memory = comm.allocate(bytes.size(), device);
    const auto length = static_cast<int64_t>(bytes.size());
    transfer({const_cast<std::byte*>(bytes.data()), DType::kU8, kCpu, {length}, {1}},
             {memory.get(), DType::kU8, device, {length}, {1}});
    return memory;
  };
  const auto send = make(mine);
  const auto recv = make(Bytes(mine.size(), std::byte{0x5a}));
  comm.all_reduce(send.get(), recv.get(), count, dtype, op).wait();
  ASSERT_EQ(from_device(device, recv, mine.size()), want);
  ASSERT_EQ(from_device(device, send, mine.size()), mine);
  comm.all_reduce(send.get(), send.get(), count, dtype, op).wait();
  ASSERT_EQ(from_device(device, send, mine.size()), want) << "in place";
}

class CudaAlgorithm : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Names, CudaAlgorithm, ::testing::ValuesIn(kNames),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(CudaAlgorithm, HasTheBitsOfAllOtherTransports) {
  uint64_t seed = 1;
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (const int devices : {1, 2}) {
      if (devices > ranks) continue;
      on_threads(devices_of(ranks, devices), GetParam(), [&](Communicator& comm) {
        SCOPED_TRACE(::testing::Message() << ranks << " ranks on " << devices << " devices");
        EXPECT_EQ(comm.transport(), "cuda");
        check_all_reduce(comm, DType::kF32, ReduceOp::kAvg, 1, false);
        for (const DType dtype : kAllDTypes) {
          for (const ReduceOp op : ops_of(dtype)) {
            if (comm.rank() == 0) simt::seed(seed++);
            check_all_reduce(comm, dtype, op, 1021, false);  // a short block at the end
            if (op == ReduceOp::kMax) check_all_reduce(comm, dtype, op, 67, false);  // some empty
          }
        }
      });
    }
  }
}

// More than the memory through which they go has room for.
TEST_P(CudaAlgorithm, HasThemForSeveralPieces) {
  on_threads({kFirst, kSecond, kFirst}, GetParam(), [](Communicator& comm) {
    check_all_reduce(comm, DType::kF32, ReduceOp::kSum, 2500003, false);
    check_all_reduce(comm, DType::kI64, ReduceOp::kAvg, 800001, false);  // partials of 16 bytes
  });
}

TEST_P(CudaAlgorithm, OfNothingIsInSequence) {
  on_threads({kFirst, kSecond, kFirst}, GetParam(), [](Communicator& comm) {
    const auto x = allocate(64, comm.device());
    comm.all_reduce(nullptr, nullptr, 0, DType::kF32, ReduceOp::kSum).wait();
    comm.all_reduce(x.get(), x.get(), 0, DType::kF32, ReduceOp::kSum).wait();
    check_all_reduce(comm, DType::kF32, ReduceOp::kSum, 3, false);
    comm.all_reduce(x.get(), x.get(), 0, DType::kF32, ReduceOp::kSum).wait();
    comm.barrier().wait();
  });
}

TEST_P(CudaAlgorithm, IsInOrderWithTheCallersStream) {
  for (int seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    for (const auto& devices : {devices_of(2, 1), devices_of(4, 2)}) {
      on_threads(devices, GetParam(),
                 [](Communicator& comm) { check_order_with_the_callers_stream(comm, 4099); });
    }
  }
}

// No host waits for a device between them, so that ranks are as far apart as they may be: what one
// puts down for the next collective must not meet what another still reads for the last. Others
// that go two-shot, whatever the algorithm, are in between.
TEST_P(CudaAlgorithm, CollectivesFollowEachOtherWithoutAWaitOfTheHost) {
  constexpr int64_t kCount = 517;
  constexpr int kMany = 9;
  for (int seed = 1; seed <= (kSanitized ? 5 : 30); ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    on_threads(devices_of(2 + seed % 3, 1 + seed % 2), GetParam(), [](Communicator& comm) {
      const Device device = comm.device();
      const auto mine = [&](int i) {
        return input_of(DType::kF16, comm.rank() * kMany + i, kCount);
      };
      std::vector<std::shared_ptr<void>> memory;
      for (int i = 0; i < kMany; ++i) memory.push_back(on_device(device, mine(i)));
      std::vector<Work> works;
      for (int i = 0; i < kMany; ++i) {
        void* x = memory[static_cast<size_t>(i)].get();
        works.push_back(
            i % 4 == 3 ? comm.reduce(x, x, kCount, DType::kF16, ReduceOp::kSum, i % comm.size())
                       : comm.all_reduce(x, x, kCount, DType::kF16, ReduceOp::kSum));
      }
      for (Work& work : works) work.wait();
      for (int i = 0; i < kMany; ++i) {
        if (i % 4 == 3 && comm.rank() != i % comm.size()) continue;
        const Bytes want =
            folded_inputs(DType::kF16, ReduceOp::kSum, Blocks::of_all(kCount, comm.size()),
                          [i](int rank) { return rank * kMany + i; });
        ASSERT_EQ(from_device(device, memory[static_cast<size_t>(i)], want.size()), want) << i;
      }
    });
  }
}

// A rank that has nothing more to do leaves while others have yet to come to their part: what they
// read of its memory stays until their streams have come past it. Nobody's host drives those
// meanwhile but the hosts of the ranks that leave.
TEST_P(CudaAlgorithm, RanksMayLeaveAsSoonAsTheirPartIsDone) {
  constexpr int64_t kCount = 1021;
  for (int seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    const int late = seed % 3;
    std::atomic<int> left{0};
    on_threads(devices_of(3, 1 + seed % 2), GetParam(), [&](Communicator& all) {
      std::shared_ptr<Communicator> comm = all.duplicate();
      const Device device = comm->device();
      const auto x = on_device(device, input_of(DType::kF32, comm->rank(), kCount));
      if (comm->rank() == late) {
        const auto other = allocate(4, device);
        for (int i = 0; i < 5; ++i) {
          launch<kernels::Fill>(device, floats(other, 1, device), static_cast<double>(i));
        }
      }
      comm->all_reduce(x.get(), x.get(), kCount, DType::kF32, ReduceOp::kSum).wait();
      if (comm->rank() != late) {
        comm = nullptr;
        ++left;
        return;
      }
      while (left.load() < 2) std::this_thread::sleep_for(milliseconds(1));
      const Bytes want = folded_inputs(DType::kF32, ReduceOp::kSum, Blocks::of_all(kCount, 3));
      ASSERT_EQ(from_device(device, x, want.size()), want);
    });
  }
}

TEST(CudaAlgorithms, HaveWaysOfTheirOwn) {
  // Of three ranks: each a block; each all blocks; each two steps, the first of which is a copy.
  constexpr std::array<unsigned long long, 3> kLaunches = {9, 3, 6};
  for (size_t i = 0; i < kNames.size(); ++i) {
    unsigned long long before = 0;
    on_threads(devices_of(3, 2), kNames[i], [&](Communicator& comm) {
      const auto x = comm.allocate(4 * 1021, comm.device());
      comm.barrier().wait();
      if (comm.rank() == 0) before = simt::launches();
      comm.barrier().wait();
      comm.all_reduce(x.get(), x.get(), 1021, DType::kF32, ReduceOp::kSum).wait();
      Stream(comm.device()).synchronize();
    });
    EXPECT_EQ(simt::launches() - before, kLaunches[i]) << kNames[i];
  }
}

TEST(CudaAlgorithms, ThatThereAreNotAreErrorsThatListWhatThereIs) {
  const auto refused = [](const Path& path) {
    return message_of(ErrorCode::kInvalidArgument, [&] {
      run_ranks(
          {kFirst, kFirst}, [](Communicator&) { ADD_FAILURE(); }, options_of(path));
    });
  };
  EXPECT_THAT(refused({"cuda", "three_shot"}),
              AllOf(HasSubstr("three_shot"), HasSubstr("ring two_shot one_shot")));
  // Staged through the host by sockets.
  EXPECT_THAT(refused({"tcp", "two_shot"}), AllOf(HasSubstr("two_shot"), HasSubstr("one_shot")));
}

// ---- Between processes ----

class CudaAlgorithmNames : public ChildrenTest {};

TEST_F(CudaAlgorithmNames, MustBeTheSameOnAllRanks) {
  const auto ends = run_joining(2, [&](int rank, const Connect& connect) {
    Options options = options_on(kFirst, "cuda", seconds(60));
    options.algorithm = rank == 0 ? "ring" : "one_shot";
    const auto comm = connect(options);
    const auto x = comm->allocate(64, kFirst);
    EXPECT_THAT(
        message_of(
            ErrorCode::kMismatch,
            [&] { comm->all_reduce(x.get(), x.get(), 3, DType::kF32, ReduceOp::kSum).wait(); }),
        AllOf(HasSubstr("by ring"), HasSubstr("by one_shot")));
  });
  EXPECT_EQ(ends, std::vector<int>(2, 0));
}

class CudaAlgorithmProcesses : public ChildrenTest,
                               public ::testing::WithParamInterface<const char*> {
 protected:
  std::vector<int> run(int n, int devices, milliseconds timeout,
                       const std::function<void(Communicator&)>& fn) {
    return run_joining(n, [&](int rank, const Connect& connect) {
      Options options = options_on(device_of_rank(rank, devices), "cuda", timeout);
      options.algorithm = GetParam();
      const auto comm = connect(options);
      EXPECT_EQ(comm->transport(), "cuda");
      fn(*comm);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Names, CudaAlgorithmProcesses, ::testing::ValuesIn(kNames),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(CudaAlgorithmProcesses, HaveTheBitsOfAllOtherTransports) {
  for (const int n : {2, 3, 5}) {
    for (const int devices : {1, 2}) {
      SCOPED_TRACE(::testing::Message() << n << " ranks on " << devices);
      const auto ends = run(n, devices, seconds(100), [](Communicator& comm) {
        for (const bool registered : {true, false}) {
          for (const DType dtype : kAllDTypes) {
            for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
              check_all_reduce(comm, dtype, op, 1 + 331 * static_cast<int>(dtype), registered);
            }
          }
        }
        if (comm.size() == 3) {
          check_all_reduce(comm, DType::kF32, ReduceOp::kSum, 2500003, true);
        }
      });
      EXPECT_EQ(ends, std::vector<int>(static_cast<size_t>(n), 0));
    }
  }
}

// A rank dies when all had come, and its device has done nothing of it: its steps are the ones that
// the others' wait for.
TEST_P(CudaAlgorithmProcesses, ARankWhoseDeviceDiesInTheMidstIsNamed) {
  for (const int devices : {1, 2}) {
    const auto started = std::chrono::steady_clock::now();
    const auto ends = run(4, devices, seconds(60), [](Communicator& comm) {
      const Device device = comm.device();
      const int64_t count = 70001;
      const auto x = comm.allocate(static_cast<size_t>(count) * sizeof(float), device);
      const auto reduce = [&] {
        comm.all_reduce(x.get(), x.get(), count, DType::kF32, ReduceOp::kSum).wait();
      };
      reduce();
      Stream(device).synchronize();
      if (comm.rank() == 1) {
        const auto other = allocate(4, device);
        for (int i = 0; i < 1500; ++i) {
          launch<kernels::Fill>(device, floats(other, 1, device), static_cast<double>(i));
        }
        reduce();
        raise(SIGKILL);
      }
      const std::string said = message_of(ErrorCode::kPeerLost, [&] {
        reduce();
        Stream(device).synchronize();
        comm.barrier().wait();
      });
      EXPECT_THAT(said, HasSubstr("rank 1 died"));
      // The device is as good as before.
      Stream(device).synchronize();
      launch<kernels::Fill>(device, floats(x, count, device), 2.0);
      EXPECT_EQ(from_device(device, x, 4)[3], std::byte{0x40});
    });
    EXPECT_EQ(ends, (std::vector<int>{0, kKilled, 0, 0}));
    EXPECT_LT(std::chrono::steady_clock::now() - started, seconds(30));
  }
}

// A rank dies wherever its host happens to be, between two steps among others.
TEST_P(CudaAlgorithmProcesses, ARankThatDiesAtAnyTimeIsNamed) {
  for (int round = 0; round < 4; ++round) {
    const auto ends = run(3, 1 + round % 2, seconds(60), [round](Communicator& comm) {
      const Device device = comm.device();
      const int64_t count = 4099;
      const auto x = comm.allocate(static_cast<size_t>(count) * sizeof(float), device);
      comm.barrier().wait();
      std::thread killer;
      if (comm.rank() == 2) {
        killer = std::thread([round] {
          std::this_thread::sleep_for(std::chrono::microseconds(3000 + 1700 * round));
          kill(getpid(), SIGKILL);
        });
      }
      const std::string said = message_of(ErrorCode::kPeerLost, [&] {
        while (true) {
          comm.all_reduce(x.get(), x.get(), count, DType::kF32, ReduceOp::kSum).wait();
        }
      });
      EXPECT_THAT(said, AnyOf(HasSubstr("rank 2 died"), HasSubstr("gave up")));
      Stream(device).synchronize();
      if (killer.joinable()) killer.join();
    });
    EXPECT_EQ(ends, (std::vector<int>{0, 0, kKilled}));
  }
}

TEST_P(CudaAlgorithmProcesses, ARankThatIsStoppedEndsTheOthersAtTheTimeout) {
  const auto use = [](Communicator& comm) { check_a_stopped_rank_ends_at_the_timeout(comm, "6"); };
  EXPECT_EQ(run(2, 1, milliseconds(6000), use), (std::vector<int>{0, kStopped}));
}

}  // namespace
}  // namespace lockstep::comm
