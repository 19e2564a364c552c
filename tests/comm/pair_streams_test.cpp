// Two ranks' streams over pipes of a few bytes: what comes in one piece, and what does not fit.

#include "lockstep/comm/pair_streams.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <numeric>

#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

using Bytes = std::vector<std::byte>;

// One rank's ends of two pipes.
class Pipes final : public PairLink {
 public:
  Pipes(std::deque<std::byte>& out, std::deque<std::byte>& in, size_t capacity)
      : out_(out), in_(in), capacity_(capacity) {}

  size_t try_send(int, const void* data, size_t bytes) override {
    const size_t now = std::min(bytes, capacity_ - out_.size());
    const auto* from = static_cast<const std::byte*>(data);
    out_.insert(out_.end(), from, from + now);
    return now;
  }
  size_t try_receive(int, void* data, size_t bytes) override {
    const size_t now = std::min(bytes, in_.size());
    std::copy_n(in_.begin(), now, static_cast<std::byte*>(data));
    in_.erase(in_.begin(), in_.begin() + static_cast<ptrdiff_t>(now));
    return now;
  }
  void wait(std::span<const Want>) override {}
  void raise_frame(int, const Frame&, const Request&) override {
    throw Error(ErrorCode::kInternal, "test", "a frame of no transfer");
  }

 private:
  std::deque<std::byte>& out_;
  std::deque<std::byte>& in_;
  const size_t capacity_;
};

struct TwoRanks {
  explicit TwoRanks(size_t capacity)
      : links{Pipes(pipes[0], pipes[1], capacity), Pipes(pipes[1], pipes[0], capacity)} {}

  // Goes on with a rank's transfers that are not done.
  bool progress(int rank, std::initializer_list<Transfer*> transfers) {
    const std::vector<Transfer*> all(transfers);
    return streams[rank].progress(all, links[rank]);
  }

  std::array<std::deque<std::byte>, 2> pipes;  // by who puts in
  std::array<Pipes, 2> links;
  std::array<PairStreams, 2> streams = {PairStreams(0, 2), PairStreams(1, 2)};
};

Transfer transfer(Kind kind, int peer, Bytes& data) {
  Request request;
  request.kind = kind;
  request.dtype = DType::kU8;
  request.count = static_cast<int64_t>(data.size());
  request.root = peer;
  return {request, peer, kind == Kind::kSend, data.data(), request.count};
}

Bytes bytes_of(size_t n, int first) {
  Bytes out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<std::byte>(first + static_cast<int>(i));
  return out;
}

// The rank that receives is still waiting for an answer to a send of its own, and so reads on.
TEST(PairStreams, DataRightBehindTheirPostAreTaken) {
  TwoRanks ranks(1000);
  Bytes given = bytes_of(33, 5);
  Bytes taken(33);
  Bytes unanswered = bytes_of(7, 90);
  Transfer recv = transfer(Kind::kRecv, 1, taken);
  Transfer lonely = transfer(Kind::kSend, 1, unanswered);
  Transfer send = transfer(Kind::kSend, 0, given);

  ranks.progress(0, {&lonely, &recv});
  while (ranks.progress(1, {&send})) {
  }
  EXPECT_TRUE(send.done());
  while (ranks.progress(0, {&lonely, &recv})) {
  }
  EXPECT_TRUE(recv.done());
  EXPECT_FALSE(lonely.done());
  EXPECT_EQ(taken, given);
}

// Whoever ends a message goes on to something else, and sends nothing more of it.
TEST(PairStreams, AMessageWithoutBytesEndsNoSoonerThanTheOtherSideKnowsOfIt) {
  TwoRanks ranks(sizeof(Frame) + 4);
  Bytes none;
  Bytes bulk = bytes_of(200, 3);
  Bytes bulk_taken(200);
  Transfer send = transfer(Kind::kSend, 1, bulk);
  Transfer recv = transfer(Kind::kRecv, 0, bulk_taken);
  Transfer empty_recv = transfer(Kind::kRecv, 1, none);
  Transfer empty_send = transfer(Kind::kSend, 0, none);
  // Rank 0 is in the middle of its send when it asks for the message: its pipe is full.
  while (send.moved == 0) {
    ranks.progress(0, {&send});
    ranks.progress(1, {&recv});
  }
  while (ranks.progress(0, {&send})) {
  }
  // Rank 1's post of the empty message comes at once, rank 0's does not get out.
  for (int i = 0; i < 100 && !empty_recv.done(); ++i) {
    ranks.progress(0, {&send, &empty_recv});
    ranks.progress(1, {&empty_send, &recv});
  }
  ASSERT_TRUE(empty_recv.done());
  // Rank 0 goes on to something else; rank 1 reads what is there.
  while (ranks.progress(1, {&recv, &empty_send})) {
  }
  EXPECT_TRUE(empty_send.done());
}

TEST(PairStreams, EveryMixtureOfLengthsArrivesThroughEveryCapacity) {
  for (size_t capacity = 1; capacity < 80; capacity += 3) {
    SCOPED_TRACE(capacity);
    TwoRanks ranks(capacity);
    std::vector<Bytes> given[2];
    std::vector<Bytes> taken[2];
    std::vector<Transfer> sends[2];
    std::vector<Transfer> recvs[2];
    for (int rank = 0; rank < 2; ++rank) {
      for (int i = 0; i < 9; ++i) {
        const size_t n =
            static_cast<size_t>((i * 7 + rank * 5) % 4 == 0 ? 0 : (i * 13 + rank) % 50);
        given[rank].push_back(bytes_of(n, 20 * rank + i));
        taken[1 - rank].emplace_back(n);
      }
    }
    for (int rank = 0; rank < 2; ++rank) {
      for (Bytes& data : given[rank]) sends[rank].push_back(transfer(Kind::kSend, 1 - rank, data));
      for (Bytes& data : taken[rank]) recvs[rank].push_back(transfer(Kind::kRecv, 1 - rank, data));
    }
    const auto left = [&](int rank) {
      std::vector<Transfer*> out;
      for (auto* all : {&sends[rank], &recvs[rank]}) {
        for (Transfer& one : *all) {
          if (!one.done()) out.push_back(&one);
        }
      }
      return out;
    };
    bool moved = true;
    while (moved) {
      moved = false;
      for (int rank = 0; rank < 2; ++rank) {
        const std::vector<Transfer*> open = left(rank);
        moved = (!open.empty() && ranks.streams[rank].progress(open, ranks.links[rank])) || moved;
      }
    }
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(left(rank).empty());
      EXPECT_EQ(taken[rank], given[1 - rank]);
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
