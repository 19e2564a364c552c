#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/data/data_loader.h"
#include "lockstep/nn/data/fashion_mnist.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/optim.h"
#include "lockstep/nn/schedule.h"
#include "lockstep/nn/stop_signal.h"
#include "metrics.h"
#include "options.h"
#include "progress.h"

// Sums over images: of this rank's, or of all ranks' once sum_over() ran.
struct Totals {
  double loss = 0;
  double correct = 0;
  double images = 0;

  void add(const lockstep::Tensor& logits, const lockstep::Tensor& target, double mean_loss);
  void add(const Totals& other);
  // Collective.
  void sum_over(lockstep::comm::Communicator& group);
  double mean_loss() const { return loss / images; }
  double accuracy() const { return correct / images; }
};

// One run of training, on one rank of a job. Every rank makes one with the same options and calls
// run(); rank 0 reports.
class Trainer {
 public:
  Trainer(const Options& options, std::shared_ptr<lockstep::comm::Communicator> group);
  void run();

 private:
  bool is_main() const { return group_->rank() == 0; }
  int64_t steps_per_epoch() const { return loader_->size(); }

  void make_optimizer();
  void prepare_output();
  void describe() const;
  void resume();
  void save();
  void describe_state();

  void train_epoch();
  void step(lockstep::nn::Batch& batch);
  // Adds what the ranks gathered since the last time to the epoch's totals.
  Measurement measure();
  Totals evaluate();
  void finish_epoch();
  void report_stop();
  void report();

  Options options_;
  std::shared_ptr<lockstep::comm::Communicator> group_;
  lockstep::nn::FashionMnist test_set_;
  std::shared_ptr<lockstep::nn::Module> net_;
  std::optional<lockstep::nn::DataParallel> model_;
  std::unique_ptr<lockstep::nn::Optimizer> optimizer_;
  std::unique_ptr<lockstep::nn::Schedule> schedule_;
  std::unique_ptr<lockstep::nn::DataLoader> loader_;

  lockstep::nn::TrainingState state_;
  std::string settings_;  // that must be the same when a run goes on

  std::optional<Metrics> metrics_;  // of rank 0
  std::optional<Progress> progress_;

  std::optional<lockstep::nn::StopSignal> stop_;  // if wanted
  bool stopped_ = false;                          // it came; the same on every rank

  int64_t step_ = 0;        // steps done since the run's start
  Totals gathered_;         // of this rank since the last measure()
  Totals epoch_;            // of all ranks since the epoch's start
  double last_loss_ = NAN;  // of all ranks, as of the last measure()
  double test_accuracy_ = 0;
  int64_t images_here_ = 0;  // that this process and its peers trained on
  double seconds_here_ = 0;  // that this took
};
