// Model-agnostic meta-learning (Finn, Abbeel and Levine, 2017) on sine waves: weights from which
// one step of gradient descent on ten points of an unknown wave is enough to follow it. Every rank
// has waves of its own:
//
//   lockstep run -n 2 maml_example
//
// Ends with 1 unless a step of adaptation is worth something in the end.
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
  const auto group = comm::init();
  manual_seed(1);
  const auto net = std::make_shared<nn::Sequential>(
      std::make_shared<nn::Linear>(1, 40), std::make_shared<nn::Tanh>(),
      std::make_shared<nn::Linear>(40, 40), std::make_shared<nn::Tanh>(),
      std::make_shared<nn::Linear>(40, 1));
  // What a backward adds to the net's own parameters is averaged, whatever weights it went through.
  // The inner grad() is this rank's own.
  const nn::DataParallel model(net, group);
  nn::Adam optimizer(net->named_parameters(), {.lr = 3e-3});
  manual_seed(2 + static_cast<uint64_t>(group->rank()));
  double before = 0;
  double after = 0;
  bool helps = false;
  for (int step = 1; step <= 1500; ++step) {
    Tensor total = Tensor::scalar(0);
    for (int task = 0; task < 4; ++task) {
      const Wave wave = random_wave();
      const nn::NamedTensors fast = adapted(*net, net->named_parameters(), wave);
      const Tensor x = points();
      const Tensor loss = mse_loss(nn::functional_call(*net, fast, x), wave(x));
      total = total + loss * 0.25;
      after += loss.item() / 4;
      const NoGrad no_grad;
      before += mse_loss(net->forward(x), wave(x)).item() / 4;
    }
    optimizer.zero_grad();
    total.backward();
    optimizer.step();
    if (step % 300 == 0) {
      if (group->rank() == 0)
        std::printf("%d: loss %.3f, after one step of adaptation %.3f\n", step, before / 300,
                    after / 300);
      helps = after < 0.8 * before;
      before = after = 0;
    }
  }
  model.check_in_lockstep();
  return helps ? 0 : 1;
}
