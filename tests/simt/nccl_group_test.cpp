// What comm/nccl_group.cpp asks of NCCL, of which fake_nccl.cpp keeps the books: the calls, their
// errors, and that nothing is waited for without end. It moves no data.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <nccl.h>

#include <atomic>
#include <functional>
#include <thread>

#include "../errors.h"
#include "fake_nccl.h"
#include "lockstep/comm/nccl_group.h"
#include "lockstep/comm/socket.h"

namespace lockstep::comm {
namespace {

using ::testing::HasSubstr;

FakeNccl& books() {
  static FakeNccl* const found = [] {
    void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<FakeNccl* (*)()>(dlsym(library, "fake_nccl"))();
  }();
  return *found;
}

Stream stream_of(int rank) { return Stream::create({DeviceType::kCuda, rank}); }

void on_two(const std::function<void(int rank)>& fn) {
  std::thread first(fn, 0);
  std::thread second(fn, 1);
  first.join();
  second.join();
}

Collective collective_of(Kind kind, int64_t count) {
  return {{kind, DType::kF32, kernels::FoldOp::kSum, Algorithm::kAuto, 0, count}};
}

TEST(NcclGroup, CallsWhatItIsAskedForAndEndsInOrder) {
  ASSERT_EQ(NcclGroup::why_not(), "");
  EXPECT_NE(NcclGroup::device_name({DeviceType::kCuda, 0}),
            NcclGroup::device_name({DeviceType::kCuda, 1}));
  const NcclGroup::Id id = NcclGroup::make_id();
  on_two([&](int rank) {
    NcclGroup group(id, rank, 2, stream_of(rank), [] {});
    for (const Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kReduceScatter, Kind::kAllGather,
                            Kind::kBroadcast}) {
      group.put(collective_of(kind, 5));
    }
    int memory[2] = {};
    const NcclGroup::Part parts[] = {{1 - rank, true, memory, 4}, {1 - rank, false, memory + 1, 4}};
    group.exchange("all_to_all", parts);
    void* handle = group.register_memory(memory, 4);
    EXPECT_NE(group.register_memory(memory + 1, 4), nullptr);  // let go with the group
    group.deregister(handle);
    EXPECT_EQ(group.error(), "");

    EXPECT_THAT(
        message_of(ErrorCode::kDevice, [&] { group.put(collective_of(Kind::kAllReduce, 13)); }),
        HasSubstr("[all_reduce] NCCL: invalid argument; the last of it"));
    const NcclGroup::Part refused[] = {{1 - rank, true, memory, 13}, {1 - rank, true, memory, 4}};
    EXPECT_THAT(message_of(ErrorCode::kDevice, [&] { group.exchange("gather", refused); }),
                HasSubstr("[gather] NCCL: invalid argument"));
  });
  EXPECT_EQ(books().calls, 2 * (5 + 2 + 1 + 2));
  EXPECT_EQ(books().groups, 2 * 2);
  EXPECT_EQ(books().registered, 0);
  EXPECT_EQ(books().finalized, 2);
  EXPECT_EQ(books().destroyed, 2);
  EXPECT_EQ(books().aborted, 0);
  EXPECT_EQ(books().misused, 0);
}

TEST(NcclGroup, PassesOnWhatItIsAskedFor) {
  const std::pair<DType, ncclDataType_t> types[] = {
      {DType::kF32, ncclFloat32},   {DType::kF64, ncclFloat64}, {DType::kF16, ncclFloat16},
      {DType::kBF16, ncclBfloat16}, {DType::kI64, ncclInt64},   {DType::kI32, ncclInt32},
      {DType::kI8, ncclInt8},       {DType::kU8, ncclUint8},    {DType::kBool, ncclUint8}};
  const std::pair<kernels::FoldOp, ncclRedOp_t> ops[] = {{kernels::FoldOp::kSum, ncclSum},
                                                         {kernels::FoldOp::kAvg, ncclAvg},
                                                         {kernels::FoldOp::kMin, ncclMin},
                                                         {kernels::FoldOp::kMax, ncclMax},
                                                         {kernels::FoldOp::kProduct, ncclProd}};
  const NcclGroup::Id id = NcclGroup::make_id();
  on_two([&](int rank) {
    const Stream stream = stream_of(rank);
    NcclGroup group(id, rank, 2, stream, [] {});
    int memory[2] = {};
    const auto expect_call = [&](Request request, const NcclCall& want) {
      group.put({.request = request, .send = memory, .recv = memory + 1});
      EXPECT_EQ(books().calls_of[static_cast<size_t>(rank)].back(), want) << want.name;
    };
    int64_t count = 17 + rank;
    for (const auto& [dtype, type] : types) {
      for (const auto& [op, of_nccl] : ops) {
        const auto n = static_cast<size_t>(++count);
        const auto asked = [&](Kind kind, int root = 0) {
          return Request{kind, dtype, op, Algorithm::kAuto, root, count};
        };
        const void* const on = stream.handle();
        const void* const to = memory + 1;
        expect_call(asked(Kind::kAllReduce), {"all_reduce", n, type, of_nccl, -1, memory, to, on});
        expect_call(asked(Kind::kReduce, 1), {"reduce", n, type, of_nccl, 1, memory, to, on});
        expect_call(asked(Kind::kReduceScatter),
                    {"reduce_scatter", n, type, of_nccl, -1, memory, to, on});
        expect_call(asked(Kind::kAllGather), {"all_gather", n, type, -1, -1, memory, to, on});
        expect_call(asked(Kind::kBroadcast, 1), {"broadcast", n, type, -1, 1, memory, to, on});
      }
    }
    const NcclGroup::Part parts[] = {{1 - rank, true, memory, 4}, {1 - rank, false, memory + 1, 3}};
    group.exchange("all_to_all", parts);
    const std::vector<NcclCall>& calls = books().calls_of[static_cast<size_t>(rank)];
    EXPECT_EQ(calls[calls.size() - 2],
              (NcclCall{"send", 4, ncclUint8, -1, 1 - rank, memory, nullptr, stream.handle()}));
    EXPECT_EQ(calls.back(),
              (NcclCall{"recv", 3, ncclUint8, -1, 1 - rank, nullptr, memory + 1, stream.handle()}));
  });
  EXPECT_EQ(books().misused, 0);
}

// NCCL takes one call at a time, and a call that does not block goes on after it has returned.
TEST(NcclGroup, RegistersMemoryBetweenTheCallsOfAnotherThread) {
  const int before = books().calls;
  const NcclGroup::Id id = NcclGroup::make_id();
  on_two([&](int rank) {
    NcclGroup group(id, rank, 2, stream_of(rank), [] {});
    std::atomic<bool> ended{false};
    std::thread other([&] {
      int memory = 0;
      while (!ended) {
        void* const handle = group.register_memory(&memory, 4);
        EXPECT_EQ(handle, &memory);
        group.deregister(handle);
      }
    });
    int memory[2] = {};
    const NcclGroup::Part parts[] = {{1 - rank, true, memory, 4}, {1 - rank, false, memory + 1, 4}};
    for (int i = 0; i < 20; ++i) {
      group.put(collective_of(Kind::kAllReduce, 5));
      group.exchange("all_to_all", parts);
    }
    ended = true;
    other.join();
  });
  EXPECT_EQ(books().calls - before, 2 * 20 * 3);
  EXPECT_EQ(books().registered, 0);
  EXPECT_EQ(books().misused, 0);
}

TEST(NcclGroup, WaitsForOtherRanksAsLongAsItIsTold) {
  const int aborted = books().aborted;
  const Deadline end = deadline_after(std::chrono::milliseconds(100));
  EXPECT_THAT(message_of(ErrorCode::kTimeout,
                         [&] {
                           NcclGroup(NcclGroup::make_id(), 0, 2, stream_of(0), [&] {
                             if (Clock::now() < end) return;
                             throw Error(ErrorCode::kTimeout, "connect", "rank 1 is late");
                           });
                         }),
              HasSubstr("rank 1 is late"));
  EXPECT_EQ(books().aborted - aborted, 1);
  EXPECT_EQ(books().misused, 0);
}

TEST(NcclGroup, SaysWhatNcclNoticesAndAnAbortEndsACallThatWaits) {
  const NcclGroup::Id id = NcclGroup::make_id();
  on_two([&](int rank) {
    NcclGroup group(id, rank, 2, stream_of(rank), [] {});
    if (rank == 1) return;
    books().fails = 0;
    EXPECT_THAT(group.error(), HasSubstr("NCCL: remote process exited"));
    books().fails = -1;
    books().stays_busy = true;
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      group.abort();
    });
    const auto put = [&] { group.put(collective_of(Kind::kAllReduce, 5)); };
    EXPECT_THAT(message_of(ErrorCode::kCancelled, put), HasSubstr("aborted"));
    other.join();
    books().stays_busy = false;
    EXPECT_THAT(message_of(ErrorCode::kCancelled, put), HasSubstr("aborted"));
    EXPECT_EQ(group.error(), "");
    EXPECT_EQ(group.register_memory(&books(), 4), nullptr);
    group.abort();
  });
  EXPECT_EQ(books().misused, 0);
}

// NCCL's last calls wait for the other ranks of the machine to make theirs.
TEST(NcclGroup, DoesNotWaitLongForOthersToEnd) {
  const auto bounded = [](const std::function<void(NcclGroup&)>& end) {
    const NcclGroup::Id id = NcclGroup::make_id();
    std::unique_ptr<NcclGroup> kept;
    on_two([&](int rank) {
      auto group = std::make_unique<NcclGroup>(id, rank, 2, stream_of(rank), [] {});
      if (rank == 1) {
        kept = std::move(group);
        return;
      }
      const Clock::time_point start = Clock::now();
      end(*group);
      group = nullptr;
      EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
    });
    books().abort_hangs = false;
  };
  bounded([](NcclGroup&) {});
  books().abort_hangs = true;
  bounded([](NcclGroup& group) { group.abort(); });
  EXPECT_EQ(books().misused, 0);
}

}  // namespace
}  // namespace lockstep::comm
