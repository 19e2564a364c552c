#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace lockstep::comm {

class Transport;

// What the choice between algorithms knows of a group's machine: seconds, measured when the group
// is made or read from a table. All ranks go by rank 0's, so that all choose alike; results do not
// depend on the choice (docs/collectives.md has the formulas).
struct Costs {
  double meet = 5e-7;    // until every rank knows that all ranks have come
  double copy = 5e-11;   // of a byte in this rank's memory; over sockets, of a byte that is folded
  double fetch = 1e-10;  // of a byte that another rank wrote; over sockets, of one that is sent
  double read_call = 0;  // of one read of another process's memory; 0 where there is none
  double read = 0;       // of a byte of it

  friend bool operator==(const Costs&, const Costs&) = default;
};

// What a rank does not have of a buffer that all share out among them.
inline double others_part(int ranks) { return static_cast<double>(ranks - 1) / ranks; }

// Seconds of an all-reduce of `bytes` bytes among `ranks` ranks. In shared memory:
inline double one_shot_seconds(const Costs& costs, int ranks, double bytes) {
  return costs.meet + bytes * (costs.copy + (ranks - 1) * costs.fetch);
}
inline double direct_seconds(const Costs& costs, int ranks, double bytes) {
  return 2 * costs.meet + others_part(ranks) * bytes * costs.fetch;
}
// ... for memory that others cannot map; `meetings` of the staged way.
double staged_seconds(const Costs& costs, int ranks, double bytes, double meetings);
double read_seconds(const Costs& costs, int ranks, double bytes, double calls);
// Over sockets:
double exchange_seconds(const Costs& costs, int ranks, double bytes);
double ring_seconds(const Costs& costs, int ranks, double bytes);
// Of memory of devices, by "cuda" or "nccl", where `meet` is what a few bytes take and `fetch` a
// byte:
double device_seconds(const Costs& costs, int ranks, double bytes);

// A table of costs as a file: a line for each transport and number of ranks, with the numbers in
// the order of Costs. Lines that begin with # are comments.

// The line of a transport and a number of ranks, if there is one. Throws kIo where the file cannot
// be read, kCorrupt naming the line that is not as it should be.
std::optional<Costs> load_costs(const std::string& file, const std::string& transport, int ranks);
// Puts a line in the place of the one there was. Throws kIo, kCorrupt.
void save_costs(const std::string& file, const std::string& transport, int ranks,
                const Costs& costs);

// What those two ways of devices' memory cost by a table.
struct DeviceCosts {
  Costs cuda;
  Costs nccl;

  friend bool operator==(const DeviceCosts&, const DeviceCosts&) = default;
};
// Nothing where one of the two has no line. Throws as load_costs() does.
std::optional<DeviceCosts> load_device_costs(const std::string& file, int ranks);
// What an all_reduce of devices' memory takes by this transport, which has a device, the least of
// `rounds` times. Every rank calls it at the same place. Throws what a collective throws.
Costs measure_device_costs(Transport& transport, int rounds);

// Gives all ranks of a group rank 0's costs: `known`, or what is measured now, in about a
// millisecond, `rounds` times as long. Every rank calls it before anything else; `known` counts on
// rank 0 alone. Throws what a collective throws.
void agree_on_costs(Transport& transport, const std::optional<Costs>& known, int rounds);

}  // namespace lockstep::comm
