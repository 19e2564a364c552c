#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "train_job.h"

namespace bench {

// Each writes to standard output, and returns the same for programs.

// Steps, samples per second and speed-ups of each contender, three lines each.
nlohmann::json report_training(const std::vector<Contender>& contenders);
// One rank of each model: size, memory, time outside of kernels.
nlohmann::json report_models(const std::vector<Contender>& contenders);
// What ranks that train together spend on each other, of those whose timeline there is.
nlohmann::json report_communication(const std::vector<Contender>& contenders);
// run_costs()'s values.
nlohmann::json report_costs(const std::map<std::string, double>& costs, int ranks);

}  // namespace bench
