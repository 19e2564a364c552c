// What happens where ranks disagree, give up, come late or leave: an error on every rank, in
// bounded time, that says who.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "collective_cases.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Outcome {
  ErrorCode code;
  std::string what;
};

// How the call fails; the test fails where it does not.
template <class F>
Outcome failure_of(const F& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorCode::kInternal, ""};
}

class Failures : public ::testing::TestWithParam<Path> {
 protected:
  void on_ranks(int n, const std::function<void(Communicator&)>& fn,
                std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    run_ranks(n, fn, options_of(GetParam(), timeout));
  }
};

INSTANTIATE_TEST_SUITE_P(All, Failures, ::testing::ValuesIn(all_paths()),
                         [](const auto& one) { return path_name(one.param); });

TEST_P(Failures, RanksThatDisagreeAreAllToldWhoAskedForWhat) {
  using Call = std::function<void(Communicator&, float*)>;
  const auto reduce = [](int64_t count, DType dtype, ReduceOp op) {
    return [=](Communicator& comm, float* data) {
      comm.all_reduce(data, data, count, dtype, op).wait();
    };
  };
  struct Disagreement {
    Call most;
    Call last;  // of the last rank
    std::string most_text;
    std::string last_text;
  };
  const Call sum = reduce(4, DType::kF32, ReduceOp::kSum);
  const std::vector<Disagreement> disagreements = {
      {sum, reduce(6, DType::kF32, ReduceOp::kSum), "all_reduce sum of 4 f32",
       "all_reduce sum of 6 f32"},
      {reduce(50000, DType::kF32, ReduceOp::kSum), reduce(70000, DType::kF32, ReduceOp::kSum),
       "all_reduce sum of 50000 f32", "all_reduce sum of 70000 f32"},
      {reduce(50000, DType::kF32, ReduceOp::kSum), sum, "all_reduce sum of 50000 f32",
       "all_reduce sum of 4 f32"},
      {sum, reduce(4, DType::kI32, ReduceOp::kSum), "all_reduce sum of 4 f32",
       "all_reduce sum of 4 i32"},
      {sum, reduce(4, DType::kF32, ReduceOp::kMax), "all_reduce sum of 4 f32",
       "all_reduce max of 4 f32"},
      {sum, [](Communicator& comm, float*) { comm.barrier().wait(); }, "all_reduce sum of 4 f32",
       "barrier"},
      {sum, reduce(0, DType::kF32, ReduceOp::kSum), "all_reduce sum of 4 f32",
       "all_reduce sum of 0 f32"},
      {[](Communicator& comm, float* data) { comm.broadcast(data, 4, DType::kF32, 0).wait(); },
       [](Communicator& comm, float* data) { comm.broadcast(data, 4, DType::kF32, 1).wait(); },
       "broadcast of 4 f32 from rank 0", "broadcast of 4 f32 from rank 1"},
  };
  for (const int n : {2, 3}) {
    for (const Disagreement& one : disagreements) {
      on_ranks(n, [&](Communicator& comm) {
        std::vector<float> data(70000);
        sum(comm, data.data());
        const bool last = comm.rank() == n - 1;
        const Outcome outcome =
            failure_of([&] { (last ? one.last : one.most)(comm, data.data()); });
        EXPECT_EQ(outcome.code, ErrorCode::kMismatch) << outcome.what;
        EXPECT_THAT(outcome.what, AllOf(HasSubstr("collective 2"), HasSubstr(one.last_text),
                                        HasSubstr(one.most_text)));
        EXPECT_THAT(outcome.what, HasSubstr("rank " + std::to_string(n - 1) + " asked for"));
        // The first error stays.
        const Outcome again = failure_of([&] { comm.barrier().wait(); });
        EXPECT_EQ(again.code, ErrorCode::kMismatch);
        EXPECT_EQ(again.what, outcome.what);
      });
    }
  }
}

TEST_P(Failures, ARankThatNeverComesIsNamedAtTheTimeout) {
  std::atomic<int> waiting{0};
  on_ranks(
      3,
      [&](Communicator& comm) {
        std::vector<float> data(50000);
        comm.barrier().wait();
        if (comm.rank() == 1) {  // stays, and does not call
          while (waiting.load() < 2) std::this_thread::yield();
          return;
        }
        const Outcome outcome = failure_of([&] {
          comm.all_reduce(data.data(), data.data(), 50000, DType::kF32, ReduceOp::kSum).wait();
        });
        EXPECT_EQ(outcome.code, ErrorCode::kTimeout) << outcome.what;
        EXPECT_THAT(outcome.what, HasSubstr("for rank 1"));
        ++waiting;
      },
      std::chrono::milliseconds(kSanitized ? 3000 : 300));  // in which the group must be made, too
}

TEST_P(Failures, ARankThatLeftIsNamedByThoseWhoNeedIt) {
  on_ranks(3, [](Communicator& comm) {
    float data = 1;
    comm.all_reduce(&data, &data, 1, DType::kF32, ReduceOp::kSum).wait();
    EXPECT_EQ(data, 3.0f);
    if (comm.rank() == 2) return;  // its communicator is destroyed
    std::vector<float> large(100000);
    const Outcome outcome = failure_of([&] {
      comm.all_reduce(large.data(), large.data(), 100000, DType::kF32, ReduceOp::kSum).wait();
    });
    EXPECT_EQ(outcome.code, ErrorCode::kPeerLost);
    EXPECT_THAT(outcome.what, AllOf(HasSubstr("rank 2"), HasSubstr("after 1 collective")));
  });
}

TEST_P(Failures, AnAbortEndsPendingAndLaterWorkAndTellsTheOthersWhy) {
  std::atomic<bool> started{false};
  on_ranks(2, [&](Communicator& comm) {
    // The reason cannot come behind half a message, and a long one in one shot may stop there.
    const bool one_message = GetParam().transport == "tcp" && GetParam().algorithm == "one_shot";
    const int64_t count = one_message ? 1000 : 100000;
    std::vector<float> data(count);
    const auto reduce = [&] {
      return comm.all_reduce(data.data(), data.data(), count, DType::kF32, ReduceOp::kSum);
    };
    if (comm.rank() == 1) {
      // Waits for a rank that does not come, in one thread, and is aborted from another.
      Work first = reduce();
      Work second = comm.barrier();
      std::thread aborter([&] { comm.abort("the user went home"); });
      for (Work* work : {&first, &second}) {
        const Outcome outcome = failure_of([&] { work->wait(); });
        EXPECT_EQ(outcome.code, ErrorCode::kCancelled);
        EXPECT_THAT(outcome.what, HasSubstr("the user went home"));
      }
      aborter.join();
      EXPECT_EQ(failure_of([&] { comm.barrier().wait(); }).code, ErrorCode::kCancelled);
      started.store(true);
    } else {
      while (!started.load()) std::this_thread::yield();
      // The first may succeed: rank 1 had given its part.
      const Outcome outcome = failure_of([&] {
        reduce().wait();
        comm.barrier().wait();
      });
      EXPECT_EQ(outcome.code, ErrorCode::kPeerLost) << outcome.what;
      EXPECT_THAT(outcome.what, AllOf(HasSubstr("rank 1"), HasSubstr("the user went home")));
    }
  });
}

TEST_P(Failures, BuffersMayBeFreedOnceAnAbortedWorkHasFailed) {
  for (int round = 0; round < 10; ++round) {
    on_ranks(3, [&](Communicator& comm) {
      auto data = std::make_unique<std::vector<float>>(1 << 20);
      std::thread aborter;
      if (comm.rank() == round % 3) {
        aborter = std::thread([&] { comm.abort("enough"); });
      }
      try {
        for (int i = 0; i < 5; ++i) {
          comm.all_reduce(data->data(), data->data(), 1 << 20, DType::kF32, ReduceOp::kSum).wait();
        }
      } catch (const Error& error) {
        data.reset();
        EXPECT_TRUE(error.code() == ErrorCode::kCancelled || error.code() == ErrorCode::kPeerLost);
      }
      if (aborter.joinable()) aborter.join();
    });
  }
}

TEST_P(Failures, ADestroyedCommunicatorCancelsWhatIsPending) {
  Work left_behind;
  on_ranks(2, [&](Communicator& comm) {
    if (comm.rank() == 0) left_behind = comm.barrier();
  });
  EXPECT_TRUE(left_behind.done());
  const ErrorCode code = failure_of([&] { left_behind.wait(); }).code;
  EXPECT_TRUE(code == ErrorCode::kCancelled || code == ErrorCode::kPeerLost);
}

TEST(Communicators, ArgumentsWithoutMeaningAreRefusedAndLeaveTheCommunicatorAsItWas) {
  run_ranks(2, [](Communicator& comm) {
    std::vector<float> data(8);
    float* p = data.data();
    const auto refuses = [&](const std::function<void()>& call, const std::string& text) {
      const Outcome outcome = failure_of(call);
      EXPECT_EQ(outcome.code, ErrorCode::kInvalidArgument);
      EXPECT_THAT(outcome.what, HasSubstr(text));
    };
    refuses([&] { comm.all_reduce(p, p, -1, DType::kF32, ReduceOp::kSum); }, "count");
    refuses([&] { comm.all_reduce(p, nullptr, 4, DType::kF32, ReduceOp::kSum); }, "null");
    refuses([&] { comm.all_reduce(p, p + 2, 4, DType::kF32, ReduceOp::kSum); }, "overlap");
    refuses([&] { comm.all_gather(p + 1, p, 4, DType::kF32); }, "overlap");
    refuses([&] { comm.broadcast(p, 4, DType::kF32, 2); }, "root");
    refuses([&] { comm.all_reduce(p, p, int64_t{1} << 62, DType::kF64, ReduceOp::kSum); }, "64");
    refuses([&] { comm.all_reduce(p, p, 4, static_cast<DType>(77), ReduceOp::kSum); }, "DType");
    refuses([&] { comm.all_reduce(p, p, 4, DType::kF32, static_cast<ReduceOp>(9)); }, "ReduceOp");
    auto* odd = reinterpret_cast<std::byte*>(p) + 1;
    refuses([&] { comm.all_reduce(odd, odd, 4, DType::kF32, ReduceOp::kSum); }, "aligned");
    data[0] = 1;
    comm.all_reduce(p, p, 8, DType::kF32, ReduceOp::kSum).wait();
    EXPECT_EQ(data[0], 2.0f);
  });
}

TEST(Communicators, UnknownNamesAreErrorsThatListTheNames) {
  const auto refused = [](const Options& options) {
    return failure_of([&] {
      run_ranks(
          2, [](Communicator&) {}, options);
    });
  };
  Options transport;
  transport.transport = "pigeon";
  EXPECT_THAT(refused(transport).what, HasSubstr("thread shm tcp mixed cuda nccl, got \"pigeon\""));
  Options algorithm;
  algorithm.algorithm = "magic";
  EXPECT_THAT(refused(algorithm).what, HasSubstr("ring two_shot one_shot, got \"magic\""));
  EXPECT_THAT(refused(options_of({"tcp", "two_shot"})).what, HasSubstr("ring and one_shot"));
}

TEST(Communicators, AWorldOfOneNeedsNoStore) {
  const auto comm = connect(World{}, nullptr);
  EXPECT_EQ(comm->size(), 1);
  std::vector<float> data = {1, 2, 3};
  std::vector<float> out(3);
  comm->all_reduce(data.data(), out.data(), 3, DType::kF32, ReduceOp::kAvg).wait();
  EXPECT_EQ(out, data);
}

TEST(Communicators, RanksThatWantDifferentTransportsAreTold) {
  StoreServer server({"127.0.0.1", 0, "t", ""});
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      World world{rank, 2, rank, 2, "127.0.0.1", server.port(), true, "t", ""};
      Options options = options_of({rank == 0 ? "shm" : "tcp", ""});
      const Outcome outcome =
          failure_of([&] { connect(world, Store::connect(world, options.timeout), options); });
      EXPECT_EQ(outcome.code, ErrorCode::kMismatch);
      EXPECT_THAT(outcome.what, AllOf(HasSubstr("shm"), HasSubstr("tcp")));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(Communicators, WhatFailsOnOneRankFailsOnAllAtOnce) {
  StoreServer server({"127.0.0.1", 0, "t", ""});
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      World world{rank, 3, rank, 3, "127.0.0.1", server.port(), true, "t", ""};
      Options options = options_of({"shm", rank == 1 ? "magic" : ""});
      const Outcome outcome =
          failure_of([&] { connect(world, Store::connect(world, options.timeout), options); });
      EXPECT_EQ(outcome.code, rank == 1 ? ErrorCode::kInvalidArgument : ErrorCode::kPeerLost);
      EXPECT_THAT(outcome.what, HasSubstr("ring two_shot one_shot, got \"magic\""));
      if (rank != 1) {
        EXPECT_THAT(outcome.what, HasSubstr("rank 1 could not join"));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(Communicators, ARankThatNeverJoinsIsNamed) {
  StoreServer server({"127.0.0.1", 0, "t", ""});
  World world{0, 3, 0, 3, "127.0.0.1", server.port(), true, "t", ""};
  const Outcome outcome = failure_of([&] {
    connect(world, Store::connect(world, std::chrono::seconds(1)),
            options_of({"shm", ""}, std::chrono::milliseconds(200)));
  });
  EXPECT_EQ(outcome.code, ErrorCode::kTimeout);
  EXPECT_THAT(outcome.what, HasSubstr("ranks 1, 2 to join"));
}

}  // namespace
}  // namespace lockstep::comm
