// What an op costs beside its arithmetic: element-wise ops on 8 numbers, and backward through a
// few of them.

#include <benchmark/benchmark.h>

#include "kernels_limits.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops.h"

namespace lockstep::bench {
namespace {

// Goals in nanoseconds. PyTorch 1.13 from C++ takes 579, 1139 and 40000 on one core of 2026.
constexpr double kGoal = 150;
constexpr double kGoalWithGraph = 300;
constexpr double kGoalOfChain = 8000;

Tensor eight(bool requires_grad) {
  return Tensor::linspace(0.5, 1.5, 8).to(device()).set_requires_grad(requires_grad);
}

void mul(benchmark::State& state) {
  const Tensor a = eight(false), b = eight(false);
  for (auto _ : state) benchmark::DoNotOptimize(a * b);
  report_goal_ns(state, kGoal);
}
BENCHMARK(mul)->Name("small/mul");

void mul_number(benchmark::State& state) {
  const Tensor a = eight(false);
  for (auto _ : state) benchmark::DoNotOptimize(a * 1.5);
  report_goal_ns(state, kGoal);
}
BENCHMARK(mul_number)->Name("small/mul_number");

void exponential(benchmark::State& state) {
  const Tensor a = eight(false);
  for (auto _ : state) benchmark::DoNotOptimize(exp(a));
  report_goal_ns(state, kGoal);
}
BENCHMARK(exponential)->Name("small/exp");

void mul_with_graph(benchmark::State& state) {
  const Tensor a = eight(true), b = eight(false);
  for (auto _ : state) benchmark::DoNotOptimize(a * b);
  report_goal_ns(state, kGoalWithGraph);
}
BENCHMARK(mul_with_graph)->Name("small/mul_with_graph");

void exponential_with_graph(benchmark::State& state) {
  const Tensor a = eight(true);
  for (auto _ : state) benchmark::DoNotOptimize(exp(a));
  report_goal_ns(state, kGoalWithGraph);
}
BENCHMARK(exponential_with_graph)->Name("small/exp_with_graph");

void chain(benchmark::State& state) {
  Tensor a = eight(true);
  const Tensor b = eight(false);
  for (auto _ : state) {
    Tensor y = a;
    for (int i = 0; i < 10; ++i) y = y * b;
    sum(y).backward();
    a.clear_grad();
  }
  report_goal_ns(state, kGoalOfChain);
}
BENCHMARK(chain)->Name("small/ten_muls_sum_backward");

}  // namespace
}  // namespace lockstep::bench
