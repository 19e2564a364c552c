#include <algorithm>
#include <cmath>
#include <ostream>

#include "absl/strings/str_format.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/core/tensor.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

// A dimension longer than this shows its first and last kEdge entries.
constexpr int64_t kLongest = 10;
constexpr int64_t kEdge = 3;

// How numbers of one tensor are written so that they line up.
struct Format {
  bool integral = true;
  bool scientific = false;
  int width = 0;

  std::string operator()(double value) const {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
    if (scientific) return absl::StrFormat("%.4e", value);
    return integral ? absl::StrFormat("%.0f", value) : absl::StrFormat("%.4f", value);
  }
};

class Printer {
 public:
  explicit Printer(const Tensor& tensor) : shape_(tensor.shape()), dtype_(tensor.dtype()) {
    NoGrad no_grad;
    if (dtype_ == DType::kI64) {
      exact_ = tensor.to_vector<int64_t>();
    } else {
      values_ = tensor.to(DType::kF64).to_vector<double>();
    }
    visit(0, 0, [&](size_t i) { widen(i); });
    visit(0, 0, [&](size_t i) {
      format_.width = std::max(format_.width, static_cast<int>(text(i).size()));
    });
  }

  std::string print() {
    if (shape_.empty()) return text(0);
    print_level(0, 0);
    return out_;
  }

 private:
  void widen(size_t i) {
    if (values_.empty()) return;
    const double value = values_[i];
    if (!std::isfinite(value)) return;
    const double size = std::abs(value);
    if (value != std::floor(value)) format_.integral = false;
    if (size >= 1e8 || (size > 0 && size < 1e-4)) format_.scientific = true;
  }

  std::string text(size_t i) const {
    if (dtype_ == DType::kI64) return str_cat(exact_[i]);
    if (dtype_ == DType::kBool) return values_[i] != 0 ? "true" : "false";
    std::string out = format_(values_[i]);
    // A float that happens to be whole still reads as a float.
    if (is_floating(dtype_) && format_.integral && !format_.scientific &&
        std::isfinite(values_[i])) {
      out += '.';
    }
    return out;
  }

  // Calls f(position) for each element that is shown below `dim`, whose first is `start`.
  template <class F>
  void visit(size_t dim, size_t start, const F& f) {
    if (dim == shape_.size()) return f(start);
    size_t step = 1;
    for (size_t i = dim + 1; i < shape_.size(); ++i) step *= static_cast<size_t>(shape_[i]);
    for (int64_t i = 0; i < shape_[dim]; ++i) {
      if (shape_[dim] > kLongest && i == kEdge) i = shape_[dim] - kEdge;
      visit(dim + 1, start + static_cast<size_t>(i) * step, f);
    }
  }

  void print_level(size_t dim, size_t start) {
    if (dim == shape_.size()) {
      const std::string value = text(start);
      out_.append(static_cast<size_t>(format_.width) - value.size(), ' ').append(value);
      return;
    }
    const bool innermost = dim + 1 == shape_.size();
    const std::string gap =
        innermost ? ", "
                  : "," + std::string(shape_.size() - dim - 1, '\n') + std::string(dim + 1, ' ');
    size_t step = 1;
    for (size_t i = dim + 1; i < shape_.size(); ++i) step *= static_cast<size_t>(shape_[i]);
    out_ += '[';
    for (int64_t i = 0; i < shape_[dim]; ++i) {
      if (i > 0) out_ += gap;
      if (shape_[dim] > kLongest && i == kEdge) {
        out_.append("...").append(gap);
        i = shape_[dim] - kEdge;
      }
      print_level(dim + 1, start + static_cast<size_t>(i) * step);
    }
    out_ += ']';
  }

  Shape shape_;
  DType dtype_;
  std::vector<double> values_;
  std::vector<int64_t> exact_;  // i64 values, which f64 cannot hold
  Format format_;
  std::string out_;
};

}  // namespace

std::string Tensor::to_string() const {
  if (!defined()) return "tensor(undefined)";
  const std::string_view dtype = lockstep::name(this->dtype());
  std::string out =
      str_cat(Printer(*this).print(), "  # ", lockstep::to_string(shape()), " ", dtype);
  if (device().is_cuda()) absl::StrAppend(&out, " ", device().name());
  if (impl_->grad_fn != nullptr) {
    const std::string_view op = impl_->grad_fn->op;
    out += str_cat(" by ", op);
  } else if (impl_->requires_grad) {
    absl::StrAppend(&out, " requires_grad");
  }
  return out;
}

std::ostream& operator<<(std::ostream& stream, const Tensor& tensor) {
  return stream << tensor.to_string();
}

}  // namespace lockstep
