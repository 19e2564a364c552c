#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "lockstep/nn/data/fashion_mnist.h"

// What the user may choose; usage() describes each.
struct Options {
  int64_t epochs = 3;
  int64_t batch_size = 256;  // of all ranks together
  std::string model = "cnn";
  std::string optimizer = "adamw";
  std::optional<double> lr;  // none: default_lr()
  uint64_t seed = 0;
  std::string data = lockstep::nn::FashionMnist::kDefaultDirectory;
  std::string out = "out/fashion-mnist";
  bool resume = false;
  bool save_on_sigterm = false;
  int workers = 1;
  int64_t limit = 0;             // 0: all images
  int64_t checkpoint_every = 0;  // steps; 0: after each epoch only
  bool sync_batch_norm = true;
  bool help = false;
};

// A command line that has no meaning; what() says why.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Reads "--name value" and "--name=value". Throws UsageError.
Options parse_options(int argc, const char* const* argv);

// Every option with its default value.
std::string usage(std::string_view program);

// The learning rate that suits an optimiser here, at its peak.
double default_lr(const Options& options);
