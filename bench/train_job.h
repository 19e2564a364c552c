#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "train_rank.h"
#include "train_timeline.h"

namespace bench {

struct Spread {
  double low = 0, median = 0, high = 0;
};

// REQUIRES at least one value.
Spread spread_of(std::vector<double> values);

enum Phase { kOne, kApart, kTogether };
inline constexpr Phase kPhases[] = {kOne, kApart, kTogether};
const char* name(Phase phase);

// What trains a model, and its figures, one for each turn.
struct Contender {
  std::string library;
  RankOptions options;
  int ranks = 2;
  std::vector<std::string> command;  // of a rank
  struct Figures {
    std::vector<double> step_ms;             // the median step of the turn
    std::vector<double> samples_per_second;  // times options.tokens: tokens
  } phases[3] = {};
  std::map<std::string, double> values = {};        // of the last job
  std::optional<Communication> communication = {};  // of ranks together

  int ranks_in(Phase phase) const { return phase == kOne ? 1 : ranks; }
  // Of each turn what the phase handles over what one rank alone does.
  Spread speed_up(Phase phase) const;
};

// Runs a job and adds its turns. Throws lockstep::Error where a rank fails or writes something else
// than train_rank.h says.
void run(Contender& contender);

// Runs a job of Lockstep's that writes a timeline, and keeps what that says. The file is `path`
// where that is not empty, and then stays.
void watch(Contender& contender, const std::string& path);

// run_costs()'s values, on rank 0 of a job.
std::map<std::string, double> run_costs_job(int ranks, int repetitions);

}  // namespace bench
