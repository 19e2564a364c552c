// How fast kernels are, against what this machine can do, measured in the same run.
//
//   build/gpu/bin/bench_kernels --device cuda:0
//   OMP_NUM_THREADS=1 build/release/bin/bench_kernels --benchmark_filter=conv
//   OMP_NUM_THREADS=1 build/release/bin/bench_kernels --table docs/kernels.inc
//
// The columns are Google Benchmark's, and of_limit: the part of the limit that a kernel reaches,
// beside the goal. --table FILE writes them as a table in Markdown.

#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "kernels_limits.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::bench {
namespace {

double counter(const benchmark::BenchmarkReporter::Run& run, const char* name) {
  const auto it = run.counters.find(name);
  return it == run.counters.end() ? 0 : it->second.value;
}

// Prints to the console, and keeps a line of each run for the table.
class TableReporter : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    benchmark::ConsoleReporter::ReportRuns(runs);
    for (const Run& run : runs) {
      if (run.run_type == Run::RT_Iteration && !run.error_occurred) lines_.push_back(line(run));
    }
  }

  void write(std::ostream& out) const {
    char head[256];
    std::snprintf(head, sizeof head,
                  "%s, %d thread%s; copy %.1f GB/s (read and written), read %.1f GB/s\n\n",
                  device().name().c_str(), num_threads(), num_threads() == 1 ? "" : "s",
                  copy_limit() * 1e-9, read_limit() * 1e-9);
    out << head << "| kernel | time | rate | of the limit | goal |\n|---|---|---|---|---|\n";
    for (const std::string& line : lines_) out << line;
  }

 private:
  static std::string line(const Run& run) {
    const double ns =
        run.GetAdjustedRealTime() / benchmark::GetTimeUnitMultiplier(run.time_unit) * 1e9;
    char time[64], rate[64] = "", part[32] = "", goal[32] = "";
    if (ns < 1e4) {
      std::snprintf(time, sizeof time, "%.0f ns", ns);
    } else if (ns < 1e6) {
      std::snprintf(time, sizeof time, "%.1f us", ns * 1e-3);
    } else {
      std::snprintf(time, sizeof time, "%.2f ms", ns * 1e-6);
    }
    if (const double bytes = counter(run, "bytes_per_second"); bytes > 0) {
      std::snprintf(rate, sizeof rate, "%.1f GB/s", bytes * 1e-9);
    }
    if (const double flops = counter(run, "flop/s"); flops > 0) {
      std::snprintf(rate, sizeof rate, "%.1f GFLOP/s", flops * 1e-9);
    }
    const double of_limit = counter(run, "of_limit"), wanted = counter(run, "goal");
    if (of_limit > 0) std::snprintf(part, sizeof part, "%.0f %%", of_limit * 100);
    if (wanted > 0) {
      std::snprintf(goal, sizeof goal, "%.0f %%%s", wanted * 100,
                    of_limit < wanted ? ", missed" : "");
    }
    if (const double most = counter(run, "goal_ns"); most > 0) {
      std::snprintf(goal, sizeof goal, "%.0f ns%s", most, ns > most ? ", missed" : "");
    }
    std::string name = run.benchmark_name();
    if (const size_t end = name.find("/real_time"); end != std::string::npos) name.resize(end);
    return "| " + name + " | " + time + " | " + rate + " | " + part + " | " + goal + " |\n";
  }

  std::vector<std::string> lines_;
};

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  const char* table = nullptr;
  const char* name = "cpu";
  std::vector<char*> rest;
  for (int i = 0; i < argc; ++i) {
    if (std::strcmp(argv[i], "--table") == 0 && i + 1 < argc) {
      table = argv[++i];
    } else if (std::strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
      name = argv[++i];
    } else {
      rest.push_back(argv[i]);
    }
  }
  int count = static_cast<int>(rest.size());
  benchmark::Initialize(&count, rest.data());
  if (benchmark::ReportUnrecognizedArguments(count, rest.data())) return 1;
  lockstep::bench::TableReporter reporter;
  try {
    const lockstep::Device device = lockstep::parse_device(name);
    lockstep::require_device(device, "bench_kernels");
    lockstep::bench::set_device(device);
    if (device.is_cuda()) lockstep::bench::add_device_products();
    benchmark::RunSpecifiedBenchmarks(&reporter);
  } catch (const std::exception& error) {
    std::cerr << "bench_kernels: " << error.what() << "\n";
    return 1;
  }
  if (table != nullptr) {
    std::ofstream out(table);
    reporter.write(out);
    if (!out.flush()) {
      std::cerr << "bench_kernels: cannot write " << table << "\n";
      return 1;
    }
  }
  return 0;
}
