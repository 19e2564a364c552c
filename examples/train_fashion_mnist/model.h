#pragma once

#include <memory>
#include <string_view>

#include "lockstep/nn/module.h"

// "cnn": two blocks of 3 x 3 convolution, batch norm, ReLU and 2 x 2 max pooling, with 32 and 64
// channels, then a linear layer. "mlp": 784-1024-1024-10 with ReLU. Both take (N, 1, 28, 28) and
// give logits (N, 10). Weights come from the default generator.
std::shared_ptr<lockstep::nn::Module> make_model(std::string_view name);
