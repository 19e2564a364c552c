#include "lockstep/comm/flight_file.h"

#include <algorithm>
#include <array>
#include <limits>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

// The format: a first line with its version, then lines "name: value"; "group:" begins a group,
// whose entries are lines "#sequence state queued started finished request".
constexpr std::string_view kFirstLine = "lockstep flight recorder 1";
constexpr std::array<std::string_view, 4> kStates = {"queued", "started", "done", "failed"};

std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return text;
}

class Reader {
 public:
  Reader(std::string_view text, std::string_view what) : left_(text), what_(what) {}

  Flight read() {
    Flight flight;
    next();
    if (line_ != kFirstLine) wrong(concat("\"", kFirstLine, "\""));
    while (next()) {
      if (line_.empty()) continue;
      if (line_.front() == '#') {
        entry(flight);
      } else {
        field(flight);
      }
    }
    return flight;
  }

 private:
  bool next() {
    if (left_.empty()) return false;
    const size_t end = std::min(left_.find('\n'), left_.size());
    line_ = left_.substr(0, end);
    left_.remove_prefix(std::min(end + 1, left_.size()));
    ++number_;
    if (line_.find('\r') != line_.npos) wrong("lines that end as Unix ends them");
    return true;
  }

  [[noreturn]] void wrong(std::string_view want) const {
    throw Error(ErrorCode::kCorrupt, "doctor",
                concat(what_, ", line ", number_, ": want ", want, ", got \"", line_.substr(0, 80),
                       "\"; is it a file that a rank wrote on an error?"));
  }

  template <class T>
  T number(std::string_view text, T lowest, T highest) const {
    T value{};
    if (!parse_number(text, value) || value < lowest || value > highest) {
      wrong(concat("a number from ", lowest, " to ", highest, " for \"", text.substr(0, 30), "\""));
    }
    return value;
  }

  // The next word of a line, which then begins behind it.
  static std::string_view word(std::string_view& line) {
    const size_t end = std::min(line.find(' '), line.size());
    const std::string_view found = line.substr(0, end);
    line.remove_prefix(std::min(end + 1, line.size()));
    return found;
  }

  FlightGroup& group(Flight& flight) const {
    if (flight.groups.empty()) wrong("\"group:\" before it");
    return flight.groups.back();
  }

  void field(Flight& flight) {
    constexpr int kMost = std::numeric_limits<int>::max();
    const size_t colon = line_.find(": ");
    if (colon == line_.npos) wrong("\"name: value\"");
    const std::string_view name = line_.substr(0, colon);
    std::string_view value = line_.substr(colon + 2);
    if (name == "job") {
      flight.job = value;
    } else if (name == "host") {
      flight.host = value;
    } else if (name == "pid") {
      flight.pid = number(value, 0, kMost);
    } else if (name == "rank") {
      flight.rank = number(value, 0, kMost);
    } else if (name == "written") {
      flight.written_us = number(value, int64_t{0}, std::numeric_limits<int64_t>::max());
    } else if (name == "error") {
      flight.error = value;
    } else if (name == "group") {
      flight.groups.emplace_back().name = value;
    } else if (name == "transport") {
      group(flight).transport = value;
    } else if (name == "group_rank") {
      group(flight).rank = number(value, 0, kMost);
    } else if (name == "world_ranks") {
      while (!value.empty()) group(flight).world_ranks.push_back(number(word(value), 0, kMost));
    } else if (name == "asked") {
      group(flight).asked = number(value, uint64_t{0}, std::numeric_limits<uint64_t>::max());
    } else {
      wrong("a name that this version knows");
    }
  }

  void entry(Flight& flight) {
    std::string_view line = line_.substr(1);
    FlightEntry entry;
    entry.sequence = number(word(line), uint64_t{1}, std::numeric_limits<uint64_t>::max());
    entry.state = word(line);
    if (std::find(kStates.begin(), kStates.end(), entry.state) == kStates.end()) {
      wrong("queued, started, done or failed");
    }
    for (int64_t* time : {&entry.queued_us, &entry.started_us, &entry.finished_us}) {
      *time = number(word(line), int64_t{0}, std::numeric_limits<int64_t>::max());
    }
    entry.request = line;
    std::vector<FlightEntry>& entries = group(flight).entries;
    if (!entries.empty() && entries.back().sequence >= entry.sequence) wrong("ascending numbers");
    entries.push_back(std::move(entry));
  }

  std::string_view left_;
  const std::string_view what_;
  std::string_view line_;
  int64_t number_ = 0;
};

}  // namespace

std::string write_flight(const Flight& flight) {
  std::string out =
      concat(kFirstLine, "\njob: ", one_line(flight.job), "\nhost: ", one_line(flight.host),
             "\npid: ", flight.pid, "\nrank: ", flight.rank, "\nwritten: ", flight.written_us,
             "\nerror: ", one_line(flight.error), "\n");
  for (const FlightGroup& group : flight.groups) {
    out += concat("\ngroup: ", one_line(group.name), "\ntransport: ", one_line(group.transport),
                  "\ngroup_rank: ", group.rank, "\nworld_ranks: ");
    for (size_t i = 0; i < group.world_ranks.size(); ++i) {
      out += concat(i == 0 ? "" : " ", group.world_ranks[i]);
    }
    out += concat("\nasked: ", group.asked, "\n");
    for (const FlightEntry& entry : group.entries) {
      out += concat("#", entry.sequence, " ", entry.state, " ", entry.queued_us, " ",
                    entry.started_us, " ", entry.finished_us, " ", one_line(entry.request), "\n");
    }
  }
  return out;
}

Flight read_flight(std::string_view text, std::string_view what) {
  return Reader(text, what).read();
}

}  // namespace lockstep::comm
