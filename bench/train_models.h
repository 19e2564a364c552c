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
//   heads on 128 tokens: the example's; AdamW resnet  ResNet-18 for small pictures (He et al.,
//   2015, and their CIFAR form: a 3 x 3 stem
//           without pooling) on (N, 3, 32, 32)
//
// SGD with momentum but for gpt.
struct Task {
  std::shared_ptr<lockstep::nn::Module> net;
  lockstep::Tensor input;
  lockstep::Tensor target;  // classes, one for each row of logits (any, classes)
};

const std::vector<std::string>& task_names();
// Of each rank, where the user names none.
int default_batch(const std::string& task);
// Weights are the same for each rank, the batch is its own.
Task make_task(const std::string& task, int batch, int rank);
std::unique_ptr<lockstep::nn::Optimizer> make_optimizer(const std::string& task,
                                                        lockstep::nn::NamedTensors parameters);

}  // namespace bench
