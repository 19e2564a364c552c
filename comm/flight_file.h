#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::comm {

// A collective as one rank recorded it. Times are microseconds since 1970 by that host's clock; 0
// where the time was not taken.
struct FlightEntry {
  uint64_t sequence = 0;
  std::string state;  // "queued", "started", "done" or "failed"
  int64_t queued_us = 0;
  int64_t started_us = 0;
  int64_t finished_us = 0;
  std::string request;  // Request::text()

  friend bool operator==(const FlightEntry&, const FlightEntry&) = default;
};

// The newest collectives of one communicator, oldest first.
struct FlightGroup {
  std::string name;
  std::string transport;
  int rank = 0;                  // in the group
  std::vector<int> world_ranks;  // by rank in the group
  uint64_t asked = 0;            // how many collectives this rank has asked for, ever
  std::vector<FlightEntry> entries;

  friend bool operator==(const FlightGroup&, const FlightGroup&) = default;
};

// What one rank wrote when something went wrong.
struct Flight {
  std::string job;
  std::string host;
  int pid = 0;
  int rank = 0;  // in the world
  int64_t written_us = 0;
  std::string error;
  std::vector<FlightGroup> groups;

  friend bool operator==(const Flight&, const Flight&) = default;
};

// The file's text, which people can read, and the reverse. Line ends in names and errors become
// spaces. The reader throws kCorrupt with the line's number for what is no such text; `what` names
// the file in the message. No number in it is trusted.
std::string write_flight(const Flight& flight);
Flight read_flight(std::string_view text, std::string_view what);

}  // namespace lockstep::comm
