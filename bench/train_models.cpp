#include "train_models.h"

#include <map>

#include "char_gpt/model.h"
#include "lockstep/core/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/activation.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/conv.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/sequential.h"
#include "train_fashion_mnist/model.h"

namespace bench {
namespace {

namespace nn = lockstep::nn;
using lockstep::Tensor;

class BasicBlock : public nn::Module {
 public:
  BasicBlock(int64_t in, int64_t out, int64_t stride) {
    conv1_ = add_conv("conv1", in, out, 3, stride);
    norm1_ = register_module("norm1", std::make_shared<nn::BatchNorm2d>(out));
    conv2_ = add_conv("conv2", out, out, 3, 1);
    norm2_ = register_module("norm2", std::make_shared<nn::BatchNorm2d>(out));
    if (stride == 1 && in == out) return;
    shortcut_ = add_conv("shortcut", in, out, 1, stride);
    shortcut_norm_ = register_module("shortcut_norm", std::make_shared<nn::BatchNorm2d>(out));
  }

  Tensor forward(const Tensor& x) override {
    const Tensor inner = relu(norm1_->forward(conv1_->forward(x)));
    const Tensor y = norm2_->forward(conv2_->forward(inner));
    return relu(y + (shortcut_ ? shortcut_norm_->forward(shortcut_->forward(x)) : x));
  }
  std::string type_name() const override { return "BasicBlock"; }

 private:
  std::shared_ptr<nn::Conv2d> add_conv(const char* name, int64_t in, int64_t out, int64_t size,
                                       int64_t stride) {
    return register_module(
        name, std::make_shared<nn::Conv2d>(
                  in, out, size,
                  nn::Conv2dModuleOptions{.stride = stride, .padding = size / 2, .bias = false}));
  }

  std::shared_ptr<nn::Conv2d> conv1_, conv2_, shortcut_;
  std::shared_ptr<nn::BatchNorm2d> norm1_, norm2_, shortcut_norm_;
};

class ResNet18 : public nn::Module {
 public:
  ResNet18() {
    body_ = register_module("body", std::make_shared<nn::Sequential>());
    body_->add<nn::Conv2d>(3, 64, 3, nn::Conv2dModuleOptions{.padding = 1, .bias = false});
    body_->add<nn::BatchNorm2d>(64);
    body_->add<nn::ReLU>();
    int64_t in = 64;
    for (const int64_t out : {64, 128, 256, 512}) {
      body_->add<BasicBlock>(in, out, in == out ? 1 : 2);
      body_->add<BasicBlock>(out, out, 1);
      in = out;
    }
    classifier_ = register_module("classifier", std::make_shared<nn::Linear>(512, 10));
  }

  Tensor forward(const Tensor& x) override {
    return classifier_->forward(mean(body_->forward(x), {2, 3}));
  }
  std::string type_name() const override { return "ResNet18"; }

 private:
  std::shared_ptr<nn::Sequential> body_;
  std::shared_ptr<nn::Linear> classifier_;
};

const std::map<std::string, GptOptions> kGpts = {
    {"gpt", {}},
    {"gpt2", {50257, 1024, 768, 12, 12, true}},
    {"tiny", {17, 8, 16, 1, 2, true}},
};

// Null where it is no GPT.
const GptOptions* gpt_options(const std::string& task) {
  const auto found = kGpts.find(task);
  return found == kGpts.end() ? nullptr : &found->second;
}

}  // namespace

const std::vector<std::string>& task_names() {
  static const std::vector<std::string> names = {"cnn", "mlp", "gpt", "resnet", "gpt2", "tiny"};
  return names;
}

std::vector<std::string> default_tasks(bool on_device) {
  std::vector<std::string> names = {"cnn", "mlp", "gpt", "resnet"};
  if (on_device) names.push_back("gpt2");
  return names;
}

int default_batch(const std::string& task) { return task == "cnn" || task == "mlp" ? 128 : 8; }

int most_tokens(const std::string& task) {
  const GptOptions* gpt = gpt_options(task);
  return gpt == nullptr ? 0 : static_cast<int>(gpt->context);
}

Task make_task(const std::string& task, int batch, int tokens, int rank, lockstep::Device device) {
  Task made;
  lockstep::manual_seed(1);
  const GptOptions* gpt = gpt_options(task);
  made.net = gpt != nullptr     ? make_gpt(*gpt)
             : task == "resnet" ? std::make_shared<ResNet18>()
                                : make_model(task);
  lockstep::manual_seed(2 + static_cast<uint64_t>(rank));
  if (gpt != nullptr) {
    made.input = lockstep::randint(0, gpt->vocabulary, {batch, tokens});
    made.target = lockstep::randint(0, gpt->vocabulary, {int64_t{batch} * tokens});
  } else {
    made.input = task == "resnet" ? lockstep::randn({batch, 3, 32, 32})
                                  : lockstep::randn({batch, 1, 28, 28});
    made.target = lockstep::randint(0, 10, {batch});
  }
  made.net->to(device);
  made.input = made.input.to(device);
  made.target = made.target.to(device);
  return made;
}

std::unique_ptr<nn::Optimizer> make_optimizer(const std::string& task,
                                              nn::NamedTensors parameters) {
  if (gpt_options(task) != nullptr) {
    return std::make_unique<nn::AdamW>(std::move(parameters), nn::AdamWOptions{.lr = 1e-3});
  }
  return std::make_unique<nn::SGD>(std::move(parameters),
                                   nn::SGDOptions{.lr = 0.01, .momentum = 0.9});
}

}  // namespace bench
