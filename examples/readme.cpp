#include <cstdio>

#include "lockstep/lockstep.h"

using namespace lockstep;

int main() {
  auto group = comm::init();  // the ranks that `lockstep run -n 2` started; alone, one rank
  auto net = std::make_shared<nn::Sequential>(
      std::make_shared<nn::Linear>(8, 32), std::make_shared<nn::BatchNorm1d>(32),
      std::make_shared<nn::ReLU>(), std::make_shared<nn::Linear>(32, 1));
  nn::DataParallel model(nn::convert_sync_batchnorm(net, group), group);
  nn::AdamW optimizer(net->named_parameters(), {.lr = 1e-2});
  manual_seed(group->rank());  // every rank draws a part of the batch that is its own
  for (int step = 0; step <= 200; ++step) {
    Tensor x = randn({64, 8});
    Tensor loss = mse_loss(model(x), sum(x * x, {1}, true));
    optimizer.zero_grad();
    loss.backward();  // gradients are the average over the ranks when this returns
    optimizer.step();
    if (step % 50 == 0 && group->rank() == 0) std::printf("%d: loss %.3f\n", step, loss.item());
  }
  model.check_in_lockstep();  // parameters and buffers are the same bits on every rank
}
