// send and recv: what one rank gives the other gets, in any order of calls that can work; what
// cannot is an error on both.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "../errors.h"
#include "lockstep/comm/communicator.h"
#include "on_transports.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PointToPoint : public OnTransports {};
INSTANTIATE_TEST_SUITE_P(All, PointToPoint, kTransports, transport_name);

// Nothing, a few bytes, and more than any pipe or socket holds.
constexpr int64_t kCounts[] = {0, 1, 5003, kSanitized ? 300007 : 1000003};

TEST_P(PointToPoint, GoesAroundARingWhicheverIsCalledFirst) {
  on_ranks(3, [](Communicator& comm) {
    const int next = (comm.rank() + 1) % 3;
    const int before = (comm.rank() + 2) % 3;
    for (const int64_t count : kCounts) {
      for (const bool send_first : {true, false}) {
        const Bytes mine = input_of(DType::kF32, comm.rank(), count);
        Bytes got(mine.size());
        Work sent;
        if (send_first) sent = comm.send(mine.data(), count, DType::kF32, next);
        const Work received = comm.recv(got.data(), count, DType::kF32, before);
        if (!send_first) sent = comm.send(mine.data(), count, DType::kF32, next);
        sent.wait();
        Work(received).wait();
        ASSERT_EQ(got, input_of(DType::kF32, before, count)) << count;
      }
    }
  });
}

TEST_P(PointToPoint, NeedsNoOtherRankAndIsInOrderWithCollectives) {
  std::atomic<bool> passed{false};
  on_ranks(3, [&](Communicator& comm) {
    int32_t value = comm.rank() + 1;
    if (comm.rank() == 0) comm.send(&value, 1, DType::kI32, 1).wait();
    if (comm.rank() == 1) {
      comm.recv(&value, 1, DType::kI32, 0).wait();
      passed.store(true);
    }
    while (!passed.load()) std::this_thread::yield();
    // 1, 1, 3
    comm.all_reduce(&value, &value, 1, DType::kI32, ReduceOp::kSum).wait();
    EXPECT_EQ(value, 5);
    Work behind;
    if (comm.rank() == 2) behind = comm.send(&value, 1, DType::kI32, 0);
    int32_t got = 0;
    if (comm.rank() == 0) behind = comm.recv(&got, 1, DType::kI32, 2);
    Work barrier = comm.barrier();
    barrier.wait();
    behind.wait();
    EXPECT_EQ(got, comm.rank() == 0 ? 5 : 0);
  });
}

TEST_P(PointToPoint, MessagesOfAPairStayInOrder) {
  on_ranks(2, [](Communicator& comm) {
    std::vector<Bytes> buffers;
    std::vector<Work> works;
    for (int i = 0; i < 12; ++i) {
      const int64_t count = i % 4 == 0 ? 70001 + i : i;
      buffers.push_back(comm.rank() == 0 ? input_of(DType::kI64, i, count)
                                         : Bytes(static_cast<size_t>(count) * 8));
      void* data = buffers.back().data();
      works.push_back(comm.rank() == 0 ? comm.send(data, count, DType::kI64, 1)
                                       : comm.recv(data, count, DType::kI64, 0));
    }
    for (size_t i = works.size(); i-- > 0;) works[i].wait();
    for (int i = 0; i < 12; ++i) {
      EXPECT_EQ(buffers[i], input_of(DType::kI64, i, i % 4 == 0 ? 70001 + i : i)) << i;
    }
  });
}

// Each wait ends with its own message, and what is queued meanwhile goes on beside what waits.
TEST_P(PointToPoint, AReplyMayBeAwaitedWhileTheQuestionIsStillSent) {
  on_ranks(2, [](Communicator& comm) {
    for (int round = 0; round < 20; ++round) {
      int32_t question[2] = {round, round + 1};
      int32_t answer = 0;
      if (comm.rank() == 0) {
        Work reply = comm.recv(&answer, 1, DType::kI32, 1);
        comm.send(&question[0], 1, DType::kI32, 1).wait();
        if (round % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
        comm.send(&question[1], 1, DType::kI32, 1).wait();
        reply.wait();
        EXPECT_EQ(answer, 2 * round + 1);
      } else {
        int32_t heard[2] = {};
        comm.recv(&heard[0], 1, DType::kI32, 0).wait();
        comm.recv(&heard[1], 1, DType::kI32, 0).wait();
        answer = heard[0] + heard[1];
        comm.send(&answer, 1, DType::kI32, 0).wait();
      }
    }
  });
}

TEST_P(PointToPoint, WorkThatNobodyWaitsForIsDoneAllTheSame) {
  on_ranks(2, [](Communicator& comm) {
    int32_t value = comm.rank() == 0 ? 77 : 0;
    const Work work = comm.rank() == 0 ? comm.send(&value, 1, DType::kI32, 1)
                                       : comm.recv(&value, 1, DType::kI32, 0);
    while (!work.done()) std::this_thread::yield();
    EXPECT_EQ(value, 77);
  });
}

TEST_P(PointToPoint, ADifferentCountOrTypeIsAnErrorOnBothAndTheThirdIsTold) {
  for (const bool count : {true, false}) {
    on_ranks(3, [&](Communicator& comm) {
      std::vector<float> data(10);
      const std::string sent = "rank 0 asked for send of 4 f32 to rank 2";
      const std::string expected = count ? "rank 2 asked for recv of 5 f32 from rank 0"
                                         : "rank 2 asked for recv of 4 i32 from rank 0";
      std::string what;
      if (comm.rank() == 0) {
        what = message_of(ErrorCode::kMismatch,
                          [&] { comm.send(data.data(), 4, DType::kF32, 2).wait(); });
      } else if (comm.rank() == 2) {
        what = message_of(ErrorCode::kMismatch, [&] {
          comm.recv(data.data(), count ? 5 : 4, count ? DType::kF32 : DType::kI32, 0).wait();
        });
      } else {
        what = message_of(ErrorCode::kMismatch, [&] { comm.barrier().wait(); });
        EXPECT_THAT(what, HasSubstr("gave up"));
      }
      EXPECT_THAT(what, AllOf(HasSubstr(sent), HasSubstr(expected)));
    });
  }
}

TEST_P(PointToPoint, AnotherCallThanThePeersIsAnErrorOnAll) {
  on_ranks(3, [](Communicator& comm) {
    float value = 0;
    comm.barrier().wait();
    const std::string what = message_of(ErrorCode::kMismatch, [&] {
      if (comm.rank() == 0) {
        comm.send(&value, 1, DType::kF32, 1).wait();
      } else {
        comm.barrier().wait();
      }
    });
    EXPECT_THAT(what, AllOf(HasSubstr("rank 0 asked for send of 1 f32 to rank 1"),
                            HasSubstr("asked for barrier")));
  });
}

TEST_P(PointToPoint, ARankThatLeftOrDoesNotComeIsNamed) {
  on_ranks(2, [](Communicator& comm) {
    if (comm.rank() == 1) return;
    std::vector<float> data(1000000);
    const std::string what = message_of(
        ErrorCode::kPeerLost, [&] { comm.send(data.data(), 1000000, DType::kF32, 1).wait(); });
    EXPECT_THAT(what, HasSubstr("rank 1"));
  });
  std::atomic<bool> over{false};
  on_ranks(
      2,
      [&](Communicator& comm) {
        float value = 0;
        if (comm.rank() == 1) {
          while (!over.load()) std::this_thread::yield();
          return;
        }
        const std::string what =
            message_of(ErrorCode::kTimeout, [&] { comm.recv(&value, 1, DType::kF32, 1).wait(); });
        EXPECT_THAT(what, HasSubstr("waited 0.3 s for rank 1"));
        over.store(true);
      },
      std::chrono::milliseconds(300));
}

TEST_P(PointToPoint, AnAbortEndsAWaitAtOnceAndTellsThePeerWhy) {
  std::atomic<bool> aborted{false};
  on_ranks(2, [&](Communicator& comm) {
    float value = 0;
    if (comm.rank() == 1) {
      std::thread aborter([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        comm.abort("no more");
      });
      const std::string what =
          message_of(ErrorCode::kCancelled, [&] { comm.recv(&value, 1, DType::kF32, 0).wait(); });
      EXPECT_THAT(what, HasSubstr("no more"));
      aborter.join();
      aborted.store(true);
    } else {
      while (!aborted.load()) std::this_thread::yield();
      // Not the send that rank 1 had asked for: that may still find its request.
      const std::string what =
          message_of(ErrorCode::kPeerLost, [&] { comm.recv(&value, 1, DType::kF32, 1).wait(); });
      EXPECT_THAT(what, AllOf(HasSubstr("rank 1"), HasSubstr("no more")));
    }
  });
}

}  // namespace
}  // namespace lockstep::comm
