// Random models, wrapped, against one process that computes every rank's part itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <random>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/matmul.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/optim.h"
#include "ranks.h"

namespace lockstep::nn {
namespace {

enum class Kind { kMatmul, kScale, kShift, kNested, kTanh, kCount };

// One layer of a random model.
struct Step {
  Kind kind = Kind::kTanh;
  size_t a = 0, b = 0;      // parameters
  int every = 1;            // taken by ranks and steps whose hash is a multiple of it
  bool recomputed = false;  // its backward runs forward and a backward of its own
};

struct Plan {
  uint64_t seed = 0;
  int64_t width = 1;
  int64_t rows = 1;
  std::vector<bool> square;  // for each parameter: a matrix, or else a vector
  std::vector<bool> frozen;
  std::vector<bool> narrow;  // of dtype f32
  std::vector<Step> steps;
  int64_t bucket_bytes = 0;
  bool accumulate_over_steps = false;
  bool one_backward_for_two_forwards = false;
  double momentum = 0;
};

uint64_t hash(std::initializer_list<uint64_t> values) {
  uint64_t h = 0x9e3779b97f4a7c15u;
  for (uint64_t v : values) {
    h = (h ^ v) * 0xbf58476d1ce4e5b9u;
    h ^= h >> 29;
  }
  return h;
}

Plan random_plan(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  Plan plan;
  plan.seed = seed;
  plan.width = static_cast<int64_t>(1 + below(5));
  plan.rows = static_cast<int64_t>(1 + below(3));
  const size_t parameters = 1 + below(7);
  const bool mixed = below(4) == 0;
  for (size_t i = 0; i < parameters; ++i) {
    plan.square.push_back(below(2) == 0);
    plan.frozen.push_back(i > 0 && below(6) == 0);  // at least one learns
    plan.narrow.push_back(mixed && below(2) == 0);
  }
  for (size_t i = 0, count = 1 + below(8); i < count; ++i) {
    Step step;
    step.kind = static_cast<Kind>(below(static_cast<uint64_t>(Kind::kCount)));
    step.a = below(parameters);
    step.b = below(parameters);
    step.every = below(3) == 0 ? static_cast<int>(2 + below(3)) : 1;
    step.recomputed = below(4) == 0;
    plan.steps.push_back(step);
  }
  plan.bucket_bytes = static_cast<int64_t>(8 << below(8));
  plan.accumulate_over_steps = below(5) == 0;
  plan.one_backward_for_two_forwards = below(4) == 0;
  plan.momentum = below(2) == 0 ? 0.9 : 0;
  return plan;
}

// f(x), which is computed again when its gradient is asked for.
template <class F>
Tensor recompute(const Tensor& x, F f) {
  Tensor y;
  {
    NoGrad no_grad;
    y = f(x);
  }
  // The parameters of f want gradients even where x does not.
  const Tensor start = Tensor::scalar(0, x.options()).set_requires_grad();
  return record("recompute", y.clone(), {x, start}, [f, x = Saved(x)](const Tensor& g) {
    const EnableGrad enable;
    const Tensor input = x.get().detach().set_requires_grad();
    f(input).backward(g);
    return Tensors{input.has_grad() ? input.grad() : Tensor(), Tensor()};
  });
}

// x, recorded: its gradient goes nowhere.
Tensor identity(const Tensor& x) {
  const Tensor start = Tensor::scalar(0, x.options()).set_requires_grad();
  return record("identity", x.clone(), {start}, [](const Tensor&) { return Tensors{Tensor()}; });
}

class RandomModel : public Module {
 public:
  explicit RandomModel(const Plan& plan) : plan_(plan), parameters_(plan.square.size()) {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Shape shape = plan.square[i] ? Shape{plan.width, plan.width} : Shape{plan.width};
      Tensor values = Tensor::empty(shape, {DType::kF64});
      for (int64_t j = 0; j < values.numel(); ++j)
        values.data<double>()[j] = value({7, i, static_cast<uint64_t>(j)});
      parameters_[i] = plan.narrow[i] ? values.to(DType::kF32) : values;
      register_parameter("p" + std::to_string(i), parameters_[i]);
      parameters_[i].set_requires_grad(!plan.frozen[i]);
    }
  }

  // A number between -1 and 1 that depends on everything named.
  double value(std::initializer_list<uint64_t> what) const {
    return static_cast<double>(hash(what) ^ plan_.seed) / 9.3e18 - 1;
  }

  Tensor parameter(size_t i) const { return parameters_[i].to(DType::kF64); }

  Tensor layer(const Step& step, const Tensor& x) const {
    const auto vector = [&](size_t i) {
      const Tensor p = parameter(i);
      return plan_.square[i] ? p.select(0, 0) : p;
    };
    switch (step.kind) {
      case Kind::kMatmul:
        return plan_.square[step.a] ? matmul(x, parameter(step.a)) : x * vector(step.a);
      case Kind::kScale:
        return x * vector(step.a);
      case Kind::kShift:
        return x + vector(step.a);
      case Kind::kNested:
        return x * (vector(step.a) * vector(step.b) + vector(step.a));
      default:
        return tanh(x);
    }
  }

  Tensor loss(uint64_t rank, uint64_t step, uint64_t batch) const {
    Tensor x = Tensor::empty({plan_.rows, plan_.width}, {DType::kF64});
    for (int64_t j = 0; j < x.numel(); ++j) {
      x.data<double>()[j] = value({rank, step, batch, static_cast<uint64_t>(j)});
    }
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      const Step& layer_step = plan_.steps[i];
      if (hash({plan_.seed, i, rank, step}) % static_cast<uint64_t>(layer_step.every) != 0)
        continue;
      const auto f = [this, layer_step](const Tensor& t) { return layer(layer_step, t); };
      x = layer_step.recomputed ? recompute(x, f) : f(x);
    }
    return mean(tanh(x));
  }

  std::string type_name() const override { return "RandomModel"; }

 private:
  Plan plan_;
  std::vector<Tensor> parameters_;
};

constexpr uint64_t kSteps = 10;

// How many backwards step `step` has; all but the last are under no_sync.
uint64_t batches_of(const Plan& plan, uint64_t step) { return 1 + hash({plan.seed, step}) % 3 / 2; }

// Trains, with losses_of(step, batch) giving the losses whose backward this process runs.
template <class Backward>
void train(const Plan& plan, RandomModel& model, const Backward& backward) {
  SGD optimizer(model.named_parameters(), {.lr = 0.05, .momentum = plan.momentum});
  for (uint64_t step = 0; step < kSteps; ++step) {
    if (!plan.accumulate_over_steps || step % 3 == 0) optimizer.zero_grad();
    const uint64_t batches = batches_of(plan, step);
    for (uint64_t batch = 0; batch < batches; ++batch) backward(step, batch, batch + 1 == batches);
    optimizer.step();
  }
}

std::vector<std::vector<double>> values_of(const RandomModel& model) {
  std::vector<std::vector<double>> values;
  for (const auto& [name, tensor] : model.named_parameters()) {
    values.push_back(tensor.to(DType::kF64).to_vector<double>());
  }
  return values;
}

std::vector<std::vector<double>> trained_alone(const Plan& plan, int ranks) {
  RandomModel model(plan);
  const auto loss = [&](int rank, uint64_t step, uint64_t batch) {
    return model.loss(static_cast<uint64_t>(rank), step, batch);
  };
  train(plan, model, [&](uint64_t step, uint64_t batch, bool) {
    for (int rank = 0; rank < ranks; ++rank) {
      Tensor total = loss(rank, step, batch);
      if (plan.one_backward_for_two_forwards) total = total + loss(rank, step, batch + 100);
      if (total.requires_grad()) (total * (1.0 / ranks)).backward();
    }
  });
  return values_of(model);
}

std::vector<std::vector<double>> trained_together(const Plan& plan, int ranks) {
  std::vector<std::vector<double>> result;
  with_ranks(ranks, [&](const std::shared_ptr<comm::Communicator>& group) {
    const auto net = std::make_shared<RandomModel>(plan);
    DataParallel model(net, group,
                       {.reducer = {.first_bucket_bytes = 24, .bucket_bytes = plan.bucket_bytes}});
    const auto rank = static_cast<uint64_t>(group->rank());
    train(plan, *net, [&](uint64_t step, uint64_t batch, bool last) {
      std::optional<DataParallel::NoSync> no_sync;
      if (!last) no_sync.emplace(model.reducer());
      Tensor total = model.call([&] { return net->loss(rank, step, batch); });
      if (plan.one_backward_for_two_forwards) {
        total = total + model.call([&] { return net->loss(rank, step, batch + 100); });
      }
      // A backward is collective: a rank whose branches use no parameter takes part as well, with
      // an output of the model that has none of them in it.
      if (!total.requires_grad()) {
        total = model.call([] { return identity(Tensor::scalar(0, {DType::kF64})); });
      }
      total.backward();
    });
    model.check_in_lockstep();
    if (rank == 0) result = values_of(*net);
  });
  return result;
}

TEST(DataParallelProperty, RandomModelsLearnWhatOneProcessLearns) {
  const char* wanted = std::getenv("LOCKSTEP_TEST_MODELS");
  const uint64_t models = wanted == nullptr ? 100 : std::strtoull(wanted, nullptr, 10);
  ASSERT_GT(models, 0u);
  for (uint64_t seed = 0; seed < models; ++seed) {
    const Plan plan = random_plan(seed);
    const bool mixed = std::find(plan.narrow.begin(), plan.narrow.end(), true) != plan.narrow.end();
    const double tolerance = mixed ? 1e-4 : 1e-12;
    for (const int ranks : {1, 2, 3, 4, 7}) {
      const auto want = trained_alone(plan, ranks);
      const auto got = trained_together(plan, ranks);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        for (size_t j = 0; j < want[i].size(); ++j) {
          ASSERT_NEAR(got[i][j], want[i][j], tolerance * std::max(1.0, std::abs(want[i][j])))
              << "model " << seed << ", " << ranks << " ranks, p" << i << "[" << j << "]";
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::nn
