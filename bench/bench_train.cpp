// How many samples per second does training handle, and how much do several ranks gain over one?
//
// Starts its own ranks as processes of one thread each. One rank alone, ranks that know nothing of
// each other (the machine's limit) and ranks that train one model take turns (train_rank.h), and
// speed-ups are medians of the turns' own ratios, so that a machine that slows down slows all of
// them. Each rank trains on one random batch that lies in memory, as the peers do.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "job.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "train_rank.h"

using lockstep::str_cat;

namespace {

constexpr double kGoal = 1.7;  // of the cnn on two ranks

struct Options {
  bool worker = false;  // this process is a rank
  bench::RankOptions rank;
  std::vector<std::string> models = {"cnn", "mlp"};
  int ranks = 2;
  int repetitions = 5;
  bool peers = false;
  std::string json;
  bool help = false;
};

class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

constexpr const char* kUsage =
    "Measures training steps on 1 rank and on several, one thread each.\n\n"
    "  bench_train [options]\n\n"
    "  --models LIST         cnn, mlp, or both with a comma between (cnn,mlp)\n"
    "  --ranks N             compared with 1 rank, at least 2 (2)\n"
    "  --batch N             images in a step of each rank (128)\n"
    "  --steps N             timed in each turn (10)\n"
    "  --rounds N            turns of each job (3)\n"
    "  --repetitions N       jobs (5)\n"
    "  --no-sync-batch-norm  batch norm over each rank's own images, as PyTorch's on a CPU\n"
    "  --peers               the same with PyTorch, if python3 can import it\n"
    "  --json FILE           the results for programs\n";

std::vector<std::string> split_models(const std::string& text) {
  std::vector<std::string> models;
  std::stringstream stream(text);
  for (std::string model; std::getline(stream, model, ',');) {
    if (model != "cnn" && model != "mlp") throw UsageError("there is no model '" + model + "'");
    models.push_back(model);
  }
  if (models.empty()) throw UsageError("--models wants cnn or mlp");
  return models;
}

Options parse(int argc, char** argv) {
  Options options;
  const std::map<std::string, int*> numbers = {{"--ranks", &options.ranks},
                                               {"--batch", &options.rank.batch},
                                               {"--steps", &options.rank.steps},
                                               {"--rounds", &options.rank.rounds},
                                               {"--repetitions", &options.repetitions}};
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&] {
      if (++i == argc) throw UsageError(name + " wants a value after it");
      return std::string(argv[i]);
    };
    if (const auto number = numbers.find(name); number != numbers.end()) {
      const std::string text = value();
      const auto [stop, error] =
          std::from_chars(text.data(), text.data() + text.size(), *number->second);
      if (error != std::errc() || *stop != '\0' || *number->second < 1) {
        throw UsageError(name + " wants a number that is at least 1, got '" + text + "'");
      }
    } else if (name == "--models") {
      options.models = split_models(value());
    } else if (name == "--worker") {
      options.worker = true;
      options.rank.model = value();
    } else if (name == "--json") {
      options.json = value();
    } else if (name == "--no-sync-batch-norm") {
      options.rank.sync_batch_norm = false;
    } else if (name == "--peers") {
      options.peers = true;
    } else if (name == "--help" || name == "-h") {
      options.help = true;
    } else {
      throw UsageError("there is no option '" + name + "'");
    }
  }
  if (options.ranks < 2) throw UsageError("--ranks wants at least 2: it is compared with 1");
  return options;
}

struct Spread {
  double low = 0, median = 0, high = 0;
};

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {values.front(), median, values.back()};
}

// One rank alone, all apart, all together.
constexpr const char* kPhases[] = {"one", "apart", "together"};
enum Phase { kOne, kApart, kTogether };

// What trains a model, and its figures, one for each turn.
struct Contender {
  std::string library;
  std::string model;
  std::vector<std::string> command;
  struct Figures {
    std::vector<double> step_ms;  // the median step of the turn
    std::vector<double> images_per_second;
  } phases[3] = {};
};

// What one rank wrote: for each phase, for each turn, the seconds of all steps and of the median.
struct Times {
  std::vector<std::pair<double, double>> phases[3];
};

Times read_times(const std::string& text, bool is_first, const Options& options) {
  Times times;
  std::stringstream stream(text);
  double total = 0, median = 0;
  for (std::string phase; stream >> phase >> total >> median;) {
    const auto* const known = std::find(std::begin(kPhases), std::end(kPhases), phase);
    if (known == std::end(kPhases)) break;
    times.phases[known - kPhases].emplace_back(total, median);
  }
  for (const Phase phase : {kOne, kApart, kTogether}) {
    const size_t wanted = phase == kOne && !is_first ? 0 : static_cast<size_t>(options.rank.rounds);
    if (times.phases[phase].size() != wanted || !stream.eof()) {
      throw lockstep::Error(lockstep::ErrorCode::kInternal, "bench_train",
                            str_cat("want ", wanted, " lines of phase '", kPhases[phase],
                                    "' from a rank, got '", text, "'"));
    }
  }
  return times;
}

// A phase is as fast as its slowest rank over the whole turn. Step by step the slowest would be
// counted twice: what one rank loses after a step's last meeting, the other waits for in the next.
void run(Contender& contender, const Options& options) {
  std::vector<Times> ranks;
  for (const std::string& text : bench::run_job(options.ranks, contender.command)) {
    ranks.push_back(read_times(text, ranks.empty(), options));
  }
  for (const Phase phase : {kOne, kApart, kTogether}) {
    const int images =
        options.rank.batch * options.rank.steps * (phase == kOne ? 1 : options.ranks);
    for (size_t turn = 0; turn < static_cast<size_t>(options.rank.rounds); ++turn) {
      std::pair<double, double> slowest;
      for (const Times& rank : ranks) {
        if (phase != kOne || &rank == ranks.data()) {
          slowest = std::max(slowest, rank.phases[phase][turn]);
        }
      }
      contender.phases[phase].step_ms.push_back(1e3 * slowest.second);
      contender.phases[phase].images_per_second.push_back(images / slowest.first);
    }
  }
}

std::vector<Contender> contenders(const Options& options) {
  std::vector<Contender> list;
  const std::vector<std::string> common = {"--batch",  std::to_string(options.rank.batch),
                                           "--steps",  std::to_string(options.rank.steps),
                                           "--rounds", std::to_string(options.rank.rounds)};
  for (const std::string& model : options.models) {
    std::vector<std::string> command = {bench::this_program(), "--worker", model};
    command.insert(command.end(), common.begin(), common.end());
    if (!options.rank.sync_batch_norm) command.push_back("--no-sync-batch-norm");
    list.push_back({"Lockstep", model, command});
    if (!options.peers) continue;
    command = {"/usr/bin/env", "python3", LOCKSTEP_PEERS_DIR "/torch_ddp_train.py", "--model",
               model};
    command.insert(command.end(), common.begin(), common.end());
    list.push_back({"PyTorch", model, command});
  }
  return list;
}

bool can_import_torch() {
  try {
    bench::run_job(1, {"/usr/bin/env", "python3", "-c",
                       "import importlib.util, sys\n"
                       "sys.exit(importlib.util.find_spec('torch') is None)"});
    return true;
  } catch (const lockstep::Error&) {
    return false;
  }
}

nlohmann::json to_json(const Spread& spread) {
  return {{"low", spread.low}, {"median", spread.median}, {"high", spread.high}};
}

// Of each turn what it handles over what one rank alone does.
Spread speed_up(const Contender& c, Phase phase) {
  std::vector<double> ratios;
  for (size_t turn = 0; turn < c.phases[kOne].images_per_second.size(); ++turn) {
    ratios.push_back(c.phases[phase].images_per_second[turn] /
                     c.phases[kOne].images_per_second[turn]);
  }
  return spread_of(ratios);
}

// Writes a line of the table, and returns the same for programs.
nlohmann::json report(const Contender& c, Phase phase, const Options& options) {
  const int ranks = phase == kOne ? 1 : options.ranks;
  const Spread step = spread_of(c.phases[phase].step_ms);
  const Spread rate = spread_of(c.phases[phase].images_per_second);
  char steps[64], rates[64];
  std::snprintf(steps, sizeof steps, "%.2f (%.2f-%.2f)", step.median, step.low, step.high);
  std::snprintf(rates, sizeof rates, "%.0f (%.0f-%.0f)", rate.median, rate.low, rate.high);
  std::printf("%-9s %-6s %5d  %-9s %-24s %-24s", c.library.c_str(), c.model.c_str(), ranks,
              phase == kApart ? "apart" : "", steps, rates);
  nlohmann::json result = {{"library", c.library},
                           {"model", c.model},
                           {"phase", kPhases[phase]},
                           {"ranks", ranks},
                           {"batch_per_rank", options.rank.batch},
                           {"turns", c.phases[phase].step_ms.size()},
                           {"step_ms", to_json(step)},
                           {"images_per_second", to_json(rate)}};
  if (phase != kOne) {
    const Spread gain = speed_up(c, phase);
    std::printf(" %5.2f (%.2f-%.2f)", gain.median, gain.low, gain.high);
    result["speed_up"] = to_json(gain);
    if (phase == kTogether) {
      const double of_limit = gain.median / speed_up(c, kApart).median;
      std::printf(" %6.0f %%", 100 * of_limit);
      result["of_limit"] = of_limit;
      if (c.library == "Lockstep" && c.model == "cnn" && ranks == 2) {
        std::printf("  (goal %.1f: %s)", kGoal, gain.median >= kGoal ? "met" : "missed");
      }
    }
  }
  std::printf("\n");
  return result;
}

nlohmann::json report(const std::vector<Contender>& list, const Options& options) {
  std::printf("%-9s %-6s %5s  %-9s %-24s %-24s %-16s %8s\n", "library", "model", "ranks", "",
              "step ms", "images/s", "speed-up", "of limit");
  nlohmann::json results = nlohmann::json::array();
  for (const Contender& c : list) {
    for (const Phase phase : {kOne, kApart, kTogether})
      results.push_back(report(c, phase, options));
  }
  std::printf(
      "\nThe limit is the speed-up of ranks apart: the same training, plain and unwrapped,"
      " in processes\nthat know nothing of each other.\n");
  return results;
}

void measure(Options options) {
  if (options.peers && !can_import_torch()) {
    std::printf("python3 cannot import torch: PyTorch is left out\n");
    options.peers = false;
  }
  std::vector<Contender> list = contenders(options);
  std::printf(
      "Training, one thread and %d images on each rank; medians of %d turns (lowest-highest)\n\n",
      options.rank.batch, options.repetitions * options.rank.rounds);
  std::fflush(stdout);
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    for (Contender& contender : list) run(contender, options);
  }
  const nlohmann::json results = report(list, options);
  if (options.json.empty()) return;
  std::ofstream file(options.json, std::ios::trunc);
  file << nlohmann::json{{"benchmark", "train"}, {"results", results}}.dump(2) << '\n';
  if (!file.flush()) {
    throw lockstep::Error(lockstep::ErrorCode::kIo, "bench_train",
                          str_cat("'", options.json, "' cannot be written"));
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    if (options.help) {
      std::fputs(kUsage, stdout);
    } else if (options.worker) {
      bench::run_rank(options.rank);
    } else {
      measure(options);
    }
    return 0;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "bench_train: %s\n\n%s", error.what(), kUsage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_train: %s\n", error.what());
    return 1;
  }
}
