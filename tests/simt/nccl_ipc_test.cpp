// Collectives by NCCL, for which nccl.cpp stands in, between processes, of one machine and of
// several: their results, and what is left when a process dies.
#include <gmock/gmock.h>

#include "../errors.h"
#include "device_checks.h"
#include "processes.h"

namespace lockstep::comm {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// Before anybody asks how many there are, which is asked once.
const bool kHasDevices = (simt::set_device_count(4), true);

// Whether the processes take themselves for ones of a single machine.
class NcclProcesses : public ChildrenTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override { LOCKSTEP_WANT_DEVICES(3); }
  // On a device each.
  std::vector<int> run_apart(int n, std::chrono::milliseconds timeout,
                             const std::function<void(Communicator&)>& fn) {
    return run_joining(n, [&](int rank, const Connect& connect) {
      Options options = options_on({DeviceType::kCuda, rank}, "nccl", timeout);
      if (!GetParam()) options.host = "machine " + std::to_string(rank);
      const auto comm = connect(options);
      fn(*comm);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Machines, NcclProcesses, ::testing::Values(true, false),
                         [](const ::testing::TestParamInfo<bool>& one) {
                           return one.param ? "One" : "Several";
                         });

TEST_P(NcclProcesses, FoldAndBringEveryRankWhatIsIts) {
  const int n = 3;
  const auto use = [&](Communicator& comm) {
    EXPECT_EQ(comm.transport(), "nccl");
    const Device device = comm.device();
    for (const int64_t count : {1, 67, 4099}) {
      const Bytes mine = input_of(DType::kI32, comm.rank(), count);
      const auto x = on_device(device, mine);
      const auto y = comm.allocate(mine.size() * n, device);
      comm.all_gather(x.get(), y.get(), count, DType::kI32).wait();
      Bytes all;
      for (int rank = 0; rank < n; ++rank) {
        const Bytes one = input_of(DType::kI32, rank, count);
        all.insert(all.end(), one.begin(), one.end());
      }
      ASSERT_EQ(from_device(device, y, all.size()), all);
      comm.all_to_all(y.get(), y.get(), count, DType::kI32).wait();
      Bytes turned;
      for (int rank = 0; rank < n; ++rank) {
        const Bytes one = input_of(DType::kI32, comm.rank(), count);
        turned.insert(turned.end(), one.begin(), one.end());
      }
      ASSERT_EQ(from_device(device, y, turned.size()), turned);
      comm.all_reduce(x.get(), x.get(), count, DType::kI32, ReduceOp::kSum).wait();
      ASSERT_EQ(from_device(device, x, mine.size()),
                folded_inputs(DType::kI32, ReduceOp::kSum, Blocks::of_all(count, n)));
      // What NCCL has not.
      const auto z = on_device(device, input_of(DType::kF16, comm.rank(), count));
      comm.all_reduce(z.get(), z.get(), count, DType::kF16, ReduceOp::kMax).wait();
      const Bytes most = folded_inputs(DType::kF16, ReduceOp::kMax, Blocks::of_all(count, n));
      ASSERT_EQ(from_device(device, z, most.size()), most);
    }
    comm.barrier().wait();
  };
  EXPECT_EQ(run_apart(n, std::chrono::seconds(100), use), std::vector<int>(n, 0));
}

// A rank dies between collectives, in one, or when all had come and its device had not: the others
// have an error that names it, their own streams end, and they go on without it.
TEST_P(NcclProcesses, ThatDieAreNamedAndTheOthersGoOn) {
  for (const int when : {0, 1, 2}) {
    SCOPED_TRACE(::testing::Message() << "at " << when);
    const auto started = std::chrono::steady_clock::now();
    const auto use = [&](Communicator& comm) {
      const Device device = comm.device();
      const int64_t count = 20001;
      const auto x = comm.allocate(static_cast<size_t>(count) * sizeof(float), device);
      const auto reduce = [&](Communicator& group) {
        return group.all_reduce(x.get(), x.get(), count, DType::kF32, ReduceOp::kSum);
      };
      reduce(comm).wait();
      Stream(device).synchronize();
      if (comm.rank() == 1) {
        if (when == 1) reduce(comm);
        if (when == 2) reduce(comm).wait();
        raise(SIGKILL);
      }
      const std::string said = message_of(ErrorCode::kPeerLost, [&] {
        reduce(comm).wait();
        Stream(device).synchronize();
        reduce(comm).wait();
      });
      EXPECT_THAT(said, AnyOf(HasSubstr("rank 1 died"), HasSubstr("gave up")));
      Stream(device).synchronize();
      const auto rest = comm.shrink(std::chrono::seconds(5));
      EXPECT_EQ(rest->size(), 2);
      EXPECT_EQ(rest->transport(), "nccl");
      launch<kernels::Fill>(device, View{x.get(), DType::kF32, device, {count}, {1}}, 1.0);
      reduce(*rest).wait();
      EXPECT_EQ(from_device(device, x, 4)[3], std::byte{0x40});  // of 2.0f
      rest->barrier().wait();
    };
    EXPECT_EQ(run_apart(3, std::chrono::seconds(60), use), (std::vector<int>{0, kKilled, 0}));
    EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(30));
  }
}

TEST_P(NcclProcesses, ThatAreStoppedEndAtTheTimeout) {
  const auto use = [](Communicator& comm) { check_a_stopped_rank_ends_at_the_timeout(comm, "6"); };
  EXPECT_EQ(run_apart(2, std::chrono::milliseconds(6000), use), (std::vector<int>{0, kStopped}));
}

}  // namespace
}  // namespace lockstep::comm
