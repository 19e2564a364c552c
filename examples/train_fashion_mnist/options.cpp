#include "options.h"

#include <charconv>
#include <functional>
#include <limits>
#include <map>
#include <vector>

namespace {

// `lowest` and more, but no infinity, which the spelling of a double allows.
template <class T>
T parse_number(const std::string& option, std::string_view text, T lowest) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !(value >= lowest) ||
      value > std::numeric_limits<T>::max()) {
    throw UsageError(option + " wants a number that is at least " +
                     std::to_string(lowest).substr(0, 8) + ", got '" + std::string(text) + "'");
  }
  return value;
}

std::string one_of(const std::string& option, std::string_view text,
                   const std::vector<std::string>& choices) {
  std::string list;
  for (const std::string& choice : choices) {
    if (text == choice) return choice;
    list += (list.empty() ? "" : " or ") + choice;
  }
  throw UsageError(option + " wants " + list + ", got '" + std::string(text) + "'");
}

// Options that take a value, and what they do with it.
using Setter = std::function<void(const std::string& option, std::string_view value)>;

std::map<std::string, Setter, std::less<>> value_options(Options& o) {
  const auto integer = [](int64_t& target, int64_t lowest) {
    return [&target, lowest](const std::string& option, std::string_view value) {
      target = parse_number<int64_t>(option, value, lowest);
    };
  };
  const auto text = [](std::string& target) {
    return [&target](const std::string& option, std::string_view value) {
      if (value.empty()) throw UsageError(option + " wants a directory, got nothing");
      target = value;
    };
  };
  return {
      {"--epochs", integer(o.epochs, 1)},
      {"--batch-size", integer(o.batch_size, 1)},
      {"--limit", integer(o.limit, 0)},
      {"--checkpoint-every", integer(o.checkpoint_every, 0)},
      {"--data", text(o.data)},
      {"--out", text(o.out)},
      {"--workers",
       [&o](auto& name, auto value) { o.workers = parse_number<int>(name, value, 0); }},
      {"--seed", [&o](auto& name, auto value) { o.seed = parse_number<uint64_t>(name, value, 0); }},
      {"--lr", [&o](auto& name, auto value) { o.lr = parse_number<double>(name, value, 0); }},
      {"--model",
       [&o](auto& name, auto value) {
         o.model = one_of(name, value, {"cnn", "mlp"});
       }},
      {"--optimizer",
       [&o](auto& name, auto value) {
         o.optimizer = one_of(name, value, {"adamw", "sgd"});
       }},
  };
}

}  // namespace

Options parse_options(int argc, const char* const* argv) {
  Options options;
  const auto with_value = value_options(options);
  const std::map<std::string, std::function<void()>, std::less<>> flags = {
      {"--resume", [&] { options.resume = true; }},
      {"--save-on-sigterm", [&] { options.save_on_sigterm = true; }},
      {"--no-sync-batch-norm", [&] { options.sync_batch_norm = false; }},
      {"--help", [&] { options.help = true; }},
      {"-h", [&] { options.help = true; }},
  };
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string name(argument.substr(0, equals));
    if (const auto flag = flags.find(name); flag != flags.end()) {
      if (equals != std::string_view::npos) throw UsageError(name + " takes no value");
      flag->second();
    } else if (const auto option = with_value.find(name); option != with_value.end()) {
      if (equals == std::string_view::npos && ++i == argc) {
        throw UsageError(name + " wants a value after it");
      }
      option->second(name, equals == std::string_view::npos ? std::string_view(argv[i])
                                                            : argument.substr(equals + 1));
    } else {
      throw UsageError("there is no option '" + std::string(argument) + "'");
    }
  }
  return options;
}

double default_lr(const Options& options) { return options.optimizer == "sgd" ? 0.1 : 4e-3; }

std::string usage(std::string_view program) {
  const Options d;
  const auto number = [](auto value) { return std::to_string(value); };
  return "Trains a small network on Fashion-MNIST, data-parallel over the ranks of a job.\n\n"
         "  " +
         std::string(program) +
         " [options]                    one rank\n"
         "  lockstep run -n 2 " +
         std::string(program) +
         " [options]  two ranks\n\n"
         "Training\n"
         "  --model cnn|mlp        two convolutions, or a 784-1024-1024-10 perceptron (" +
         d.model +
         ")\n"
         "  --epochs N             times through the training set (" +
         number(d.epochs) +
         ")\n"
         "  --batch-size N         images in a step of all ranks together (" +
         number(d.batch_size) +
         ")\n"
         "  --optimizer adamw|sgd  sgd has Nesterov momentum (" +
         d.optimizer +
         ")\n"
         "  --lr RATE              at its peak, after a warm-up; then it falls by a cosine\n"
         "                         (0.004 for adamw, 0.1 for sgd)\n"
         "  --seed N               of weights and shuffling (" +
         number(d.seed) +
         ")\n"
         "  --limit N              train on the first N images only\n"
         "  --no-sync-batch-norm   batch norm over each rank's own images\n\n"
         "Data\n"
         "  --data DIR             the IDX files (" +
         d.data +
         ")\n"
         "  --workers N            threads of each rank that load ahead (" +
         number(d.workers) +
         ")\n\n"
         "Results\n"
         "  --out DIR              checkpoints, metrics.csv and curves.svg (" +
         d.out +
         ")\n"
         "  --checkpoint-every N   steps between checkpoints; there is one after each epoch too\n"
         "  --resume               go on from the newest checkpoint in --out\n"
         "  --save-on-sigterm      save and end well when the machine is taken away\n";
}
