// Model-agnostic meta-learning (Finn, Abbeel and Levine, 2017) on sine waves: weights from which
// one step of gradient descent on ten points of an unknown wave is enough to follow it.
#include <cmath>
#include <cstdio>
#include <numbers>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

struct Wave {
  double amplitude, phase;

  Tensor operator()(const Tensor& x) const { return sin(x + phase) * amplitude; }
};

Wave random_wave() {
  const Tensor u = rand({2});
  return {0.5 + 4 * u.select(0, 0).item(), std::numbers::pi * u.select(0, 1).item()};
}

Tensor points() { return rand({10, 1}) * 10 - 5; }

// `parameters` after one step down the loss on ten points, as a function of `parameters`.
nn::NamedTensors adapted(nn::Module& net, nn::NamedTensors parameters, const Wave& wave) {
  const Tensor x = points();
  const Tensor loss = mse_loss(nn::functional_call(net, parameters, x), wave(x));
  Tensors values;
  for (const auto& [name, value] : parameters) values.push_back(value);
  const Tensors slopes = grad({loss}, values, {}, {.create_graph = true});
  for (size_t i = 0; i < values.size(); ++i) {
    parameters[i].second = values[i] - 0.01 * slopes[i];
  }
  return parameters;
}

}  // namespace

int main() {
  manual_seed(1);
  nn::Sequential net(std::make_shared<nn::Linear>(1, 40), std::make_shared<nn::Tanh>(),
                     std::make_shared<nn::Linear>(40, 40), std::make_shared<nn::Tanh>(),
                     std::make_shared<nn::Linear>(40, 1));
  nn::Adam optimizer(net.named_parameters(), {.lr = 3e-3});
  double before = 0;
  double after = 0;
  bool helps = false;
  for (int step = 1; step <= 1500; ++step) {
    optimizer.zero_grad();
    for (int task = 0; task < 4; ++task) {
      const Wave wave = random_wave();
      const nn::NamedTensors fast = adapted(net, net.named_parameters(), wave);
      const Tensor x = points();
      const Tensor loss = mse_loss(nn::functional_call(net, fast, x), wave(x));
      (loss * 0.25).backward();
      after += loss.item() / 4;
      const NoGrad no_grad;
      before += mse_loss(net.forward(x), wave(x)).item() / 4;
    }
    optimizer.step();
    if (step % 300 == 0) {
      std::printf("%d: loss %.3f, after one step of adaptation %.3f\n", step, before / 300,
                  after / 300);
      helps = after < 0.8 * before;
      before = after = 0;
    }
  }
  return helps ? 0 : 1;
}
