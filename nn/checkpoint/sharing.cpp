#include "lockstep/nn/checkpoint/sharing.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "lockstep/kernels/text.h"

namespace lockstep::nn {
namespace {

// Elements of a storage, from the first that a tensor has to behind the last.
struct Extent {
  size_t tensor;  // its place in the list
  int64_t low;
  int64_t high;
};

// nullopt where it has no element, or has one twice (it was expanded): such a tensor is stored by
// itself.
std::optional<Extent> extent_of(const Tensor& tensor, size_t place) {
  if (tensor.numel() == 0) return std::nullopt;
  const int64_t low = tensor.impl()->offset;
  int64_t last = low;
  for (size_t i = 0; i < tensor.shape().size(); ++i) {
    if (tensor.strides()[i] <= 0 && tensor.shape()[i] > 1) return std::nullopt;
    last += (tensor.shape()[i] - 1) * tensor.strides()[i];
  }
  return Extent{place, low, last + 1};
}

template <class F>
void for_each_element(const Tensor& tensor, const F& f) {
  std::vector<int64_t> index(tensor.shape().size(), 0);
  for (int64_t n = tensor.numel(); n > 0; --n) {
    int64_t at = tensor.impl()->offset;
    for (size_t i = 0; i < index.size(); ++i) at += index[i] * tensor.strides()[i];
    f(at);
    for (size_t i = index.size(); i-- > 0;) {
      if (++index[i] < tensor.shape()[i]) break;
      index[i] = 0;
    }
  }
}

// Extents that overlap may belong to tensors that do not, as columns of a matrix.
bool have_common_elements(const NamedTensors& tensors, std::span<const Extent> extents, int64_t low,
                          int64_t high) {
  std::vector<bool> taken(static_cast<size_t>(high - low), false);
  bool common = false;
  for (const Extent& extent : extents) {
    for_each_element(tensors[extent.tensor].second, [&](int64_t at) {
      const auto place = static_cast<size_t>(at - low);
      common = common || taken[place];
      taken[place] = true;
    });
    if (common) return true;
  }
  return false;
}

class Layout {
 public:
  explicit Layout(const NamedTensors& tensors) : tensors_(tensors), base_(tensors.size()) {}

  SharedLayout make() {
    find_twins();
    std::map<const Storage*, std::vector<Extent>> storages;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (twin_of(i) != i) continue;
      const auto extent = extent_of(tensors_[i].second, i);
      if (extent) storages[tensors_[i].second.impl()->storage.get()].push_back(*extent);
    }
    for (auto& [storage, extents] : storages) split_storage(extents);
    for (size_t i = 0; i < tensors_.size(); ++i) emit(i);
    return std::move(out_);
  }

 private:
  // A stretch of a storage that several tensors share.
  struct Base {
    int64_t low = 0;
    int64_t high = 0;
    size_t covering = 0;  // the tensor that is all of it; tensors_.size() for none
    std::string name;     // under which it is stored
    bool stored = false;
  };

  // Tensors with the very same elements in the same order: the first stands for all.
  void find_twins() {
    std::map<std::pair<const Storage*, int64_t>, std::vector<size_t>> seen;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Tensor& tensor = tensors_[i].second;
      twins_.push_back(i);
      if (tensor.numel() == 0) continue;
      auto& others = seen[{tensor.impl()->storage.get(), tensor.impl()->offset}];
      const auto twin = std::find_if(others.begin(), others.end(), [&](size_t other) {
        const Tensor& first = tensors_[other].second;
        return first.shape() == tensor.shape() && first.strides() == tensor.strides() &&
               first.dtype() == tensor.dtype();
      });
      if (twin != others.end()) {
        twins_[i] = *twin;
      } else {
        others.push_back(i);
      }
    }
  }

  size_t twin_of(size_t i) const { return twins_[i]; }

  void split_storage(std::vector<Extent>& extents) {
    std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
      return std::pair(a.low, a.tensor) < std::pair(b.low, b.tensor);
    });
    for (size_t begin = 0; begin < extents.size();) {
      size_t end = begin + 1;
      int64_t high = extents[begin].high;
      for (; end < extents.size() && extents[end].low < high; ++end) {
        high = std::max(high, extents[end].high);
      }
      share(std::span(extents).subspan(begin, end - begin), high);
      begin = end;
    }
  }

  void share(std::span<const Extent> extents, int64_t high) {
    const int64_t low = extents[0].low;
    const DType dtype = tensors_[extents[0].tensor].second.dtype();
    const bool one_dtype = std::all_of(extents.begin(), extents.end(), [&](const Extent& e) {
      return tensors_[e.tensor].second.dtype() == dtype;
    });
    if (extents.size() < 2 || !one_dtype) return;
    if (!have_common_elements(tensors_, extents, low, high)) return;
    Base base{low, high, tensors_.size(), {}, false};
    for (const Extent& extent : extents) {
      const bool covers = extent.low == low && extent.high == high &&
                          tensors_[extent.tensor].second.is_contiguous();
      if (covers) base.covering = std::min(base.covering, extent.tensor);
    }
    base.name = base.covering < tensors_.size() ? tensors_[base.covering].first
                                                : str_cat("/storage", hidden_++);
    for (const Extent& extent : extents) base_[extent.tensor] = bases_.size();
    bases_.push_back(std::move(base));
  }

  void emit(size_t i) {
    const auto& [name, tensor] = tensors_[i];
    const size_t twin = twin_of(i);
    if (!base_[twin]) {
      if (twin == i) {
        out_.stored.emplace_back(name, tensor);
      } else {
        out_.views.push_back(
            {name, tensors_[twin].first, tensor.shape(), contiguous_strides(tensor.shape()), 0});
      }
      return;
    }
    Base& base = bases_[*base_[twin]];
    if (!base.stored) {
      base.stored = true;
      out_.stored.emplace_back(base.name, alias(tensor, {base.high - base.low}, {1}, base.low));
      if (base.covering < tensors_.size()) {
        out_.stored.back().second = tensors_[base.covering].second;
      }
    }
    if (base.covering == i) return;
    out_.views.push_back(
        {name, base.name, tensor.shape(), tensor.strides(), tensor.impl()->offset - base.low});
  }

  const NamedTensors& tensors_;
  std::vector<size_t> twins_;
  std::vector<std::optional<size_t>> base_;  // of each tensor, into bases_
  std::vector<Base> bases_;
  int hidden_ = 0;
  SharedLayout out_;
};

}  // namespace

SharedLayout lay_out_shared(const NamedTensors& tensors) { return Layout(tensors).make(); }

}  // namespace lockstep::nn
