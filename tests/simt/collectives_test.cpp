// Collectives over device memory, by every way that it has, between threads: the bits of all other
// transports, the order of streams, and errors. collectives_ipc_test.cpp has processes.
#include <gmock/gmock.h>

#include <atomic>
#include <numeric>

#include "device_checks.h"
#include "devices.h"
#include "lockstep/comm/communicator.h"
#include "schedules.h"
#include "simt/simt.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// How device memory goes: straight, or staged through the host's by a transport of that name.
struct Way {
  std::string transport;
  std::vector<Device> devices;  // by rank
};

std::string way_name(const ::testing::TestParamInfo<Way>& one) {
  const std::string& transport = one.param.transport;
  return name_of_way(transport.empty() ? "auto" : transport, one.param.devices, one.index);
}

class CudaCollectives : public ::testing::TestWithParam<Way> {
 protected:
  int size() const { return static_cast<int>(GetParam().devices.size()); }
  void on_ranks(const std::function<void(Communicator&)>& fn,
                std::chrono::milliseconds timeout = std::chrono::seconds(100)) {
    run_ranks(GetParam().devices, fn, options_of({GetParam().transport, ""}, timeout));
    EXPECT_EQ(simt::take_report(), "");
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, CudaCollectives,
                         ::testing::Values(Way{"cuda", {kFirst}}, Way{"cuda", {kFirst, kFirst}},
                                           Way{"", {kFirst, kFirst, kFirst}},
                                           Way{"cuda", {kFirst, kSecond}},
                                           Way{"cuda", {kSecond, kFirst, kSecond, kFirst}},
                                           Way{"thread", {kFirst, kSecond}},
                                           Way{"shm", {kFirst, kFirst, kSecond}},
                                           Way{"tcp", {kFirst, kSecond}}),
                         way_name);

TEST_P(CudaCollectives, HaveTheBitsOfAllOtherTransports) {
  const int n = size();
  on_ranks([&](Communicator& comm) {
    const bool straight = GetParam().transport.empty() || GetParam().transport == "cuda";
    EXPECT_EQ(comm.transport() == "cuda", straight);
    const Device device = comm.device();
    uint64_t seed = 1;
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : ops_of(dtype)) {
        for (const int64_t count : {int64_t{1}, int64_t{67}, int64_t{1021}}) {
          SCOPED_TRACE(::testing::Message()
                       << name(dtype) << " " << kernels::name(op) << " of " << count);
          if (comm.rank() == 0) simt::seed(seed);
          ++seed;
          const Blocks all = Blocks::of_all(count, n);
          const Bytes want = folded_inputs(dtype, op, all);
          const Bytes mine = input_of(dtype, comm.rank(), count);
          const auto send = on_device(device, mine);
          const auto recv = on_device(device, Bytes(mine.size(), std::byte{0x5a}));
          comm.all_reduce(send.get(), recv.get(), count, dtype, op).wait();
          ASSERT_EQ(from_device(device, recv, mine.size()), want);
          const int root = static_cast<int>(seed) % n;
          comm.reduce(send.get(), recv.get(), count, dtype, op, root).wait();
          ASSERT_EQ(from_device(device, recv, mine.size()), want);
          comm.all_reduce(send.get(), send.get(), count, dtype, op).wait();
          ASSERT_EQ(from_device(device, send, mine.size()), want) << "in place";

          const Blocks each = Blocks::of_each(count, n);
          const Bytes wants = folded_inputs(dtype, op, each);
          const Bytes theirs = input_of(dtype, comm.rank(), count * n);
          const auto wide = on_device(device, theirs);
          comm.reduce_scatter(wide.get(), recv.get(), count, dtype, op).wait();
          const size_t own = mine.size() * static_cast<size_t>(comm.rank());
          ASSERT_EQ(from_device(device, recv, mine.size()),
                    Bytes(wants.begin() + static_cast<std::ptrdiff_t>(own),
                          wants.begin() + static_cast<std::ptrdiff_t>(own + mine.size())));
        }
      }
    }
  });
}

// What rank `from` sends to rank `to` as element i.
int32_t element(int from, int to, int64_t i) {
  return static_cast<int32_t>(from * 1000003 + to * 10007 + i);
}
Bytes bytes_of(const std::vector<int32_t>& values) {
  Bytes out(values.size() * sizeof(int32_t));
  if (!out.empty()) std::memcpy(out.data(), values.data(), out.size());
  return out;
}

TEST_P(CudaCollectives, BringEveryRankWhatIsIts) {
  const int n = size();
  on_ranks([&](Communicator& comm) {
    const Device device = comm.device();
    const int rank = comm.rank();
    for (int seed = 1; seed <= kSchedules; ++seed) {
      const int64_t count = std::array{1, 129, 2051}[static_cast<size_t>(seed % 3)];
      if (rank == 0) simt::seed(static_cast<uint64_t>(seed));
      const auto values = [&](const auto& of) {
        std::vector<int32_t> out;
        for (int r = 0; r < n; ++r) {
          for (int64_t i = 0; i < count; ++i) out.push_back(of(r, i));
        }
        return bytes_of(out);
      };
      const size_t one = static_cast<size_t>(count) * sizeof(int32_t);
      const size_t all = one * static_cast<size_t>(n);
      const Bytes to_all = values([&](int r, int64_t i) { return element(rank, r, i); });
      const Bytes of_all = values([&](int r, int64_t i) { return element(r, rank, i); });
      const Bytes gathered = values([&](int r, int64_t i) { return element(r, 0, i); });
      const auto send = on_device(device, to_all);
      const auto recv = on_device(device, Bytes(all, std::byte{0x5a}));

      comm.all_gather(send.get(), recv.get(), count, DType::kI32).wait();
      ASSERT_EQ(from_device(device, recv, all), gathered);
      comm.all_to_all(send.get(), recv.get(), count, DType::kI32).wait();
      ASSERT_EQ(from_device(device, recv, all), of_all);
      const int root = n - 1;
      comm.gather(send.get(), recv.get(), count, DType::kI32, root).wait();
      ASSERT_EQ(from_device(device, recv, all), rank == root ? gathered : of_all);
      comm.scatter(send.get(), recv.get(), count, DType::kI32, root).wait();
      Bytes scattered(one);
      for (int64_t i = 0; i < count; ++i) {
        const int32_t value = element(root, rank, i);
        std::memcpy(scattered.data() + i * 4, &value, 4);
      }
      ASSERT_EQ(from_device(device, recv, one), scattered);
      comm.broadcast(recv.get(), count, DType::kI32, 0).wait();
      for (int64_t i = 0; i < count; ++i) {
        const int32_t value = element(root, 0, i);
        std::memcpy(scattered.data() + i * 4, &value, 4);
      }
      ASSERT_EQ(from_device(device, recv, one), scattered);
      comm.all_to_all(send.get(), send.get(), count, DType::kI32).wait();
      ASSERT_EQ(from_device(device, send, all), of_all) << "in place";
      comm.barrier().wait();

      // In place, and counts of each rank's own.
      const auto own = on_device(device, to_all);
      auto* at = static_cast<std::byte*>(own.get()) + one * static_cast<size_t>(rank);
      comm.all_gather(at, own.get(), count, DType::kI32).wait();
      ASSERT_EQ(from_device(device, own, all),
                values([&](int r, int64_t i) { return element(r, r, i); }));
      std::vector<int64_t> counts(static_cast<size_t>(n), count);
      counts[0] = 0;
      comm.all_gather_v(at, recv.get(), counts, DType::kI32).wait();
      Bytes rest = values([&](int r, int64_t i) { return element(r, r, i); });
      rest.erase(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(one));
      ASSERT_EQ(from_device(device, recv, all - one), rest);
      std::vector<int64_t> same(static_cast<size_t>(n), count);
      const auto again = on_device(device, to_all);
      comm.all_to_all_v(again.get(), same, recv.get(), same, DType::kI32).wait();
      ASSERT_EQ(from_device(device, recv, all), of_all);
    }
  });
}

TEST_P(CudaCollectives, SendAndReceive) {
  if (size() > 1) on_ranks(check_send_and_receive);
}

TEST_P(CudaCollectives, AreInOrderWithTheCallersStream) {
  for (int seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    on_ranks([](Communicator& comm) { check_order_with_the_callers_stream(comm, 4099); });
  }
}

TEST_P(CudaCollectives, MixWithThoseOfHostMemoryAndRunSideBySide) {
  on_ranks([&](Communicator& comm) {
    const Device device = comm.device();
    constexpr int64_t kCount = 300;
    std::vector<Work> works;
    std::vector<std::shared_ptr<void>> memory;
    std::vector<int64_t> host(10, comm.rank() + 1);
    const Bytes mine = input_of(DType::kBF16, comm.rank(), kCount);
    for (int64_t& value : host) {
      memory.push_back(on_device(device, mine));
      works.push_back(comm.all_reduce(memory.back().get(), memory.back().get(), kCount,
                                      DType::kBF16, ReduceOp::kAvg));
      works.push_back(comm.all_reduce(&value, &value, 1, DType::kI64, ReduceOp::kSum));
    }
    for (Work& work : works) work.wait();
    const Bytes want =
        folded_inputs(DType::kBF16, ReduceOp::kAvg, Blocks::of_all(kCount, comm.size()));
    for (const auto& one : memory) EXPECT_EQ(from_device(device, one, mine.size()), want);
    EXPECT_THAT(host, Each(comm.size() * (comm.size() + 1) / 2));
    comm.all_reduce(nullptr, nullptr, 0, DType::kF32, ReduceOp::kSum).wait();
    comm.barrier().wait();
  });
}

TEST_P(CudaCollectives, WorkInPartsOfAGroup) {
  on_ranks([&](Communicator& comm) {
    const Device device = comm.device();
    const auto part = comm.split(comm.rank() % 2);
    EXPECT_EQ(part->device(), device);
    EXPECT_EQ(part->transport() == "cuda", comm.transport() == "cuda");
    const auto value = on_device(device, input_of(DType::kI64, comm.rank(), 7));
    part->all_reduce(value.get(), value.get(), 7, DType::kI64, ReduceOp::kMax).wait();
    const auto key = [&](int r) { return part->world_rank(r); };
    EXPECT_EQ(from_device(device, value, 56),
              folded_inputs(DType::kI64, ReduceOp::kMax, Blocks::of_all(7, part->size()), key));
  });
}

TEST_P(CudaCollectives, RefuseWhatHasNoMeaning) {
  LOCKSTEP_WANT_DEVICES(2);
  on_ranks([&](Communicator& comm) {
    const Device device = comm.device();
    const Device other = device == kFirst ? kSecond : kFirst;
    const auto here = allocate(64, device);
    const auto there = allocate(64, other);
    std::vector<float> host(16);
    const auto refused = [&](const void* send, void* recv) {
      return message_of(ErrorCode::kInvalidArgument,
                        [&] { comm.all_reduce(send, recv, 3, DType::kF32, ReduceOp::kSum); });
    };
    EXPECT_THAT(refused(here.get(), host.data()),
                AllOf(HasSubstr("cpu"), HasSubstr(device.name()), HasSubstr("one device")));
    EXPECT_THAT(refused(there.get(), there.get()),
                AllOf(HasSubstr(device.name()), HasSubstr(other.name())));
    EXPECT_THAT(message_of(ErrorCode::kInvalidArgument, [&] { comm.allocate(64, other); }),
                AllOf(HasSubstr(device.name()), HasSubstr(other.name())));
    comm.barrier().wait();
  });
}

TEST(CudaCommunicators, OfTheHostAloneRefuseDeviceMemory) {
  run_ranks(2, [](Communicator& comm) {
    const auto x = allocate(64, kFirst);
    EXPECT_THAT(message_of(ErrorCode::kInvalidArgument,
                           [&] { comm.broadcast(x.get(), 3, DType::kF32, 0); }),
                AllOf(HasSubstr("cuda:0"), HasSubstr("Options::device")));
  });
}

class CudaFailures : public CudaCollectives {};
INSTANTIATE_TEST_SUITE_P(Ways, CudaFailures,
                         ::testing::Values(Way{"cuda", {kFirst, kFirst, kFirst}},
                                           Way{"cuda", {kFirst, kSecond}},
                                           Way{"thread", {kFirst, kFirst}}),
                         way_name);

TEST_P(CudaFailures, RanksThatDisagreeAreAllTold) {
  on_ranks([&](Communicator& comm) {
    const bool last = comm.rank() == comm.size() - 1;
    const auto x = on_device(comm.device(), input_of(DType::kF32, comm.rank(), 40));
    EXPECT_THAT(
        message_of(
            ErrorCode::kMismatch,
            [&] {
              comm.all_reduce(x.get(), x.get(), last ? 33 : 40, DType::kF32, ReduceOp::kSum).wait();
            }),
        AllOf(HasSubstr("all_reduce sum of 40 f32"), HasSubstr("all_reduce sum of 33 f32"),
              HasSubstr("collective 1")));
    EXPECT_THAT(message_of(ErrorCode::kMismatch, [&] { comm.barrier().wait(); }), HasSubstr("33"));
  });
}

// What is staged is host memory to the others.
class CudaStraightFailures : public CudaCollectives {};
INSTANTIATE_TEST_SUITE_P(Ways, CudaStraightFailures,
                         ::testing::Values(Way{"cuda", {kFirst, kFirst, kFirst}},
                                           Way{"cuda", {kFirst, kSecond}}),
                         way_name);

TEST_P(CudaStraightFailures, RanksOfWhichOneGivesHostMemoryAreTold) {
  on_ranks([&](Communicator& comm) {
    std::vector<float> host(40);
    const auto x = on_device(comm.device(), input_of(DType::kF32, comm.rank(), 40));
    void* data = comm.rank() == 0 ? host.data() : x.get();
    EXPECT_THAT(
        message_of(ErrorCode::kMismatch,
                   [&] { comm.all_reduce(data, data, 40, DType::kF32, ReduceOp::kSum).wait(); }),
        HasSubstr("between devices"));
  });
}

TEST_P(CudaFailures, ARankThatDoesNotComeIsNamed) {
  std::atomic<int> told{0};
  on_ranks(
      [&](Communicator& comm) {
        const int last = comm.size() - 1;
        if (comm.rank() == last) {
          while (told.load() < last) std::this_thread::yield();
          return;
        }
        const auto x = on_device(comm.device(), input_of(DType::kF32, comm.rank(), 40));
        EXPECT_THAT(message_of(ErrorCode::kTimeout,
                               [&] { comm.broadcast(x.get(), 10, DType::kF32, 0).wait(); }),
                    HasSubstr("rank " + std::to_string(last)));
        ++told;
      },
      std::chrono::milliseconds(300));
}

TEST_P(CudaFailures, ARankThatLeavesIsNamedAndTheOthersGoOn) {
  on_ranks([&](Communicator& comm) {
    const int last = comm.size() - 1;
    const Device device = comm.device();
    const auto x = on_device(device, input_of(DType::kF32, comm.rank(), 40));
    comm.broadcast(x.get(), 40, DType::kF32, last).wait();
    if (comm.rank() == last) return comm.abort("it has had enough");
    EXPECT_THAT(message_of(ErrorCode::kPeerLost,
                           [&] {
                             while (true) comm.broadcast(x.get(), 40, DType::kF32, 0).wait();
                           }),
                AllOf(HasSubstr("rank " + std::to_string(last)), HasSubstr("had enough")));
    const auto rest = comm.shrink(std::chrono::seconds(5));
    EXPECT_EQ(rest->size(), last);
    EXPECT_EQ(rest->device(), device);
    rest->broadcast(x.get(), 40, DType::kF32, 0).wait();
    Stream(device).synchronize();
  });
}

}  // namespace
}  // namespace lockstep::comm
