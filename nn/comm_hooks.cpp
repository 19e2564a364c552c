#include "lockstep/nn/comm_hooks.h"

#include <algorithm>
#include <cmath>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops.h"
#include "lockstep/kernels/block_quant.h"
#include "lockstep/kernels/gather.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/collectives.h"

namespace lockstep::nn {
namespace {

// The bucket's gradients as one vector of f32, with what was not sent before.
Tensor with_errors(const GradBucket& bucket, std::map<std::string, Tensor>& errors) {
  Tensor flat = Tensor::empty(bucket.data.shape(), {DType::kF32, bucket.data.device()});
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

namespace {

// How a rank's scales and codes lie in a row of bytes: each begin at 16.
struct QuantRow {
  int64_t blocks, codes_at, bytes;
  QuantRow(int64_t count, int64_t block)
      : blocks(kernels::quant_blocks(count, block)),
        codes_at(round_up(blocks * int64_t{sizeof(float)})),
        bytes(codes_at + round_up(count)) {}
  // Of `ranks` rows, the first at `data`.
  View scales(std::byte* data, Device device, int64_t ranks) const {
    return {data, DType::kF32, device, {ranks, blocks}, {bytes / int64_t{sizeof(float)}, 1}};
  }
  View codes(std::byte* data, Device device, int64_t ranks, int64_t count) const {
    return {data + codes_at, DType::kI8, device, {ranks, count}, {bytes, 1}};
  }

 private:
  static int64_t round_up(int64_t bytes) { return (bytes + 15) / 16 * 16; }
};

std::byte* bytes_of(const Tensor& rows) { return rows.view().as<std::byte>(); }

}  // namespace

void BlockQuantHook::start(GradBucket& bucket, comm::Communicator& group) {
  NoGrad no_grad;
  const Device device = bucket.data.device();
  const Tensor flat = with_errors(bucket, errors_);
  const QuantRow row(flat.numel(), block_size_);
  InFlight& flight = in_flight_[bucket.index];
  // Zeros: what lies between scales and codes is sent as well.
  flight.all = Tensor::zeros({group.size(), row.bytes}, {DType::kU8, device});
  std::byte* mine = bytes_of(flight.all) + row.bytes * group.rank();
  launch<kernels::BlockQuantize>(device, flat.view(), block_size_, row.scales(mine, device, 1),
                                 row.codes(mine, device, 1, flat.numel()));
  flat.mark_changed("BlockQuantHook");
  if (error_feedback_) keep_errors(bucket, flat, errors_);
  flight.work = group.all_gather(mine, bytes_of(flight.all), row.bytes, DType::kU8);
}

void BlockQuantHook::finish(GradBucket& bucket, comm::Communicator& group) {
  NoGrad no_grad;
  const Device device = bucket.data.device();
  const int64_t count = bucket.data.numel();
  const QuantRow row(count, block_size_);
  InFlight& flight = in_flight_[bucket.index];
  flight.work.wait();
  std::byte* all = bytes_of(flight.all);
  const Tensor mean = Tensor::empty({count}, {DType::kF32, device});
  launch<kernels::BlockDequantizeMean>(device, row.scales(all, device, group.size()),
                                       row.codes(all, device, group.size(), count), block_size_,
                                       mean.view());
  bucket.data.copy_(mean);
}

TopKHook::TopKHook(double fraction, bool error_feedback)
    : fraction_(fraction), error_feedback_(error_feedback) {
  check(fraction > 0 && fraction <= 1, "TopKHook",
        [&] { return str_cat("want a fraction above 0 and at most 1, got ", fraction); });
}

void TopKHook::start(GradBucket& bucket, comm::Communicator& group) {
  NoGrad no_grad;
  const Device device = bucket.data.device();
  const Tensor flat = with_errors(bucket, errors_);
  const int64_t count = flat.numel();
  const auto wanted = static_cast<int64_t>(std::llround(fraction_ * static_cast<double>(count)));
  const int64_t k = std::min(std::max<int64_t>(wanted, 1), count);
  InFlight& flight = in_flight_[bucket.index];
  flight.places = Tensor::empty({group.size(), k}, {DType::kI64, device});
  flight.values = Tensor::empty({group.size(), k}, {DType::kF32, device});
  Tensor places = flight.places.select(0, group.rank());
  Tensor values = flight.values.select(0, group.rank());
  places.copy_(topk(abs(flat), k).indices);  // NaN counts as the greatest, so that it is told
  values.copy_(index_select(flat, 0, places));
  if (error_feedback_) {
    const Tensor nothing = Tensor::zeros({k}, values.options());
    launch<kernels::Scatter>(device, nothing.view(), places.view(), flat.view(), 0);
    keep_errors(bucket, flat, errors_);
  }
  group.all_gather(places.view().data, flight.places.view().data, k, DType::kI64);
  // Behind the places: who waits for the values has both.
  flight.work = group.all_gather(values.view().data, flight.values.view().data, k, DType::kF32);
}

void TopKHook::finish(GradBucket& bucket, comm::Communicator& group) {
  NoGrad no_grad;
  InFlight& flight = in_flight_[bucket.index];
  flight.work.wait();
  const Device device = bucket.data.device();
  const Tensor sum = Tensor::zeros(bucket.data.shape(), {DType::kF32, device});
  for (int rank = 0; rank < group.size(); ++rank) {
    launch<kernels::ScatterAdd>(device, flight.values.select(0, rank).view(),
                                flight.places.select(0, rank).view(), sum.view(), 0);
  }
  bucket.data.copy_(sum * (1.0 / group.size()));
}

}  // namespace lockstep::nn
