// A run that was interrupted and goes on is the run that was not (case 25 of the public reports).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>

#include "checkpoint_files.h"
#include "checkpoint_model.h"
#include "lockstep/core/ops.h"
#include "lockstep/nn/activation.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/dropout.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/schedule.h"
#include "lockstep/nn/sequential.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "ranks.h"

namespace lockstep::nn {
namespace {

using testing::bytes_of;
using testing::pattern_tensor;
using testing::TemporaryDirectory;

constexpr int64_t kSamples = 60;
constexpr int64_t kGlobalBatch = 12;
constexpr int64_t kSteps = 13;  // two epochs and three steps
constexpr int64_t kSaveEvery = 3;
constexpr int64_t kInterrupted = 8;  // so the save of step 6 is the last

struct Plan {
  int ranks = 2;
  uint64_t seed = 1;
  bool dropout = true;
  int64_t steps = kSteps;
  bool resume = false;
};

// By step: the mean loss over the ranks; and the parameters at the end.
struct Course {
  std::map<int64_t, double> losses;
  std::string parameters;
};

// One rank of a run, as a program writes it.
void train(const Plan& plan, const std::filesystem::path& folder,
           const std::shared_ptr<comm::Communicator>& group, Course& course) {
  manual_seed(plan.seed * 100 + static_cast<uint64_t>(group->rank()));
  const auto net = std::make_shared<Sequential>(
      std::make_shared<Linear>(5, 17), std::make_shared<BatchNorm1d>(17), std::make_shared<ReLU>(),
      std::make_shared<Dropout>(plan.dropout ? 0.3 : 0), std::make_shared<Linear>(17, 3));
  convert_sync_batchnorm(net, group);
  DataParallel model(net, group);
  AdamW optimizer(net->named_parameters(), {.lr = 0.05});
  CosineAnnealingLR schedule(optimizer, {.t_max = 20, .warmup_steps = 4});
  const auto data = std::make_shared<TensorDataset>(pattern_tensor({kSamples, 5}, 3),
                                                    pattern_tensor({kSamples, 3}, 2));
  const auto sampler = std::make_shared<DistributedSampler>(kSamples, group->size(), group->rank(),
                                                            DistributedSamplerOptions{.seed = 5});
  DataLoader loader(data, sampler,
                    {.batch_size = kGlobalBatch / group->size(), .workers = 2, .seed = 9});
  int64_t step = 0;
  TrainingState state;
  state.add("model", model);
  state.add("optimizer", optimizer);
  state.add("schedule", schedule);
  state.add("loader", loader);
  state.add("step", step);
  if (plan.resume) {
    ASSERT_EQ(load_latest(folder, state, {.group = group.get()})->step, 6);
    ASSERT_EQ(step, 6);
  }
  AsyncCheckpointer saver(folder, {.group = group.get()});
  while (step < plan.steps) {
    for (Batch& batch : loader) {
      const Tensor loss = mse_loss(model(batch.input), batch.target);
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      schedule.step();
      double mean = loss.item();
      group->all_reduce(&mean, &mean, 1, DType::kF64, comm::ReduceOp::kAvg).wait();
      if (group->rank() == 0) course.losses[step] = mean;
      ++step;
      if (step % kSaveEvery == 0) saver.save(step, state);
      if (step == plan.steps) break;
    }
  }
  saver.wait();
  if (group->rank() == 0) course.parameters = bytes_of(state_dict(*net));
}

Course run(const Plan& plan, const std::filesystem::path& folder) {
  Course course;
  with_ranks(plan.ranks, [&](std::shared_ptr<comm::Communicator> group) {
    train(plan, folder, group, course);
  });
  return course;
}

TEST(CheckpointResume, AnInterruptedRunGoesOnWithTheSameBits) {
  for (const int ranks : {1, 2, 3}) {
    const TemporaryDirectory dir;
    const Course whole = run({.ranks = ranks}, dir / "whole");
    run({.ranks = ranks, .steps = kInterrupted}, dir / "interrupted");
    // Another seed: nothing may come from the start of the second half.
    const Course rest = run({.ranks = ranks, .seed = 2, .resume = true}, dir / "interrupted");
    ASSERT_EQ(rest.losses.size(), static_cast<size_t>(kSteps - 6));
    for (const auto& [step, loss] : rest.losses) {
      EXPECT_EQ(loss, whole.losses.at(step)) << ranks << " ranks, step " << step;
    }
    EXPECT_EQ(rest.parameters, whole.parameters);
    EXPECT_NE(run({.ranks = ranks, .seed = 2}, dir / "other").parameters, whole.parameters);
  }
}

TEST(CheckpointResume, AtAnotherNumberOfRanksTheLossesAgreeToRounding) {
  const TemporaryDirectory dir;
  const Course whole = run({.ranks = 2, .dropout = false}, dir / "whole");
  for (const int ranks : {1, 3, 4}) {
    const auto folder = dir / std::to_string(ranks);
    run({.ranks = 2, .dropout = false, .steps = kInterrupted}, folder);
    const Course rest = run({.ranks = ranks, .seed = 2, .dropout = false, .resume = true}, folder);
    ASSERT_EQ(rest.losses.size(), static_cast<size_t>(kSteps - 6));
    for (const auto& [step, loss] : rest.losses) {
      // f32 sums of the same few dozen terms in another order, over up to seven steps of Adam.
      EXPECT_NEAR(loss, whole.losses.at(step), 2e-5) << ranks << " ranks, step " << step;
    }
  }
}

}  // namespace
}  // namespace lockstep::nn
