#include "model.h"

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/activation.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/conv.h"
#include "lockstep/nn/flatten.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/pooling.h"
#include "lockstep/nn/sequential.h"

namespace nn = lockstep::nn;

namespace {

class Cnn : public nn::Module {
 public:
  Cnn() {
    features_ = register_module("features", std::make_shared<nn::Sequential>());
    for (const auto& [in, out] : {std::pair{1, 32}, std::pair{32, 64}}) {
      // No bias: the batch norm that follows would take it away again.
      features_->add<nn::Conv2d>(in, out, 3, nn::Conv2dModuleOptions{.padding = 1, .bias = false});
      features_->add<nn::BatchNorm2d>(out);
      features_->add<nn::ReLU>();
      features_->add<nn::MaxPool2d>(2);
    }
    features_->add<nn::Flatten>();
    classifier_ = register_module("classifier", std::make_shared<nn::Linear>(64 * 7 * 7, 10));
  }

  lockstep::Tensor forward(const lockstep::Tensor& x) override {
    return classifier_->forward(features_->forward(x));
  }
  std::string type_name() const override { return "Cnn"; }

 private:
  std::shared_ptr<nn::Sequential> features_;
  std::shared_ptr<nn::Linear> classifier_;
};

std::shared_ptr<nn::Module> make_mlp() {
  auto net = std::make_shared<nn::Sequential>();
  net->add<nn::Flatten>();
  net->add<nn::Linear>(28 * 28, 1024);
  net->add<nn::ReLU>();
  net->add<nn::Linear>(1024, 1024);
  net->add<nn::ReLU>();
  net->add<nn::Linear>(1024, 10);
  return net;
}

}  // namespace

std::shared_ptr<nn::Module> make_model(std::string_view name) {
  if (name == "cnn") return std::make_shared<Cnn>();
  if (name == "mlp") return make_mlp();
  throw lockstep::Error(lockstep::ErrorCode::kInvalidArgument, "make_model",
                        lockstep::str_cat("want cnn or mlp, got '", name, "'"));
}
