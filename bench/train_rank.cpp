#include "train_rank.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/optim.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "train_fashion_mnist/model.h"

namespace bench {
namespace {

namespace nn = lockstep::nn;
using lockstep::Tensor;

constexpr int kWarmUpSteps = 3;  // once: memory is found, and buckets get their layout

// A model that is trained on one batch, over and over.
class Trainer {
 public:
  // `group` null: plain and unwrapped.
  Trainer(const RankOptions& options, std::shared_ptr<lockstep::comm::Communicator> group,
          int rank) {
    lockstep::manual_seed(1);
    net_ = make_model(options.model);
    if (group != nullptr) {
      if (options.sync_batch_norm) nn::convert_sync_batchnorm(net_, group);
      net_ = std::make_shared<nn::DataParallel>(net_, group);
    }
    optimizer_ = std::make_unique<nn::SGD>(net_->named_parameters(),
                                           nn::SGDOptions{.lr = 0.01, .momentum = 0.9});
    lockstep::manual_seed(2 + static_cast<uint64_t>(rank));
    input_ = lockstep::randn({options.batch, 1, 28, 28});
    target_ = lockstep::randint(0, 10, {options.batch});
  }

  void step() {
    optimizer_->zero_grad();
    lockstep::cross_entropy(net_->forward(input_), target_).backward();
    optimizer_->step();
  }

  void steps(int count) {
    for (int i = 0; i < count; ++i) step();
  }

  // Writes the phase's line.
  void timed_steps(const char* phase, int count) {
    std::vector<double> seconds;
    for (int i = 0; i < count; ++i) {
      const auto start = std::chrono::steady_clock::now();
      step();
      seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
    std::nth_element(seconds.begin(), seconds.begin() + count / 2, seconds.end());
    std::printf("%s %.9f %.9f\n", phase, sum, seconds[static_cast<size_t>(count / 2)]);
  }

 private:
  std::shared_ptr<nn::Module> net_;
  std::unique_ptr<nn::Optimizer> optimizer_;
  Tensor input_, target_;
};

}  // namespace

void run_rank(const RankOptions& options) {
  const auto group = lockstep::comm::init();
  const bool is_first = group->rank() == 0;
  const auto alone = group->split(group->rank(), 0);
  Trainer one(options, alone, 0), apart(options, nullptr, group->rank()),
      together(options, group, group->rank());
  if (is_first) one.steps(kWarmUpSteps);
  apart.steps(kWarmUpSteps);
  together.steps(kWarmUpSteps);
  for (int round = 0; round < options.rounds; ++round) {
    group->barrier().wait();
    if (is_first) {
      one.step();
      one.timed_steps("one", options.steps);
    }
    group->barrier().wait();
    apart.step();
    group->barrier().wait();
    apart.timed_steps("apart", options.steps);
    group->barrier().wait();
    together.step();
    together.timed_steps("together", options.steps);
  }
}

}  // namespace bench
