#include "lockstep/nn/sync_batch_norm.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/nn/collectives.h"

namespace lockstep::nn {
namespace {

class CommunicatorGroup final : public BatchNormGroup {
 public:
  explicit CommunicatorGroup(std::shared_ptr<comm::Communicator> group)
      : group_(std::move(group)) {}

  void merge_statistics(Tensor& mean, Tensor& squared_deviations, int64_t& count) override {
    if (group_->size() == 1) return;
    if (!mean.device().is_cpu()) return merge_on_device(mean, squared_deviations, count);
    const auto channels = static_cast<size_t>(mean.numel());
    const size_t row = 1 + 2 * channels;
    const std::vector<double> m = to(mean, DType::kF64).to_vector<double>();
    const std::vector<double> s = to(squared_deviations, DType::kF64).to_vector<double>();
    std::vector<double> mine = {static_cast<double>(count)};
    mine.insert(mine.end(), m.begin(), m.end());
    mine.insert(mine.end(), s.begin(), s.end());
    std::vector<double> all(row * static_cast<size_t>(group_->size()));
    group_->all_gather(mine.data(), all.data(), static_cast<int64_t>(row), DType::kF64).wait();

    double n = 0;
    std::vector<double> merged_mean(channels, 0);
    std::vector<double> merged_squares(channels, 0);
    for (size_t start = 0; start < all.size(); start += row) {
      const double other = all[start];
      if (other == 0) continue;  // its mean is not a number
      const double total = n + other;
      for (size_t c = 0; c < channels; ++c) {
        const double delta = all[start + 1 + c] - merged_mean[c];
        merged_mean[c] += delta * (other / total);
        merged_squares[c] += all[start + 1 + channels + c] + delta * delta * (n * other / total);
      }
      n = total;
    }
    count = static_cast<int64_t>(n);
    mean = to(Tensor::from(merged_mean, mean.shape()), mean.dtype());
    squared_deviations =
        to(Tensor::from(merged_squares, squared_deviations.shape()), squared_deviations.dtype());
  }

  Tensor all_sum(const Tensor& x) override {
    return group_->size() == 1 ? x : all_reduce(x, group_, comm::ReduceOp::kSum);
  }

 private:
  // The same by sums over the ranks, which are few launches for any number of them: the squared
  // deviations from the common mean are those from each rank's own and n times its square distance
  // (Chan, Golub and LeVeque, 1979, equation 1.3). The host gathers the counts, which it needs,
  // beside that, so that it does not wait for the device.
  void merge_on_device(Tensor& mean, Tensor& squared_deviations, int64_t& count) {
    const int64_t channels = mean.numel();
    const TensorOptions options = {DType::kF64, mean.device()};
    const int64_t ranks = group_->size();
    const int64_t row = 1 + 2 * channels;
    const Tensor all = Tensor::empty({ranks, row}, options);
    Tensor mine = all.select(0, group_->rank());
    mine.narrow(0, 0, 1).fill_(static_cast<double>(count));
    mine.narrow(0, 1, channels).copy_(mean);
    mine.narrow(0, 1 + channels, channels).copy_(squared_deviations);
    comm::Work rows = group_->all_gather(mine.view().data, all.view().data, row, DType::kF64);
    std::vector<int64_t> counts(static_cast<size_t>(ranks));
    group_->all_gather(&count, counts.data(), 1, DType::kI64).wait();
    rows.wait();

    count = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    if (count == 0) return;
    const Tensor weights = all.narrow(1, 0, 1);  // (ranks, 1)
    const Tensor means = all.narrow(1, 1, channels);
    const Tensor merged = sum(means * weights, {0}) / static_cast<double>(count);
    const Tensor squares = all.narrow(1, 1 + channels, channels);
    squared_deviations =
        to(sum(squares + square(means - merged) * weights, {0}), squared_deviations.dtype());
    mean = to(merged, mean.dtype());
  }

  std::shared_ptr<comm::Communicator> group_;
};

}  // namespace

std::shared_ptr<BatchNormGroup> make_batch_norm_group(std::shared_ptr<comm::Communicator> group) {
  check(group != nullptr, "SyncBatchNorm", "want a communicator, got null");
  return std::make_shared<CommunicatorGroup>(std::move(group));
}

SyncBatchNorm::SyncBatchNorm(int64_t num_features, std::shared_ptr<comm::Communicator> group,
                             BatchNormOptions options)
    : BatchNorm(num_features, options) {
  set_group(make_batch_norm_group(std::move(group)));
}

std::shared_ptr<Module> convert_sync_batchnorm(std::shared_ptr<Module> module,
                                               std::shared_ptr<comm::Communicator> group) {
  check(module != nullptr, "convert_sync_batchnorm", "want a module, got null");
  const auto statistics = make_batch_norm_group(std::move(group));
  module->apply([&](Module& part) {
    auto* norm = dynamic_cast<BatchNorm*>(&part);
    if (norm != nullptr && norm->group() == nullptr) norm->set_group(statistics);
  });
  return module;
}

std::shared_ptr<Module> revert_sync_batchnorm(std::shared_ptr<Module> module) {
  check(module != nullptr, "revert_sync_batchnorm", "want a module, got null");
  module->apply([](Module& part) {
    if (auto* norm = dynamic_cast<BatchNorm*>(&part)) norm->set_group(nullptr);
  });
  return module;
}

}  // namespace lockstep::nn
