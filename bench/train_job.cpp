#include "train_job.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <utility>

#include "job.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"

namespace bench {
namespace {

using lockstep::str_cat;

// What one rank wrote: for each phase, for each turn, the seconds of all steps and of the median.
struct Written {
  std::vector<std::pair<double, double>> phases[3];
  std::map<std::string, double> values;
};

Written read(const std::string& text) {
  Written written;
  std::stringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::stringstream words(line);
    std::string word;
    double first = 0, second = 0;
    words >> word >> first;
    const auto* const phase = std::find_if(std::begin(kPhases), std::end(kPhases),
                                           [&](Phase p) { return word == name(p); });
    if (phase != std::end(kPhases)) {
      words >> second;
      written.phases[*phase].emplace_back(first, second);
    } else {
      written.values[word] = first;
    }
    if (!words) {
      throw lockstep::Error(lockstep::ErrorCode::kInternal, "bench_train",
                            str_cat("a rank wrote '", line, "'"));
    }
  }
  return written;
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {values.front(), median, values.back()};
}

const char* name(Phase phase) {
  constexpr const char* kNames[] = {"one", "apart", "together"};
  return kNames[phase];
}

Spread Contender::speed_up(Phase phase) const {
  std::vector<double> ratios;
  for (size_t turn = 0; turn < phases[kOne].samples_per_second.size(); ++turn) {
    ratios.push_back(phases[phase].samples_per_second[turn] /
                     phases[kOne].samples_per_second[turn]);
  }
  return spread_of(ratios);
}

// A phase is as fast as its slowest rank over the whole turn. Step by step the slowest would be
// counted twice: what one rank loses after a step's last meeting, the other waits for in the next.
void run(Contender& contender) {
  const auto turns = static_cast<size_t>(contender.options.turns);
  std::vector<Written> ranks;
  for (const std::string& text : run_job(contender.ranks, contender.command)) {
    ranks.push_back(read(text));
    for (const Phase phase : kPhases) {
      const size_t wanted = phase == kOne && ranks.size() > 1 ? 0 : turns;
      if (ranks.back().phases[phase].size() == wanted) continue;
      throw lockstep::Error(lockstep::ErrorCode::kInternal, "bench_train",
                            str_cat("want ", wanted, " lines of phase '", name(phase),
                                    "' from rank ", ranks.size() - 1, ", got '", text, "'"));
    }
  }
  for (const Phase phase : kPhases) {
    const int samples =
        contender.options.batch * contender.options.steps * contender.ranks_in(phase);
    for (size_t turn = 0; turn < turns; ++turn) {
      std::pair<double, double> slowest;
      for (int rank = 0; rank < contender.ranks_in(phase); ++rank) {
        slowest = std::max(slowest, ranks[static_cast<size_t>(rank)].phases[phase][turn]);
      }
      contender.phases[phase].step_ms.push_back(1e3 * slowest.second);
      contender.phases[phase].samples_per_second.push_back(samples / slowest.first);
    }
  }
  contender.values = ranks[0].values;
}

void watch(Contender& contender, const std::string& path) {
  const std::string temporary =
      str_cat(std::filesystem::temp_directory_path().string(), "/bench_train-", getpid(), ".json");
  const std::string& file = path.empty() ? temporary : path;
  std::vector<std::string> command = contender.command;
  command.push_back("--together-alone");
  run_job(contender.ranks, command, {"LOCKSTEP_TIMELINE=" + file});
  contender.communication =
      read_timeline(file, contender.options.steps, contender.options.device_of(0));
  if (path.empty()) std::filesystem::remove(temporary);
}

std::map<std::string, double> run_costs_job(int ranks, int repetitions) {
  return read(run_job(ranks, {this_program(), "--costs-of", std::to_string(repetitions)})[0])
      .values;
}

}  // namespace bench
