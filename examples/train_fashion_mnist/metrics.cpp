#include "metrics.h"

#include <cstdlib>
#include <optional>
#include <string>

#include "chart.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"

namespace fs = std::filesystem;

namespace {

constexpr const char* kHeader =
    "step,epoch,train_loss,train_accuracy,test_loss,test_accuracy,learning_rate";

// The columns after the first, in their order.
constexpr double Measurement::*kColumns[] = {&Measurement::epoch,          &Measurement::train_loss,
                                             &Measurement::train_accuracy, &Measurement::test_loss,
                                             &Measurement::test_accuracy,  &Measurement::lr};

[[noreturn]] void fail(const fs::path& path, const char* what) {
  throw lockstep::Error(lockstep::ErrorCode::kIo, "metrics",
                        lockstep::str_cat("'", path.string(), "' cannot be ", what,
                                          "; see that its directory exists and has room"));
}

// nullopt for a line that is not whole, as a killed run may leave one.
std::optional<Measurement> parse_line(const std::string& line) {
  Measurement measurement;
  char* at = nullptr;
  measurement.step = std::strtoll(line.c_str(), &at, 10);
  if (at == line.c_str()) return std::nullopt;
  for (const auto column : kColumns) {
    if (*at != ',') return std::nullopt;
    const char* field = at + 1;
    const double value = std::strtod(field, &at);
    measurement.*column = at == field ? NAN : value;
  }
  return *at == '\0' ? std::optional(measurement) : std::nullopt;
}

std::vector<Measurement> read_until(const fs::path& path, int64_t step) {
  std::vector<Measurement> measurements;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    const std::optional<Measurement> measurement = parse_line(line);
    if (measurement && measurement->step <= step) measurements.push_back(*measurement);
  }
  return measurements;
}

}  // namespace

Metrics::Metrics(const fs::path& directory, int64_t step) : directory_(directory) {
  const fs::path path = directory / "metrics.csv";
  if (step > 0) measurements_ = read_until(path, step);
  csv_.open(path, std::ios::trunc);
  csv_ << kHeader << '\n';
  for (const Measurement& measurement : measurements_) write_line(measurement);
  if (!csv_.flush()) fail(path, "written");
}

void Metrics::add(const Measurement& measurement) {
  measurements_.push_back(measurement);
  write_line(measurement);
  if (!csv_.flush()) fail(directory_ / "metrics.csv", "written");
}

void Metrics::write_line(const Measurement& measurement) {
  csv_ << measurement.step;
  for (const auto column : kColumns) {
    csv_ << ',';
    if (!std::isnan(measurement.*column)) csv_ << measurement.*column;
  }
  csv_ << '\n';
}

void Metrics::draw() const {
  const auto series = [&](const char* name, double Measurement::*column, bool markers) {
    Series line{.name = name, .points = {}, .markers = markers};
    for (const Measurement& m : measurements_) line.points.emplace_back(m.epoch, m.*column);
    return line;
  };
  const Panel loss{.title = "Loss",
                   .x_label = "epoch",
                   .percent = false,
                   .series = {series("training", &Measurement::train_loss, false),
                              series("test", &Measurement::test_loss, true)}};
  const Panel accuracy{.title = "Accuracy",
                       .x_label = "epoch",
                       .percent = true,
                       .series = {series("training", &Measurement::train_accuracy, false),
                                  series("test", &Measurement::test_accuracy, true)}};
  const fs::path path = directory_ / "curves.svg";
  std::ofstream file(path, std::ios::trunc);
  file << chart_svg("Fashion-MNIST", {loss, accuracy});
  if (!file.flush()) fail(path, "written");
}
