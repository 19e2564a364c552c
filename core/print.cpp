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
    const Tensor shown = edges(tensor);
    shown_ = shown.shape();
    if (is_floating(dtype_)) {
      values_ = shown.to(DType::kF64).to_vector<double>();
    } else {
      exact_ = shown.to(DType::kI64).to_vector<int64_t>();
    }
    for (const double value : values_) widen(value);
    const size_t count = std::max(values_.size(), exact_.size());
    for (size_t i = 0; i < count; ++i) {
      format_.width = std::max(format_.width, static_cast<int>(text(i).size()));
    }
  }

  std::string print() {
    if (shown_.empty()) return text(0);
    print_level(0, 0);
    return out_;
  }

 private:
  // What is shown of a tensor; only this is copied.
  static Tensor edges(Tensor tensor) {
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      const int64_t size = tensor.size(dim);
      if (size <= kLongest) continue;
      const Tensor ends[] = {tensor.narrow(dim, 0, kEdge), tensor.narrow(dim, size - kEdge, kEdge)};
      tensor = cat(ends, dim);
    }
    return tensor;
  }

  void widen(double value) {
    if (!std::isfinite(value)) return;
    const double size = std::abs(value);
    if (value != std::floor(value)) format_.integral = false;
    if (size >= 1e8 || (size > 0 && size < 1e-4)) format_.scientific = true;
  }

  std::string text(size_t i) const {
    if (dtype_ == DType::kBool) return exact_[i] != 0 ? "true" : "false";
    if (!is_floating(dtype_)) return str_cat(exact_[i]);
    std::string out = format_(values_[i]);
    // A float that happens to be whole still reads as a float.
    if (format_.integral && !format_.scientific && std::isfinite(values_[i])) out += '.';
    return out;
  }

  void print_level(size_t dim, size_t start) {
    if (dim == shown_.size()) {
      const std::string value = text(start);
      out_.append(static_cast<size_t>(format_.width) - value.size(), ' ').append(value);
      return;
    }
    const bool innermost = dim + 1 == shown_.size();
    const std::string gap =
        innermost ? ", "
                  : "," + std::string(shown_.size() - dim - 1, '\n') + std::string(dim + 1, ' ');
    size_t step = 1;
    for (size_t i = dim + 1; i < shown_.size(); ++i) step *= static_cast<size_t>(shown_[i]);
    out_ += '[';
    for (int64_t i = 0; i < shown_[dim]; ++i) {
      if (i > 0) out_ += gap;
      if (shape_[dim] > kLongest && i == kEdge) out_.append("...").append(gap);
      print_level(dim + 1, start + static_cast<size_t>(i) * step);
    }
    out_ += ']';
  }

  Shape shape_;
  Shape shown_;  // a long dimension has its edges alone
  DType dtype_;
  std::vector<double> values_;  // of floating dtypes
  std::vector<int64_t> exact_;  // of the others
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
