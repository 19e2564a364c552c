#include "train_rank.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/world.h"
#include "lockstep/core/autocast.h"
#include "lockstep/core/ops.h"
#include "lockstep/kernels/kernel_clock.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/stream.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/loss.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "train_models.h"

namespace bench {
namespace {

namespace nn = lockstep::nn;
using Group = std::shared_ptr<lockstep::comm::Communicator>;

constexpr int kWarmUpSteps = 3;  // once: memory is found, and buckets get their layout

// A model that is trained on one batch, over and over.
class Trainer {
 public:
  // `group` null: plain and unwrapped.
  Trainer(const RankOptions& options, const Group& group, int rank)
      : device_(options.device_of(rank)),
        dtype_(options.dtype),
        task_(make_task(options.task, options.batch, options.tokens, rank, device_)),
        net_(task_.net) {
    if (group != nullptr) {
      if (options.sync_batch_norm) nn::convert_sync_batchnorm(net_, group);
      net_ = std::make_shared<nn::DataParallel>(net_, group);
    }
    optimizer_ = make_optimizer(options.task, net_->named_parameters());
    steps(kWarmUpSteps);
  }

  // The device has finished them when it returns.
  void steps(int count) {
    for (int i = 0; i < count; ++i) {
      optimizer_->zero_grad();
      loss().backward();
      optimizer_->step();
    }
    current_stream(device_).synchronize();
  }

  std::vector<double> timed_steps(int count) {
    const int at_once = device_.is_cpu() ? 1 : count;
    std::vector<double> seconds;
    for (int i = 0; i < count; i += at_once) {
      const auto start = std::chrono::steady_clock::now();
      steps(at_once);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      seconds.insert(seconds.end(), static_cast<size_t>(at_once), took.count() / at_once);
    }
    return seconds;
  }

  int64_t parameters() const { return net_->parameter_count(); }

 private:
  lockstep::Tensor loss() const {
    const lockstep::Autocast autocast(lockstep::DType::kBF16, dtype_ == lockstep::DType::kBF16);
    const lockstep::Tensor logits = net_->forward(task_.input);
    return cross_entropy(reshape(logits, {task_.target.numel(), -1}), task_.target);
  }

  lockstep::Device device_;
  lockstep::DType dtype_;
  Task task_;
  std::shared_ptr<nn::Module> net_;
  std::unique_ptr<nn::Optimizer> optimizer_;
};

double median(std::vector<double> values) {
  const auto half = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), half, values.end());
  return *half;
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

void write_phase(const char* phase, const std::vector<double>& seconds) {
  std::printf("%s %.9f %.9f\n", phase, sum(seconds), median(seconds));
}

void write_value(const char* name, double value) { std::printf("%s %.9g\n", name, value); }

int64_t most_memory() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

// What else there is to say of one rank.
void write_use(Trainer& one, const RankOptions& options) {
  if (options.on_device()) {
    const lockstep::MemoryStats stats = lockstep::memory_stats(options.device_of(0));
    write_value("device_memory", static_cast<double>(stats.peak_in_use));
    return;  // the host only launches kernels
  }
  const lockstep::KernelClock clock;
  const double seconds = sum(one.timed_steps(options.steps));
  write_value("in_kernels", std::chrono::duration<double>(clock.in_kernels()).count() / seconds);
}

// Joins the job, for collectives over the memory of this rank's device.
Group join(const RankOptions& options) {
  const int rank = lockstep::comm::world_from_environment().rank;
  lockstep::comm::Options wanted;
  wanted.device = options.device_of(rank);
  return lockstep::comm::init(wanted);
}

}  // namespace

void run_rank(const RankOptions& options) {
  const Group group = join(options);
  const Group alone = group->split(group->rank());
  const bool is_first = group->rank() == 0;
  const int64_t memory_before = most_memory();
  Trainer one(options, alone, group->rank());
  if (is_first) {
    write_value("parameters", static_cast<double>(one.parameters()));
    write_value("memory", static_cast<double>(most_memory() - memory_before));
    write_use(one, options);
  }
  Trainer apart(options, nullptr, group->rank()), together(options, group, group->rank());
  for (int turn = 0; turn < options.turns; ++turn) {
    group->barrier().wait();
    if (is_first) {
      one.steps(1);
      write_phase("one", one.timed_steps(options.steps));
    }
    group->barrier().wait();
    apart.steps(1);
    group->barrier().wait();
    write_phase("apart", apart.timed_steps(options.steps));
    group->barrier().wait();
    together.steps(1);
    write_phase("together", together.timed_steps(options.steps));
  }
}

void run_together(const RankOptions& options) {
  const Group group = join(options);
  Trainer(options, group, group->rank()).steps(options.steps);
}

namespace {

// All its parameters in one product, so that little but their number costs anything.
class ManySmall : public nn::Module {
 public:
  static constexpr int64_t kParameters = 200;

  ManySmall() {
    for (int64_t i = 0; i < kParameters; ++i) {
      parameters_.push_back(lockstep::Tensor::ones({16}));
    }
    for (size_t i = 0; i < parameters_.size(); ++i) {
      register_parameter("p" + std::to_string(i), parameters_[i]);
    }
  }
  lockstep::Tensor forward(const lockstep::Tensor& x) override { return cat(parameters_) * x; }
  std::string type_name() const override { return "ManySmall"; }

 private:
  std::vector<lockstep::Tensor> parameters_;
};

template <class F>
double seconds_of(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Step by step in turns, since it is smaller than what a machine's speed changes by in a second.
double wrapper_cost(const Group& alone, int repetitions) {
  const RankOptions options = {.task = "mlp", .batch = default_batch("mlp")};
  Trainer plain(options, nullptr, 0), wrapped(options, alone, 0);
  std::vector<double> ratios;
  for (int i = 0; i < repetitions; ++i) {
    const double first = seconds_of([&] { plain.steps(1); });
    const double second = seconds_of([&] { wrapped.steps(1); });
    const double third = seconds_of([&] { wrapped.steps(1); });
    const double fourth = seconds_of([&] { plain.steps(1); });
    ratios.push_back((second + third) / (first + fourth));
  }
  return median(std::move(ratios)) - 1;
}

}  // namespace

void run_costs(int repetitions) {
  const Group group = lockstep::comm::init();
  const Group alone = group->split(group->rank());
  if (group->rank() == 0) {
    write_value("wrapper", wrapper_cost(alone, std::max(1, repetitions / 10)));
  }
  group->barrier().wait();

  const auto plain = std::make_shared<ManySmall>(), inner = std::make_shared<ManySmall>();
  nn::DataParallel wrapped(inner, group);
  const lockstep::Tensor x = lockstep::Tensor::ones({16 * ManySmall::kParameters});
  const auto iterate = [&](nn::Module& model) {
    model.zero_grad();
    lockstep::sum(model.forward(x)).backward();
  };
  const auto memory = group->allocate(static_cast<size_t>(x.nbytes()));
  std::vector<int64_t> votes(ManySmall::kParameters + 4);
  std::vector<double> iterations, collectives, agreements;
  for (int i = -10; i < repetitions; ++i) {
    const auto agree = [&] {
      group
          ->all_reduce(votes.data(), votes.data(), static_cast<int64_t>(votes.size()),
                       lockstep::DType::kI64, lockstep::comm::ReduceOp::kMax)
          .wait();
    };
    group->barrier().wait();
    const double without = seconds_of([&] { iterate(*plain); });
    group->barrier().wait();
    const double with = seconds_of([&] { iterate(wrapped); });
    group->barrier().wait();
    const double both = seconds_of([&] {
      group
          ->all_reduce(memory.get(), memory.get(), x.numel(), lockstep::DType::kF32,
                       lockstep::comm::ReduceOp::kAvg)
          .wait();
      agree();
    });
    group->barrier().wait();
    const double agreement = seconds_of(agree);
    if (i < 0) continue;
    iterations.push_back(with - without);
    collectives.push_back(both);
    agreements.push_back(agreement);
  }
  if (group->rank() != 0) return;
  write_value("small_parameters", ManySmall::kParameters);
  write_value("iteration", median(iterations));
  write_value("collectives", median(collectives));
  write_value("agreement", median(agreements));
}

}  // namespace bench
