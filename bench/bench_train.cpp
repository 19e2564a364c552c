// How many samples per second does training handle, and how much do several ranks gain over one?
//
// Starts its own ranks as processes of one thread each, on the CPU or on CUDA devices. One rank
// alone, ranks that know nothing of each other (the machine's limit) and ranks that train one model
// take turns (train_rank.h), and speed-ups are medians of the turns' own ratios, so that a machine
// that slows down slows all of them. Each rank trains on one random batch that lies in memory, as
// the peers do.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "devices.h"
#include "job.h"
#include "lockstep/kernels/device.h"
#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "train_job.h"
#include "train_models.h"
#include "train_report.h"

namespace {

using lockstep::Device;
using lockstep::DType;

struct Options {
  bool worker = false;          // this process is a rank
  bool together_alone = false;  // this rank trains for a timeline
  int costs_of = 0;             // this process is a rank that measures costs, as often as this
  bench::RankOptions rank;
  std::optional<int> batch, tokens;  // for every model
  std::vector<std::string> models;   // empty: those that fit where they run
  int ranks = 2;
  int repetitions = 3;
  bool costs = true;
  bool peers = false;
  std::string timeline;
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
    "  --models LIST         of cnn, mlp, gpt, resnet and gpt2, with commas between, or tiny\n"
    "                        (all of the former; gpt2 on CUDA devices alone)\n"
    "  --device LIST         cpu, or CUDA devices: cuda:0 for all ranks, cuda:0,cuda:1 for each "
    "(cpu)\n"
    "  --dtype NAME          f32, or bf16: by autocast, with weights in f32 (f32)\n"
    "  --ranks N             compared with 1 rank, at least 2 (2)\n"
    "  --batch N             samples in a step of each rank (cnn, mlp: 128; else 8)\n"
    "  --tokens N            of a sample (gpt: 128, gpt2: 1024, tiny: 8), at most that many\n"
    "  --steps N             timed in each turn (10)\n"
    "  --turns N             of each job: one rank, all apart, all together (3)\n"
    "  --repetitions N       jobs (3)\n"
    "  --no-sync-batch-norm  batch norm over each rank's own samples, as PyTorch's on a CPU\n"
    "  --no-costs            leave out what DataParallel costs by itself, as on CUDA devices\n"
    "  --timeline FILE       keep the timeline of the first model's ranks together\n"
    "  --peers               the same with PyTorch, if python3 has one for the device\n"
    "  --json FILE           the results for programs\n";

std::vector<std::string> split(const std::string& name, const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  if (parts.empty()) throw UsageError(name + " wants names");
  return parts;
}

std::vector<std::string> split_models(const std::string& text) {
  const std::vector<std::string>& known = bench::task_names();
  const std::vector<std::string> models = split("--models", text);
  for (const std::string& model : models) {
    if (std::find(known.begin(), known.end(), model) == known.end()) {
      throw UsageError("there is no model '" + model + "'");
    }
  }
  return models;
}

// What parse() returns, whose errors are the command line's.
template <class Parse>
auto usage_of(const Parse& parse) {
  try {
    return parse();
  } catch (const lockstep::Error& error) {
    throw UsageError(error.what());
  }
}

DType to_dtype(const std::string& text) {
  if (text == "f32") return DType::kF32;
  if (text == "bf16") return DType::kBF16;
  throw UsageError("--dtype wants f32 or bf16, got '" + text + "'");
}

int to_number(const std::string& name, const std::string& text) {
  int number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || *stop != '\0' || number < 1) {
    throw UsageError(name + " wants a number that is at least 1, got '" + text + "'");
  }
  return number;
}

// Of a sample of the model.
int tokens_of(const std::string& model, std::optional<int> wanted) {
  const int most = bench::most_tokens(model);
  if (most == 0) return 0;
  if (wanted.value_or(most) > most) {
    throw UsageError("--tokens wants at most " + std::to_string(most) + " for " + model + ", got " +
                     std::to_string(*wanted));
  }
  return wanted.value_or(most);
}

Options parse(int argc, char** argv) {
  Options options;
  const std::map<std::string, int*> numbers = {{"--ranks", &options.ranks},
                                               {"--steps", &options.rank.steps},
                                               {"--turns", &options.rank.turns},
                                               {"--repetitions", &options.repetitions},
                                               {"--costs-of", &options.costs_of}};
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&] {
      if (++i == argc) throw UsageError(name + " wants a value after it");
      return std::string(argv[i]);
    };
    if (const auto number = numbers.find(name); number != numbers.end()) {
      *number->second = to_number(name, value());
    } else if (name == "--batch") {
      options.batch = to_number(name, value());
    } else if (name == "--tokens") {
      options.tokens = to_number(name, value());
    } else if (name == "--device") {
      options.rank.devices = usage_of([&] { return bench::parse_devices(value()); });
    } else if (name == "--dtype") {
      options.rank.dtype = to_dtype(value());
    } else if (name == "--models") {
      options.models = split_models(value());
    } else if (name == "--worker") {
      options.worker = true;
      options.rank.task = value();
    } else if (name == "--together-alone") {
      options.together_alone = true;
    } else if (name == "--timeline") {
      options.timeline = value();
    } else if (name == "--json") {
      options.json = value();
    } else if (name == "--no-sync-batch-norm") {
      options.rank.sync_batch_norm = false;
    } else if (name == "--no-costs") {
      options.costs = false;
    } else if (name == "--peers") {
      options.peers = true;
    } else if (name == "--help" || name == "-h") {
      options.help = true;
    } else {
      throw UsageError("there is no option '" + name + "'");
    }
  }
  if (options.ranks < 2) throw UsageError("--ranks wants at least 2: it is compared with 1");
  if (!options.worker) {
    usage_of([&] { return bench::devices_of(options.rank.devices, options.ranks); });
  }
  options.rank.batch = options.batch.value_or(options.rank.batch);
  options.rank.tokens = options.tokens.value_or(options.rank.tokens);
  if (options.models.empty()) options.models = bench::default_tasks(options.rank.on_device());
  return options;
}

// What a command line says of where and how its rank trains.
std::vector<std::string> arguments_of(const bench::RankOptions& rank) {
  std::string devices;
  for (const Device device : rank.devices) {
    devices += (devices.empty() ? "" : ",") + device.name();
  }
  std::vector<std::string> arguments = {"--batch",  std::to_string(rank.batch),
                                        "--steps",  std::to_string(rank.steps),
                                        "--turns",  std::to_string(rank.turns),
                                        "--device", devices,
                                        "--dtype",  std::string(lockstep::name(rank.dtype))};
  if (rank.tokens > 0) {
    arguments.insert(arguments.end(), {"--tokens", std::to_string(rank.tokens)});
  }
  return arguments;
}

// Beside the program where it was taken elsewhere, else where it was built.
std::string peers_folder() {
  const auto beside = std::filesystem::path(bench::this_program()).parent_path() / "peers";
  return std::filesystem::exists(beside) ? beside.string() : LOCKSTEP_PEERS_DIR;
}

std::vector<bench::Contender> contenders(const Options& options) {
  std::vector<bench::Contender> list;
  for (const std::string& model : options.models) {
    bench::RankOptions rank = options.rank;
    rank.task = model;
    rank.batch = options.batch.value_or(bench::default_batch(model));
    rank.tokens = tokens_of(model, options.tokens);
    const std::vector<std::string> common = arguments_of(rank);
    std::vector<std::string> command = {bench::this_program(), "--worker", model};
    command.insert(command.end(), common.begin(), common.end());
    if (!rank.sync_batch_norm) command.push_back("--no-sync-batch-norm");
    list.push_back({"Lockstep", rank, options.ranks, command});
    if (!options.peers) continue;
    command = {"/usr/bin/env", "python3", peers_folder() + "/torch_ddp_train.py", "--model", model};
    command.insert(command.end(), common.begin(), common.end());
    list.push_back({"PyTorch", rank, options.ranks, command});
  }
  return list;
}

// Whether python3 has PyTorch, for devices where they are wanted.
bool has_torch(const bench::RankOptions& rank) {
  std::string program =
      "import importlib.util, sys\n"
      "sys.exit(importlib.util.find_spec('torch') is None)";
  if (rank.on_device()) program = "import sys, torch\nsys.exit(not torch.cuda.is_available())";
  try {
    bench::run_job(1, {"/usr/bin/env", "python3", "-c", program});
    return true;
  } catch (const lockstep::Error&) {
    return false;
  }
}

void write_json(const std::string& path, const nlohmann::json& results) {
  std::ofstream file(path, std::ios::trunc);
  file << results.dump(2) << '\n';
  if (!file.flush()) {
    throw lockstep::Error(lockstep::ErrorCode::kIo, "bench_train",
                          lockstep::str_cat("'", path, "' cannot be written"));
  }
}

void measure(Options options) {
  for (const Device device : options.rank.devices) require_device(device, "bench_train");
  if (options.peers && !has_torch(options.rank)) {
    std::printf("python3 has no PyTorch%s: it is left out\n",
                options.rank.on_device() ? " that sees a CUDA device" : "");
    options.peers = false;
  }
  std::vector<bench::Contender> list = contenders(options);
  std::printf("Training in %s, one thread on each rank",
              std::string(lockstep::name(options.rank.dtype)).c_str());
  if (options.rank.on_device()) {
    std::printf(", on");
    for (const Device device : options.rank.devices) std::printf(" %s", device.name().c_str());
  }
  std::printf("; medians of %d turns (lowest-highest)\n\n",
              options.repetitions * options.rank.turns);
  std::fflush(stdout);
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    for (bench::Contender& contender : list) run(contender);
  }
  nlohmann::json results = {{"benchmark", "train"}};
  results["results"] = bench::report_training(list);
  results["models"] = bench::report_models(list);
  for (bench::Contender& contender : list) {
    if (contender.library != "Lockstep") continue;
    watch(contender, &contender == list.data() ? options.timeline : "");
  }
  results["communication"] = bench::report_communication(list);
  std::fflush(stdout);
  if (options.costs && !options.rank.on_device()) {
    constexpr int kCostRepetitions = 2000;
    results["costs"] =
        bench::report_costs(bench::run_costs_job(options.ranks, kCostRepetitions), options.ranks);
  }
  if (!options.json.empty()) write_json(options.json, results);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    if (options.help) {
      std::fputs(kUsage, stdout);
    } else if (options.worker && options.together_alone) {
      bench::run_together(options.rank);
    } else if (options.worker) {
      bench::run_rank(options.rank);
    } else if (options.costs_of > 0) {
      bench::run_costs(options.costs_of);
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
