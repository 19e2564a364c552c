#include "lockstep/comm/costs.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iomanip>
#include <limits>
#include <memory>
#include <sstream>
#include <vector>

#include "lockstep/comm/text.h"
#include "lockstep/comm/transport.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kHead =
    "# Lockstep's costs in seconds: transport, ranks, meet, copy, fetch, read_call, read\n"
    "# (comm/costs.h); written by bench_allreduce --tune, read through LOCKSTEP_TUNE\n";

// Enough that a launch does not count.
constexpr int64_t kDeviceProbeBytes = int64_t{4} << 20;

struct Line {
  std::string transport;
  int ranks = 0;
  Costs costs;
};

std::vector<Line> read_lines(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw Error(ErrorCode::kIo, "tune", concat("cannot read the table of costs ", file));
  std::vector<Line> lines;
  int number = 0;
  for (std::string text; std::getline(in, text);) {
    ++number;
    if (text.empty() || text.front() == '#') continue;
    std::istringstream fields(text);
    Line line;
    Costs& c = line.costs;
    std::string rest;
    const bool right = static_cast<bool>(fields >> line.transport >> line.ranks >> c.meet >>
                                         c.copy >> c.fetch >> c.read_call >> c.read) &&
                       !(fields >> rest) && line.ranks >= 1;
    const bool sane = right && std::min({c.meet, c.copy, c.fetch, c.read_call, c.read}) >= 0 &&
                      std::max({c.meet, c.copy, c.fetch, c.read_call, c.read}) < 1e6;
    if (!sane) {
      throw Error(
          ErrorCode::kCorrupt, "tune",
          concat(file, ":", number, ": want a transport, a number of ranks and five costs ",
                 "in seconds, got \"", text, "\"; bench_allreduce --tune makes such a file"));
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace

double staged_seconds(const Costs& costs, int ranks, double bytes, double meetings) {
  return meetings * costs.meet + bytes * (costs.copy + 3 * others_part(ranks) * costs.fetch);
}

double read_seconds(const Costs& costs, int ranks, double bytes, double calls) {
  if (costs.read == 0) return std::numeric_limits<double>::infinity();
  return 2 * costs.meet + calls * costs.read_call + 2 * others_part(ranks) * bytes * costs.read;
}

double exchange_seconds(const Costs& costs, int ranks, double bytes) {
  return costs.meet + (ranks - 1) * bytes * costs.fetch + ranks * bytes * costs.copy;
}

double ring_seconds(const Costs& costs, int ranks, double bytes) {
  return 2 * (ranks - 1) * costs.meet + 2 * others_part(ranks) * bytes * costs.fetch;
}

double device_seconds(const Costs& costs, int ranks, double bytes) {
  return costs.meet + 2 * others_part(ranks) * bytes * costs.fetch;
}

std::optional<Costs> load_costs(const std::string& file, const std::string& transport, int ranks) {
  for (const Line& line : read_lines(file)) {
    if (line.transport == transport && line.ranks == ranks) return line.costs;
  }
  return std::nullopt;
}

void save_costs(const std::string& file, const std::string& transport, int ranks,
                const Costs& costs) {
  std::vector<Line> lines;
  if (std::ifstream(file)) lines = read_lines(file);
  std::erase_if(
      lines, [&](const Line& line) { return line.transport == transport && line.ranks == ranks; });
  lines.push_back({transport, ranks, costs});
  std::ofstream out(file);
  out << kHead << std::setprecision(4);
  for (const auto& [name, n, c] : lines) {
    out << name << " " << n << " " << c.meet << " " << c.copy << " " << c.fetch << " "
        << c.read_call << " " << c.read << "\n";
  }
  out.close();
  if (!out) throw Error(ErrorCode::kIo, "tune", concat("cannot write the table of costs ", file));
}

std::optional<DeviceCosts> load_device_costs(const std::string& file, int ranks) {
  const std::optional<Costs> cuda = load_costs(file, "cuda", ranks);
  const std::optional<Costs> nccl = load_costs(file, "nccl", ranks);
  if (!cuda || !nccl) return std::nullopt;
  return DeviceCosts{*cuda, *nccl};
}

Costs measure_device_costs(Transport& transport, int rounds) {
  const std::shared_ptr<void> memory = transport.allocate_on_device(kDeviceProbeBytes);
  const auto seconds_of = [&](int64_t bytes) {
    const Device device = transport.device();
    const auto order = std::make_shared<OnDevice>();
    order->device = device;
    order->ready = current_stream(device).record();
    order->ready.synchronize();
    Collective probe;
    probe.request = {Kind::kAllReduce, DType::kI32, kernels::FoldOp::kSum,
                     Algorithm::kAuto, 0,           bytes / 4};
    probe.send = memory.get();
    probe.recv = memory.get();
    probe.on_device = order;
    const auto start = std::chrono::steady_clock::now();
    transport.run(probe);
    order->completed.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  double few = 1;
  double many = 1;
  for (int i = 0; i < rounds; ++i) {
    few = std::min(few, seconds_of(4));
    many = std::min(many, seconds_of(kDeviceProbeBytes));
  }
  const double moved = 2 * others_part(transport.size()) * kDeviceProbeBytes;
  return {few, 0, std::max(many - few, 0.0) / moved, 0, 0};
}

void agree_on_costs(Transport& transport, const std::optional<Costs>& known, int rounds) {
  if (transport.size() == 1) return;
  // Whether rank 0 knows them, then rank 0's.
  double knows = known ? 1 : 0;
  Collective ask{{Kind::kBroadcast, DType::kF64, kernels::FoldOp::kSum, Algorithm::kOneShot, 0, 1},
                 0,
                 &knows,
                 &knows};
  transport.run(ask);
  Costs costs = known.value_or(Costs{});
  if (knows == 0) costs = transport.measure_costs(rounds);
  constexpr int64_t kNumbers = sizeof(Costs) / sizeof(double);
  Collective tell{
      {Kind::kBroadcast, DType::kF64, kernels::FoldOp::kSum, Algorithm::kOneShot, 0, kNumbers},
      0,
      &costs,
      &costs};
  transport.run(tell);
  transport.set_costs(costs);
}

}  // namespace lockstep::comm
