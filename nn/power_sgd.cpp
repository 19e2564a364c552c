#include <cmath>
#include <limits>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/matmul.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/core/random.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/collectives.h"
#include "lockstep/nn/comm_hooks.h"
#include "lockstep/nn/host_copy.h"

namespace lockstep::nn {
namespace {

// Gram and Schmidt, column by column, modified, on the host. A column that the others already span
// becomes zero. REQUIRES: contiguous.
void orthogonalise(Tensor p) {
  const int64_t rows = p.size(0), columns = p.size(1);
  const Tensor here = on_host(p);
  auto* values = here.data<float>();
  for (int64_t c = 0; c < columns; ++c) {
    double before = 0, norm = 0;
    for (int64_t r = 0; r < rows; ++r) {
      before += static_cast<double>(values[r * columns + c]) * values[r * columns + c];
    }
    for (int64_t other = 0; other < c; ++other) {
      double dot = 0;
      for (int64_t r = 0; r < rows; ++r) {
        dot += static_cast<double>(values[r * columns + c]) * values[r * columns + other];
      }
      for (int64_t r = 0; r < rows; ++r) {
        values[r * columns + c] -= static_cast<float>(dot * values[r * columns + other]);
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      norm += static_cast<double>(values[r * columns + c]) * values[r * columns + c];
    }
    constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
    const bool spanned = norm <= before * kEpsilon * kEpsilon * static_cast<double>(rows);
    const double factor = spanned ? 0 : 1 / std::sqrt(norm);
    for (int64_t r = 0; r < rows; ++r) {
      values[r * columns + c] = static_cast<float>(values[r * columns + c] * factor);
    }
  }
  if (here.shares_storage(p)) {
    p.mark_changed("orthogonalise");
  } else {
    p.copy_(here);
  }
}

Tensor as_matrix(const Tensor& gradient) { return gradient.reshape({gradient.size(0), -1}); }

}  // namespace

PowerSgdHook::PowerSgdHook(PowerSgdOptions options) : options_(options) {
  check(options.rank >= 1 && options.start_iteration >= 0 && options.min_compression > 0,
        "PowerSgdHook", [&] {
          return str_cat("want rank >= 1, start_iteration >= 0 and min_compression > 0, got ",
                         options.rank, ", ", options.start_iteration, " and ",
                         options.min_compression);
        });
}

bool PowerSgdHook::compresses(const Tensor& gradient) const {
  if (iteration_ < options_.start_iteration || gradient.dim() < 2 || gradient.numel() == 0) {
    return false;
  }
  const auto rows = static_cast<double>(gradient.size(0));
  const double columns = static_cast<double>(gradient.numel()) / rows;
  return (rows + columns) * static_cast<double>(options_.rank) * options_.min_compression <
         rows * columns;
}

void PowerSgdHook::start(GradBucket& bucket, comm::Communicator& group) {
  NoGrad no_grad;
  InFlight& flight = in_flight_[bucket.index];
  flight = {};
  int64_t thin = 0, plain = 0;
  for (const Tensor& gradient : bucket.gradients) {
    if (compresses(gradient)) {
      thin += gradient.size(0) * options_.rank;
    } else {
      plain += gradient.numel();
    }
  }
  flight.thin = Tensor::empty({thin}, {DType::kF32, bucket.data.device()});
  flight.plain = Tensor::empty({plain}, bucket.data.options());
  thin = plain = 0;
  for (size_t i = 0; i < bucket.gradients.size(); ++i) {
    const Tensor& gradient = bucket.gradients[i];
    if (!compresses(gradient)) {
      flight.plain.narrow(0, plain, gradient.numel()).copy_(gradient.reshape({-1}));
      plain += gradient.numel();
      continue;
    }
    Matrix matrix;
    matrix.place = i;
    matrix.m = as_matrix(gradient).to(DType::kF32).clone();
    const std::string& name = bucket.names[i];
    if (const auto it = errors_.find(name); it != errors_.end()) matrix.m.add_(it->second);
    Tensor& q = q_[name];
    if (!q.defined()) {
      // The same on every rank, and for no other parameter.
      Generator generator{.seed = options_.seed + q_.size()};
      q = randn({matrix.m.size(1), options_.rank}, {}, &generator);
      orthogonalise(q);
      q = q.to(bucket.data.device());
    }
    const int64_t elements = matrix.m.size(0) * options_.rank;
    matrix.p = flight.thin.narrow(0, thin, elements).reshape({matrix.m.size(0), options_.rank});
    matrix.p.copy_(matmul(matrix.m, q));
    thin += elements;
    flight.matrices.push_back(std::move(matrix));
  }
  flight.plain_work = average_in_place(flight.plain, group);
  flight.thin_work = average_in_place(flight.thin, group);
}

void PowerSgdHook::finish(GradBucket& bucket, comm::Communicator& group) {
  NoGrad no_grad;
  InFlight& flight = in_flight_[bucket.index];
  flight.plain_work.wait();
  flight.thin_work.wait();
  int64_t elements = 0;
  for (const Matrix& matrix : flight.matrices) elements += matrix.m.size(1) * options_.rank;
  const Tensor all_q = Tensor::empty({elements}, flight.thin.options());
  int64_t offset = 0;
  for (Matrix& matrix : flight.matrices) {
    orthogonalise(matrix.p);
    Tensor& q = q_[bucket.names[matrix.place]];
    const int64_t count = matrix.m.size(1) * options_.rank;
    q = all_q.narrow(0, offset, count).reshape({matrix.m.size(1), options_.rank});
    q.copy_(matmul(matrix.m.t(), matrix.p));
    offset += count;
  }
  average_in_place(all_q, group).wait();
  for (Matrix& matrix : flight.matrices) {
    const std::string& name = bucket.names[matrix.place];
    const Tensor approximation = matmul(matrix.p, q_[name].t());
    errors_[name] = matrix.m - approximation;
    Tensor& gradient = bucket.gradients[matrix.place];
    gradient.copy_(approximation.reshape(gradient.shape()));
  }
  offset = 0;
  size_t next = 0;
  for (size_t i = 0; i < bucket.gradients.size(); ++i) {
    if (next < flight.matrices.size() && flight.matrices[next].place == i) {
      ++next;
      continue;
    }
    Tensor gradient = bucket.gradients[i];
    gradient.copy_(flight.plain.narrow(0, offset, gradient.numel()).reshape(gradient.shape()));
    offset += gradient.numel();
  }
  if (bucket.is_last) ++iteration_;
}

}  // namespace lockstep::nn
