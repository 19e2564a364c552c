#include "lockstep/nn/checkpoint/state.h"

#include <algorithm>
#include <map>
#include <random>
#include <string_view>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint/checksum.h"
#include "lockstep/nn/checkpoint/match.h"

namespace lockstep::nn {
namespace {

// The name under which default_generator() is kept.
constexpr std::string_view kDefaultGenerator = "generator";
constexpr size_t kWordsPerGenerator = 2;  // seed, offset

std::string new_run() {
  std::random_device device;
  const auto word = [&] { return uint64_t{device()} << 32 | device(); };
  return to_hex(word()) + to_hex(word());
}

// The generators of the calling thread's state: the default one, then those that were added.
std::vector<std::pair<std::string, Generator*>> with_default(
    std::vector<std::pair<std::string, Generator*>> generators) {
  generators.insert(generators.begin(), {std::string(kDefaultGenerator), &default_generator()});
  return generators;
}

std::string generator_value_name(const std::string& name, int rank, std::string_view field) {
  return str_cat(name, "/rank", rank, ".", field);
}

// Seed and offset for `rank` from the values of all ranks that were saved (see TrainingState::add).
void plan_generator(const std::string& name, Generator& generator, const Contents& stored, int rank,
                    LoadPlan& plan) {
  std::map<std::string, uint64_t> words;
  for (const NamedValue& value : stored.values) {
    if (const auto* word = std::get_if<uint64_t>(&value.value)) words[value.name] = *word;
  }
  const auto word = [&](int r, std::string_view field) {
    const auto found = words.find(str_cat("rank", r, ".", field));
    return found == words.end() ? std::optional<uint64_t>() : found->second;
  };
  Generator loaded = generator;
  uint64_t furthest = 0;
  int ranks = 0;
  for (; word(ranks, "seed") && word(ranks, "offset"); ++ranks) {
    furthest = std::max(furthest, *word(ranks, "offset"));
    if (ranks == rank) loaded = {*word(ranks, "seed"), *word(ranks, "offset")};
  }
  if (ranks == 0 || !stored.tensors.empty() ||
      stored.values.size() != kWordsPerGenerator * static_cast<size_t>(ranks)) {
    auto& list = stored.empty() ? plan.report.missing : plan.report.mismatched;
    list.push_back(str_cat(
        name, stored.empty() ? "/… (a generator)" : ": want a seed and an offset for each rank"));
    return;
  }
  if (rank >= ranks) loaded.offset = std::max(generator.offset, furthest);
  plan.set_numbers.push_back([&generator, loaded] { generator = loaded; });
}

// "model/fc.weight" is "fc.weight" of "model"; a name without a '/' is the whole of its part.
std::pair<std::string, std::string> split_name(const std::string& name) {
  const size_t slash = name.find('/');
  if (slash == std::string::npos) return {name, ""};
  return {name.substr(0, slash), name.substr(slash + 1)};
}

std::map<std::string, Contents> by_part(const Contents& contents) {
  std::map<std::string, Contents> parts;
  for (const auto& [name, tensor] : contents.tensors) {
    const auto [part, inner] = split_name(name);
    parts[part].tensors.emplace_back(inner, tensor);
  }
  for (const NamedValue& value : contents.values) {
    const auto [part, inner] = split_name(value.name);
    parts[part].values.push_back({inner, value.value});
  }
  return parts;
}

}  // namespace

TrainingState::TrainingState() : run_(new_run()) {}
TrainingState::~TrainingState() = default;

void TrainingState::check_name(const std::string& name) const {
  check(!name.empty() && name.find('/') == std::string::npos, "training_state",
        [&] { return str_cat("want a name without '/', got '", name, "'"); });
  const auto taken = [&](const auto& entry) { return entry->name() == name; };
  const bool is_generator = std::any_of(generators_.begin(), generators_.end(),
                                        [&](const auto& entry) { return entry.first == name; });
  check(name != kDefaultGenerator && !is_generator &&
            std::none_of(parts_.begin(), parts_.end(), taken),
        "training_state", [&] { return str_cat("the name '", name, "' is taken"); });
}

void TrainingState::add_part(std::unique_ptr<StatePart> part) {
  check_name(part->name());
  parts_.push_back(std::move(part));
}

void TrainingState::add(std::string name, Module& module) {
  add_part(make_part(std::move(name), module));
}
void TrainingState::add(std::string name, Optimizer& optimizer) {
  add_part(make_part(std::move(name), optimizer));
}
void TrainingState::add_numbers(std::string name, std::function<NamedNumbers()> get,
                                std::function<void(const NamedNumbers&)> set) {
  add_part(make_part(std::move(name), std::move(get), std::move(set)));
}
void TrainingState::add(std::string name, Sampler& sampler) {
  add_part(make_part(std::move(name), sampler));
}
void TrainingState::add(std::string name, NamedTensors tensors) {
  add_part(make_part(std::move(name), std::move(tensors)));
}
void TrainingState::add(std::string name, ExponentialMovingAverage& average) {
  add_part(make_part(std::move(name), average));
}
void TrainingState::add(std::string name, DataLoader& loader) {
  add_part(make_part(std::move(name), loader));
}
void TrainingState::add(std::string name, Generator& generator) {
  check_name(name);
  generators_.emplace_back(std::move(name), &generator);
}
void TrainingState::add(std::string name, Tensor& tensor) {
  add_part(make_part(std::move(name), tensor));
}
void TrainingState::add(std::string name, int64_t& value) {
  add_part(make_part(std::move(name), value));
}
void TrainingState::add(std::string name, uint64_t& value) {
  add_part(make_part(std::move(name), value));
}
void TrainingState::add(std::string name, double& value) {
  add_part(make_part(std::move(name), value));
}
void TrainingState::add(std::string name, std::string& value) {
  add_part(make_part(std::move(name), value));
}

Contents StateAccess::collect(const TrainingState& state) {
  Contents contents;
  for (const auto& part : state.parts_) part->collect(contents);
  for (const auto& entry : contents.tensors) {
    check(entry.second.defined(), "save_checkpoint",
          [&] { return str_cat("the tensor '", entry.first, "' is undefined"); });
  }
  return contents;
}

GeneratorWords StateAccess::generators(const TrainingState& state) {
  GeneratorWords words;
  for (const auto& [name, generator] : with_default(state.generators_)) {
    words.push_back(generator->seed);
    words.push_back(generator->offset);
  }
  return words;
}

void StateAccess::add_generators(const TrainingState& state, const GeneratorWords& words,
                                 std::vector<NamedValue>& values) {
  const auto generators = with_default(state.generators_);
  const size_t per_rank = generators.size() * kWordsPerGenerator;
  for (size_t at = 0; at < words.size(); at += kWordsPerGenerator) {
    const std::string& name = generators[at % per_rank / kWordsPerGenerator].first;
    const int rank = static_cast<int>(at / per_rank);
    values.push_back({generator_value_name(name, rank, "seed"), words[at]});
    values.push_back({generator_value_name(name, rank, "offset"), words[at + 1]});
  }
}

LoadPlan StateAccess::plan(TrainingState& state, const Contents& contents, int rank) {
  std::map<std::string, Contents> stored = by_part(contents);
  const auto take = [&](const std::string& name) {
    const auto node = stored.extract(name);
    return node.empty() ? Contents() : std::move(node.mapped());
  };
  LoadPlan plan;
  for (const auto& part : state.parts_) part->plan(take(part->name()), plan);
  for (const auto& [name, generator] : with_default(state.generators_)) {
    plan_generator(name, *generator, take(name), rank, plan);
  }
  for (const auto& [part, rest] : stored) {
    const auto full = [&part = part](const std::string& inner) {
      return inner.empty() ? part : part + "/" + inner;
    };
    for (const auto& [inner, tensor] : rest.tensors) plan.report.unexpected.push_back(full(inner));
    for (const NamedValue& value : rest.values) plan.report.unexpected.push_back(full(value.name));
  }
  return plan;
}

NamedTensors state_dict(const Module& module) {
  NamedTensors tensors = module.named_parameters();
  for (auto& buffer : module.named_buffers(/*persistent_only=*/true)) {
    tensors.push_back(std::move(buffer));
  }
  return tensors;
}

}  // namespace lockstep::nn
