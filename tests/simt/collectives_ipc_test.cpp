// Collectives over device memory between processes, which reach each other's by CUDA's handles:
// the bits of all other transports, and what is left when a process dies.
#include <gmock/gmock.h>

#include "../errors.h"
#include "device_checks.h"
#include "lockstep/comm/communicator.h"
#include "processes.h"
#include "simt/simt.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class CudaProcesses : public ChildrenTest {};

// With buffers that the others can map, and with others, which go in pieces; counts of several
// pieces among them.
void check_bits(Communicator& comm) {
  const int n = comm.size();
  const Device device = comm.device();
  for (const bool registered : {true, false}) {
    const auto make = [&](const Bytes& bytes) {
      if (!registered) return on_device(device, bytes);
      std::shared_ptr<void> memory = comm.allocate(bytes.size() + 8, device);
      const auto count = static_cast<int64_t>(bytes.size());
      transfer({const_cast<std::byte*>(bytes.data()), DType::kU8, kCpu, {count}, {1}},
               {memory.get(), DType::kU8, device, {count}, {1}});
      return memory;
    };
    struct Case {
      DType dtype;
      ReduceOp op;
      int64_t count;
    };
    for (const auto& [dtype, op, count] :
         {Case{DType::kF32, ReduceOp::kSum, 1}, Case{DType::kBF16, ReduceOp::kAvg, 4099},
          Case{DType::kI64, ReduceOp::kMax, 129}, Case{DType::kF32, ReduceOp::kSum, 2500003},
          Case{DType::kU8, ReduceOp::kAvg, 67}}) {
      SCOPED_TRACE(::testing::Message() << (registered ? "registered " : "plain ") << name(dtype)
                                        << " " << kernels::name(op) << " of " << count);
      const Bytes want = folded_inputs(dtype, op, Blocks::of_all(count, n));
      const Bytes mine = input_of(dtype, comm.rank(), count);
      const auto send = make(mine);
      const auto recv = make(Bytes(mine.size(), std::byte{0x5a}));
      const int root = static_cast<int>(count) % n;
      comm.reduce(send.get(), recv.get(), count, dtype, op, root).wait();
      ASSERT_EQ(from_device(device, recv, mine.size()),
                comm.rank() == root ? want : Bytes(mine.size(), std::byte{0x5a}));
      comm.all_reduce(send.get(), recv.get(), count, dtype, op).wait();
      ASSERT_EQ(from_device(device, recv, mine.size()), want);
      comm.all_reduce(send.get(), send.get(), count, dtype, op).wait();
      ASSERT_EQ(from_device(device, send, mine.size()), want) << "in place";

      const int64_t part = count / n + 1;
      const size_t bytes = static_cast<size_t>(part) * size_of(dtype);
      const Bytes wants = folded_inputs(dtype, op, Blocks::of_each(part, n));
      const auto wide = make(input_of(dtype, comm.rank(), part * n));
      const auto own = make(Bytes(bytes));
      comm.reduce_scatter(wide.get(), own.get(), part, dtype, op).wait();
      const Bytes got = from_device(device, own, bytes);
      ASSERT_EQ(
          std::memcmp(got.data(), wants.data() + bytes * static_cast<size_t>(comm.rank()), bytes),
          0);
      comm.all_gather(own.get(), wide.get(), part, dtype).wait();
      ASSERT_EQ(from_device(device, wide, wants.size()), wants);
      comm.broadcast(own.get(), part, dtype, n - 1).wait();
      const Bytes last = from_device(device, own, bytes);
      ASSERT_EQ(std::memcmp(last.data(), wants.data() + bytes * static_cast<size_t>(n - 1), bytes),
                0);
    }
  }
}

TEST_F(CudaProcesses, HaveTheBitsOfAllOtherTransports) {
  for (const int n : {2, 3}) {
    for (const int devices : {1, 2}) {
      SCOPED_TRACE(::testing::Message() << n << " ranks on " << devices);
      const std::vector<int> ends =
          run_processes(n, devices, "cuda", std::chrono::seconds(100), [](Communicator& comm) {
            EXPECT_EQ(comm.transport(), "cuda");
            EXPECT_THAT(comm.pair_text((comm.rank() + 1) % comm.size()), HasSubstr("shm"));
            check_bits(comm);
          });
      EXPECT_EQ(ends, std::vector<int>(static_cast<size_t>(n), 0));
    }
  }
}

TEST_F(CudaProcesses, WhoseDriverHasNoWordsGoThroughTheHost) {
  setenv("SIMT_NO_WORDS", "1", 1);
  const std::vector<int> ends =
      run_processes(2, 1, "", std::chrono::seconds(100), [](Communicator& comm) {
        EXPECT_EQ(comm.transport(), "shm");
        EXPECT_THAT(comm.pair_text(1 - comm.rank()), HasSubstr("through pinned memory"));
        const Bytes mine = input_of(DType::kF32, comm.rank(), 1031);
        const auto x = on_device(comm.device(), mine);
        comm.all_reduce(x.get(), x.get(), 1031, DType::kF32, ReduceOp::kSum).wait();
        EXPECT_EQ(from_device(comm.device(), x, mine.size()),
                  folded_inputs(DType::kF32, ReduceOp::kSum, Blocks::of_all(1031, 2)));
      });
  unsetenv("SIMT_NO_WORDS");
  EXPECT_EQ(ends, std::vector<int>(2, 0));
}

TEST_F(CudaProcesses, StageWhatHasNoWayBetweenDevices) {
  const std::vector<int> ends =
      run_processes(3, 1, "cuda", std::chrono::seconds(100), [](Communicator& comm) {
        const Device device = comm.device();
        const int64_t count = 1031;
        const Bytes mine = input_of(DType::kF64, comm.rank(), count);
        const auto send = on_device(device, mine);
        const auto recv = on_device(device, Bytes(mine.size() * 3));
        comm.gather(send.get(), recv.get(), count, DType::kF64, 1).wait();
        if (comm.rank() != 1) return;
        for (int r = 0; r < 3; ++r) {
          const auto* at = static_cast<const std::byte*>(recv.get()) + mine.size() * r;
          EXPECT_EQ(from_device(device, at, mine.size()), input_of(DType::kF64, r, count));
        }
      });
  EXPECT_EQ(ends, std::vector<int>(3, 0));
}

// A rank dies between collectives, in one, or when all had come and its device had not: the others
// have an error that names it, and their own streams end.
TEST_F(CudaProcesses, ThatDieAreNamedAndNobodyWaitsForTheirDevices) {
  for (const int when : {0, 1, 2}) {
    for (const int devices : {1, 2}) {
      SCOPED_TRACE(::testing::Message() << "at " << when << " on " << devices);
      const auto started = std::chrono::steady_clock::now();
      const std::vector<int> ends =
          run_processes(3, devices, "cuda", std::chrono::seconds(60), [when](Communicator& comm) {
            const Device device = comm.device();
            const int64_t count = 70001;
            const auto x = comm.allocate(static_cast<size_t>(count) * sizeof(float), device);
            const auto reduce = [&] {
              return comm.all_reduce(x.get(), x.get(), count, DType::kF32, ReduceOp::kSum);
            };
            reduce().wait();
            Stream(device).synchronize();
            if (comm.rank() == 1) {
              if (when == 1) reduce();
              if (when == 2) reduce().wait();
              raise(SIGKILL);
            }
            const std::string said = message_of(ErrorCode::kPeerLost, [&] {
              reduce().wait();
              Stream(device).synchronize();
              reduce().wait();
            });
            EXPECT_THAT(said, AnyOf(HasSubstr("rank 1 died"), HasSubstr("gave up")));
            Stream(device).synchronize();
            // Memory of the device is as good as before.
            launch<kernels::Fill>(device, View{x.get(), DType::kF32, device, {count}, {1}}, 2.0);
            EXPECT_EQ(from_device(device, x, 4)[3], std::byte{0x40});
          });
      EXPECT_EQ(ends, (std::vector<int>{0, kKilled, 0}));
      EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(30));
    }
  }
}

TEST_F(CudaProcesses, ThatAreStoppedEndAtTheTimeout) {
  const auto use = [](Communicator& comm) { check_a_stopped_rank_ends_at_the_timeout(comm, "6"); };
  const auto ends = run_processes(2, 1, "cuda", std::chrono::milliseconds(6000), use);
  EXPECT_EQ(ends, (std::vector<int>{0, kStopped}));
}

}  // namespace
}  // namespace lockstep::comm
