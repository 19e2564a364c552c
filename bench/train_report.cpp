#include "train_report.h"

#include <algorithm>
#include <cstdio>

namespace bench {
namespace {

// Speed-ups of two ranks over one, by model; and of one rank over PyTorch's.
const std::map<std::string, double> kSpeedUpGoals = {{"cnn", 1.7}, {"mlp", 1.9}, {"gpt", 1.95}};
constexpr double kPeerGoal = 1.2;
constexpr double kWrapperGoal = 0.01;
constexpr double kIterationGoalUs = 60;

nlohmann::json to_json(const Spread& spread) {
  return {{"low", spread.low}, {"median", spread.median}, {"high", spread.high}};
}

bool has_goals(const RankOptions& options) {
  return !options.on_device() && options.dtype == lockstep::DType::kF32;
}

const char* verdict(bool met) { return met ? "met" : "missed"; }

nlohmann::json report(const Contender& c, Phase phase) {
  const Spread step = spread_of(c.phases[phase].step_ms);
  const Spread rate = spread_of(c.phases[phase].samples_per_second);
  char steps[64], rates[64], tokens[32] = "";
  std::snprintf(steps, sizeof steps, "%.2f (%.2f-%.2f)", step.median, step.low, step.high);
  std::snprintf(rates, sizeof rates, "%.0f (%.0f-%.0f)", rate.median, rate.low, rate.high);
  if (c.options.tokens > 0) {
    std::snprintf(tokens, sizeof tokens, "%.0f", c.options.tokens * rate.median);
  }
  std::printf("%-9s %-6s %5d  %-6s %-24s %-24s %9s", c.library.c_str(), c.options.task.c_str(),
              c.ranks_in(phase), phase == kApart ? "apart" : "", steps, rates, tokens);
  nlohmann::json result = {{"library", c.library},
                           {"model", c.options.task},
                           {"phase", name(phase)},
                           {"ranks", c.ranks_in(phase)},
                           {"batch_per_rank", c.options.batch},
                           {"turns", c.phases[phase].step_ms.size()},
                           {"step_ms", to_json(step)},
                           {"samples_per_second", to_json(rate)}};
  if (c.options.tokens > 0) {
    const double each = c.options.tokens;
    result["tokens_per_second"] = to_json({each * rate.low, each * rate.median, each * rate.high});
  }
  if (phase != kOne) {
    const Spread gain = c.speed_up(phase);
    std::printf(" %4.2f (%.2f-%.2f)", gain.median, gain.low, gain.high);
    result["speed_up"] = to_json(gain);
    if (phase == kTogether) {
      const double of_limit = gain.median / c.speed_up(kApart).median;
      std::printf(" %7.0f %%", 100 * of_limit);
      result["of_limit"] = of_limit;
      const auto goal = kSpeedUpGoals.find(c.options.task);
      if (c.library == "Lockstep" && c.ranks == 2 && has_goals(c.options) &&
          goal != kSpeedUpGoals.end()) {
        std::printf("  (goal %.2f: %s)", goal->second, verdict(gain.median >= goal->second));
      }
    }
  }
  std::printf("\n");
  return result;
}

// The contender that trains the same with another library; null where there is none.
const Contender* peer_of(const Contender& contender, const std::vector<Contender>& all) {
  const auto peer = std::find_if(all.begin(), all.end(), [&](const Contender& other) {
    return other.options.task == contender.options.task && other.library != contender.library;
  });
  return peer == all.end() ? nullptr : &*peer;
}

}  // namespace

nlohmann::json report_training(const std::vector<Contender>& contenders) {
  std::printf("%-9s %-6s %5s  %-6s %-24s %-24s %9s %-16s %9s\n", "library", "model", "ranks", "",
              "step ms", "samples/s", "tokens/s", "speed-up", "of limit");
  nlohmann::json results = nlohmann::json::array();
  for (const Contender& c : contenders) {
    for (const Phase phase : kPhases) results.push_back(report(c, phase));
  }
  std::printf(
      "\nThe limit is the speed-up of ranks apart: the same training, plain and unwrapped, in "
      "processes\nthat know nothing of each other.\n");
  return results;
}

nlohmann::json report_models(const std::vector<Contender>& contenders) {
  std::printf("\n%-9s %-6s %11s %6s %9s %11s %16s\n", "library", "model", "parameters", "batch",
              "step ms", "memory MiB", "outside kernels");
  nlohmann::json results = nlohmann::json::array();
  for (const Contender& c : contenders) {
    const char* const memory = c.options.on_device() ? "device_memory" : "memory";
    const double step_ms = spread_of(c.phases[kOne].step_ms).median;
    std::printf("%-9s %-6s %11.0f %6d %9.2f %11.0f", c.library.c_str(), c.options.task.c_str(),
                c.values.at("parameters"), c.options.batch, step_ms,
                c.values.at(memory) / (1 << 20));
    nlohmann::json result = {{"library", c.library},
                             {"model", c.options.task},
                             {"parameters", c.values.at("parameters")},
                             {"memory_bytes", c.values.at("memory")}};
    if (c.options.on_device()) result["device_memory_bytes"] = c.values.at(memory);
    if (const auto inside = c.values.find("in_kernels"); inside != c.values.end()) {
      std::printf(" %14.1f %%", 100 * (1 - inside->second));
      result["outside_kernels"] = 1 - inside->second;
    } else {
      std::printf(" %16s", "");
    }
    const Contender* peer = peer_of(c, contenders);
    if (c.library == "Lockstep" && peer != nullptr) {
      const double speed = spread_of(peer->phases[kOne].step_ms).median / step_ms;
      const double size = c.values.at(memory) / peer->values.at(memory);
      const char* const other = peer->library.c_str();
      std::printf("  %.2f times %s's speed, %.2f times its memory", speed, other, size);
      if (has_goals(c.options)) {
        std::printf(" (goal for speed %.1f: %s)", kPeerGoal, verdict(speed >= kPeerGoal));
      }
      result["over_peer"] = speed;
      result["memory_over_peer"] = size;
    }
    std::printf("\n");
    results.push_back(std::move(result));
  }
  std::printf(
      "\nOne rank. Memory is what the process grew by until steps ran: model, gradients, "
      "optimiser,\nactivations, and a library's own work space; on a device the most that was "
      "allocated there.\n");
  return results;
}

nlohmann::json report_communication(const std::vector<Contender>& contenders) {
  std::printf("\n%-9s %-6s %5s %9s %19s %19s %13s\n", "library", "model", "ranks", "step ms",
              "exposed ms", "hidden ms", "to agree us");
  nlohmann::json results = nlohmann::json::array();
  for (const Contender& c : contenders) {
    if (!c.communication) continue;
    const auto& [step, exposed, hidden, agreement] = *c.communication;
    std::printf("%-9s %-6s %5d %9.2f %10.3f (%4.1f %%) %10.3f (%4.1f %%) %13.1f\n",
                c.library.c_str(), c.options.task.c_str(), c.ranks, 1e3 * step, 1e3 * exposed,
                100 * exposed / step, 1e3 * hidden, 100 * hidden / step, 1e6 * agreement);
    results.push_back({{"library", c.library},
                       {"model", c.options.task},
                       {"ranks", c.ranks},
                       {"step_seconds", step},
                       {"exposed_seconds", exposed},
                       {"hidden_seconds", hidden},
                       {"agreement_seconds", agreement}});
  }
  std::printf(
      "\nCommunication of rank 0 in a step, from its timeline. Exposed: training waits for other "
      "ranks or\nruns a collective itself; hidden: a collective runs while training goes on. The "
      "agreement on used\nparameters is the last collective of a backward. Of a device these are "
      "its "
      "own waits and collectives;\nwhat it loses where its host meets other ranks is in \"of "
      "limit\" "
      "alone.\n");
  return results;
}

nlohmann::json report_costs(const std::map<std::string, double>& costs, int ranks) {
  const double wrapper = costs.at("wrapper");
  const double iteration = 1e6 * costs.at("iteration");
  const double collectives = 1e6 * costs.at("collectives");
  const double agreement = 1e6 * costs.at("agreement");
  const double fixed = iteration - collectives;
  std::printf("\nDataParallel by itself\n");
  std::printf("  in a group of one, of a step of the mlp        %6.2f %%   (goal %.0f %%: %s)\n",
              100 * wrapper, 100 * kWrapperGoal, verdict(wrapper <= kWrapperGoal));
  std::printf(
      "  an iteration of %.0f small parameters, %d ranks  %6.1f us  over its collectives' "
      "%.1f us (goal %.0f us: %s)\n",
      costs.at("small_parameters"), ranks, fixed, collectives, kIterationGoalUs,
      verdict(fixed <= kIterationGoalUs));
  std::printf("  of these, to agree on who used what           %6.1f us\n", agreement);
  return {{"ranks", ranks},
          {"wrapper_fraction", wrapper},
          {"iteration_us", iteration},
          {"collectives_us", collectives},
          {"agreement_us", agreement}};
}

}  // namespace bench
