#include "lockstep/kernels/shape.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lockstep/kernels/error.h"

namespace lockstep {

std::string to_string(const Shape& shape) {
  return absl::StrCat("(", absl::StrJoin(shape, ", "), ")");
}

namespace {

[[noreturn, gnu::noinline]] void throw_bad_sizes(const Shape& shape, std::string_view op,
                                                 bool negative) {
  throw Error(ErrorCode::kInvalidArgument, op,
              negative ? absl::StrCat("want sizes of 0 and more, got ", to_string(shape))
                       : absl::StrCat("the number of elements of shape ", to_string(shape),
                                      " does not fit 64 bits"));
}

}  // namespace

int64_t numel(const Shape& shape, std::string_view op) {
  constexpr int64_t kLimit = std::numeric_limits<int64_t>::max() / 16;
  int64_t count = 1;
  bool negative = false;
  bool empty = false;
  bool fits = true;
  for (int64_t size : shape) {
    negative = negative || size < 0;
    empty = empty || size == 0;
    fits = !__builtin_mul_overflow(count, size, &count) && fits;
  }
  if (negative || (!empty && (!fits || count > kLimit))) [[unlikely]] {
    throw_bad_sizes(shape, op, negative);
  }
  return empty ? 0 : count;
}

namespace {

// A stride that does not fit 64 bits belongs to an empty shape with huge other sizes (numel() lets
// no other pass), where strides mean nothing.
int64_t stride_product(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? 0 : product;
}

}  // namespace

Strides contiguous_strides(const Shape& shape) {
  Strides strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step = stride_product(step, std::max<int64_t>(shape[i], 1));
  }
  return strides;
}

Strides channels_last_strides(const Shape& shape) {
  check(shape.size() == 4, "channels_last",
        [&] { return absl::StrCat("want a shape (N, C, H, W), got ", to_string(shape)); });
  const int64_t c = std::max<int64_t>(shape[1], 1);
  const int64_t h = std::max<int64_t>(shape[2], 1);
  const int64_t w = std::max<int64_t>(shape[3], 1);
  const int64_t row = stride_product(w, c);
  return {stride_product(h, row), 1, row, c};
}

namespace {

bool matches(const Shape& shape, const Strides& strides, const Strides& wanted) {
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return true;
  }
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] != 1 && strides[i] != wanted[i]) return false;
  }
  return true;
}

}  // namespace

// Asked for every op, so the strides that are wanted are not made.
bool is_contiguous(const Shape& shape, const Strides& strides) {
  int64_t step = 1;
  bool in_order = true;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 0) return true;
    in_order = in_order && (shape[i] == 1 || strides[i] == step);
    step = stride_product(step, shape[i]);
  }
  return in_order;
}

bool is_channels_last(const Shape& shape, const Strides& strides) {
  return shape.size() == 4 && matches(shape, strides, channels_last_strides(shape));
}

Strides expanded_strides(const Shape& shape, const Strides& strides, const Shape& wanted) {
  Strides out(wanted.size(), 0);
  const size_t leading = wanted.size() - shape.size();
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == wanted[leading + i]) out[leading + i] = strides[i];
  }
  return out;
}

Shape broadcast_shapes(const Shape& a, const Shape& b, std::string_view op) {
  const Shape& longer = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  Shape out = longer;
  const size_t offset = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    const int64_t x = longer[offset + i];
    const int64_t y = shorter[i];
    check(x == y || x == 1 || y == 1, op, [&] {
      return absl::StrCat("want shapes that broadcast, got ", to_string(a), " and ", to_string(b));
    });
    out[offset + i] = x == 1 ? y : x;
  }
  return out;
}

int64_t normalize_dim(int64_t dim, int64_t rank, std::string_view op) {
  const int64_t limit = std::max<int64_t>(rank, 1);
  check(dim >= -limit && dim < limit, op, [&] {
    return absl::StrCat("want a dimension from ", -limit, " to ", limit - 1, ", got ", dim);
  });
  return dim < 0 ? dim + limit : dim;
}

}  // namespace lockstep
