#include "trainer.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/fingerprint.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "model.h"

namespace comm = lockstep::comm;
namespace nn = lockstep::nn;
using lockstep::Error;
using lockstep::ErrorCode;
using lockstep::str_cat;
using lockstep::Tensor;

namespace {

constexpr const char* kName = "train_fashion_mnist";
constexpr int64_t kMeasurementsPerEpoch = 50;
constexpr int64_t kTestBatch = 500;

std::string fixed(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

std::string percent(double value) { return fixed(100 * value, 2) + " %"; }

// 1234567 as 1,234,567.
std::string grouped(int64_t value) {
  std::string digits = std::to_string(value);
  for (auto place = static_cast<int64_t>(digits.size()) - 3; place > 0; place -= 3) {
    digits.insert(static_cast<size_t>(place), ",");
  }
  return digits;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void Totals::add(const Tensor& logits, const Tensor& target, double mean_loss) {
  const lockstep::NoGrad no_grad;
  const auto count = static_cast<double>(target.size(0));
  loss += mean_loss * count;
  images += count;
  const Tensor guess = lockstep::argmax(logits, 1);
  const int64_t* guesses = guess.data<int64_t>();
  const int64_t* targets = target.data<int64_t>();
  for (int64_t i = 0; i < target.size(0); ++i) correct += guesses[i] == targets[i] ? 1 : 0;
}

void Totals::add(const Totals& other) {
  loss += other.loss;
  correct += other.correct;
  images += other.images;
}

void Totals::sum_over(comm::Communicator& group) {
  double sums[] = {loss, correct, images};
  group.all_reduce(sums, sums, 3, lockstep::DType::kF64, comm::ReduceOp::kSum).wait();
  loss = sums[0];
  correct = sums[1];
  images = sums[2];
}

Trainer::Trainer(const Options& options, std::shared_ptr<comm::Communicator> group)
    : options_(options),
      group_(std::move(group)),
      test_set_(nn::FashionMnist::Split::kTest, options.data) {
  const int ranks = group_->size();
  if (options_.batch_size % ranks != 0) {
    throw UsageError(str_cat("--batch-size ", options_.batch_size,
                             " is the batch of all ranks together, and cannot be shared out among ",
                             ranks, " ranks; choose a multiple of ", ranks));
  }
  auto train_set =
      std::make_shared<nn::FashionMnist>(nn::FashionMnist::Split::kTrain, options_.data);
  const int64_t images =
      options_.limit == 0 ? train_set->size() : std::min(options_.limit, train_set->size());
  if (images < options_.batch_size) {
    throw UsageError(str_cat("--batch-size ", options_.batch_size, " is more than the ", images,
                             " training images; choose a smaller one, or a larger --limit"));
  }
  // Steps are whole batches: the few images left over in an epoch come in other epochs' steps.
  auto sampler = std::make_shared<nn::DistributedSampler>(
      images, ranks, group_->rank(),
      nn::DistributedSamplerOptions{.seed = options_.seed, .drop_last = true});
  loader_ = std::make_unique<nn::DataLoader>(
      train_set, sampler,
      nn::DataLoaderOptions{.batch_size = options_.batch_size / ranks,
                            .drop_last = true,
                            .workers = options_.workers,
                            .seed = options_.seed});

  lockstep::manual_seed(options_.seed);
  net_ = make_model(options_.model);
  if (options_.sync_batch_norm) nn::convert_sync_batchnorm(net_, group_);
  model_.emplace(net_, group_);
  make_optimizer();
  describe_state();
}

void Trainer::make_optimizer() {
  const double lr = options_.lr.value_or(default_lr(options_));
  const nn::NamedTensors parameters = net_->named_parameters();
  if (options_.optimizer == "sgd") {
    optimizer_ = std::make_unique<nn::SGD>(
        parameters,
        nn::SGDOptions{.lr = lr, .momentum = 0.9, .weight_decay = 5e-4, .nesterov = true});
  } else {
    optimizer_ =
        std::make_unique<nn::AdamW>(parameters, nn::AdamWOptions{.lr = lr, .weight_decay = 1e-2});
  }
  const int64_t steps = options_.epochs * steps_per_epoch();
  schedule_ = std::make_unique<nn::CosineAnnealingLR>(
      *optimizer_,
      nn::CosineAnnealingLROptions{.t_max = steps, .eta_min = 0, .warmup_steps = steps / 20});
}

void Trainer::run() {
  prepare_output();
  describe();
  if (options_.resume) resume();
  if (is_main()) metrics_.emplace(options_.out, step_);
  progress_.emplace(is_main() ? Progress::style_of_output() : Progress::Style::kQuiet,
                    options_.epochs, steps_per_epoch(), options_.batch_size);
  if (options_.save_on_sigterm) stop_.emplace();
  while (loader_->state().epoch < options_.epochs && !stopped_) train_epoch();
  if (loader_->state().epoch < options_.epochs) return report_stop();
  if (images_here_ == 0) test_accuracy_ = evaluate().accuracy();  // resumed at the end
  report();
}

void Trainer::describe() const {
  if (!is_main()) return;
  const bool sync = options_.sync_batch_norm && group_->size() > 1 && options_.model == "cnn";
  const int threads = lockstep::num_threads();
  std::printf("model     %s, %s parameters%s\n", options_.model.c_str(),
              grouped(net_->parameter_count()).c_str(), sync ? ", SyncBatchNorm" : "");
  std::printf("ranks     %d%s, %d thread%s each\n", group_->size(),
              group_->size() > 1 ? (" over " + group_->transport()).c_str() : "", threads,
              threads == 1 ? "" : "s");
  std::printf("data      %s\n", options_.data.c_str());
  std::printf(
      "training  %lld epoch%s of %lld steps of %lld images, %s, learning rate %g, seed %llu\n",
      static_cast<long long>(options_.epochs), options_.epochs == 1 ? "" : "s",
      static_cast<long long>(steps_per_epoch()), static_cast<long long>(options_.batch_size),
      options_.optimizer.c_str(), options_.lr.value_or(default_lr(options_)),
      static_cast<unsigned long long>(options_.seed));
  std::printf("output    %s\n", options_.out.c_str());
  std::fflush(stdout);
}

void Trainer::train_epoch() {
  net_->train();
  const int64_t epoch = loader_->state().epoch;
  const int64_t done_before = loader_->state().batches_done;
  const int64_t interval = std::max<int64_t>(1, steps_per_epoch() / kMeasurementsPerEpoch);
  const auto start = std::chrono::steady_clock::now();
  progress_->start_epoch(epoch, done_before);
  for (nn::Batch& batch : *loader_) {
    step(batch);
    const int64_t done = loader_->state().batches_done;
    const bool epoch_ends = done == steps_per_epoch();
    if (stop_) stopped_ = stop_->came(group_.get());
    const bool is_due = options_.checkpoint_every > 0 && step_ % options_.checkpoint_every == 0;
    const bool save_now = (is_due || stopped_) && !epoch_ends;
    // A checkpoint holds the epoch's totals up to its step.
    if ((done % interval == 0 || save_now) && !epoch_ends) {
      const Measurement measurement = measure();
      if (metrics_) metrics_->add(measurement);
    }
    progress_->step(done, last_loss_);
    if (save_now) save();
    if (stopped_) break;
  }
  const int64_t done = loader_->state().batches_done;
  images_here_ += (done - done_before) * options_.batch_size;
  seconds_here_ += seconds_since(start);
  if (done == steps_per_epoch()) finish_epoch();
}

void Trainer::step(nn::Batch& batch) {
  optimizer_->zero_grad();
  const Tensor logits = model_->forward(batch.input);
  const Tensor loss = lockstep::cross_entropy(logits, batch.target);
  loss.backward();
  optimizer_->step();
  schedule_->step();
  ++step_;
  gathered_.add(logits, batch.target, loss.item());
}

Measurement Trainer::measure() {
  gathered_.sum_over(*group_);
  const Totals gathered = std::exchange(gathered_, Totals());
  epoch_.add(gathered);
  last_loss_ = gathered.mean_loss();
  if (!std::isfinite(last_loss_)) {
    throw Error(ErrorCode::kInvalidArgument, kName,
                str_cat("the loss is ", last_loss_, " after step ", step_,
                        "; try a smaller --lr than ", options_.lr.value_or(default_lr(options_))));
  }
  return {.step = step_,
          .epoch = static_cast<double>(step_) / static_cast<double>(steps_per_epoch()),
          .train_loss = gathered.mean_loss(),
          .train_accuracy = gathered.accuracy(),
          .lr = optimizer_->lr()};
}

Totals Trainer::evaluate() {
  const lockstep::NoGrad no_grad;
  net_->eval();
  // Batch norms that are not synchronised have statistics of their own on each rank.
  nn::broadcast_values(net_->named_buffers(), *group_);
  // Every image once, whether or not the ranks divide them.
  std::vector<int64_t> share;
  for (int64_t i = group_->rank(); i < test_set_.size(); i += group_->size()) share.push_back(i);
  Totals totals;
  for (size_t begin = 0; begin < share.size(); begin += kTestBatch) {
    const auto indices = std::span(share).subspan(begin);
    const nn::Batch batch =
        test_set_.batch(indices.first(std::min<size_t>(indices.size(), kTestBatch)));
    const Tensor logits = net_->forward(batch.input);
    totals.add(logits, batch.target, lockstep::cross_entropy(logits, batch.target).item());
  }
  totals.sum_over(*group_);
  return totals;
}

void Trainer::finish_epoch() {
  Measurement measurement = measure();
  const Totals test = evaluate();
  test_accuracy_ = test.accuracy();
  measurement.test_loss = test.mean_loss();
  measurement.test_accuracy = test.accuracy();
  const int64_t epoch = loader_->state().epoch;
  progress_->say(str_cat("epoch ", epoch + 1, "/", options_.epochs, "  train loss ",
                         fixed(epoch_.mean_loss(), 4), "  train accuracy ",
                         percent(epoch_.accuracy()), "  test loss ", fixed(test.mean_loss(), 4),
                         "  test accuracy ", percent(test.accuracy())));
  if (metrics_) {
    metrics_->add(measurement);
    metrics_->draw();
  }
  epoch_ = Totals();
  loader_->set_epoch(epoch + 1);
  save();
}

void Trainer::report_stop() {
  if (!is_main()) return;
  progress_.reset();
  std::printf("stopped by SIGTERM after step %lld of %lld, which is saved; --resume goes on\n",
              static_cast<long long>(step_),
              static_cast<long long>(options_.epochs * steps_per_epoch()));
  std::fflush(stdout);
}

void Trainer::report() {
  const nn::NamedTensors parameters = net_->named_parameters();
  nn::check_same_values(parameters, *group_, kName);
  if (!is_main()) return;
  const int ranks = group_->size();
  progress_.reset();
  std::printf("test accuracy %s\n", percent(test_accuracy_).c_str());
  if (seconds_here_ > 0) {
    const double rate = static_cast<double>(images_here_) / seconds_here_;
    std::printf("%s images in %.1f s: %.0f images/s, %.0f on each rank\n",
                grouped(images_here_).c_str(), seconds_here_, rate, rate / ranks);
  }
  std::printf("parameters %016llx%s\n",
              static_cast<unsigned long long>(nn::fingerprint(parameters)),
              ranks > 1 ? str_cat(", the same bits on all ", ranks, " ranks").c_str() : "");
  std::fflush(stdout);
}
