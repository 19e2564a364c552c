#include "lockstep/core/tensor.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/small_blocks.h"
#include "lockstep/kernels/text.h"
#include "lockstep/kernels/transfer.h"

namespace lockstep {
namespace {

std::string describe(const TensorImpl& impl) {
  const std::string_view dtype = name(impl.dtype);
  return str_cat(impl.name.empty() ? "a tensor" : impl.name, " of shape ", to_string(impl.shape),
                 " and dtype ", dtype);
}

// True where the elements fill one block of memory, each once, in some order of the dimensions.
bool is_dense(const Shape& shape, const Strides& strides) {
  Shape order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return strides[a] < strides[b]; });
  int64_t expected = 1;
  for (int64_t dim : order) {
    if (shape[dim] == 1) continue;
    if (strides[dim] != expected) return false;
    expected *= shape[dim];
  }
  return true;
}

// Values are written where the graph does not look, which is only right for tensors that it does
// not differentiate.
void check_unrecorded(const Tensor& tensor, std::string_view op) {
  check(!grad_enabled() || !tensor.requires_grad(), op, [&] {
    return str_cat(describe(*tensor.impl()),
                   " requires a gradient, and this call is not recorded: put it under NoGrad");
  });
}

// A tensor in memory of its own. REQUIRES: the strides are those of a dense tensor.
Tensor make(const Shape& shape, const Strides& strides, TensorOptions options) {
  auto storage = make_small_shared<Storage>();
  storage->bytes = static_cast<size_t>(numel(shape, "empty")) * size_of(options.dtype);
  storage->device = options.device;
  storage->memory = allocate(storage->bytes, options.device);
  return Tensor(
      make_small_shared<TensorImpl>(std::move(storage), 0, shape, strides, options.dtype));
}

}  // namespace

void Tensor::throw_undefined(std::string_view op) {
  throw Error(ErrorCode::kInvalidArgument, op,
              "want a tensor, got an undefined one (made by Tensor())");
}

Tensor Tensor::empty(const Shape& shape, TensorOptions options) {
  return make(shape, contiguous_strides(shape), options);
}

Tensor Tensor::zeros(const Shape& shape, TensorOptions options) { return full(shape, 0, options); }

Tensor Tensor::ones(const Shape& shape, TensorOptions options) { return full(shape, 1, options); }

Tensor Tensor::full(const Shape& shape, double value, TensorOptions options) {
  Tensor out = empty(shape, options);
  launch<kernels::Fill>(options.device, out.view(), value);
  return out;
}

Tensor Tensor::scalar(double value, TensorOptions options) { return full({}, value, options); }

Tensor Tensor::arange(int64_t end, TensorOptions options) {
  check(end >= 0, "arange", [&] { return str_cat("want an end of 0 and more, got ", end); });
  std::vector<int64_t> values(static_cast<size_t>(end));
  std::iota(values.begin(), values.end(), 0);
  return from(values, {end}).to(options.dtype).to(options.device);
}

Tensor Tensor::arange(double start, double end, double step, TensorOptions options) {
  const double count = std::ceil((end - start) / step);
  check(step != 0 && count < 0x1p53, "arange", [&] {
    return str_cat("want a step that leads from start to end, got ", start, ", ", end, " and ",
                   step);
  });
  check(is_floating(options.dtype) || (std::floor(start) == start && std::floor(step) == step),
        "arange", [&] {
          const std::string_view dtype = lockstep::name(options.dtype);
          return str_cat("want integers or a floating dtype, got ", start, " and a step of ", step,
                         " for ", dtype);
        });
  std::vector<double> values(static_cast<size_t>(std::max(count, 0.0)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = start + step * static_cast<double>(i);
  return from(values, {static_cast<int64_t>(values.size())}).to(options.dtype).to(options.device);
}

Tensor Tensor::linspace(double start, double end, int64_t steps, TensorOptions options) {
  check(steps >= 0, "linspace", [&] { return str_cat("want 0 steps or more, got ", steps); });
  std::vector<double> values(static_cast<size_t>(steps));
  const double step = steps > 1 ? (end - start) / static_cast<double>(steps - 1) : 0;
  for (int64_t i = 0; i < steps; ++i) {
    // From both ends, so that the last number is end itself.
    values[static_cast<size_t>(i)] = i < (steps + 1) / 2
                                         ? start + step * static_cast<double>(i)
                                         : end - step * static_cast<double>(steps - 1 - i);
  }
  return from(values, {steps}).to(options.dtype).to(options.device);
}

Tensor Tensor::eye(int64_t rows, int64_t columns, TensorOptions options) {
  Tensor out = zeros({rows, columns < 0 ? rows : columns}, options);
  diagonal(out).fill_(1);
  return out;
}

template <class T>
Tensor Tensor::from(std::span<const T> values, const Shape& shape) {
  const int64_t wanted = lockstep::numel(shape, "from");
  check(static_cast<int64_t>(values.size()) == wanted, "from", [&] {
    return str_cat("want ", wanted, " values for shape ", lockstep::to_string(shape), ", got ",
                   values.size());
  });
  Tensor out = empty(shape, {dtype_of<T>()});
  std::copy(values.begin(), values.end(), static_cast<T*>(out.impl()->data()));
  return out;
}

template Tensor Tensor::from(std::span<const float>, const Shape&);
template Tensor Tensor::from(std::span<const double>, const Shape&);
template Tensor Tensor::from(std::span<const Half>, const Shape&);
template Tensor Tensor::from(std::span<const BFloat16>, const Shape&);
template Tensor Tensor::from(std::span<const int64_t>, const Shape&);
template Tensor Tensor::from(std::span<const int32_t>, const Shape&);
template Tensor Tensor::from(std::span<const int8_t>, const Shape&);
template Tensor Tensor::from(std::span<const uint8_t>, const Shape&);
template Tensor Tensor::from(std::span<const bool>, const Shape&);

Tensor Tensor::wrap(std::shared_ptr<void> memory, const Shape& shape, TensorOptions options) {
  auto storage = make_small_shared<Storage>();
  storage->bytes = static_cast<size_t>(lockstep::numel(shape, "wrap")) * size_of(options.dtype);
  check(memory != nullptr || storage->bytes == 0, "wrap", "want memory, got null");
  storage->memory = std::move(memory);
  storage->device = options.device;
  return Tensor(make_small_shared<TensorImpl>(std::move(storage), 0, shape,
                                              contiguous_strides(shape), options.dtype));
}

int64_t Tensor::size(int64_t dim) const {
  return shape()[static_cast<size_t>(normalize_dim(dim, this->dim(), "size"))];
}

int64_t Tensor::numel() const { return lockstep::numel(shape()); }

bool Tensor::is_contiguous() const { return lockstep::is_contiguous(shape(), strides()); }
bool Tensor::is_channels_last() const { return lockstep::is_channels_last(shape(), strides()); }

bool Tensor::shares_storage(const Tensor& other) const {
  return defined() && other.defined() && impl_->storage == other.impl_->storage;
}

template <class T>
T* Tensor::data() const {
  const TensorImpl& impl = get("data");
  check(impl.dtype == dtype_of<T>(), "data", [&] {
    const std::string_view wanted = lockstep::name(dtype_of<T>());
    return str_cat("want a tensor of ", wanted, ", got ", describe(impl));
  });
  check(impl.storage->device.is_cpu(), "data", [&] {
    return str_cat("want a tensor on cpu, got ", describe(impl), " on ",
                   impl.storage->device.name());
  });
  return static_cast<T*>(impl.data());
}

View Tensor::view() const {
  const TensorImpl& impl = get("view");
  return {impl.data(), impl.dtype, impl.storage->device, impl.shape, impl.strides};
}

namespace {

// The value of a one-element tensor in R, whatever its dtype.
template <class R>
R only_value(const Tensor& tensor, std::string_view op) {
  const TensorImpl& impl = tensor.get(op);
  check(tensor.numel() == 1, op,
        [&] { return str_cat("want a tensor of one element, got ", describe(impl)); });
  if (!impl.storage->device.is_cpu()) return only_value<R>(tensor.detach().to(kCpu), op);
  return visit_dtype(impl.dtype, [&](auto tag) -> R {
    using T = typename decltype(tag)::type;
    const T value = *tensor.data<T>();
    if constexpr (is_reduced_float_v<T>) {
      return static_cast<R>(static_cast<float>(value));
    } else {
      return static_cast<R>(value);
    }
  });
}

}  // namespace

double Tensor::item() const { return only_value<double>(*this, "item"); }
int64_t Tensor::item_i64() const { return only_value<int64_t>(*this, "item_i64"); }

template <class T>
std::vector<T> Tensor::to_vector() const {
  NoGrad no_grad;
  const Tensor dense = to(kCpu).contiguous();
  const T* first = dense.data<T>();
  return std::vector<T>(first, first + dense.numel());
}

#define LOCKSTEP_INSTANTIATE(T)        \
  template T* Tensor::data<T>() const; \
  template std::vector<T> Tensor::to_vector<T>() const;
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
LOCKSTEP_INSTANTIATE(Half)
LOCKSTEP_INSTANTIATE(BFloat16)
LOCKSTEP_INSTANTIATE(int64_t)
LOCKSTEP_INSTANTIATE(int32_t)
LOCKSTEP_INSTANTIATE(int8_t)
LOCKSTEP_INSTANTIATE(uint8_t)
LOCKSTEP_INSTANTIATE(bool)
#undef LOCKSTEP_INSTANTIATE

void Tensor::copy_(const Tensor& source) {
  check_unrecorded(*this, "copy_");
  NoGrad no_grad;
  if (source.device() != device()) {
    const bool alike = source.shape() == shape() && source.dtype() == dtype();
    if (!alike || !source.is_contiguous() || !is_contiguous()) return copy_(source.to(device()));
    transfer(source.view(), view());
  } else {
    launch<kernels::Copy>(device(), expand(source, shape()).view(), view());
  }
  mark_changed("copy_");
}

void Tensor::fill_(double value) {
  check_unrecorded(*this, "fill_");
  launch<kernels::Fill>(device(), view(), value);
  mark_changed("fill_");
}

void Tensor::mark_changed(const char* op) const {
  Storage& storage = *get(op).storage;
  storage.last_change.store(op, std::memory_order_relaxed);
  storage.version.fetch_add(1, std::memory_order_relaxed);
}

uint64_t Tensor::version() const {
  return get("version").storage->version.load(std::memory_order_relaxed);
}

Tensor Tensor::detach() const {
  const TensorImpl& impl = get("detach");
  return alias(*this, impl.shape, impl.strides, impl.offset);
}

void Tensor::set_data(const Tensor& source) {
  const TensorImpl& from = source.get("set_data");
  get("set_data");
  check(!source.requires_grad(), "set_data", "want data outside of the graph; detach() it first");
  impl_->set_view(false);
  impl_->storage = from.storage;
  impl_->set_view(true);
  impl_->offset = from.offset;
  impl_->shape = from.shape;
  impl_->strides = from.strides;
  impl_->dtype = from.dtype;
}

Tensor& Tensor::set_requires_grad(bool requires_grad) {
  const TensorImpl& impl = get("set_requires_grad");
  check(!requires_grad || is_floating(impl.dtype), "set_requires_grad",
        [&] { return str_cat("want a floating dtype, got ", describe(impl)); });
  check(impl.grad_fn == nullptr, "set_requires_grad", [&] {
    return str_cat("want a leaf, got the result of '", impl.grad_fn->op, "'; detach() it first");
  });
  impl_->requires_grad = requires_grad;
  return *this;
}

bool Tensor::is_leaf() const { return get("is_leaf").grad_fn == nullptr; }
bool Tensor::has_grad() const { return get("has_grad").grad.defined(); }

Tensor Tensor::grad() const {
  const TensorImpl& impl = get("grad");
  check(impl.grad.defined(), "grad", [&] {
    return str_cat("no gradient of ", describe(impl), " was computed; ",
                   !requires_grad() ? "it does not require one"
                   : !is_leaf()     ? "it is the result of an op: use register_hook() or grad()"
                                    : "no backward reached it");
  });
  return impl.grad;
}

void Tensor::set_grad(const Tensor& grad) {
  const TensorImpl& impl = get("set_grad");
  if (grad.defined()) {
    check(grad.shape() == impl.shape && grad.dtype() == impl.dtype && grad.device() == device(),
          "set_grad", [&] {
            return str_cat("want a gradient for ", describe(impl), ", got ", describe(*grad.impl()),
                           " on ", grad.device().name());
          });
    check(!grad.is_same(*this), "set_grad", "a tensor cannot be its own gradient");
  }
  impl_->grad = grad;
}

const std::string& Tensor::name() const { return get("name").name; }

void Tensor::set_name(std::string name) {
  get("set_name");
  impl_->name = std::move(name);
}

Tensor alias(const Tensor& base, const Shape& shape, const Strides& strides, int64_t offset) {
  const TensorImpl& from = base.get("alias");
  auto impl = make_small_shared<TensorImpl>(from.storage, offset, shape, strides, from.dtype);
  impl->set_view(true);
  return Tensor(std::move(impl));
}

Tensor empty_like(const Tensor& like) { return empty_like(like, like.dtype()); }

Tensor empty_like(const Tensor& like, DType dtype) {
  const Shape& shape = like.shape();
  const Strides& strides = like.strides();
  if (like.is_contiguous() || is_dense(shape, strides)) {
    return make(shape, strides, {dtype, like.device()});
  }
  return Tensor::empty(shape, {dtype, like.device()});
}

Tensor zeros_like(const Tensor& like) { return full_like(like, 0); }
Tensor ones_like(const Tensor& like) { return full_like(like, 1); }

Tensor full_like(const Tensor& like, double value) {
  Tensor out = empty_like(like);
  launch<kernels::Fill>(out.device(), out.view(), value);
  return out;
}

void check_same(std::string_view op, const Tensor& a, const Tensor& b) {
  const TensorImpl& left = a.get(op);
  const TensorImpl& right = b.get(op);
  check(left.storage->device == right.storage->device, op, [&] {
    return str_cat("want operands on one device, got ", describe(*a.impl()), " on ",
                   a.device().name(), " and ", describe(*b.impl()), " on ", b.device().name());
  });
  check(left.dtype == right.dtype, op, [&] {
    return str_cat("want operands of one dtype, got ", describe(*a.impl()), " and ",
                   describe(*b.impl()), "; convert one with to()");
  });
}

Tensor Tensor::reshape(const Shape& shape) const { return lockstep::reshape(*this, shape); }
Tensor Tensor::view(const Shape& shape) const { return lockstep::view(*this, shape); }
Tensor Tensor::permute(std::initializer_list<int64_t> dims) const {
  return lockstep::permute(*this, Shape(dims));
}
Tensor Tensor::transpose(int64_t dim0, int64_t dim1) const {
  return lockstep::transpose(*this, dim0, dim1);
}
Tensor Tensor::flatten(int64_t start_dim) const { return lockstep::flatten(*this, start_dim); }
Tensor Tensor::select(int64_t dim, int64_t index) const {
  return lockstep::select(*this, dim, index);
}
Tensor Tensor::narrow(int64_t dim, int64_t start, int64_t length) const {
  return lockstep::narrow(*this, dim, start, length);
}
Tensor Tensor::contiguous() const { return lockstep::contiguous(*this); }
Tensor Tensor::channels_last() const { return lockstep::channels_last(*this); }
Tensor Tensor::clone() const { return lockstep::clone(*this); }
Tensor Tensor::to(DType dtype) const { return lockstep::to(*this, dtype); }
Tensor Tensor::to(Device device) const { return lockstep::to(*this, device); }
Tensor Tensor::sum() const { return lockstep::sum(*this); }
Tensor Tensor::mean() const { return lockstep::mean(*this); }

}  // namespace lockstep
