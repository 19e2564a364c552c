#include "lockstep/nn/comm_hooks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/collectives.h"

namespace lockstep::nn {
namespace {

// The bucket's gradients as one vector of f32 on the host, with what was not sent before.
Tensor with_errors(const GradBucket& bucket, std::map<std::string, Tensor>& errors) {
  Tensor flat = Tensor::empty(bucket.data.shape());
  flat.copy_(bucket.data);
  int64_t offset = 0;
  for (size_t i = 0; i < bucket.names.size(); ++i) {
    const int64_t count = bucket.gradients[i].numel();
    if (const auto it = errors.find(bucket.names[i]); it != errors.end()) {
      flat.narrow(0, offset, count).add_(it->second);
    }
    offset += count;
  }
  return flat;
}

// Writes what all ranks' gradients add up to, divided by their number.
void store_average(GradBucket& bucket, std::vector<float>& sum, int ranks) {
  const auto share = 1 / static_cast<float>(ranks);
  for (float& value : sum) value *= share;
  bucket.data.copy_(Tensor::from(sum, bucket.data.shape()));
}

void keep_errors(const GradBucket& bucket, const Tensor& flat,
                 std::map<std::string, Tensor>& errors) {
  int64_t offset = 0;
  for (size_t i = 0; i < bucket.names.size(); ++i) {
    const int64_t count = bucket.gradients[i].numel();
    errors[bucket.names[i]] = flat.narrow(0, offset, count).clone();
    offset += count;
  }
}

}  // namespace

CastHook::CastHook(DType dtype) : dtype_(dtype) {
  check(dtype == DType::kBF16 || dtype == DType::kF16, "CastHook",
        [&] { return str_cat("want bf16 or f16, got ", name(dtype)); });
}

void CastHook::start(GradBucket& bucket, comm::Communicator& group) {
  NoGrad no_grad;
  const DType own = bucket.data.dtype();
  const bool cast = own == DType::kF32 || own == DType::kF64;
  InFlight& flight = in_flight_[bucket.index];
  flight.data = cast ? bucket.data.to(dtype_) : bucket.data;
  flight.work = average_in_place(flight.data, group);
}

void CastHook::finish(GradBucket& bucket, comm::Communicator&) {
  NoGrad no_grad;
  InFlight& flight = in_flight_[bucket.index];
  flight.work.wait();
  flight.data.mark_changed("all_reduce");
  if (!flight.data.is_same(bucket.data)) bucket.data.copy_(flight.data);
}

BlockQuantHook::BlockQuantHook(int64_t block_size, bool error_feedback)
    : block_size_(block_size), error_feedback_(error_feedback) {
  check(block_size >= 1, "BlockQuantHook",
        [&] { return str_cat("want a block_size of at least 1, got ", block_size); });
}

void BlockQuantHook::start(GradBucket& bucket, comm::Communicator& group) {
  NoGrad no_grad;
  const Tensor flat = with_errors(bucket, errors_);
  auto* values = flat.data<float>();
  const int64_t count = flat.numel();
  const int64_t blocks = (count + block_size_ - 1) / block_size_;
  const size_t scale_bytes = static_cast<size_t>(blocks) * sizeof(float);
  const size_t bytes = scale_bytes + static_cast<size_t>(count);
  std::vector<float> scales(static_cast<size_t>(blocks));
  InFlight& flight = in_flight_[bucket.index];
  flight.all.assign(bytes * static_cast<size_t>(group.size()), 0);
  char* mine = flight.all.data() + bytes * static_cast<size_t>(group.rank());
  auto* codes = reinterpret_cast<int8_t*>(mine + scale_bytes);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = block * block_size_;
    const int64_t end = std::min(count, begin + block_size_);
    float greatest = 0;
    bool finite = true;
    for (int64_t i = begin; i < end; ++i) {
      greatest = std::max(greatest, std::abs(values[i]));
      finite = finite && std::isfinite(values[i]);
    }
    // One value that is not finite makes its block so on every rank, as a plain sum would.
    const float scale = finite ? greatest / 127 : std::numeric_limits<float>::quiet_NaN();
    scales[static_cast<size_t>(block)] = scale;
    for (int64_t i = begin; i < end; ++i) {
      const float code = scale > 0 ? std::nearbyint(values[i] / scale) : 0;
      codes[i] = static_cast<int8_t>(std::clamp(code, -127.0f, 127.0f));
      values[i] = finite ? values[i] - static_cast<float>(codes[i]) * scale : 0;
    }
  }
  std::memcpy(mine, scales.data(), scale_bytes);
  if (error_feedback_) keep_errors(bucket, flat, errors_);
  flight.work = group.all_gather(mine, flight.all.data(), static_cast<int64_t>(bytes), DType::kU8);
}

void BlockQuantHook::finish(GradBucket& bucket, comm::Communicator& group) {
  NoGrad no_grad;
  InFlight& flight = in_flight_[bucket.index];
  flight.work.wait();
  const int64_t count = bucket.data.numel();
  const int64_t blocks = (count + block_size_ - 1) / block_size_;
  const size_t scale_bytes = static_cast<size_t>(blocks) * sizeof(float);
  const size_t bytes = scale_bytes + static_cast<size_t>(count);
  std::vector<float> sum(static_cast<size_t>(count), 0);
  std::vector<float> scales(static_cast<size_t>(blocks));
  for (int rank = 0; rank < group.size(); ++rank) {
    const char* theirs = flight.all.data() + bytes * static_cast<size_t>(rank);
    std::memcpy(scales.data(), theirs, scale_bytes);
    const auto* codes = reinterpret_cast<const int8_t*>(theirs + scale_bytes);
    for (int64_t i = 0; i < count; ++i) {
      sum[static_cast<size_t>(i)] +=
          static_cast<float>(codes[i]) * scales[static_cast<size_t>(i / block_size_)];
    }
  }
  store_average(bucket, sum, group.size());
}

TopKHook::TopKHook(double fraction, bool error_feedback)
    : fraction_(fraction), error_feedback_(error_feedback) {
  check(fraction > 0 && fraction <= 1, "TopKHook",
        [&] { return str_cat("want a fraction above 0 and at most 1, got ", fraction); });
}

void TopKHook::start(GradBucket& bucket, comm::Communicator& group) {
  NoGrad no_grad;
  const Tensor flat = with_errors(bucket, errors_);
  auto* values = flat.data<float>();
  const int64_t count = flat.numel();
  const auto k =
      std::clamp<int64_t>(std::llround(fraction_ * static_cast<double>(count)), 1, count);
  std::vector<int64_t> places(static_cast<size_t>(count));
  std::iota(places.begin(), places.end(), 0);
  // NaN counts as the greatest, so that it is told.
  const auto before = [&](int64_t a, int64_t b) {
    const bool nan_a = std::isnan(values[a]), nan_b = std::isnan(values[b]);
    if (nan_a != nan_b) return nan_a;
    const float x = std::abs(values[a]), y = std::abs(values[b]);
    return nan_a || x == y ? a < b : x > y;
  };
  std::nth_element(places.begin(), places.begin() + k - 1, places.end(), before);
  places.resize(static_cast<size_t>(k));
  std::sort(places.begin(), places.end());
  const size_t bytes = static_cast<size_t>(k) * (sizeof(int64_t) + sizeof(float));
  InFlight& flight = in_flight_[bucket.index];
  flight.all.assign(bytes * static_cast<size_t>(group.size()), 0);
  char* mine = flight.all.data() + bytes * static_cast<size_t>(group.rank());
  std::memcpy(mine, places.data(), places.size() * sizeof(int64_t));
  char* sent = mine + places.size() * sizeof(int64_t);
  for (size_t i = 0; i < places.size(); ++i) {
    float& value = values[places[i]];
    std::memcpy(sent + i * sizeof(float), &value, sizeof(float));
    value = 0;
  }
  if (error_feedback_) keep_errors(bucket, flat, errors_);
  flight.work = group.all_gather(mine, flight.all.data(), static_cast<int64_t>(bytes), DType::kU8);
}

void TopKHook::finish(GradBucket& bucket, comm::Communicator& group) {
  NoGrad no_grad;
  InFlight& flight = in_flight_[bucket.index];
  flight.work.wait();
  const int64_t count = bucket.data.numel();
  const size_t bytes = flight.all.size() / static_cast<size_t>(group.size());
  const size_t k = bytes / (sizeof(int64_t) + sizeof(float));
  std::vector<float> sum(static_cast<size_t>(count), 0);
  for (int rank = 0; rank < group.size(); ++rank) {
    const char* theirs = flight.all.data() + bytes * static_cast<size_t>(rank);
    for (size_t i = 0; i < k; ++i) {
      int64_t place = 0;
      float value = 0;
      std::memcpy(&place, theirs + i * sizeof(int64_t), sizeof place);
      std::memcpy(&value, theirs + k * sizeof(int64_t) + i * sizeof(float), sizeof value);
      check(place >= 0 && place < count, "TopKHook",
            [&] { return str_cat("rank ", rank, " sent element ", place, " of ", count); });
      sum[static_cast<size_t>(place)] += value;
    }
  }
  store_average(bucket, sum, group.size());
}

}  // namespace lockstep::nn
