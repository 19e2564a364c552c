// How many images per second does training handle, and how much do two ranks gain over one?
//
// Starts its own ranks as processes of one thread each. Jobs of one rank and of several take turns,
// so that a machine that slows down slows both; the figures are medians over the turns. Each rank
// trains on one batch of random images that lies in memory, as the peers do.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "job.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/core/random.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/optim.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "train_fashion_mnist/model.h"

namespace nn = lockstep::nn;
using lockstep::str_cat;
using lockstep::Tensor;

namespace {

constexpr int kWarmUpSteps = 5;
constexpr double kGoal = 1.7;  // of the cnn on two ranks

struct Options {
  std::string worker;  // a model: this process is a rank
  std::vector<std::string> models = {"cnn", "mlp"};
  int ranks = 2;
  int batch = 128;
  int steps = 20;
  int repetitions = 5;
  bool sync_batch_norm = true;
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
    "  --steps N             timed in each turn, after a warm-up (20)\n"
    "  --repetitions N       turns (5)\n"
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
                                               {"--batch", &options.batch},
                                               {"--steps", &options.steps},
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
      options.worker = value();
    } else if (name == "--json") {
      options.json = value();
    } else if (name == "--no-sync-batch-norm") {
      options.sync_batch_norm = false;
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

// One rank: trains, and writes the seconds of each timed step.
void work(const Options& options) {
  const auto group = lockstep::comm::init();
  lockstep::manual_seed(1);
  auto net = make_model(options.worker);
  if (options.sync_batch_norm) nn::convert_sync_batchnorm(net, group);
  nn::DataParallel model(net, group);
  nn::SGD optimizer(net->named_parameters(), {.lr = 0.01, .momentum = 0.9});
  lockstep::manual_seed(2 + static_cast<uint64_t>(group->rank()));
  const Tensor input = lockstep::randn({options.batch, 1, 28, 28});
  const Tensor target = lockstep::randint(0, 10, {options.batch});
  for (int step = 0; step < kWarmUpSteps + options.steps; ++step) {
    const auto start = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    lockstep::cross_entropy(model.forward(input), target).backward();
    optimizer.step();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (step >= kWarmUpSteps) std::printf("%.9f\n", seconds.count());
  }
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

// A program that trains a model on some ranks, and its figures, one for each turn.
struct Contender {
  std::string library;
  std::string model;
  int ranks = 1;
  std::vector<std::string> command;
  std::vector<double> step_ms = {};  // the median step of the turn
  std::vector<double> images_per_second = {};
};

std::vector<double> read_seconds(const std::string& text, const Options& options) {
  std::vector<double> seconds;
  std::stringstream stream(text);
  for (double value; stream >> value;) seconds.push_back(value);
  if (static_cast<int>(seconds.size()) != options.steps || !stream.eof()) {
    throw lockstep::Error(lockstep::ErrorCode::kInternal, "bench_train",
                          str_cat("want ", options.steps, " times from a rank, got '", text, "'"));
  }
  return seconds;
}

// The job is as fast as its slowest rank over the whole turn. Step by step the slowest would be
// counted twice: what one rank loses after a step's last meeting, the other waits for in the next.
void take_turn(Contender& contender, const Options& options) {
  double total = 0;
  Spread slowest;
  for (const std::string& text : bench::run_job(contender.ranks, contender.command)) {
    const std::vector<double> seconds = read_seconds(text, options);
    const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
    if (sum <= total) continue;
    total = sum;
    slowest = spread_of(seconds);
  }
  contender.step_ms.push_back(1e3 * slowest.median);
  contender.images_per_second.push_back(contender.ranks * options.batch * options.steps / total);
}

std::vector<Contender> contenders(const Options& options) {
  std::vector<Contender> list;
  const std::vector<std::string> common = {"--batch", std::to_string(options.batch), "--steps",
                                           std::to_string(options.steps)};
  for (const std::string& model : options.models) {
    for (const int ranks : {1, options.ranks}) {
      std::vector<std::string> command = {bench::this_program(), "--worker", model};
      command.insert(command.end(), common.begin(), common.end());
      if (!options.sync_batch_norm) command.push_back("--no-sync-batch-norm");
      list.push_back({"Lockstep", model, ranks, command});
      if (!options.peers) continue;
      command = {"/usr/bin/env", "python3", LOCKSTEP_PEERS_DIR "/torch_ddp_train.py", "--model",
                 model};
      command.insert(command.end(), common.begin(), common.end());
      list.push_back({"PyTorch", model, ranks, command});
    }
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

// Writes the table, and returns the same for programs.
nlohmann::json report(const std::vector<Contender>& list, const Options& options) {
  std::printf("%-9s %-6s %5s  %-24s %-24s %9s %11s\n", "library", "model", "ranks", "step ms",
              "images/s", "speed-up", "efficiency");
  nlohmann::json results = nlohmann::json::array();
  std::map<std::string, double> alone;  // images/s on one rank
  for (const Contender& c : list) {
    const Spread step = spread_of(c.step_ms), rate = spread_of(c.images_per_second);
    char steps[64], rates[64];
    std::snprintf(steps, sizeof steps, "%.2f (%.2f-%.2f)", step.median, step.low, step.high);
    std::snprintf(rates, sizeof rates, "%.0f (%.0f-%.0f)", rate.median, rate.low, rate.high);
    std::printf("%-9s %-6s %5d  %-24s %-24s", c.library.c_str(), c.model.c_str(), c.ranks, steps,
                rates);
    nlohmann::json result = {{"library", c.library},
                             {"model", c.model},
                             {"ranks", c.ranks},
                             {"batch_per_rank", options.batch},
                             {"repetitions", options.repetitions},
                             {"step_ms", to_json(step)},
                             {"images_per_second", to_json(rate)}};
    const auto [one, first] = alone.try_emplace(c.library + c.model, rate.median);
    if (!first) {
      const double speed_up = rate.median / one->second;
      std::printf(" %9.2f %9.0f %%", speed_up, 100 * speed_up / c.ranks);
      if (c.library == "Lockstep" && c.model == "cnn" && c.ranks == 2) {
        std::printf("  (goal %.1f: %s)", kGoal, speed_up >= kGoal ? "met" : "missed");
      }
      result["speed_up"] = speed_up;
    }
    std::printf("\n");
    results.push_back(std::move(result));
  }
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
      options.batch, options.repetitions);
  std::fflush(stdout);
  for (int turn = 0; turn < options.repetitions; ++turn) {
    for (Contender& contender : list) take_turn(contender, options);
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
    } else if (!options.worker.empty()) {
      work(options);
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
