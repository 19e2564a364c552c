// The ring by itself, over links in memory that count: how many bytes leave a rank.

#include "lockstep/comm/ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "collective_cases.h"

namespace lockstep::comm {
namespace {

// A stream of bytes from one rank to the next, which takes and gives some at a time.
class Channel {
 public:
  size_t put(const void* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const size_t now = std::min<size_t>(bytes, 10007);
    const auto* from = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), from, from + now);
    return now;
  }
  size_t take(void* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const size_t now = std::min({bytes, bytes_.size() - taken_, size_t{7001}});
    if (now != 0) std::memcpy(data, bytes_.data() + taken_, now);
    taken_ += now;
    return now;
  }
  size_t bytes() const { return bytes_.size(); }

 private:
  std::mutex mutex_;
  std::vector<std::byte> bytes_;
  size_t taken_ = 0;
};

class Link final : public RingLink {
 public:
  Link(Channel& next, Channel& before) : next_(next), before_(before) {}
  size_t try_send(const void* data, size_t bytes) override { return next_.put(data, bytes); }
  size_t try_receive(void* data, size_t bytes) override { return before_.take(data, bytes); }
  void wait(bool, bool) override { std::this_thread::yield(); }

 private:
  Channel& next_;
  Channel& before_;
};

struct Case {
  DType dtype;
  ReduceOp op;
  size_t element;
  size_t partial;  // bytes of a partial result's element
};

// All blocks are of `block` elements.
std::vector<size_t> bytes_sent(const Case& one, int ranks, int64_t block) {
  std::vector<Channel> channels(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const int64_t count = block * ranks;
      Bytes data = input_of(one.dtype, rank, count);
      const Collective collective{{Kind::kAllReduce, one.dtype, one.op, Algorithm::kRing, 0, count},
                                  1,
                                  data.data(),
                                  data.data()};
      Link link(channels[static_cast<size_t>((rank + 1) % ranks)],
                channels[static_cast<size_t>(rank)]);
      run_ring(collective, rank, ranks, link);
      EXPECT_EQ(data == folded_inputs(one.dtype, one.op, Blocks::of_all(count, ranks)), true);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<size_t> out;
  for (const Channel& channel : channels) out.push_back(channel.bytes());
  return out;
}

// The first step's partial is an input; later ones are wider where that keeps the bits.
TEST(Ring, MovesNoMoreBytesThanItSays) {
  const Case cases[] = {{DType::kF32, ReduceOp::kSum, 4, 4},  {DType::kF32, ReduceOp::kAvg, 4, 4},
                        {DType::kBF16, ReduceOp::kSum, 2, 4}, {DType::kF16, ReduceOp::kAvg, 2, 4},
                        {DType::kF16, ReduceOp::kMax, 2, 2},  {DType::kI32, ReduceOp::kAvg, 4, 8},
                        {DType::kI64, ReduceOp::kAvg, 8, 16}};
  constexpr int64_t kBlock = 64 * 1031;
  for (const Case& one : cases) {
    for (int ranks = 2; ranks <= 5; ++ranks) {
      const auto steps = static_cast<size_t>(ranks - 1);
      const size_t of_a_block = one.element + (steps - 1) * one.partial + steps * one.element;
      EXPECT_EQ(bytes_sent(one, ranks, kBlock),
                std::vector<size_t>(static_cast<size_t>(ranks), kBlock * of_a_block))
          << name(one.dtype) << " " << kernels::name(one.op) << ", " << ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
