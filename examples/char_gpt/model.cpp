#include "model.h"

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/layer_norm.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/sequential.h"

namespace nn = lockstep::nn;
using lockstep::Tensor;

namespace {

class Block : public nn::Module {
 public:
  Block(int64_t width, int64_t heads) : heads_(heads) {
    norm1_ = register_module("norm1", std::make_shared<nn::LayerNorm>(lockstep::Shape{width}));
    qkv_ = register_module("qkv", std::make_shared<nn::Linear>(width, 3 * width));
    out_ = register_module("out", std::make_shared<nn::Linear>(width, width));
    norm2_ = register_module("norm2", std::make_shared<nn::LayerNorm>(lockstep::Shape{width}));
    up_ = register_module("up", std::make_shared<nn::Linear>(width, 4 * width));
    down_ = register_module("down", std::make_shared<nn::Linear>(4 * width, width));
  }

  Tensor forward(const Tensor& in) override {
    const Tensor x = in + out_->forward(attend(qkv_->forward(norm1_->forward(in))));
    return x + down_->forward(linear_gelu(norm2_->forward(x), up_->weight, up_->bias));
  }
  std::string type_name() const override { return "Block"; }

 private:
  // qkv (N, T, 3 width) to (N, T, width).
  Tensor attend(const Tensor& qkv) const {
    const int64_t n = qkv.size(0), t = qkv.size(1), width = qkv.size(2) / 3;
    const Tensor heads = permute(reshape(qkv, {n, t, 3, heads_, width / heads_}), {2, 0, 3, 1, 4});
    const Tensor seen = scaled_dot_product_attention(select(heads, 0, 0), select(heads, 0, 1),
                                                     select(heads, 0, 2), {.is_causal = true});
    return reshape(transpose(seen, 1, 2), {n, t, width});
  }

  int64_t heads_;
  std::shared_ptr<nn::LayerNorm> norm1_, norm2_;
  std::shared_ptr<nn::Linear> qkv_, out_, up_, down_;
};

class Gpt : public nn::Module {
 public:
  explicit Gpt(const GptOptions& options) : context_(options.context) {
    tokens_ = register_module("tokens",
                              std::make_shared<nn::Embedding>(options.vocabulary, options.width));
    positions_ = register_module("positions",
                                 std::make_shared<nn::Embedding>(options.context, options.width));
    blocks_ = register_module("blocks", std::make_shared<nn::Sequential>());
    for (int64_t i = 0; i < options.layers; ++i) blocks_->add<Block>(options.width, options.heads);
    norm_ =
        register_module("norm", std::make_shared<nn::LayerNorm>(lockstep::Shape{options.width}));
    if (options.tied) {
      const lockstep::NoGrad no_grad;
      tokens_->weight.mul_(0.02);  // from N(0, 1) to what logits begin well with
      return;
    }
    head_ =
        register_module("head", std::make_shared<nn::Linear>(options.width, options.vocabulary));
  }

  Tensor forward(const Tensor& tokens) override {
    lockstep::check(tokens.dim() == 2 && tokens.size(1) <= context_, "Gpt", [&] {
      return lockstep::str_cat("want tokens (N, T) with T of at most ", context_, ", got shape ",
                               lockstep::to_string(tokens.shape()));
    });
    const Tensor places = Tensor::arange(tokens.size(1), tokens.options());
    const Tensor x = tokens_->forward(tokens) + positions_->forward(places);
    const Tensor y = norm_->forward(blocks_->forward(x));
    return head_ ? head_->forward(y) : linear(y, tokens_->weight);
  }
  std::string type_name() const override { return "Gpt"; }

 private:
  int64_t context_;
  std::shared_ptr<nn::Embedding> tokens_, positions_;
  std::shared_ptr<nn::Sequential> blocks_;
  std::shared_ptr<nn::LayerNorm> norm_;
  std::shared_ptr<nn::Linear> head_;  // null where it is tied
};

}  // namespace

std::shared_ptr<nn::Module> make_gpt(const GptOptions& options) {
  return std::make_shared<Gpt>(options);
}
