// A generative adversarial network (Goodfellow et al., 2014) on Fashion-MNIST: two models, each
// wrapped for itself, and two optimisers that take turns.
//
//   lockstep run -n 2 gan_example --steps 2000 --out out/gan.pgm
//
// Ends with 1 unless the mean of the generator's pictures came at least a third nearer to the
// data's than it was.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "arguments.h"
#include "lockstep/lockstep.h"
#include "training_pictures.h"

using namespace lockstep;

namespace {

constexpr int64_t kBatch = 64;  // of each rank
constexpr int64_t kNoise = 64;
constexpr int64_t kPixels = 28 * 28;
constexpr const char* kUsage =
    "gan_example [--steps 600] [--data DIRECTORY] [--out PICTURES.pgm]\n";

class LeakyReLU : public nn::Module {
 public:
  Tensor forward(const Tensor& x) override { return leaky_relu(x, 0.2); }
};

std::shared_ptr<nn::Module> make_generator() {
  auto net = std::make_shared<nn::Sequential>();
  net->add<nn::Linear>(kNoise, 256);
  net->add<nn::BatchNorm1d>(256);
  net->add<nn::ReLU>();
  net->add<nn::Linear>(256, 512);
  net->add<nn::BatchNorm1d>(512);
  net->add<nn::ReLU>();
  net->add<nn::Linear>(512, kPixels);
  net->add<nn::Tanh>();
  return net;
}

std::shared_ptr<nn::Module> make_discriminator() {
  auto net = std::make_shared<nn::Sequential>();
  net->add<nn::Linear>(kPixels, 512);
  net->add<LeakyReLU>();
  net->add<nn::Linear>(512, 256);
  net->add<LeakyReLU>();
  net->add<nn::Linear>(256, 1);
  return net;
}

// Pixels of a batch, from -1 to 1.
Tensor pictures_of(const nn::Batch& batch) {
  const Tensor pixels = batch.input * nn::FashionMnist::kPixelStd + nn::FashionMnist::kPixelMean;
  return reshape(pixels, {batch.size(), kPixels}) * 2 - 1;
}

Tensor loss_of(const Tensor& logits, double target) {
  return binary_cross_entropy_with_logits(logits, full_like(logits, target));
}

// Root of the mean square between the mean picture of the generator's and `data_mean`.
double distance(nn::Module& generator, const Tensor& data_mean) {
  NoGrad no_grad;
  const Tensor fakes = generator.forward(randn({512, kNoise}));
  return std::sqrt(mse_loss(mean(fakes, {0}), data_mean).item());
}

// 8 by 8 pictures, as a PGM file.
void write_pictures(const std::string& path, nn::Module& generator) {
  NoGrad no_grad;
  Tensor tiles = reshape(generator.forward(randn({64, kNoise})), {8, 8, 28, 28});
  tiles = (permute(tiles, {0, 2, 1, 3}) + 1) * 127.5;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << "P5\n224 224\n255\n";
  for (const float pixel : tiles.contiguous().to_vector<float>()) {
    file.put(static_cast<char>(std::lround(std::clamp(pixel, 0.0F, 255.0F))));
  }
  check(file.flush().good(), "gan", [&] { return "'" + path + "' cannot be written"; });
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments(argc, argv, kUsage);
  const int steps = arguments.number("--steps", 600);
  const std::string out = arguments.text("--out", "");
  const auto group = comm::init();
  const auto data = training_pictures(arguments);
  PictureBatches batches(data, group, kBatch);

  manual_seed(1);
  nn::DataParallel generator(nn::convert_sync_batchnorm(make_generator(), group), group);
  nn::DataParallel discriminator(make_discriminator(), group);
  nn::Adam generator_optimizer(generator.named_parameters(), {.lr = 2e-4, .betas = {0.5, 0.999}});
  nn::Adam discriminator_optimizer(discriminator.named_parameters(),
                                   {.lr = 2e-4, .betas = {0.5, 0.999}});
  manual_seed(2 + static_cast<uint64_t>(group->rank()));  // noise of this rank's own

  std::vector<int64_t> first_pictures(512);
  for (size_t i = 0; i < first_pictures.size(); ++i) first_pictures[i] = static_cast<int64_t>(i);
  const Tensor data_mean = mean(pictures_of(data->batch(first_pictures)), {0});
  const double before = distance(generator, data_mean);
  for (int step = 1; step <= steps; ++step) {
    const nn::Batch batch = batches.next();
    // The discriminator sees both kinds, in two forwards before one backward. The generator is not
    // trained here: detach() ends the graph between them.
    const Tensor fakes = generator(randn({kBatch, kNoise}));
    const Tensor judged =
        loss_of(discriminator(pictures_of(batch)), 0.9) + loss_of(discriminator(fakes.detach()), 0);
    discriminator_optimizer.zero_grad();
    judged.backward();
    discriminator_optimizer.step();

    // This backward goes through the discriminator and averages gradients of it too, which nobody
    // uses: its zero_grad() above comes before its next step.
    const Tensor fooled = loss_of(discriminator(fakes), 1);
    generator_optimizer.zero_grad();
    fooled.backward();
    generator_optimizer.step();
    if ((step % 100 == 0 || step == steps) && group->rank() == 0) {
      std::printf("%d: discriminator %.3f, generator %.3f\n", step, judged.item(), fooled.item());
    }
  }
  generator.check_in_lockstep();
  discriminator.check_in_lockstep();
  const double after = distance(generator, data_mean);
  if (group->rank() == 0) {
    std::printf("mean picture: %.3f from the data's at first, %.3f now\n", before, after);
    if (!out.empty()) write_pictures(out, generator);
  }
  return after < before * 2 / 3 ? 0 : 1;
}
