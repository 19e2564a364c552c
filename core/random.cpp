#include "lockstep/core/random.h"

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/graph.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/philox.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

Generator& choose(Generator* generator) {
  return generator == nullptr ? default_generator() : *generator;
}

// Calls launch(seed, offset) for fresh numbers, also when a graph is replayed.
template <class Launch>
void draw(int64_t count, Generator* generator, const Launch& launch) {
  renewed([=] {
    Generator& g = choose(generator);
    launch(g.seed, g.take(count));
  });
}

}  // namespace

uint64_t Generator::take(int64_t count) {
  const uint64_t first = offset;
  // An element may use a whole counter (four numbers), never more.
  offset += static_cast<uint64_t>(count);
  return first;
}

Generator& default_generator() {
  thread_local Generator generator;
  return generator;
}

void manual_seed(uint64_t seed) { default_generator() = Generator{seed, 0}; }

Tensor rand(const Shape& shape, TensorOptions options, Generator* generator) {
  Tensor out = Tensor::empty(shape, options);
  draw(out.numel(), generator, [view = out.view()](uint64_t seed, uint64_t offset) {
    launch<kernels::Uniform>(view.device, view, seed, offset);
  });
  return out;
}

Tensor randn(const Shape& shape, TensorOptions options, Generator* generator) {
  Tensor out = Tensor::empty(shape, options);
  draw(out.numel(), generator, [view = out.view()](uint64_t seed, uint64_t offset) {
    launch<kernels::Normal>(view.device, view, seed, offset);
  });
  return out;
}

Tensor rand_like(const Tensor& like, Generator* generator) {
  return rand(like.shape(), like.options(), generator);
}

Tensor randn_like(const Tensor& like, Generator* generator) {
  return randn(like.shape(), like.options(), generator);
}

Tensor bernoulli(double p, const Shape& shape, TensorOptions options, Generator* generator) {
  check(p >= 0 && p <= 1, "bernoulli", [&] { return str_cat("want p in [0, 1], got ", p); });
  Tensor out = Tensor::empty(shape, options);
  draw(out.numel(), generator, [view = out.view(), p](uint64_t seed, uint64_t offset) {
    launch<kernels::Bernoulli>(view.device, view, p, seed, offset);
  });
  return out;
}

Tensor bernoulli(const Tensor& p, Generator* generator) {
  const NoGrad no_grad;
  check(is_floating(p.dtype()), "bernoulli", [&] {
    return std::string("want probabilities of a floating dtype, got ").append(name(p.dtype()));
  });
  check(all(logical_and(ge(p, 0.0), le(p, 1.0))).item() != 0, "bernoulli",
        "want probabilities in [0, 1], got some outside");
  // Drawn in f32 at least: 16-bit floats are too few numbers.
  const DType dtype = p.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  return to(lt(rand(p.shape(), {dtype, p.device()}, generator), to(p, dtype)), p.dtype());
}

Tensor randint(int64_t low, int64_t high, const Shape& shape, TensorOptions options,
               Generator* generator) {
  check(low < high, "randint",
        [&] { return str_cat("want low < high, got ", low, " and ", high); });
  Tensor out = Tensor::empty(shape, options);
  draw(out.numel(), generator, [view = out.view(), low, high](uint64_t seed, uint64_t offset) {
    launch<kernels::RandInt>(view.device, view, low, high, seed, offset);
  });
  return out;
}

Tensor randperm(int64_t n, Generator* generator) {
  check(n >= 0, "randperm", [&] { return str_cat("want 0 and more, got ", n); });
  Tensor out = Tensor::arange(n);
  if (n < 2) return out;
  // Fisher and Yates: place i takes one of the first i + 1.
  const Tensor draws = rand({n}, {DType::kF64}, generator);
  const double* u = draws.data<double>();
  int64_t* p = out.data<int64_t>();
  for (int64_t i = n - 1; i > 0; --i) {
    const auto j = std::min(i, static_cast<int64_t>(u[i] * static_cast<double>(i + 1)));
    std::swap(p[i], p[j]);
  }
  return out;
}

}  // namespace lockstep
