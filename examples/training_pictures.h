#pragma once

#include <memory>
#include <optional>

#include "arguments.h"
#include "lockstep/lockstep.h"

// What the small examples share: Fashion-MNIST's training pictures, from the folder that --data
// names.
inline std::shared_ptr<lockstep::nn::FashionMnist> training_pictures(const Arguments& arguments) {
  using lockstep::nn::FashionMnist;
  return std::make_shared<FashionMnist>(FashionMnist::Split::kTrain,
                                        arguments.text("--data", FashionMnist::kDefaultDirectory));
}

// This rank's share of them, epoch after epoch, in whole batches.
class PictureBatches {
 public:
  PictureBatches(const std::shared_ptr<lockstep::nn::FashionMnist>& data,
                 const std::shared_ptr<lockstep::comm::Communicator>& group, int64_t batch_size)
      : loader_(data,
                std::make_shared<lockstep::nn::DistributedSampler>(
                    data->size(), group->size(), group->rank(),
                    lockstep::nn::DistributedSamplerOptions{.drop_last = true}),
                {.batch_size = batch_size, .drop_last = true}) {}

  lockstep::nn::Batch next() {
    std::optional<lockstep::nn::Batch> batch = loader_.next();
    if (!batch) {
      loader_.set_epoch(loader_.state().epoch + 1);
      batch = loader_.next();
    }
    return *batch;
  }

 private:
  lockstep::nn::DataLoader loader_;
};
