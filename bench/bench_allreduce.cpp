// How fast is all_reduce at each size, how near to what this machine could do, and is every element
// right? The options and columns are those of nccl-tests' all_reduce_perf.
//
// The time of a collective is its slowest rank's, on a device until the rank's stream is done. Out
// of place, send and recv are plain memory; in place is memory of Communicator::allocate(), as
// gradient buckets are, unless -R 0.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "allreduce_check.h"
#include "allreduce_options.h"
#include "limit.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/simd.h"
#include "lockstep/kernels/stream.h"
#include "lockstep/kernels/transfer.h"
#include "ranks.h"

namespace {

using bench::AllReduceOptions;
using lockstep::DType;
using lockstep::comm::Communicator;
using lockstep::comm::ReduceOp;
using Clock = std::chrono::steady_clock;

// Seconds of one collective, over the timed ones.
struct Timing {
  double p50 = 0;
  double p99 = 0;
  double mean = 0;
  double least = 0;
};

struct Result {
  Timing timing;
  int64_t wrong = -1;  // elements of all ranks; -1: not checked
};

// Calls once() `iterations` times on all ranks together; each counts with its slowest rank.
template <class Once>
Timing time_of(Communicator& comm, int64_t warmup, int64_t iterations, const Once& once) {
  for (int64_t i = 0; i < warmup; ++i) once();
  std::vector<double> seconds(iterations);
  comm.barrier().wait();
  Clock::time_point last = Clock::now();
  for (int64_t i = 0; i < iterations; ++i) {
    once();
    const Clock::time_point now = Clock::now();
    seconds[i] = std::chrono::duration<double>(now - last).count();
    last = now;
  }
  comm.all_reduce(seconds.data(), seconds.data(), iterations, DType::kF64, ReduceOp::kMax).wait();
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double part) {
    return seconds[static_cast<size_t>(part * static_cast<double>(seconds.size() - 1) + 0.5)];
  };
  return {at(0.5), at(0.99),
          std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(iterations),
          seconds.front()};
}

int64_t iterations_of(const AllReduceOptions& options, int64_t bytes) {
  if (options.iterations > 0) return options.iterations;
  return std::clamp<int64_t>((int64_t{1} << 30) / std::max<int64_t>(bytes, 1), 20, 2000);
}

lockstep::View bytes_of(void* data, int64_t bytes, lockstep::Device device = lockstep::kCpu) {
  return {data, DType::kU8, device, {bytes}, {1}};
}

// Calls work(host) on the buffer itself, or on what is copied to a device's buffer afterwards.
template <class Work>
void write(void* buffer, int64_t bytes, lockstep::Device device, const Work& work) {
  if (device.is_cpu()) return work(buffer);
  std::vector<char> host(static_cast<size_t>(bytes));
  work(host.data());
  lockstep::transfer(bytes_of(host.data(), bytes), bytes_of(buffer, bytes, device));
}

Result measure(Communicator& comm, const AllReduceOptions& options, void* send, void* recv,
               int64_t count, DType dtype, ReduceOp op) {
  Result result;
  const auto bytes = count * static_cast<int64_t>(lockstep::size_of(dtype));
  const bool in_place = send == recv;
  const lockstep::Device device = comm.device();
  const auto fill = [&] {
    write(send, bytes, device,
          [&](void* host) { bench::fill_input(host, count, dtype, op, comm.rank()); });
  };
  const auto once = [&] {
    comm.all_reduce(send, recv, count, dtype, op).wait();
    if (device.is_cuda()) lockstep::current_stream(device).synchronize();
  };
  fill();
  result.timing = time_of(comm, options.warmup, iterations_of(options, bytes), once);
  if (!options.check) return result;
  fill();
  if (!in_place) {
    write(recv, bytes, device,
          [&](void* host) { std::fill_n(static_cast<char*>(host), bytes, char{0x5a}); });
  }
  once();
  std::vector<char> host(device.is_cpu() ? 0 : static_cast<size_t>(bytes));
  if (device.is_cuda()) {
    lockstep::transfer(bytes_of(recv, bytes, device), bytes_of(host.data(), bytes));
  }
  result.wrong =
      bench::count_wrong(device.is_cpu() ? recv : host.data(), count, dtype, op, comm.size());
  comm.all_reduce(&result.wrong, &result.wrong, 1, DType::kI64, ReduceOp::kSum).wait();
  return result;
}

bool uses_sockets(const Communicator& comm) {
  return comm.transport() == "tcp" || comm.transport() == "mixed";
}

double gigabytes(int64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
}

double bus_factor(int ranks) { return 2.0 * (ranks - 1) / ranks; }

void print_header(const Communicator& comm, const AllReduceOptions& options) {
  std::printf("# bench_allreduce: %d ranks, %s, transport %s%s%s, %lld warm-up collectives, %s\n",
              comm.size(), comm.device().name().c_str(), comm.transport().c_str(),
              options.algorithm.empty() ? "" : ", algorithm ", options.algorithm.c_str(),
              static_cast<long long>(options.warmup),
              options.check ? "every element checked" : "nothing checked");
  std::printf("# out of place: plain memory; in place: %s\n",
              options.registered ? "memory of Communicator::allocate()" : "plain memory");
  std::printf("# time is the median of the slowest rank's, p99 likewise; GB are 1e9 bytes\n");
  std::printf("# %%limit: in-place busbw over %s, in this run\n",
              uses_sockets(comm) ? "that of plain sockets that move as many bytes"
                                 : "that of reading and writing as many bytes of such memory");
  std::printf("#\n#%12s %12s %6s %6s %5s  %37s  %37s\n", "", "", "", "", "", "out of place",
              "in place");
  std::printf("#%12s %12s %6s %6s %5s", "size", "count", "type", "redop", "root");
  for (int i = 0; i < 2; ++i) {
    std::printf("  %9s %6s %6s %6s %9s", "time", "algbw", "busbw", "#wrong", "p99");
  }
  std::printf(" %7s\n", "%limit");
  std::printf("#%12s %12s %6s %6s %5s", "(B)", "(elements)", "", "", "");
  for (int i = 0; i < 2; ++i) {
    std::printf("  %9s %6s %6s %6s %9s", "(us)", "(GB/s)", "(GB/s)", "", "(us)");
  }
  std::printf("\n");
}

void print_result(const Result& result, int64_t bytes, int ranks) {
  const double algbw = gigabytes(bytes, result.timing.p50);
  std::printf(
      "  %9.2f %6.2f %6.2f %6s %9.2f", result.timing.p50 * 1e6, algbw, algbw * bus_factor(ranks),
      result.wrong < 0 ? "N/A" : std::to_string(result.wrong).c_str(), result.timing.p99 * 1e6);
}

nlohmann::json to_json(const Result& result, int64_t bytes, int ranks) {
  const double algbw = gigabytes(bytes, result.timing.p50);
  nlohmann::json out = {
      {"time_us", result.timing.p50 * 1e6},     {"p50_us", result.timing.p50 * 1e6},
      {"p99_us", result.timing.p99 * 1e6},      {"mean_us", result.timing.mean * 1e6},
      {"min_us", result.timing.least * 1e6},    {"algbw_gbps", algbw},
      {"busbw_gbps", algbw * bus_factor(ranks)}};
  out["wrong"] = result.wrong < 0 ? nlohmann::json(nullptr) : nlohmann::json(result.wrong);
  return out;
}

int run(Communicator& comm, const AllReduceOptions& options) {
  const bool speaks = comm.rank() == 0;
  const int ranks = comm.size();
  nlohmann::json rows = nlohmann::json::array();
  int64_t wrong = 0;
  double bus_sum = 0;
  int bus_count = 0;
  if (speaks) print_header(comm, options);
  const size_t most = options.end_bytes + 64;
  const auto plain = [&]() -> std::shared_ptr<void> {
    if (comm.device().is_cpu()) return std::make_shared<char[]>(most);
    return lockstep::allocate(most, comm.device());
  };
  const std::shared_ptr<void> plain_send = plain(), plain_recv = plain();
  const std::shared_ptr<void> registered =
      options.registered ? comm.allocate(most, comm.device()) : nullptr;
  void* const in_place = options.registered ? registered.get() : plain_recv.get();
  for (const DType dtype : options.dtypes) {
    const auto element = static_cast<int64_t>(lockstep::size_of(dtype));
    for (const ReduceOp op : options.ops) {
      if (!lockstep::kernels::is_defined(op, dtype)) continue;  // of a list with all
      for (int64_t size = options.begin_bytes; size <= options.end_bytes;
           size = options.step_bytes > 0 ? size + options.step_bytes
                                         : std::max<int64_t>(size, 1) * options.step_factor) {
        const int64_t count = size / element;
        const int64_t bytes = count * element;
        if (count == 0 && size != 0) continue;
        const Result out =
            measure(comm, options, plain_send.get(), plain_recv.get(), count, dtype, op);
        const Result in = measure(comm, options, in_place, in_place, count, dtype, op);
        const auto limit = uses_sockets(comm)
                               ? bench::socket_limit(comm, bytes)
                               : bench::memory_limit(count, dtype, op, ranks, comm.device());
        const Timing best =
            time_of(comm, options.warmup, iterations_of(options, bytes), [&] { limit->run(); });
        const double percent = in.timing.p50 > 0 ? 100 * best.p50 / in.timing.p50 : 0;
        for (const Result* result : {&out, &in}) {
          wrong += std::max<int64_t>(result->wrong, 0);
          bus_sum += gigabytes(bytes, result->timing.p50) * bus_factor(ranks);
          ++bus_count;
        }
        if (!speaks) continue;
        std::printf(" %12lld %12lld %6s %6s %5d", static_cast<long long>(bytes),
                    static_cast<long long>(count), std::string(lockstep::name(dtype)).c_str(),
                    std::string(lockstep::kernels::name(op)).c_str(), -1);
        print_result(out, bytes, ranks);
        print_result(in, bytes, ranks);
        std::printf(" %7.1f\n", percent);
        std::fflush(stdout);
        rows.push_back({{"bytes", bytes},
                        {"count", count},
                        {"type", std::string(lockstep::name(dtype))},
                        {"redop", std::string(lockstep::kernels::name(op))},
                        {"root", -1},
                        {"out_of_place", to_json(out, bytes, ranks)},
                        {"in_place", to_json(in, bytes, ranks)},
                        {"limit_us", best.p50 * 1e6},
                        {"limit_percent", percent}});
      }
    }
  }
  if (!speaks) return wrong == 0 ? 0 : 1;
  std::printf("# Out of bounds values : %lld %s\n# Avg bus bandwidth    : %.4f GB/s\n",
              static_cast<long long>(wrong), wrong == 0 ? "OK" : "FAILED",
              bus_count > 0 ? bus_sum / bus_count : 0.0);
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << nlohmann::json{{"program", "bench_allreduce"},
                           {"ranks", ranks},
                           {"device", comm.device().name()},
                           {"transport", comm.transport()},
                           {"algorithm", options.algorithm},
                           {"warmup", options.warmup},
                           {"checked", options.check},
                           {"registered", options.registered},
                           {"wrong", wrong},
                           {"rows", rows}}
                .dump(2)
         << "\n";
    file.close();
    if (!file) {
      std::fprintf(stderr, "bench_allreduce: cannot write %s\n", options.json.c_str());
      return 1;
    }
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const AllReduceOptions options = bench::parse_options(argc, argv);
    if (options.help) {
      std::fputs(bench::usage().c_str(), stdout);
      return 0;
    }
    lockstep::comm::Options comm;
    comm.transport = options.transport;
    comm.algorithm = options.algorithm;
    comm.save_costs = options.tune;
    return bench::run_as_ranks(options.ranks, options.devices, comm,
                               [&](Communicator& rank) { return run(rank, options); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
