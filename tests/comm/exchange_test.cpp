// Gather, scatter, all-to-all and the collectives of unequal counts: every rank's own part reaches
// who asked for it, on every transport, small and large, in memory of the transport and in any.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "collective_cases.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Exchanges : public ::testing::TestWithParam<std::string> {
 protected:
  void on_ranks(const std::function<void(Communicator&)>& fn) {
    for (const int size : {1, 2, 3, 5}) {
      SCOPED_TRACE(std::to_string(size) + " ranks");
      run_ranks(size, fn, options_of({GetParam(), ""}));
    }
  }
};

INSTANTIATE_TEST_SUITE_P(All, Exchanges, ::testing::Values("thread", "shm", "tcp"),
                         [](const auto& one) { return one.param; });

// Empty, in the arrival's own cache line, in one shot, and beyond it.
constexpr int64_t kCounts[] = {0, 1, 1021, kSanitized ? 20011 : 90001};

// Memory of the transport or any other, by turns.
class Buffer {
 public:
  Buffer(Communicator& comm, const Bytes& content, bool registered)
      : bytes_(content.size()), plain_(registered ? 0 : content.size()) {
    if (registered) registered_ = comm.allocate(content.size() + 1);
    std::copy(content.begin(), content.end(), data());
  }
  std::byte* data() {
    return registered_ != nullptr ? static_cast<std::byte*>(registered_.get()) : plain_.data();
  }
  Bytes content() { return {data(), data() + bytes_}; }

 private:
  size_t bytes_;
  Bytes plain_;
  std::shared_ptr<void> registered_;
};

Bytes untouched(size_t bytes) { return Bytes(bytes, std::byte{0x5a}); }

// Elements [first, first + count) of what `rank` would give.
Bytes slice(DType dtype, int rank, int64_t first, int64_t count) {
  const Bytes all = input_of(dtype, rank, first + count);
  return {all.end() - static_cast<int64_t>(size_of(dtype)) * count, all.end()};
}

void append(Bytes& to, const Bytes& part) { to.insert(to.end(), part.begin(), part.end()); }

TEST_P(Exchanges, GatherPutsRanksInOrderOnTheRootAlone) {
  on_ranks([](Communicator& comm) {
    for (const int64_t count : kCounts) {
      for (int root = 0; root < comm.size(); ++root) {
        const DType dtype = root % 2 == 0 ? DType::kF32 : DType::kU8;
        const bool mine = comm.rank() == root;
        const Bytes part = input_of(dtype, comm.rank(), count);
        Bytes all;
        for (int rank = 0; rank < comm.size(); ++rank) append(all, input_of(dtype, rank, count));
        Buffer send(comm, part, count % 3 == 0);
        Buffer recv(comm, untouched(all.size()), count % 3 == 0);
        comm.gather(send.data(), mine ? recv.data() : nullptr, count, dtype, root).wait();
        ASSERT_EQ(recv.content(), mine ? all : untouched(all.size())) << count << " to " << root;
        std::byte* own = recv.data() + part.size() * static_cast<size_t>(root);
        if (mine) {
          std::fill_n(recv.data(), all.size(), std::byte{0x5a});
          std::copy(part.begin(), part.end(), own);
        }
        comm.gather(mine ? own : send.data(), mine ? recv.data() : nullptr, count, dtype, root)
            .wait();
        ASSERT_EQ(recv.content(), mine ? all : untouched(all.size())) << "in place " << count;
      }
    }
  });
}

TEST_P(Exchanges, ScatterGivesEachRankItsPartOfTheRoots) {
  on_ranks([](Communicator& comm) {
    for (const int64_t count : kCounts) {
      for (int root = 0; root < comm.size(); ++root) {
        const DType dtype = root % 2 == 0 ? DType::kF64 : DType::kI8;
        const bool mine = comm.rank() == root;
        const Bytes want = slice(dtype, root, count * comm.rank(), count);
        Buffer send(comm, mine ? input_of(dtype, root, count * comm.size()) : Bytes(),
                    count % 3 == 0);
        Buffer recv(comm, untouched(want.size()), count % 3 != 0);
        comm.scatter(mine ? send.data() : nullptr, recv.data(), count, dtype, root).wait();
        ASSERT_EQ(recv.content(), want) << count << " from " << root;
        std::byte* own = send.data() + want.size() * static_cast<size_t>(root);
        std::fill_n(recv.data(), want.size(), std::byte{0x5a});
        comm.scatter(mine ? send.data() : nullptr, mine ? own : recv.data(), count, dtype, root)
            .wait();
        if (!mine) {
          ASSERT_EQ(recv.content(), want) << "in place on the root " << count;
        }
      }
    }
  });
}

TEST_P(Exchanges, AllToAllTransposesInPlaceAndOutOfPlace) {
  on_ranks([](Communicator& comm) {
    for (const int64_t count : kCounts) {
      for (const bool registered : {false, true}) {
        Bytes want;
        for (int rank = 0; rank < comm.size(); ++rank) {
          append(want, slice(DType::kI32, rank, count * comm.rank(), count));
        }
        Buffer send(comm, input_of(DType::kI32, comm.rank(), count * comm.size()), registered);
        Buffer recv(comm, untouched(want.size()), registered);
        comm.all_to_all(send.data(), recv.data(), count, DType::kI32).wait();
        ASSERT_EQ(recv.content(), want) << count;
        comm.all_to_all(send.data(), send.data(), count, DType::kI32).wait();
        ASSERT_EQ(send.content(), want) << "in place " << count;
      }
    }
  });
}

TEST_P(Exchanges, AllGatherOfUnequalCountsPutsRanksInOrder) {
  on_ranks([](Communicator& comm) {
    for (const int64_t scale : kCounts) {
      std::vector<int64_t> counts;
      Bytes want;
      for (int rank = 0; rank < comm.size(); ++rank) {
        counts.push_back(rank == 1 ? 0 : scale + rank);  // one gives nothing
        append(want, input_of(DType::kBF16, rank, counts.back()));
      }
      const int64_t own = counts[comm.rank()];
      const bool registered = scale % 3 == 0;
      Buffer send(comm, input_of(DType::kBF16, comm.rank(), own), registered);
      Buffer recv(comm, untouched(want.size()), registered);
      comm.all_gather_v(send.data(), recv.data(), counts, DType::kBF16).wait();
      ASSERT_EQ(recv.content(), want) << scale;
      const int64_t before = std::accumulate(counts.begin(), counts.begin() + comm.rank(), 0L);
      Buffer whole(comm, untouched(want.size()), !registered);
      std::byte* place = whole.data() + before * 2;
      std::copy_n(send.data(), own * 2, place);
      comm.all_gather_v(place, whole.data(), counts, DType::kBF16).wait();
      ASSERT_EQ(whole.content(), want) << "in place " << scale;
    }
  });
}

TEST_P(Exchanges, AllToAllOfUnequalCountsGivesEachPairItsOwn) {
  on_ranks([](Communicator& comm) {
    const auto count = [](int from, int to, int64_t scale) {
      return (from + 2 * to) % 3 == 0 ? 0 : scale + 5 * from + to;
    };
    for (const int64_t scale : kCounts) {
      std::vector<int64_t> sends;
      std::vector<int64_t> recvs;
      Bytes input;
      Bytes want;
      for (int peer = 0; peer < comm.size(); ++peer) {
        sends.push_back(count(comm.rank(), peer, scale));
        recvs.push_back(count(peer, comm.rank(), scale));
        // What goes from a to b is what rank 10 a + b would give.
        append(input, input_of(DType::kF32, 10 * comm.rank() + peer, sends.back()));
        append(want, input_of(DType::kF32, 10 * peer + comm.rank(), recvs.back()));
      }
      Buffer send(comm, input, scale % 3 == 0);
      Buffer recv(comm, untouched(want.size()), scale % 3 == 0);
      comm.all_to_all_v(send.data(), sends, recv.data(), recvs, DType::kF32).wait();
      ASSERT_EQ(recv.content(), want) << scale;
    }
  });
}

TEST_P(Exchanges, CountsThatDoNotMeetAreAnErrorOnAllThatNamesThePair) {
  run_ranks(
      3,
      [](Communicator& comm) {
        std::vector<int64_t> counts = {2, 2, 2};
        std::vector<float> send(9, 1);
        std::vector<float> recv(9, 2);
        comm.all_to_all_v(send.data(), counts, recv.data(), counts, DType::kF32).wait();
        const std::vector<int64_t> sends = counts;
        if (comm.rank() == 2) counts[1] = 3;
        try {
          comm.all_to_all_v(send.data(), sends, recv.data(), counts, DType::kF32).wait();
          ADD_FAILURE() << "nothing was thrown";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kMismatch);
          EXPECT_THAT(error.what(), HasSubstr("collective 2 of this communicator: rank 1 sends 2 "
                                              "f32 to rank 2, which expects 3 of it"));
        }
      },
      options_of({GetParam(), ""}));
}

TEST_P(Exchanges, ARootOrACountThatOneRankHasAloneIsAnErrorOnAll) {
  using Call = std::function<Work(Communicator&, int, int64_t)>;
  std::vector<float> send(70000);
  std::vector<std::vector<float>> recvs(3, std::vector<float>(70000));
  const Call gather = [&](Communicator& comm, int root, int64_t count) {
    return comm.gather(send.data(), recvs[comm.rank()].data(), count, DType::kF32, root);
  };
  const Call scatter = [&](Communicator& comm, int root, int64_t count) {
    return comm.scatter(send.data(), recvs[comm.rank()].data(), count, DType::kF32, root);
  };
  const Call reduce = [&](Communicator& comm, int root, int64_t count) {
    return comm.reduce(send.data(), recvs[comm.rank()].data(), count, DType::kF32, ReduceOp::kMax,
                       root);
  };
  const std::vector<std::pair<Call, std::string>> calls = {
      {gather, "gather of 4 f32 per rank to rank 0"},
      {scatter, "scatter of 4 f32 per rank from rank 0"},
      {reduce, "reduce max of 4 f32 to rank 0"}};
  for (const auto& [call, text] : calls) {
    for (const bool root : {false, true}) {
      for (const int64_t count : {4, 20000}) {
        run_ranks(
            3,
            [&](Communicator& comm) {
              const bool other = comm.rank() == 1;
              try {
                call(comm, other && root ? 1 : 0, other && !root ? count + 1 : count).wait();
                ADD_FAILURE() << "nothing was thrown";
              } catch (const Error& error) {
                EXPECT_EQ(error.code(), ErrorCode::kMismatch) << error.what();
                EXPECT_THAT(error.what(), HasSubstr("rank 1 asked for"));
                if (count == 4) {
                  EXPECT_THAT(error.what(), HasSubstr(text));
                }
              }
            },
            options_of({GetParam(), ""}));
      }
    }
  }
}

TEST(Arguments, OfExchangesWithoutMeaningAreRefused) {
  run_ranks(2, [](Communicator& comm) {
    std::vector<float> data(8);
    float* p = data.data();
    const auto refuses = [&](const std::function<void()>& call, const std::string& text) {
      try {
        call();
        ADD_FAILURE() << "nothing was thrown";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error.what(), HasSubstr(text));
      }
    };
    const std::vector<int64_t> one = {1};
    const std::vector<int64_t> negative = {1, -1};
    const std::vector<int64_t> two = {1, 1};
    const std::vector<int64_t> huge = {int64_t{1} << 62, int64_t{1} << 62};
    refuses([&] { comm.all_gather_v(p, p + 4, one, DType::kF32); }, "2 counts, one per rank");
    refuses([&] { comm.all_gather_v(p, p + 4, negative, DType::kF32); }, "got -1 for rank 1");
    refuses([&] { comm.all_to_all_v(p, two, p + 4, huge, DType::kF32); }, "64 bits");
    refuses([&] { comm.all_to_all_v(p, two, p + 1, two, DType::kF32); }, "overlap");
    refuses([&] { comm.gather(p, p + 1, 1, DType::kF32, 2); }, "root in [0, 2)");
    refuses([&] { comm.scatter(nullptr, p, 1, DType::kF32, comm.rank()); }, "null");
    refuses([&] { comm.all_reduce(p, p, 1, DType::kF32, ReduceOp::kAnd); },
            "\"and\" is for integers and bool, got f32");
    refuses([&] { comm.send(p, 1, DType::kF32, comm.rank()); }, "another rank");
    refuses([&] { comm.recv(p, 1, DType::kF32, 7); }, "[0, 2)");
    comm.barrier().wait();
  });
}

}  // namespace
}  // namespace lockstep::comm
