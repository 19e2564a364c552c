#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/nn/optim.h"

namespace bench {

// What bench_train trains. torch_ddp_train.py has the same.
//
//   cnn     two blocks of convolution, batch norm, ReLU and pooling on (N, 1, 28, 28): the
//   example's mlp     784-1024-1024-10 with ReLU: the example's gpt     4 layers, width 256, 8
//   heads on 128 tokens of 128: the example's resnet  ResNet-18 for small pictures (He et al.,
//   2015, and their CIFAR form: a 3 x 3 stem
//           without pooling) on (N, 3, 32, 32)
//   gpt2    GPT-2 124M (Radford et al., 2019): 12 layers, width 768, 12 heads on 1024 tokens of
//           50257, the head tied to the token embedding, no dropout
//   tiny    gpt2 in small, for tests of the program itself: 1 layer, width 16, 2 heads on 8 tokens
//           of 17
//
// AdamW for the last two and gpt, SGD with momentum for the others.
struct Task {
  std::shared_ptr<lockstep::nn::Module> net;
  lockstep::Tensor input;
  lockstep::Tensor target;  // classes, one for each row of logits (any, classes)
};

const std::vector<std::string>& task_names();
// Those that people want where they name none: gpt2 on CUDA devices alone.
std::vector<std::string> default_tasks(bool on_device);
// Of each rank, where the user names none.
int default_batch(const std::string& task);
// The most that a sample may have; 0 where it has none.
int most_tokens(const std::string& task);
// Weights are the same for each rank, the batch is its own. `tokens` is of a sample, where it has
// some.
Task make_task(const std::string& task, int batch, int tokens, int rank, lockstep::Device device);
std::unique_ptr<lockstep::nn::Optimizer> make_optimizer(const std::string& task,
                                                        lockstep::nn::NamedTensors parameters);

}  // namespace bench
