// Every collective, on every transport and by every algorithm, gives the bits that the order of the
// ring gives.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "collective_cases.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {
namespace {

class Collectives : public ::testing::TestWithParam<Path> {
 protected:
  void on_ranks(const std::function<void(Communicator&)>& fn) {
    for (const int size : {1, 2, 3, 5}) {
      SCOPED_TRACE(std::to_string(size) + " ranks");
      run_ranks(size, fn, options_of(GetParam()));
    }
  }
};

INSTANTIATE_TEST_SUITE_P(All, Collectives, ::testing::ValuesIn(all_paths()),
                         [](const auto& one) { return path_name(one.param); });

// Empty, below and above a cache line, odd, and on both sides of where one shot ends.
constexpr int64_t kCounts[] = {0, 1, 3, 65, 1021, 9973};

TEST_P(Collectives, ReduceScatterGivesEachRankItsBlock) {
  on_ranks([](Communicator& comm) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8, DType::kI64}) {
      for (const ReduceOp op : ops_of(dtype)) {
        for (const int64_t count : kCounts) {
          const Blocks blocks = Blocks::of_each(count, comm.size());
          const Bytes all = folded_inputs(dtype, op, blocks);
          const auto bytes = static_cast<size_t>(count) * size_of(dtype);
          const auto own = static_cast<int64_t>(bytes) * comm.rank();
          const Bytes want(all.begin() + own, all.begin() + own + static_cast<int64_t>(bytes));
          Bytes send = input_of(dtype, comm.rank(), blocks.count);
          Bytes recv(bytes, std::byte{0x5a});
          comm.reduce_scatter(send.data(), recv.data(), count, dtype, op).wait();
          ASSERT_EQ(recv, want) << name(dtype) << " " << kernels::name(op) << " " << count;
          comm.reduce_scatter(send.data(), send.data() + own, count, dtype, op).wait();
          ASSERT_TRUE(std::equal(want.begin(), want.end(), send.begin() + own))
              << "in place " << name(dtype) << " " << kernels::name(op) << " " << count;
        }
      }
    }
  });
}

TEST_P(Collectives, AllGatherPutsRanksInOrder) {
  on_ranks([](Communicator& comm) {
    for (const DType dtype : {DType::kU8, DType::kF32, DType::kF64}) {
      for (const int64_t count : kCounts) {
        Bytes want;
        for (int rank = 0; rank < comm.size(); ++rank) {
          const Bytes part = input_of(dtype, rank, count);
          want.insert(want.end(), part.begin(), part.end());
        }
        const Bytes send = input_of(dtype, comm.rank(), count);
        Bytes recv(want.size(), std::byte{0x5a});
        comm.all_gather(send.data(), recv.data(), count, dtype).wait();
        ASSERT_EQ(recv, want) << name(dtype) << " " << count;
        std::fill(recv.begin(), recv.end(), std::byte{0x5a});
        std::byte* own = recv.data() + send.size() * static_cast<size_t>(comm.rank());
        std::copy(send.begin(), send.end(), own);
        comm.all_gather(own, recv.data(), count, dtype).wait();
        ASSERT_EQ(recv, want) << "in place " << name(dtype) << " " << count;
      }
    }
  });
}

TEST_P(Collectives, ReduceGivesTheRootTheBitsOfAllReduceAndTheOthersNothing) {
  on_ranks([](Communicator& comm) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kU8}) {
      for (const int64_t count : kCounts) {
        for (int root = 0; root < comm.size(); ++root) {
          const ReduceOp op = root % 2 == 0 ? ReduceOp::kSum : ReduceOp::kAvg;
          const Bytes send = input_of(dtype, comm.rank(), count);
          const Bytes want = folded_inputs(dtype, op, Blocks::of_all(count, comm.size()));
          Bytes recv(send.size(), std::byte{0x5a});
          const bool mine = comm.rank() == root;
          comm.reduce(send.data(), mine ? recv.data() : nullptr, count, dtype, op, root).wait();
          ASSERT_EQ(recv, mine ? want : Bytes(send.size(), std::byte{0x5a}))
              << name(dtype) << " " << count << " to " << root;
          if (mine) recv = send;
          comm.reduce(mine ? recv.data() : send.data(), recv.data(), count, dtype, op, root).wait();
          ASSERT_EQ(recv, mine ? want : Bytes(send.size(), std::byte{0x5a})) << "in place";
        }
      }
    }
  });
}

TEST_P(Collectives, BroadcastGivesAllRanksTheRootsData) {
  on_ranks([](Communicator& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      for (const int64_t count : kCounts) {
        const Bytes want = input_of(DType::kI32, root, count);
        Bytes data = input_of(DType::kI32, comm.rank(), count);
        comm.broadcast(data.data(), count, DType::kI32, root).wait();
        ASSERT_EQ(data, want) << "root " << root << " count " << count;
      }
    }
  });
}

TEST_P(Collectives, NobodyPassesABarrierBeforeAllAreThere) {
  for (const int size : {2, 3, 5}) {
    std::atomic<int> arrived{0};
    const auto meet = [&](Communicator& comm) {
      for (int round = 1; round <= 20; ++round) {
        ++arrived;
        comm.barrier().wait();
        EXPECT_GE(arrived.load(), round * comm.size());
        comm.barrier().wait();
      }
    };
    run_ranks(size, meet, options_of(GetParam()));
  }
}

TEST_P(Collectives, RegisteredMemoryGivesTheSameBits) {
  constexpr int64_t kCount = kSanitized ? 70001 : 700001;  // several chunks of every algorithm
  on_ranks([](Communicator& comm) {
    for (const DType dtype : {DType::kF32, DType::kF16}) {
      const Bytes want = folded_inputs(dtype, ReduceOp::kSum, Blocks::of_all(kCount, comm.size()));
      const Bytes input = input_of(dtype, comm.rank(), kCount);
      const std::shared_ptr<void> a = comm.allocate(input.size() + 512);
      const std::shared_ptr<void> b = comm.allocate(input.size());
      // Each rank at another offset.
      std::byte* send = static_cast<std::byte*>(a.get()) + 64 * (comm.rank() % 5);
      auto* recv = static_cast<std::byte*>(b.get());
      std::copy(input.begin(), input.end(), send);
      comm.all_reduce(send, recv, kCount, dtype, ReduceOp::kSum).wait();
      EXPECT_TRUE(std::equal(want.begin(), want.end(), recv)) << name(dtype);
      comm.all_reduce(send, send, kCount, dtype, ReduceOp::kSum).wait();
      EXPECT_TRUE(std::equal(want.begin(), want.end(), send)) << name(dtype);
      // Registered on some ranks alone.
      Bytes plain = input;
      std::copy(input.begin(), input.end(), send);
      std::byte* mixed = comm.rank() % 2 == 0 ? send : plain.data();
      comm.all_reduce(mixed, mixed, kCount, dtype, ReduceOp::kSum).wait();
      EXPECT_TRUE(std::equal(want.begin(), want.end(), mixed)) << name(dtype);
    }
  });
}

TEST_P(Collectives, ManyInFlightRunInOrder) {
  on_ranks([](Communicator& comm) {
    constexpr int kWorks = kSanitized ? 10 : 40;
    constexpr int64_t kCount = 5003;
    std::vector<Bytes> buffers;
    std::vector<Work> works;
    for (int i = 0; i < kWorks; ++i) {
      buffers.push_back(input_of(DType::kF32, comm.rank() + i, kCount));
    }
    for (int i = 0; i < kWorks; ++i) {
      void* data = buffers[i].data();
      works.push_back(comm.all_reduce(data, data, kCount, DType::kF32, ReduceOp::kMax));
      // The one before, again: only right in order.
      if (i > 0) works.push_back(comm.broadcast(buffers[i - 1].data(), kCount, DType::kF32, 0));
    }
    // Any order of waiting, and more than once.
    for (size_t i = works.size(); i-- > 0;) works[i].wait();
    works.front().wait();
    for (int i = 0; i < kWorks; ++i) {
      std::vector<float> values(comm.size());
      for (int64_t k = 0; k < kCount; k += 7) {
        const Blocks blocks = Blocks::of_all(kCount, comm.size());
        const int block = static_cast<int>(k / blocks.size);
        for (int r = 0; r < comm.size(); ++r) {
          values[r] = input_value<float>(blocks.order(block, r) + i, k);
        }
        const float want = folded<float>(values, ReduceOp::kMax);
        float got = 0;
        std::memcpy(&got, buffers[i].data() + k * 4, sizeof got);
        ASSERT_EQ(std::memcmp(&got, &want, sizeof got), 0) << i << " " << k;
      }
    }
  });
}

TEST_P(Collectives, WorkThatNobodyWaitsForIsDoneAllTheSame) {
  on_ranks([](Communicator& comm) {
    std::vector<float> data(10, static_cast<float>(comm.rank() + 1));
    const Work work = comm.all_reduce(data.data(), data.data(), 10, DType::kF32, ReduceOp::kSum);
    while (!work.done()) std::this_thread::yield();
    const int n = comm.size();
    EXPECT_EQ(data[9], static_cast<float>(n * (n + 1) / 2));
  });
}

TEST_P(Collectives, AveragesDivideBeforeTheyOverflow) {
  on_ranks([](Communicator& comm) {
    std::vector<Half> half(3, Half(40000.0f));
    comm.all_reduce(half.data(), half.data(), 3, DType::kF16, ReduceOp::kAvg).wait();
    EXPECT_EQ(static_cast<float>(half[2]), 40000.0f);
    std::vector<float> single(3, 3e38f);
    comm.all_reduce(single.data(), single.data(), 3, DType::kF32, ReduceOp::kAvg).wait();
    EXPECT_FLOAT_EQ(single[2], 3e38f);
    std::vector<int64_t> large(3, std::numeric_limits<int64_t>::max());
    comm.all_reduce(large.data(), large.data(), 3, DType::kI64, ReduceOp::kAvg).wait();
    EXPECT_EQ(large[2], std::numeric_limits<int64_t>::max());
    // -1 and 0s: truncated toward zero.
    std::vector<int32_t> small(3, comm.rank() == 0 ? -1 : 0);
    comm.all_reduce(small.data(), small.data(), 3, DType::kI32, ReduceOp::kAvg).wait();
    EXPECT_EQ(small[2], comm.size() == 1 ? -1 : 0);
  });
}

TEST_P(Collectives, OneNanOnAnyRankIsNanOnAll) {
  on_ranks([](Communicator& comm) {
    for (int holder = 0; holder < comm.size(); ++holder) {
      for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
        std::vector<float> data(301, static_cast<float>(comm.rank()));
        if (comm.rank() == holder) data[300] = std::numeric_limits<float>::quiet_NaN();
        comm.all_reduce(data.data(), data.data(), 301, DType::kF32, op).wait();
        EXPECT_TRUE(std::isnan(data[300])) << "holder " << holder;
        EXPECT_EQ(data[299], op == ReduceOp::kMin ? 0.0f : static_cast<float>(comm.size() - 1));
      }
    }
  });
}

}  // namespace
}  // namespace lockstep::comm
