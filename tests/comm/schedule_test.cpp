// Random schedules: collectives of every kind, on the world and on groups of it, waited for at once
// or later, between messages of single pairs, against what each must give, computed by itself. And
// the same with one rank that asks for something else at one place: every rank is told.

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <numeric>
#include <random>

#include "collective_cases.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {
namespace {

enum class Call {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kAllGatherV,
  kAllToAllV,
  kBarrier,
  kMessage,
};
constexpr int kCalls = 12;

// What happens at one place of the schedule, the same for all ranks.
struct Step {
  int number = 0;
  Call call = Call::kBarrier;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  int64_t count = 0;
  int root = 0;      // before it is taken modulo the group's size
  int group = 0;     // 0: the world, 1: one half of it, 2: its duplicate
  int patience = 0;  // steps until somebody waits for it
};

std::vector<Step> schedule_of(uint32_t seed, int steps, bool messages) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<Step> out;
  for (int i = 0; i < steps; ++i) {
    Step step;
    step.number = i;
    step.call = static_cast<Call>(below(messages ? kCalls : kCalls - 1));
    step.dtype = kAllDTypes[below(std::size(kAllDTypes))];
    const std::vector<ReduceOp> ops = ops_of(step.dtype);
    step.op = ops[below(static_cast<int>(ops.size()))];
    const int64_t sizes[] = {0, 1, 7, 333, 2049, kSanitized ? 9001 : 40009};
    step.count = sizes[below(std::size(sizes))];
    step.root = below(60);
    step.group = below(3);
    step.patience = below(3) == 0 ? below(4) : 0;
    out.push_back(step);
  }
  return out;
}

// A call that was made: its buffers, and what must be in them.
struct Made {
  Bytes send;
  Bytes recv;
  Bytes want;
  Work work;
  Step step;

  void check() {
    work.wait();
    ASSERT_EQ(recv, want) << "step " << step.number << ", call " << static_cast<int>(step.call)
                          << ", " << step.count << " " << name(step.dtype) << " "
                          << kernels::name(step.op) << ", group " << step.group;
  }
};

void append(Bytes& to, const Bytes& part) { to.insert(to.end(), part.begin(), part.end()); }

// Makes one call on a rank of a group; null where this rank has no part in it.
std::unique_ptr<Made> make(Communicator& group, const Step& step) {
  auto made = std::make_unique<Made>();
  made->step = step;
  const int n = group.size();
  const int rank = group.rank();
  const int root = step.root % n;
  const int64_t count = step.count;
  const DType dtype = step.dtype;
  const auto element = static_cast<int64_t>(size_of(dtype));
  // Every rank of every step gives something else.
  const auto key = [&](int of) { return 100 * step.number + group.world_rank(of); };
  const auto input = [&](int of, int64_t elements) { return input_of(dtype, key(of), elements); };
  const auto slice = [&](const Bytes& bytes, int64_t first, int64_t elements) {
    return Bytes(bytes.begin() + first * element, bytes.begin() + (first + elements) * element);
  };
  const auto has = [&](Bytes send, Bytes want) {
    made->send = std::move(send);
    made->recv.assign(want.size(), std::byte{0x5a});
    made->want = std::move(want);
  };
  const Bytes nothing;
  const auto& send = made->send;
  auto& recv = made->recv;
  switch (step.call) {
    case Call::kAllReduce:
      has(input(rank, count), folded_inputs(dtype, step.op, Blocks::of_all(count, n), key));
      made->work = group.all_reduce(send.data(), recv.data(), count, dtype, step.op);
      break;
    case Call::kReduce:
      has(input(rank, count),
          rank == root ? folded_inputs(dtype, step.op, Blocks::of_all(count, n), key) : nothing);
      made->work = group.reduce(send.data(), recv.data(), count, dtype, step.op, root);
      break;
    case Call::kReduceScatter:
      has(input(rank, count * n),
          slice(folded_inputs(dtype, step.op, Blocks::of_each(count, n), key), count * rank,
                count));
      made->work = group.reduce_scatter(send.data(), recv.data(), count, dtype, step.op);
      break;
    case Call::kAllGather:
    case Call::kGather: {
      const bool all = step.call == Call::kAllGather;
      Bytes want;
      for (int of = 0; of < n && (all || rank == root); ++of) append(want, input(of, count));
      has(input(rank, count), want);
      made->work = all ? group.all_gather(send.data(), recv.data(), count, dtype)
                       : group.gather(send.data(), recv.data(), count, dtype, root);
      break;
    }
    case Call::kBroadcast:
      has(nothing, input(root, count));
      if (rank == root) recv = made->want;
      made->work = group.broadcast(recv.data(), count, dtype, root);
      break;
    case Call::kScatter:
      has(rank == root ? input(root, count * n) : nothing,
          slice(input(root, count * n), count * rank, count));
      made->work = group.scatter(send.data(), recv.data(), count, dtype, root);
      break;
    case Call::kAllToAll: {
      Bytes want;
      for (int of = 0; of < n; ++of) append(want, slice(input(of, count * n), count * rank, count));
      has(input(rank, count * n), want);
      made->work = group.all_to_all(send.data(), recv.data(), count, dtype);
      break;
    }
    case Call::kAllGatherV: {
      std::vector<int64_t> counts;
      Bytes want;
      for (int of = 0; of < n; ++of) {
        counts.push_back(of == root ? 0 : count + of);
        append(want, input(of, counts[of]));
      }
      has(input(rank, counts[rank]), want);
      made->work = group.all_gather_v(send.data(), recv.data(), counts, dtype);
      break;
    }
    case Call::kAllToAllV: {
      const auto between = [&](int from, int to) {
        return (from + to) % 3 == root % 3 ? 0 : count + 3 * from + to;
      };
      std::vector<int64_t> sends;
      std::vector<int64_t> recvs;
      Bytes want;
      for (int of = 0; of < n; ++of) {
        sends.push_back(between(rank, of));
        recvs.push_back(between(of, rank));
        int64_t before = 0;
        for (int to = 0; to < rank; ++to) before += between(of, to);
        append(want, slice(input(of, before + recvs[of]), before, recvs[of]));
      }
      has(input(rank, std::accumulate(sends.begin(), sends.end(), int64_t{0})), want);
      made->work = group.all_to_all_v(send.data(), sends, recv.data(), recvs, dtype);
      break;
    }
    case Call::kBarrier:
      made->work = group.barrier();
      break;
    case Call::kMessage: {
      const int to = (root + 1 + step.number % std::max(1, n - 1)) % n;
      if (to == root || (rank != root && rank != to)) return nullptr;
      has(rank == root ? input(root, count) : nothing, rank == to ? input(root, count) : nothing);
      made->work = rank == root ? group.send(send.data(), count, dtype, to)
                                : group.recv(recv.data(), count, dtype, root);
      break;
    }
  }
  return made;
}

class Schedules : public ::testing::TestWithParam<Path> {};

INSTANTIATE_TEST_SUITE_P(All, Schedules, ::testing::ValuesIn(all_paths()),
                         [](const auto& one) { return path_name(one.param); });

TEST_P(Schedules, GiveEveryRankWhatItMustHave) {
  constexpr int kSteps = kSanitized ? 30 : 100;
  for (const int size : {2, 3, 4}) {
    for (uint32_t seed = 1; seed <= (kSanitized ? 1 : 3); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", ranks " + std::to_string(size));
      const std::vector<Step> schedule = schedule_of(seed * 7919 + size, kSteps, true);
      const auto play = [&](Communicator& world) {
        const auto half = world.split(world.rank() % 2);
        const auto twin = world.duplicate();
        std::deque<std::unique_ptr<Made>> open;
        for (const Step& step : schedule) {
          Communicator& group = step.group == 0 ? world : step.group == 1 ? *half : *twin;
          if (auto made = make(group, step)) open.push_back(std::move(made));
          std::erase_if(open, [&](const std::unique_ptr<Made>& made) {
            if (made->step.number + made->step.patience > step.number) return false;
            made->check();
            return true;
          });
        }
        for (const auto& made : open) made->check();
      };
      run_ranks(size, play, options_of(GetParam()));
    }
  }
}

// Something else than `step`, for one rank.
Step spoiled(Step step, uint32_t how) {
  if (step.call == Call::kBarrier) {
    step.call = Call::kAllReduce;
    return step;
  }
  // Of counts between pairs some may be 0 either way.
  switch (step.call == Call::kAllToAllV ? 2 : how % 3) {
    case 0:
      ++step.count;
      return step;
    case 1:
      step.dtype = step.dtype == DType::kI32 ? DType::kF32 : DType::kI32;
      step.op = ReduceOp::kSum;
      return step;
    default:
      step.call = Call::kBarrier;
      return step;
  }
}

TEST_P(Schedules, WithOneRankThatAsksForSomethingElseAreAnErrorOnAll) {
  for (const int size : {2, 3}) {
    for (uint32_t seed = 1; seed <= (kSanitized ? 6 : 24); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", ranks " + std::to_string(size));
      const std::vector<Step> schedule = schedule_of(seed * 104729 + size, 8, false);
      const int place = static_cast<int>(seed % 6);
      const int spoiler = static_cast<int>(seed / 6) % size;
      const auto play = [&](Communicator& world) {
        try {
          for (const Step& step : schedule) {
            const bool here = step.number == place && world.rank() == spoiler;
            const bool skips = here && seed % 4 == 3 && schedule[place + 1].call != step.call;
            if (skips) continue;
            make(world, here ? spoiled(step, seed) : step)->work.wait();
          }
          ADD_FAILURE() << "nothing was thrown on rank " << world.rank();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kMismatch) << error.what();
        }
      };
      run_ranks(size, play, options_of(GetParam()));
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
