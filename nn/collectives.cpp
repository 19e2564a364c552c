#include "lockstep/nn/collectives.h"

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/text.h"

namespace lockstep::nn {
namespace {

Tensor record_all_reduce(const Tensor& x, Tensor result, std::shared_ptr<comm::Communicator> group,
                         comm::ReduceOp op) {
  const EnableGrad enable;
  return record("all_reduce", std::move(result), {x},
                [group = std::move(group), op](const Tensor& g) {
                  return Tensors{all_reduce(g, group, op)};
                });
}

}  // namespace

Tensor all_reduce(const Tensor& x, std::shared_ptr<comm::Communicator> group, comm::ReduceOp op) {
  check(op == comm::ReduceOp::kSum || op == comm::ReduceOp::kAvg, "all_reduce",
        "want sum or avg: the others have no gradient here");
  const bool recorded = grad_enabled();
  Tensor result;
  {
    NoGrad no_grad;
    const Tensor dense = x.contiguous();
    result = Tensor::empty(x.shape(), x.options());
    group->all_reduce(dense.view().data, result.view().data, x.numel(), x.dtype(), op).wait();
  }
  return recorded ? record_all_reduce(x, std::move(result), std::move(group), op) : result;
}

Tensor weighted(const Tensor& x, double weight) {
  if (weight != 0) return x * weight;
  return record("weighted", zeros_like(x.detach()), {x},
                [](const Tensor& g) { return Tensors{g * 0.0}; });
}

Tensor mean_over_samples(const Tensor& loss, int64_t samples, comm::Communicator& group) {
  check(samples >= 0, "mean_over_samples",
        [&] { return str_cat("want a number of samples, got ", samples); });
  int64_t all = samples;
  group.all_reduce(&all, &all, 1, DType::kI64, comm::ReduceOp::kSum).wait();
  const double ranks = group.size();
  return weighted(loss,
                  all == 0 ? 0 : static_cast<double>(samples) * ranks / static_cast<double>(all));
}

comm::Work average_in_place(const Tensor& data, comm::Communicator& group) {
  void* memory = data.view().data;
  return group.all_reduce(memory, memory, data.numel(), data.dtype(), comm::ReduceOp::kAvg);
}

Tensor average_recorded(const Tensor& x, Tensor average,
                        std::shared_ptr<comm::Communicator> group) {
  return record_all_reduce(x, std::move(average), std::move(group), comm::ReduceOp::kAvg);
}

}  // namespace lockstep::nn
