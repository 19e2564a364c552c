// A denoising autoencoder with masks (Vincent et al., 2008): squares of a Fashion-MNIST picture are
// hidden, and a convolutional network fills them in. AdamW with a warm-up and a cosine schedule.
//
//   lockstep run -n 2 autoencoder_example --steps 1000
//
// The loss is a mean over the hidden pixels of all ranks, of which each rank has a number of its
// own. Ends with 1 unless hidden pixels are guessed with less than half of their variance as error.
#include <cstdio>

#include "arguments.h"
#include "lockstep/lockstep.h"
#include "training_pictures.h"

using namespace lockstep;

namespace {

constexpr int64_t kBatch = 64;  // of each rank
constexpr const char* kUsage = "autoencoder_example [--steps 300] [--data DIRECTORY]\n";

// Down to 7 by 7 and up again. Takes pictures and masks as two channels (N, 2, 28, 28), gives
// pictures (N, 1, 28, 28).
class Autoencoder : public nn::Module {
 public:
  Autoencoder() {
    down1_ = add("down1", 2, 16, 2);
    down2_ = add("down2", 16, 32, 2);
    middle_ = add("middle", 32, 32, 1);
    up1_ = add("up1", 32, 16, 1);
    up2_ = add("up2", 16, 1, 1);
  }

  Tensor forward(const Tensor& x) override {
    const Tensor small = relu(middle_->forward(relu(down2_->forward(relu(down1_->forward(x))))));
    return up2_->forward(upsample2d(relu(up1_->forward(upsample2d(small, {14, 14}))), {28, 28}));
  }

 private:
  std::shared_ptr<nn::Conv2d> add(const char* name, int64_t in, int64_t out, int64_t stride) {
    return register_module(
        name, std::make_shared<nn::Conv2d>(
                  in, out, 3, nn::Conv2dModuleOptions{.stride = stride, .padding = 1}));
  }

  std::shared_ptr<nn::Conv2d> down1_, down2_, middle_, up1_, up2_;
};

// 1 where a pixel is hidden: about 3 of 10 squares of 4 by 4 pixels (N, 1, 28, 28).
Tensor random_masks(int64_t count) {
  const Tensor squares = bernoulli(0.3, {count, 1, 7, 1, 7, 1});
  return reshape(expand(squares, {count, 1, 7, 4, 7, 4}), {count, 1, 28, 28});
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments(argc, argv, kUsage);
  const int steps = arguments.number("--steps", 300);
  const auto group = comm::init();
  PictureBatches batches(training_pictures(arguments), group, kBatch);

  manual_seed(1);
  nn::DataParallel model(std::make_shared<Autoencoder>(), group);
  nn::AdamW optimizer(model.named_parameters(), {.lr = 3e-3, .weight_decay = 0.01});
  nn::CosineAnnealingLR schedule(optimizer, {.t_max = steps, .warmup_steps = steps / 10});
  manual_seed(2 + static_cast<uint64_t>(group->rank()));  // masks of this rank's own

  double recent = 1;  // squared error of a hidden pixel; to guess their mean has 1
  for (int step = 1; step <= steps; ++step) {
    const nn::Batch batch = batches.next();
    const Tensor mask = random_masks(batch.size());
    const Tensor seen = batch.input * (1 - mask);
    const Tensor guess = model(cat(Tensors{seen, mask}, 1));
    const Tensor squares = sum(square(guess - batch.input) * mask);
    // DataParallel averages over the ranks, so the sum of squares over all hidden pixels needs the
    // number of ranks as a factor.
    const Tensor hidden = nn::all_reduce(sum(mask), group);
    const Tensor loss = squares * static_cast<double>(group->size()) / hidden;
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    schedule.step();

    const double all_squares = nn::all_reduce(squares.detach(), group).item();
    recent += 0.05 * (all_squares / hidden.item() - recent);
    if ((step % 100 == 0 || step == steps) && group->rank() == 0) {
      std::printf("%d: error of a hidden pixel %.3f, rate %.2g\n", step, recent, optimizer.lr());
    }
  }
  model.check_in_lockstep();
  return recent < 0.5 ? 0 : 1;
}
