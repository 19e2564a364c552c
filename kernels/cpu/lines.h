#pragma once

#include <algorithm>

#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/view.h"

// Kernels that work along one dimension see a tensor as lines in that direction.
namespace lockstep::kernels {

class Lines {
 public:
  // The lines of `shape` along dimension `axis`.
  Lines(const Shape& shape, int64_t axis) : axis_(static_cast<size_t>(axis)), shape_(shape) {
    length_ = shape_[axis_];
    for (size_t d = 0; d < shape_.size(); ++d) {
      if (d != axis_) count_ *= shape_[d];
    }
  }

  int64_t count() const { return count_; }
  int64_t length() const { return length_; }

  // Where the first element of a line stands in memory with these strides.
  int64_t offset(const Strides& strides, int64_t line) const {
    int64_t out = 0;
    for (size_t d = shape_.size(); d-- > 0;) {
      if (d == axis_) continue;
      out += line % shape_[d] * strides[d];
      line /= shape_[d];
    }
    return out;
  }

  // How far the next line of a strip stands in memory with these strides.
  int64_t beside(const Strides& strides) const { return strides.back(); }

  // Calls f(line, count) for strips of lines that stand side by side: line, line + 1, … along the
  // last dimension, so that a kernel that takes an element of each, and then the next of each,
  // walks through memory in order. A strip is of at most `widest` lines; lines along the last
  // dimension come one by one.
  template <class F>
  void for_each_strip(const F& f, int64_t widest = kStrip) const {
    if (length_ == 0 || count_ == 0) return;
    const int64_t across = axis_ + 1 == shape_.size() ? 1 : shape_.back();
    const int64_t in_row = (across + widest - 1) / widest;
    const int64_t strips = count_ / across * in_row;
    const int64_t elements = std::max<int64_t>(1, count_ / strips * length_);
    parallel_for(strips, std::max<int64_t>(1, kGrain / elements), [&](int64_t begin, int64_t end) {
      for (int64_t strip = begin; strip < end; ++strip) {
        const int64_t first = strip % in_row * widest;
        f(strip / in_row * across + first, std::min(widest, across - first));
      }
    });
  }

  static constexpr int64_t kStrip = 512;

  // Calls f(line) for every line, on several threads where there is work for them.
  template <class F>
  void for_each(const F& f) const {
    for_each_group(1, [&](int64_t line, int64_t) { f(line); });
  }

  // Calls f(line, count) for groups of lines, line, line + 1, …, of `size` or what is left.
  template <class F>
  void for_each_group(int64_t size, const F& f) const {
    if (length_ == 0) return;
    parallel_for(count_, std::max<int64_t>(1, kGrain / length_), [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; line += size) f(line, std::min(size, end - line));
    });
  }

 private:
  static constexpr int64_t kGrain = 16384;  // elements that are worth a thread

  size_t axis_;
  Shape shape_;
  int64_t length_ = 0;
  int64_t count_ = 1;
};

}  // namespace lockstep::kernels
