// PyTorch from C++ on the questions of bench_kernels' small/: nanoseconds of an op on 8 numbers,
// without and with a graph, and of ten products, a sum and backward. One line each: name, median of
// nine rounds.

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>

namespace {

double median_ns(const std::function<void()>& run, int runs) {
  using Clock = std::chrono::steady_clock;
  std::array<double, 9> rounds{};
  for (double& round : rounds) {
    const auto start = Clock::now();
    for (int i = 0; i < runs; ++i) run();
    round = std::chrono::duration<double, std::nano>(Clock::now() - start).count() / runs;
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

void print(const char* name, const std::function<void()>& run, int runs) {
  median_ns(run, runs / 10);  // warms up
  std::printf("%s %.1f\n", name, median_ns(run, runs));
}

}  // namespace

int main() {
  at::set_num_threads(1);
  const auto eight = [](bool requires_grad) {
    return torch::linspace(0.5, 1.5, 8).set_requires_grad(requires_grad);
  };
  const torch::Tensor a = eight(false);
  const torch::Tensor b = eight(false);
  torch::Tensor with_graph = eight(true);
  print(
      "small/mul", [&] { a* b; }, 100000);
  print(
      "small/mul_number", [&] { a * 1.5; }, 100000);
  print(
      "small/exp", [&] { torch::exp(a); }, 100000);
  print(
      "small/mul_with_graph", [&] { with_graph* b; }, 50000);
  print(
      "small/exp_with_graph", [&] { torch::exp(with_graph); }, 50000);
  const auto chain = [&] {
    torch::Tensor y = with_graph;
    for (int i = 0; i < 10; ++i) y = y * b;
    y.sum().backward();
    with_graph.mutable_grad() = torch::Tensor();
  };
  print("small/ten_muls_sum_backward", chain, 3000);
}
