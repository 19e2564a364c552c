// Collectives by NCCL, for which nccl.cpp stands in, between threads that have a device each: the
// results of the CPU's transports, what goes another way, and memory. nccl_failures_test.cpp has
// errors, nccl_ipc_test.cpp processes.
#include <gmock/gmock.h>

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "device_checks.h"
#include "gate.h"
#include "lockstep/comm/costs.h"
#include "nccl_faults.h"
#include "nccl_ranks.h"
#include "schedules.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Ranks, Nccl, ::testing::Values(1, 2, 3, 4));
INSTANTIATE_TEST_SUITE_P(Ranks, NcclOfSeveral, ::testing::Values(2, 3, 4));

std::vector<double> numbers(DType dtype, const Bytes& bytes) {
  std::vector<double> out;
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (size_t at = 0; at < bytes.size(); at += sizeof(T)) {
      T value;
      std::memcpy(&value, bytes.data() + at, sizeof value);
      if constexpr (is_reduced_float_v<T>) {
        out.push_back(static_cast<double>(static_cast<float>(value)));
      } else {
        out.push_back(static_cast<double>(value));
      }
    }
  });
  return out;
}

double epsilon(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x1p-53;
    case DType::kF32:
      return 0x1p-24;
    case DType::kF16:
      return 0x1p-11;
    default:
      return 0x1p-8;
  }
}

// Bits, but for floats whose fold depends on its order: then each step may round otherwise. `sizes`
// are sums of what was folded, each without its sign.
void expect_folded(DType dtype, ReduceOp op, int ranks, const Bytes& got, const Bytes& want,
                   const std::vector<double>& sizes) {
  const bool ordered = op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kProduct;
  if (!is_floating(dtype) || !ordered) {
    ASSERT_EQ(got, want);
    return;
  }
  const std::vector<double> a = numbers(dtype, got);
  const std::vector<double> b = numbers(dtype, want);
  for (size_t i = 0; i < b.size(); ++i) {
    if (!std::isfinite(b[i])) {
      ASSERT_TRUE(std::isnan(b[i]) ? std::isnan(a[i]) : a[i] == b[i]) << i << ": " << a[i];
      continue;
    }
    const double size = op == ReduceOp::kProduct ? std::abs(b[i]) : sizes[i];
    const double least = dtype == DType::kF16 ? 0x1p-24 : 0;  // between its smallest numbers
    ASSERT_NEAR(a[i], b[i], 2 * ranks * epsilon(dtype) * size + least) << i;
  }
}

std::vector<double> sizes_of(DType dtype, int ranks, int64_t count) {
  std::vector<double> out(static_cast<size_t>(count));
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<double> one = numbers(dtype, input_of(dtype, rank, count));
    for (size_t i = 0; i < out.size(); ++i) out[i] += std::abs(one[i]);
  }
  return out;
}

TEST_P(Nccl, FoldsAsTheOtherTransportsDo) {
  const int n = size();
  on_ranks([&](Communicator& comm) {
    EXPECT_EQ(comm.transport(), "nccl");
    const Device device = comm.device();
    const auto rank = static_cast<size_t>(comm.rank());
    uint64_t seed = 1;
    for (const DType dtype : kAllDTypes) {
      for (const ReduceOp op : ops_of(dtype)) {
        for (const int64_t count : {int64_t{1}, int64_t{67}, int64_t{1021}}) {
          SCOPED_TRACE(::testing::Message()
                       << name(dtype) << " " << kernels::name(op) << " of " << count);
          if (rank == 0) simt::seed(seed);
          ++seed;
          const Bytes want = folded_inputs(dtype, op, Blocks::of_all(count, n));
          const std::vector<double> sizes = sizes_of(dtype, n, count * n);
          const Bytes mine = input_of(dtype, comm.rank(), count);
          const Bytes untouched(mine.size(), std::byte{0x5a});
          const auto send = on_device(device, mine);
          const auto recv = on_device(device, untouched);
          const int root = static_cast<int>(seed) % n;
          comm.reduce(send.get(), recv.get(), count, dtype, op, root).wait();
          Bytes got = from_device(device, recv, mine.size());
          if (comm.rank() == root) {
            expect_folded(dtype, op, n, got, want, sizes);
          } else {
            ASSERT_EQ(got, untouched);
          }
          comm.all_reduce(send.get(), recv.get(), count, dtype, op).wait();
          expect_folded(dtype, op, n, from_device(device, recv, mine.size()), want, sizes);
          ASSERT_EQ(from_device(device, send, mine.size()), mine);
          comm.all_reduce(send.get(), send.get(), count, dtype, op).wait();
          expect_folded(dtype, op, n, from_device(device, send, mine.size()), want, sizes);

          const Bytes wants = folded_inputs(dtype, op, Blocks::of_each(count, n));
          const size_t first = mine.size() * rank;
          const auto at = [&](const Bytes& all) {
            const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
            return Bytes(begin, begin + static_cast<std::ptrdiff_t>(mine.size()));
          };
          const std::vector<double> own(sizes.begin() + comm.rank() * count, sizes.end());
          const auto wide = on_device(device, input_of(dtype, comm.rank(), count * n));
          comm.reduce_scatter(wide.get(), recv.get(), count, dtype, op).wait();
          expect_folded(dtype, op, n, from_device(device, recv, mine.size()), at(wants), own);
          auto* in_place = static_cast<std::byte*>(wide.get()) + first;
          comm.reduce_scatter(wide.get(), in_place, count, dtype, op).wait();
          expect_folded(dtype, op, n, from_device(device, in_place, mine.size()), at(wants), own);
        }
      }
    }
  });
}

// What rank `from` sends to rank `to` as element i.
int32_t element(int from, int to, int64_t i) {
  return static_cast<int32_t>(from * 1000003 + to * 10007 + i);
}

void check_exchanges(Communicator& comm) {
  const int n = comm.size();
  const int rank = comm.rank();
  const Device device = comm.device();
  for (int seed = 1; seed <= kSchedules; ++seed) {
    const int64_t count = std::array{1, 129, 2051}[static_cast<size_t>(seed % 3)];
    SCOPED_TRACE(seed);
    if (rank == 0) simt::seed(static_cast<uint64_t>(seed));
    // of(r, i) for i below lengths[r], of one rank after the other.
    const auto values = [&](const std::vector<int64_t>& lengths, const auto& of) {
      std::vector<int32_t> out;
      for (int r = 0; r < n; ++r) {
        for (int64_t i = 0; i < lengths[static_cast<size_t>(r)]; ++i) out.push_back(of(r, i));
      }
      return bytes_of(out);
    };
    const std::vector<int64_t> same(static_cast<size_t>(n), count);
    const size_t one = static_cast<size_t>(count) * sizeof(int32_t);
    const size_t all = one * static_cast<size_t>(n);
    const Bytes to_all = values(same, [&](int r, int64_t i) { return element(rank, r, i); });
    const Bytes of_all = values(same, [&](int r, int64_t i) { return element(r, rank, i); });
    const Bytes gathered = values(same, [&](int r, int64_t i) { return element(r, 0, i); });
    const auto send = on_device(device, to_all);
    const auto recv = on_device(device, Bytes(all, std::byte{0x5a}));
    const auto got = [&](const auto& memory) { return from_device(device, memory, all); };

    comm.all_gather(send.get(), recv.get(), count, DType::kI32).wait();
    ASSERT_EQ(got(recv), gathered);
    comm.all_to_all(send.get(), recv.get(), count, DType::kI32).wait();
    ASSERT_EQ(got(recv), of_all);
    const int root = n - 1;
    comm.gather(send.get(), recv.get(), count, DType::kI32, root).wait();
    ASSERT_EQ(got(recv), rank == root ? gathered : of_all);
    comm.scatter(send.get(), recv.get(), count, DType::kI32, root).wait();
    const auto sent_by = [&](int from, int to) {
      std::vector<int32_t> out;
      for (int64_t i = 0; i < count; ++i) out.push_back(element(from, to, i));
      return bytes_of(out);
    };
    ASSERT_EQ(from_device(device, recv, one), sent_by(root, rank));
    comm.broadcast(recv.get(), count, DType::kI32, 0).wait();
    ASSERT_EQ(from_device(device, recv, one), sent_by(root, 0));

    // In place.
    const auto own = on_device(device, to_all);
    const auto block = [&](int r) { return static_cast<std::byte*>(own.get()) + one * r; };
    comm.all_gather(block(rank), own.get(), count, DType::kI32).wait();
    ASSERT_EQ(got(own), values(same, [&](int r, int64_t i) { return element(r, r, i); }));
    comm.gather(rank == root ? block(root) : send.get(), own.get(), count, DType::kI32, root)
        .wait();
    if (rank == root) {
      ASSERT_EQ(got(own), values(same, [&](int r, int64_t i) {
                  return r == root ? element(r, r, i) : element(r, 0, i);
                }));
    }
    comm.scatter(own.get(), rank == root ? block(root) : recv.get(), count, DType::kI32, root)
        .wait();
    ASSERT_EQ(from_device(device, rank == root ? block(root) : recv.get(), one),
              rank == root ? sent_by(root, root) : sent_by(rank, 0));
    comm.all_to_all(send.get(), send.get(), count, DType::kI32).wait();
    ASSERT_EQ(got(send), of_all);

    // Counts of each rank's own, with none among them, and a rank without any.
    std::vector<int64_t> counts = same;
    counts[0] = 0;
    const auto plain = on_device(device, sent_by(rank, 0));
    comm.all_gather_v(plain.get(), recv.get(), counts, DType::kI32).wait();
    const Bytes rest = values(counts, [&](int r, int64_t i) { return element(r, 0, i); });
    ASSERT_EQ(from_device(device, recv, rest.size()), rest);
    const auto sent = [&](int from, int to) {
      return from == 0 || to == 0 ? int64_t{0} : (count + from + 2 * to) % 700;
    };
    std::vector<int64_t> out, in;
    for (int r = 0; r < n; ++r) {
      out.push_back(sent(rank, r));
      in.push_back(sent(r, rank));
    }
    const Bytes outs = values(out, [&](int r, int64_t i) { return element(rank, r, i); });
    const Bytes ins = values(in, [&](int r, int64_t i) { return element(r, rank, i); });
    const auto from = on_device(device, outs);
    const auto to = on_device(device, Bytes(ins.size()));
    comm.all_to_all_v(from.get(), out, to.get(), in, DType::kI32).wait();
    ASSERT_EQ(from_device(device, to, ins.size()), ins);
    std::vector<std::byte> host(ins.size());
    comm.all_to_all_v(outs.data(), out, host.data(), in, DType::kI32).wait();
    ASSERT_EQ(host, ins) << "of the host's memory";
    comm.barrier().wait();
  }
}

TEST_P(Nccl, BringsEveryRankWhatIsIts) { on_ranks(check_exchanges); }

TEST(NcclOfMachines, BringsEveryRankWhatIsIts) {
  LOCKSTEP_WANT_DEVICES(3);
  on_machines(3, [](Communicator& comm) {
    EXPECT_EQ(comm.transport(), "nccl");
    EXPECT_THAT(comm.pair_text((comm.rank() + 1) % 3),
                AllOf(HasSubstr("NCCL"), HasSubstr("socket")));
    check_exchanges(comm);
    const int64_t count = 501;
    const auto x = on_device(comm.device(), input_of(DType::kI64, comm.rank(), count));
    comm.all_reduce(x.get(), x.get(), count, DType::kI64, ReduceOp::kSum).wait();
    const Bytes want = folded_inputs(DType::kI64, ReduceOp::kSum, Blocks::of_all(count, 3));
    ASSERT_EQ(from_device(comm.device(), x, want.size()), want);
    // By another way: through the host.
    const auto y = on_device(comm.device(), input_of(DType::kF32, comm.rank(), count));
    comm.all_reduce(y.get(), y.get(), count, DType::kF32, ReduceOp::kMin).wait();
    const Bytes least = folded_inputs(DType::kF32, ReduceOp::kMin, Blocks::of_all(count, 3));
    ASSERT_EQ(from_device(comm.device(), y, least.size()), least);
  });
}

TEST_P(NcclOfSeveral, SendsAndReceives) { on_ranks(check_send_and_receive); }

TEST_P(Nccl, IsInOrderWithTheCallersStream) {
  for (int seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    on_ranks([](Communicator& comm) { check_order_with_the_callers_stream(comm, 1031); });
  }
}

TEST_P(Nccl, MixesWithHostMemoryAndZeroElementsAreInSequence) {
  const int n = size();
  on_ranks([&](Communicator& comm) {
    const Device device = comm.device();
    constexpr int64_t kCount = 300;
    std::vector<Work> works;
    std::vector<std::shared_ptr<void>> memory;
    std::vector<int64_t> host(300, comm.rank() + 1);
    const Bytes mine = input_of(DType::kI32, comm.rank(), kCount);
    for (int64_t& value : host) {
      works.push_back(comm.all_reduce(&value, &value, 1, DType::kI64, ReduceOp::kSum));
      if (memory.size() == 20) continue;
      memory.push_back(on_device(device, mine));
      void* data = memory.back().get();
      works.push_back(comm.all_reduce(data, data, kCount, DType::kI32, ReduceOp::kSum));
      works.push_back(comm.all_reduce(data, data, 0, DType::kI32, ReduceOp::kSum));
    }
    for (Work& work : works) work.wait();
    const Bytes want = folded_inputs(DType::kI32, ReduceOp::kSum, Blocks::of_all(kCount, n));
    for (const auto& one : memory) EXPECT_EQ(from_device(device, one, mine.size()), want);
    EXPECT_THAT(host, Each(n * (n + 1) / 2));
    const std::vector<int64_t> none(static_cast<size_t>(n), 0);
    comm.all_gather_v(nullptr, nullptr, none, DType::kF32).wait();
    comm.all_to_all_v(nullptr, none, nullptr, none, DType::kF32).wait();
    comm.broadcast(nullptr, 0, DType::kF32, 0).wait();
    comm.barrier().wait();
  });
}

TEST(NcclChoice, MoreCollectivesThanAStreamHasRoomFor) {
  LOCKSTEP_WANT_DEVICES(2);
  on_devices({0, 1}, "nccl", [](Communicator& comm) {
    const auto x = on_device(comm.device(), bytes_of(std::vector<int64_t>{1, 0}));
    std::vector<Work> works;
    for (int i = 0; i < 600; ++i) {
      works.push_back(comm.all_reduce(x.get(), x.get(), 1, DType::kI64, ReduceOp::kMax));
    }
    for (Work& work : works) work.wait();
    EXPECT_EQ(from_device(comm.device(), x, 16), bytes_of(std::vector<int64_t>{1, 0}));
  });
}

// Holds rank 0's stream up, until a moment after it was told to open.
class LateDevice {
 public:
  ~LateDevice() {
    if (opener_.joinable()) opener_.join();
  }
  void hold(const Communicator& comm) const {
    if (comm.rank() == 0) gate_.hold(current_stream(comm.device()));
  }
  void open_soon(const Communicator& comm) {
    if (comm.rank() != 0) return;
    opener_ = std::thread([this] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      opened_.store(true);
      gate_.open();
    });
  }
  bool opened() const { return opened_.load(); }

 private:
  const Gate gate_{device_at(0)};
  std::atomic<bool> opened_{false};
  std::thread opener_;
};

TEST(NcclChoice, ABarrierPassesOnceAllDevicesHaveFinished) {
  LOCKSTEP_WANT_DEVICES(2);
  LateDevice late;
  on_devices({0, 1}, "nccl", [&](Communicator& comm) {
    const auto x = on_device(comm.device(), bytes_of(std::vector<int64_t>{1}));
    late.hold(comm);
    comm.all_reduce(x.get(), x.get(), 1, DType::kI64, ReduceOp::kMax).wait();
    late.open_soon(comm);
    comm.barrier().wait();
    EXPECT_TRUE(late.opened());
  });
}

TEST(NcclChoice, WhoLeavesInOrderHasFinishedItsCollectives) {
  LOCKSTEP_WANT_DEVICES(2);
  LateDevice late;
  on_devices({0, 1}, "nccl", [&](Communicator& comm) {
    std::shared_ptr<Communicator> again = comm.duplicate();
    const auto x = on_device(comm.device(), bytes_of(std::vector<int64_t>{1}));
    late.hold(comm);
    again->all_reduce(x.get(), x.get(), 1, DType::kI64, ReduceOp::kMax).wait();
    late.open_soon(comm);
    again = nullptr;
    EXPECT_TRUE(late.opened());
  });
}

// A stream has room for so many launches, and the host hangs at the next: 256 are fewer.
TEST(NcclChoice, NoMoreThanAStreamHasRoomForAreOnTheirWay) {
  LOCKSTEP_WANT_DEVICES(2);
  LateDevice late;
  on_devices({0, 1}, "nccl", [&](Communicator& comm) {
    const auto x = on_device(comm.device(), bytes_of(std::vector<int64_t>{1}));
    late.hold(comm);
    for (int i = 0; i < 258; ++i) {
      if (i == 250) late.open_soon(comm);
      comm.all_reduce(x.get(), x.get(), 1, DType::kI64, ReduceOp::kMax).wait();
    }
    EXPECT_TRUE(late.opened());
  });
}

TEST(NcclChoice, WhatItHasNotGoesAnotherWay) {
  const auto calls_of = [](const std::function<void(Communicator&, void*)>& fn) {
    const int before = simt::nccl_calls();
    on_devices({0, 1, 2}, "nccl", [&](Communicator& comm) {
      const auto x = on_device(comm.device(), Bytes(4096));
      fn(comm, x.get());
      Stream(comm.device()).synchronize();
    });
    return simt::nccl_calls() - before;
  };
  const auto folds_of = [&](DType dtype, ReduceOp op) {
    return calls_of([&](Communicator& comm, void* x) {
      comm.all_reduce(x, x, 11, dtype, op).wait();
      comm.reduce(x, x, 11, dtype, op, 1).wait();
      comm.reduce_scatter(x, static_cast<std::byte*>(x) + 2048, 11, dtype, op).wait();
    });
  };
  for (const DType dtype : kAllDTypes) {
    for (const ReduceOp op : ops_of(dtype)) {
      SCOPED_TRACE(::testing::Message() << name(dtype) << " " << kernels::name(op));
      const bool order = op == ReduceOp::kMin || op == ReduceOp::kMax;
      const bool bits = op == ReduceOp::kAnd || op == ReduceOp::kOr;
      const bool has =
          dtype != DType::kBool && !bits && (is_floating(dtype) ? !order : op != ReduceOp::kAvg);
      EXPECT_EQ(folds_of(dtype, op), has ? 9 : 0);
    }
  }
  EXPECT_EQ(calls_of([](Communicator& comm, void* x) {
              std::byte* y = static_cast<std::byte*>(x) + 2048;
              comm.broadcast(x, 11, DType::kBool, 0).wait();
              comm.all_gather(x, y, 11, DType::kBool).wait();
              comm.all_to_all(x, y, 11, DType::kBool).wait();
              comm.gather(x, y, 11, DType::kBool, 2).wait();
              comm.scatter(x, y, 11, DType::kBool, 1).wait();
            }),
            15);
  EXPECT_EQ(calls_of([](Communicator& comm, void* x) {
              const int other = (comm.rank() + 1) % 3;
              Work sent = comm.send(x, 11, DType::kI32, other);
              std::byte* y = static_cast<std::byte*>(x) + 2048;
              comm.recv(y, 11, DType::kI32, (comm.rank() + 2) % 3).wait();
              sent.wait();
              std::vector<float> host(11);
              comm.all_reduce(host.data(), host.data(), 11, DType::kF32, ReduceOp::kSum).wait();
              comm.all_gather(host.data(), nullptr, 0, DType::kF32).wait();
              comm.barrier().wait();
            }),
            0);
}

TEST(NcclChoice, ItIsTakenWhereEachRankHasADeviceOfItsOwn) {
  LOCKSTEP_WANT_DEVICES(3);
  const auto taken = [](const std::vector<int>& devices, const std::string& transport) {
    std::string name;
    on_devices(devices, transport, [&](Communicator& comm) {
      if (comm.rank() == 0) name = comm.transport();
      const auto x = on_device(comm.device(), bytes_of(std::vector<int64_t>{comm.rank() + 1, 0}));
      comm.all_reduce(x.get(), x.get(), 2, DType::kI64, ReduceOp::kSum).wait();
      const int64_t n = comm.size();
      EXPECT_EQ(from_device(comm.device(), x, 16),
                bytes_of(std::vector<int64_t>{n * (n + 1) / 2, 0}));
    });
    return name;
  };
  EXPECT_EQ(taken({2, 0, 1}, ""), "nccl");
  EXPECT_EQ(taken({0, 1, 0}, ""), "cuda");
  EXPECT_EQ(taken({1}, ""), "cuda");
  EXPECT_EQ(taken({1}, "nccl"), "nccl");
  EXPECT_EQ(taken({0, 1}, "cuda"), "cuda");
  EXPECT_EQ(taken({0, 1}, "thread"), "thread");
  EXPECT_EQ(taken({0, 1}, "tcp"), "tcp");
}

// By a table in which a way costs a start alone, or bytes alone.
TEST(NcclChoice, ATableOfCostsDecidesBySizeWhereNoTransportIsNamed) {
  const std::string file = ::testing::TempDir() + "nccl-costs-" + std::to_string(getpid()) + ".txt";
  setenv("LOCKSTEP_TUNE", file.c_str(), 1);
  const auto calls_of = [](const std::string& transport, int64_t count) {
    const int before = simt::nccl_calls();
    on_devices({0, 1, 2}, transport, [&](Communicator& comm) {
      const auto x = on_device(comm.device(), input_of(DType::kI32, comm.rank(), count));
      comm.all_reduce(x.get(), x.get(), count, DType::kI32, ReduceOp::kSum).wait();
      const Bytes want = folded_inputs(DType::kI32, ReduceOp::kSum, Blocks::of_all(count, 3));
      EXPECT_EQ(from_device(comm.device(), x, want.size()), want);
      // What goes from single ranks to single ranks has no way straight between devices.
      const auto y = on_device(comm.device(), Bytes(12));
      comm.all_to_all(y.get(), y.get(), 1, DType::kI32).wait();
      Stream(comm.device()).synchronize();
    });
    return simt::nccl_calls() - before;
  };
  save_costs(file, "nccl", 3, {1e-6, 0, 0, 0, 0});
  EXPECT_EQ(calls_of("", 11), 6) << "by one line alone nothing is chosen";
  save_costs(file, "cuda", 3, {0, 0, 1e-9, 0, 0});  // 4/3 ns a byte: the same at 750 bytes
  EXPECT_EQ(calls_of("", 187), 3);
  EXPECT_EQ(calls_of("", 188), 6);
  EXPECT_EQ(calls_of("nccl", 11), 6);
  EXPECT_EQ(calls_of("cuda", 1001), 0);
  unsetenv("LOCKSTEP_TUNE");
  std::remove(file.c_str());
}

TEST(NcclChoice, TablesOfBothWaysAreMeasured) {
  LOCKSTEP_WANT_DEVICES(2);
  const std::string file = ::testing::TempDir() + "nccl-tuned-" + std::to_string(getpid()) + ".txt";
  for (const std::string transport : {"cuda", "nccl"}) {
    Options options = options_of({transport, ""}, std::chrono::seconds(100));
    options.save_costs = file;
    run_ranks(
        {device_at(0), device_at(1)}, [](Communicator& comm) { comm.barrier().wait(); }, options);
  }
  const auto costs = load_device_costs(file, 2);
  ASSERT_TRUE(costs.has_value());
  for (const Costs& each : {costs->cuda, costs->nccl}) {
    EXPECT_GT(each.meet, 0);
    EXPECT_GT(each.fetch, 0);
  }
  std::remove(file.c_str());
  EXPECT_EQ(simt::take_report(), "");
}

TEST(NcclMemory, IsRegisteredUntilItIsLetGoWhichMayBeAfterTheGroup) {
  const int before = simt::nccl_memory().ever;
  std::vector<std::shared_ptr<void>> outlives(2);
  for (const bool machines : {false, true}) {
    const auto use = [&](Communicator& comm) {
      const Device device = comm.device();
      const auto memory = comm.allocate(4096, device);
      {
        const auto more = comm.allocate(4096, device);
        comm.all_reduce(memory.get(), more.get(), 1000, DType::kF32, ReduceOp::kSum).wait();
      }  // while the device may be at it
      comm.barrier().wait();
      EXPECT_GE(simt::nccl_memory().now, 1);
      comm.barrier().wait();
      EXPECT_EQ(comm.allocate(0, device), nullptr);
      outlives[static_cast<size_t>(comm.rank())] = memory;
    };
    if (machines) {
      on_machines(2, use);
    } else {
      on_devices({0, 1}, "nccl", use);
    }
    EXPECT_EQ(simt::nccl_memory().now, 0);
    for (int rank = 0; rank < 2; ++rank) {
      const auto& memory = outlives[static_cast<size_t>(rank)];
      launch<kernels::Fill>(device_at(rank), floats(memory, 1000, device_at(rank)), 2.0);
      EXPECT_EQ(from_device(device_at(rank), memory, 4), bytes_of(std::vector<float>{2.0f}));
    }
    outlives = std::vector<std::shared_ptr<void>>(2);
  }
  EXPECT_EQ(simt::nccl_memory().ever - before, 8);
  EXPECT_EQ(simt::nccl_memory().let_go_too_soon, 0);
}

TEST_P(NcclOfSeveral, WorksInPartsOfAGroup) {
  on_ranks([&](Communicator& comm) {
    const Device device = comm.device();
    const auto part = comm.split(comm.rank() / 2);
    EXPECT_EQ(part->device(), device);
    EXPECT_EQ(part->transport(), "nccl");
    const auto value = on_device(device, input_of(DType::kI64, comm.rank(), 7));
    part->all_reduce(value.get(), value.get(), 7, DType::kI64, ReduceOp::kMax).wait();
    const auto key = [&](int r) { return part->world_rank(r); };
    EXPECT_EQ(from_device(device, value, 56),
              folded_inputs(DType::kI64, ReduceOp::kMax, Blocks::of_all(7, part->size()), key));
  });
}

}  // namespace
}  // namespace lockstep::comm
