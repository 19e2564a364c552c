#include "flights.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <map>
#include <set>

#include "lockstep/comm/text.h"

namespace lockstep::cli {
namespace {

using comm::concat;
using comm::Flight;
using comm::FlightEntry;
using comm::FlightGroup;
using comm::rank_list;

// One rank's part of a group.
struct Member {
  const Flight* flight;
  const FlightGroup* group;

  const FlightEntry* entry(uint64_t sequence) const {
    const auto& entries = group->entries;
    const auto found = std::lower_bound(
        entries.begin(), entries.end(), sequence,
        [](const FlightEntry& entry, uint64_t wanted) { return entry.sequence < wanted; });
    return found != entries.end() && found->sequence == sequence ? &*found : nullptr;
  }
  // The newest collective before which all are done; 0 for none.
  uint64_t done() const {
    uint64_t last = group->entries.empty() ? group->asked : group->entries.front().sequence - 1;
    for (const FlightEntry& entry : group->entries) {
      if (entry.state != "done") break;
      last = entry.sequence;
    }
    return last;
  }
};

using Members = std::map<int, Member>;  // by the world's rank

std::string clock_text(int64_t us) {
  const auto seconds = static_cast<std::time_t>(us / 1'000'000);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%02d:%02d:%02d.%06d", parts.tm_hour, parts.tm_min,
                parts.tm_sec, static_cast<int>(us % 1'000'000));
  return text.data();
}

std::string seconds_between(int64_t from_us, int64_t to_us) {
  return concat(static_cast<double>(std::max<int64_t>(to_us - from_us, 0)) / 1e6, " s");
}

// What several ranks did alike, and when the first of them did it; 0 where that does not matter.
struct Said {
  std::string text;
  int64_t us;
  std::vector<int> ranks;
};

void say(std::vector<Said>& said, int rank, const std::string& text, int64_t us = 0) {
  for (Said& known : said) {
    if (known.text != text) continue;
    known.ranks.push_back(rank);
    known.us = std::min(known.us, us);
    return;
  }
  said.push_back({text, us, {rank}});
}

// "    ranks 0, 2 asked for barrier, done, at 12:00:01.000000", in order of the lowest rank.
std::string list(const std::vector<Said>& said) {
  std::string out;
  for (const Said& one : said) {
    const std::string when = one.us == 0 ? "" : concat(", at ", clock_text(one.us));
    out += concat("    ", rank_list(one.ranks), " ", one.text, when, "\n");
  }
  return out;
}

// Why two ranks of a group are not at the same place, at `sequence`; empty where they are.
std::string difference_at(const Members& members, uint64_t sequence) {
  std::vector<Said> said;
  bool missing = false;
  bool unfinished = false;
  std::set<std::string> requests;
  for (const auto& [rank, member] : members) {
    const FlightEntry* entry = member.entry(sequence);
    if (entry == nullptr && sequence > member.group->asked) {
      const auto& entries = member.group->entries;
      missing = true;
      if (entries.empty()) {
        say(said, rank, "asked for no collective of this group");
      } else {
        const FlightEntry& last = entries.back();
        const std::string when =
            last.queued_us == 0
                ? ""
                : concat(", asked for ", seconds_between(last.queued_us, member.flight->written_us),
                         " before this file was written");
        say(said, rank,
            concat("did not ask for it: the last was collective ", last.sequence, ", ",
                   last.request, ", ", last.state, when));
      }
    } else if (entry == nullptr) {
      say(said, rank, "has it no more: it is older than what a rank keeps");
    } else {
      requests.insert(entry->request);
      unfinished = unfinished || entry->state != "done";
      say(said, rank, concat("asked for ", entry->request, ", ", entry->state), entry->queued_us);
    }
  }
  if (requests.size() > 1 || missing || unfinished) {
    const char* fault = requests.size() > 1 ? "ranks disagree about"
                        : missing           ? "some ranks did not ask for"
                                            : "did not finish everywhere";
    return concat("  collective ", sequence, " is the first that ", fault, ":\n") + list(said);
  }
  return "";
}

void compare_group(const std::string& name, const Members& members, Comparison& out) {
  const FlightGroup& any = *members.begin()->second.group;
  std::vector<int> ranks = any.world_ranks;
  std::sort(ranks.begin(), ranks.end());
  out.text += concat("group ", name, ": ", rank_list(ranks), " over ", any.transport, "\n");
  std::vector<int> absent;
  for (const int rank : ranks) {
    if (!members.contains(rank)) absent.push_back(rank);
  }
  if (!absent.empty()) {
    out.differ = true;
    out.text += concat("  ", rank_list(absent), absent.size() == 1 ? " has" : " have",
                       " no file here: dead, stopped, on another host, or without an error yet\n");
  }
  uint64_t first = 0;
  uint64_t last = 0;
  for (const auto& [rank, member] : members) {
    out.text += concat("  rank ", rank, " asked for ", member.group->asked,
                       " collectives, all done up to ", member.done(), "\n");
    const auto& entries = member.group->entries;
    first = std::max(first, entries.empty() ? 1 : entries.front().sequence);
    last = std::max(last, member.group->asked);
  }
  // A rank far behind the others has nothing in common with them: then the first that it lacks.
  for (const auto& [rank, member] : members) first = std::min(first, member.group->asked + 1);
  for (uint64_t sequence = first; sequence <= last && sequence - first <= 2000; ++sequence) {
    const std::string difference = difference_at(members, sequence);
    if (difference.empty()) continue;
    out.differ = true;
    out.text += difference;
    return;
  }
  out.text += "  no difference\n";
}

}  // namespace

Comparison compare_flights(const std::vector<Flight>& flights) {
  Comparison out;
  std::map<int, const Flight*> by_rank;
  std::set<std::string> jobs;
  for (const Flight& flight : flights) {
    jobs.insert(flight.job);
    if (!by_rank.emplace(flight.rank, &flight).second) {
      out.text += concat("two files are of rank ", flight.rank,
                         ", perhaps of two jobs: the first counts\n");
    }
  }
  if (jobs.size() > 1) {
    out.differ = true;
    out.text += "these files are of several jobs, so that they can hardly agree:";
    for (const std::string& job : jobs) out.text += concat(" \"", job, "\"");
    out.text += "\n";
  }
  std::map<std::string, Members> groups;
  for (const auto& [rank, flight] : by_rank) {
    out.text += concat("rank ", rank, " on ", flight->host, " (pid ", flight->pid, "), written ",
                       clock_text(flight->written_us), " UTC: ", flight->error, "\n");
    for (const FlightGroup& group : flight->groups) groups[group.name][rank] = {flight, &group};
  }
  for (const auto& [name, members] : groups) {
    out.text += "\n";
    compare_group(name, members, out);
  }
  return out;
}

}  // namespace lockstep::cli
