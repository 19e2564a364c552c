#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <vector>

// How training stands after a step. What was not measured then is NaN.
struct Measurement {
  int64_t step = 0;
  double epoch = 0;  // times through the training set, with fractions
  double train_loss = NAN;
  double train_accuracy = NAN;
  double test_loss = NAN;
  double test_accuracy = NAN;
  double lr = NAN;
};

// The run's measurements: metrics.csv grows by a line for each, curves.svg is drawn on request.
class Metrics {
 public:
  // Files in `directory`. A new run (step 0) begins them anew; one that goes on after `step` keeps
  // the lines up to it. Throws lockstep::Error(kIo), as do the others.
  Metrics(const std::filesystem::path& directory, int64_t step);

  void add(const Measurement& measurement);
  void draw() const;

 private:
  void write_line(const Measurement& measurement);

  std::filesystem::path directory_;
  std::vector<Measurement> measurements_;
  std::ofstream csv_;
};
