// The same bits on every transport and by every algorithm, for every dtype and op: those that the
// order of the ring gives, computed element by element.

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <tuple>

#include "collective_cases.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {
namespace {

class Bits : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, Bits, ::testing::Range(2, 8));

TEST_P(Bits, AreTheSameOnEveryPathForEveryDTypeAndOp) {
  const int size = GetParam();
  // In one message, in several, and for some ranks none; the last is beyond one shot everywhere.
  const std::vector<int64_t> counts =
      kSanitized ? std::vector<int64_t>{67, 1021} : std::vector<int64_t>{1, 67, 1021, 17011};
  std::map<std::tuple<DType, ReduceOp, int64_t>, Bytes> wants;
  for (const DType dtype : kAllDTypes) {
    for (const ReduceOp op : ops_of(dtype)) {
      for (const int64_t count : counts) {
        wants[{dtype, op, count}] = folded_inputs(dtype, op, Blocks::of_all(count, size));
      }
    }
  }
  for (const Path& path : all_paths()) {
    SCOPED_TRACE(path_name(path));
    const auto fold_all = [&](Communicator& comm) {
      for (const auto& [key, want] : wants) {
        const auto& [dtype, op, count] = key;
        const Bytes send = input_of(dtype, comm.rank(), count);
        Bytes recv(send.size(), std::byte{0x5a});
        comm.all_reduce(send.data(), recv.data(), count, dtype, op).wait();
        ASSERT_EQ(recv, want) << name(dtype) << " " << kernels::name(op) << " " << count;
        recv = send;
        comm.all_reduce(recv.data(), recv.data(), count, dtype, op).wait();
        ASSERT_EQ(recv, want) << "in place " << name(dtype) << " " << kernels::name(op) << " "
                              << count;
        const int root = static_cast<int>(count) % size;
        recv = send;
        comm.reduce(recv.data(), recv.data(), count, dtype, op, root).wait();
        ASSERT_EQ(recv, comm.rank() == root ? want : send)
            << "to one " << name(dtype) << " " << kernels::name(op) << " " << count;
      }
    };
    run_ranks(size, fold_all, options_of(path));
  }
}

// Counts have 64 bits everywhere: what does not fit 32 arrives whole.
TEST(Counts, MoreThanTwoToThe31ElementsArrive) {
  constexpr int64_t kCount = kSanitized ? 70'000'001 : (int64_t{1} << 31) + 12345;
  const auto value = [](int64_t i, int rank) {
    return static_cast<uint8_t>(mix(static_cast<uint64_t>(i >> 12)) + static_cast<uint64_t>(rank));
  };
  std::array<std::shared_ptr<void>, 2> memory;  // of both runs: most of the time is the system's
  const auto broadcast = [&](Communicator& comm) {
    std::shared_ptr<void>& mine = memory[comm.rank()];
    if (mine == nullptr) mine = comm.allocate(kCount);
    auto* data = static_cast<uint8_t*>(mine.get());
    constexpr int64_t kRun = 1 << 12;
    if (comm.rank() == 0) std::memset(data, 0, kCount);
    if (comm.rank() == 1) {
      for (int64_t i = 0; i < kCount; i += kRun) {
        std::memset(data + i, value(i, 1), static_cast<size_t>(std::min(kRun, kCount - i)));
      }
    }
    comm.broadcast(data, kCount, DType::kU8, 1).wait();
    int64_t wrong = 0;
    for (int64_t i = 0; i < kCount; i += 509) wrong += data[i] != value(i, 1) ? 1 : 0;
    wrong += data[kCount - 1] != value(kCount - 1, 1) ? 1 : 0;
    EXPECT_EQ(wrong, 0);
  };
  for (const char* transport : {"thread", "tcp"}) {
    run_ranks(2, broadcast, options_of({transport, ""}));
  }
}

}  // namespace
}  // namespace lockstep::comm
