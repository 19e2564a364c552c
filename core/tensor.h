#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/kernels/device.h"
#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/shape.h"
#include "lockstep/kernels/view.h"

namespace lockstep {

struct Index;
struct Node;
struct TensorImpl;

// Memory shared by a tensor and its views. The version counts changes in place, so that backward
// can tell whether a tensor it saved is still what it was.
struct Storage {
  std::shared_ptr<void> memory;
  size_t bytes = 0;
  Device device;
  std::atomic<uint64_t> version{0};
  std::atomic<const char*> last_change{"creation"};  // the op that changed it last; static strings
  std::atomic<int64_t> views{0};                     // tensors that view() ops and detach() made
};

// What to make a tensor of.
struct TensorOptions {
  DType dtype = DType::kF32;
  Device device = kCpu;
};

struct BackwardOptions {
  // Keep what the graph saved, so that backward can run through it again.
  bool retain_graph = false;
  // Record the backward itself, so that gradients can be differentiated. Implies retain_graph.
  // The grad of a leaf then holds a graph that holds the leaf: clear it (zero_grad) after use, or
  // both stay in memory. Gradients from grad() have no such circle.
  bool create_graph = false;
};

// A handle to an n-dimensional array that may take part in a graph of gradients. Copies share the
// same array and the same gradient. Not initialised by the default constructor: defined() is false.
//
// Thread safety: as for std::shared_ptr's target; several threads may read one tensor, a change
// needs them out of the way. Each thread records its own graph.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}

  // ---- Making tensors. Contiguous, on options.device. ----

  static Tensor empty(const Shape& shape, TensorOptions options = {});
  static Tensor zeros(const Shape& shape, TensorOptions options = {});
  static Tensor ones(const Shape& shape, TensorOptions options = {});
  static Tensor full(const Shape& shape, double value, TensorOptions options = {});
  // A tensor of no dimensions.
  static Tensor scalar(double value, TensorOptions options = {});
  // start, start + step, … before end (0, 1, … without a start). A step that is no integer wants a
  // floating dtype.
  static Tensor arange(int64_t end, TensorOptions options = {DType::kI64});
  static Tensor arange(double start, double end, double step = 1,
                       TensorOptions options = {DType::kI64});
  // `steps` numbers at even distances, the first of them start and the last one end.
  static Tensor linspace(double start, double end, int64_t steps, TensorOptions options = {});
  // (rows, columns), 1 on the diagonal; square without columns.
  static Tensor eye(int64_t rows, int64_t columns = -1, TensorOptions options = {});
  // Copies `values`, row-major. Throws Error(kInvalidArgument) unless numel(shape) values came.
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape);
  template <class T>
  static Tensor from(std::initializer_list<T> values, const Shape& shape) {
    return from(std::span<const T>(values.begin(), values.size()), shape);
  }
  template <class T>
  static Tensor from(const std::vector<T>& values,
                     const Shape& shape) requires(!std::is_same_v<T, bool>) {
    return from(std::span<const T>(values), shape);
  }
  // Wraps memory that `memory` keeps alive: `shape` elements from `data`, row-major.
  static Tensor wrap(std::shared_ptr<void> memory, const Shape& shape, TensorOptions options = {});

  // ---- What it is. All but defined() throw Error(kInvalidArgument) on an undefined tensor. ----

  bool defined() const { return impl_ != nullptr; }
  inline const Shape& shape() const;
  inline const Strides& strides() const;  // in elements
  int64_t dim() const { return static_cast<int64_t>(shape().size()); }
  int64_t size(int64_t dim) const;  // a negative dim counts from the end
  int64_t numel() const;
  int64_t nbytes() const { return numel() * static_cast<int64_t>(size_of(dtype())); }
  inline DType dtype() const;
  inline Device device() const;
  TensorOptions options() const { return {dtype(), device()}; }
  bool is_contiguous() const;
  bool is_channels_last() const;
  // True where both handles name the same array object.
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }
  bool shares_storage(const Tensor& other) const;

  // The values as a person reads them, large ones abridged.
  std::string to_string() const;

  // ---- Its memory ----

  // The first element. Throws Error(kInvalidArgument) unless T is the dtype and the device is cpu.
  // Writing through it does not count as a change in place; call mark_changed() after.
  template <class T>
  T* data() const;
  // What kernels take; borrowed, valid while this tensor lives.
  View view() const;
  // The one value of a tensor of one element, converted.
  double item() const;
  int64_t item_i64() const;
  // All values in row-major order, copied. T must be the dtype.
  template <class T>
  std::vector<T> to_vector() const;

  // Copies values and converts their dtype. The graph does not see these two: on a tensor that
  // requires a gradient they are an Error(kInvalidArgument) outside of NoGrad, as is a shape that
  // does not broadcast to this one. They count as a change in place.
  void copy_(const Tensor& source);
  void fill_(double value);
  void zero_() { fill_(0); }
  // Tells the graph that `op` (a static string) wrote to the memory.
  void mark_changed(const char* op) const;
  uint64_t version() const;

  // The same memory, out of the graph.
  Tensor detach() const;
  // A shallow exchange of what both handles' array objects hold (storage, shape, dtype), for
  // loading; gradients, hooks and names stay where they are.
  void set_data(const Tensor& source);

  // ---- Gradients ----

  inline bool requires_grad() const;
  // Throws Error(kInvalidArgument) for an integer dtype, or when taken from a result of an op.
  Tensor& set_requires_grad(bool requires_grad = true);
  // True for tensors that no recorded op made.
  bool is_leaf() const;
  bool has_grad() const;
  // Throws Error(kInvalidArgument) that names the tensor where no gradient was computed.
  Tensor grad() const;
  // An undefined tensor means null. Throws on another shape, dtype or device.
  void set_grad(const Tensor& grad);
  void clear_grad() { set_grad(Tensor()); }
  // The name that errors use, "weight" or "features.0.weight"; empty until someone sets it.
  const std::string& name() const;
  void set_name(std::string name);

  // Adds d(this)/d(leaf) to the grad of every leaf below this tensor. `gradient` has this tensor's
  // shape and dtype, and may be left out for one element. Throws Error(kInvalidArgument) on misuse
  // (see autograd.h). Runs in the calling thread.
  void backward(const Tensor& gradient = Tensor(), BackwardOptions options = {}) const;

  // Called with the whole gradient of this tensor, each time one has been computed; what it returns
  // replaces the gradient unless it is undefined. Returns an id for remove_hook.
  int64_t register_hook(std::function<Tensor(const Tensor&)> hook);
  // For leaves: called after the whole gradient of one backward was added to grad().
  int64_t register_post_accumulate_hook(std::function<void(const Tensor&)> hook);
  void remove_hook(int64_t id);

  const std::shared_ptr<TensorImpl>& impl() const { return impl_; }
  // The array behind this handle; of an undefined tensor an Error(kInvalidArgument) that names
  // `op`.
  inline const TensorImpl& get(std::string_view op) const;

  // ---- The methods that are written most; every op is a function of core/ops.h. ----

  Tensor reshape(const Shape& shape) const;  // one size may be -1
  Tensor view(const Shape& shape) const;     // reshape that never copies: an error instead
  Tensor permute(std::initializer_list<int64_t> dims) const;
  Tensor transpose(int64_t dim0, int64_t dim1) const;
  Tensor t() const { return transpose(-2, -1); }
  Tensor flatten(int64_t start_dim = 0) const;
  Tensor select(int64_t dim, int64_t index) const;
  Tensor narrow(int64_t dim, int64_t start, int64_t length) const;
  Tensor contiguous() const;
  Tensor channels_last() const;
  Tensor clone() const;
  Tensor to(DType dtype) const;
  Tensor to(Device device) const;
  Tensor sum() const;
  Tensor mean() const;

  // x[indices]: see core/ops/indexing.h.
  Tensor index(std::initializer_list<Index> indices) const;

  // In place; an operand that does not broadcast to this shape is an error. In the graph they are
  // recorded, unless another view shares the memory, which is an error.
  Tensor& add_(const Tensor& other, double alpha = 1);
  Tensor& sub_(const Tensor& other);
  Tensor& mul_(const Tensor& other);
  Tensor& div_(const Tensor& other);
  Tensor& add_(double summand);
  Tensor& sub_(double subtrahend);
  Tensor& mul_(double factor);
  Tensor& div_(double divisor);
  Tensor& neg_();
  Tensor& exp_();
  Tensor& sqrt_();
  Tensor& relu_();
  Tensor& sigmoid_();
  Tensor& tanh_();
  Tensor& clamp_(double low, double high);
  Tensor& masked_fill_(const Tensor& mask, double value);
  // x[indices] = value, or += with accumulate: see core/ops/indexing.h.
  Tensor& index_put_(std::initializer_list<Index> indices, const Tensor& value,
                     bool accumulate = false);
  Tensor& index_put_(std::initializer_list<Index> indices, double value, bool accumulate = false);
  Tensor& operator+=(const Tensor& other) { return add_(other); }
  Tensor& operator-=(const Tensor& other) { return sub_(other); }
  Tensor& operator*=(const Tensor& other) { return mul_(other); }
  Tensor& operator/=(const Tensor& other) { return div_(other); }
  Tensor& operator+=(double summand) { return add_(summand); }
  Tensor& operator-=(double subtrahend) { return sub_(subtrahend); }
  Tensor& operator*=(double factor) { return mul_(factor); }
  Tensor& operator/=(double divisor) { return div_(divisor); }

 private:
  [[noreturn]] static void throw_undefined(std::string_view op);

  std::shared_ptr<TensorImpl> impl_;
};

// Writes to_string().
std::ostream& operator<<(std::ostream& stream, const Tensor& tensor);

// The array behind a handle. Library-internal; tensors share it, its fields are Tensor's to change.
struct TensorImpl {
  std::shared_ptr<Storage> storage;
  int64_t offset = 0;  // of the first element, in elements
  Shape shape;
  Strides strides;  // in elements
  DType dtype = DType::kF32;

  bool requires_grad = false;     // of a leaf
  std::shared_ptr<Node> grad_fn;  // of a recorded result
  Tensor grad;
  std::string name;
  struct Hook {
    int64_t id;
    std::function<Tensor(const Tensor&)> on_gradient;
    std::function<void(const Tensor&)> after_accumulation;
  };
  std::vector<Hook> hooks;  // of a leaf; those of a result live in its node

  bool is_view = false;  // counted in storage->views

  TensorImpl() = default;
  TensorImpl(std::shared_ptr<Storage> memory, int64_t first, const Shape& sizes,
             const Strides& steps, DType type)
      : storage(std::move(memory)), offset(first), shape(sizes), strides(steps), dtype(type) {}
  TensorImpl(const TensorImpl&) = delete;
  TensorImpl& operator=(const TensorImpl&) = delete;
  ~TensorImpl() { set_view(false); }

  void set_view(bool on) {
    if (on != is_view) storage->views.fetch_add(on ? 1 : -1, std::memory_order_relaxed);
    is_view = on;
  }

  void* data() const {
    return static_cast<char*>(storage->memory.get()) +
           offset * static_cast<int64_t>(size_of(dtype));
  }
};

const TensorImpl& Tensor::get(std::string_view op) const {
  if (impl_ == nullptr) [[unlikely]]
    throw_undefined(op);
  return *impl_;
}
const Shape& Tensor::shape() const { return get("shape").shape; }
const Strides& Tensor::strides() const { return get("strides").strides; }
DType Tensor::dtype() const { return get("dtype").dtype; }
Device Tensor::device() const { return get("device").storage->device; }
bool Tensor::requires_grad() const {
  return impl_ != nullptr && (impl_->requires_grad || impl_->grad_fn != nullptr);
}

// A tensor over the same storage with another shape; the graph does not see it. Library-internal:
// REQUIRES that every element lies within the storage.
Tensor alias(const Tensor& base, const Shape& shape, const Strides& strides, int64_t offset);

// Not initialised, in the memory order of `like` where that is dense, else contiguous.
Tensor empty_like(const Tensor& like);
Tensor empty_like(const Tensor& like, DType dtype);
Tensor zeros_like(const Tensor& like);
Tensor ones_like(const Tensor& like);
Tensor full_like(const Tensor& like, double value);

// Throws Error(kInvalidArgument) that names `op` where an argument is undefined, or two are on
// different devices or of different dtypes.
void check_same(std::string_view op, const Tensor& a, const Tensor& b);

}  // namespace lockstep
