#include "lockstep/nn/data_parallel.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/text.h"

namespace lockstep::nn {

DataParallel::DataParallel(std::shared_ptr<Module> module,
                           std::shared_ptr<comm::Communicator> group, DataParallelOptions options)
    : module_(std::move(module)), group_(std::move(group)), options_(options) {
  check(module_ != nullptr && group_ != nullptr, "DataParallel",
        "want a module and a communicator, got null");
  register_module("", module_);
  wrapped_ = module_->named_parameters();
  NamedTensors all = wrapped_;
  for (auto& buffer : module_->named_buffers()) all.push_back(buffer);
  check_same_layout(all, *group_, "DataParallel");
  broadcast_values(all, *group_);

  NamedTensors trainable;
  for (const auto& entry : wrapped_) {
    if (entry.second.requires_grad()) trainable.push_back(entry);
  }
  check(!trainable.empty(), "DataParallel", [&] {
    return str_cat("want a module with a parameter that requires a gradient; of the ",
                   wrapped_.size(), " parameters of ", module_->type_name(), " none does");
  });
  if (group_->size() > 1) {
    reducer_ = std::make_shared<Reducer>(trainable, group_, options_.reducer);
  }
}

Tensor DataParallel::forward(const Tensor& x) {
  check_parameters();
  if (reducer_ == nullptr) return module_->forward(x);
  if (is_training() && grad_enabled()) {
    if (options_.check_every > 0 && forwards_++ % options_.check_every == 0) {
      check_same_values(wrapped_, *group_, "DataParallel");
    }
    if (options_.broadcast_buffers) broadcast_buffers();
  }
  Tensor y = module_->forward(x);
  if (!y.requires_grad()) return y;
  // Backward passes here even on a rank whose loss reaches no parameter.
  Tensor out = y.detach();
  out.impl()->set_view(false);  // y itself goes away
  return record("data_parallel", out, {y},
                [weak = std::weak_ptr<Reducer>(reducer_)](const Tensor& g) {
                  if (const auto reducer = weak.lock()) reducer->arm();
                  return Tensors{g};
                });
}

void DataParallel::check_parameters() const {
  const NamedTensors now = module_->named_parameters();
  const size_t common = std::min(now.size(), wrapped_.size());
  const auto fail = [](const std::string& path, const char* what) {
    throw Error(ErrorCode::kInvalidArgument, "DataParallel",
                str_cat("parameter '", path, "' was ", what,
                        " after wrapping, so its gradient would not be averaged; change the "
                        "module first, then wrap it (values may be copied in at any time)"));
  };
  for (size_t i = 0; i < common; ++i) {
    if (now[i].first != wrapped_[i].first) {
      fail(now.size() >= wrapped_.size() ? now[i].first : wrapped_[i].first,
           now.size() > wrapped_.size()   ? "added"
           : now.size() < wrapped_.size() ? "removed"
                                          : "renamed");
    }
    if (!now[i].second.is_same(wrapped_[i].second)) fail(now[i].first, "replaced");
    if (reducer_ != nullptr && now[i].second.requires_grad() && !reducer_->manages(now[i].second)) {
      fail(now[i].first, "unfrozen");
    }
  }
  if (now.size() > common) fail(now[common].first, "added");
  if (wrapped_.size() > common) fail(wrapped_[common].first, "removed");
}

// All buffers in one collective. A graph may still need a buffer's present values, so other values
// go into new memory.
void DataParallel::broadcast_buffers() const {
  NoGrad no_grad;
  NamedTensors buffers = module_->named_buffers();
  if (buffers.empty()) return;
  std::vector<char> packed;
  for (auto& [path, buffer] : buffers) {
    const Tensor dense = buffer.contiguous();
    const auto* bytes = static_cast<const char*>(dense.view().data);
    packed.insert(packed.end(), bytes, bytes + dense.nbytes());
  }
  const std::vector<char> mine = packed;
  group_->broadcast(packed.data(), static_cast<int64_t>(packed.size()), DType::kU8, 0).wait();
  size_t offset = 0;
  for (auto& [path, buffer] : buffers) {
    const auto bytes = static_cast<size_t>(buffer.nbytes());
    if (std::memcmp(mine.data() + offset, packed.data() + offset, bytes) != 0) {
      const Tensor values = Tensor::empty(buffer.shape(), buffer.options());
      std::memcpy(values.view().data, packed.data() + offset, bytes);
      buffer.set_data(values);
    }
    offset += bytes;
  }
}

void DataParallel::check_in_lockstep() const {
  NamedTensors all = module_->named_parameters();
  for (auto& buffer : module_->named_buffers()) all.push_back(buffer);
  check_same_layout(all, *group_, "DataParallel");
  check_same_values(all, *group_, "DataParallel");
}

DataParallel::NoSync::NoSync(std::shared_ptr<Reducer> reducer) : reducer_(std::move(reducer)) {
  if (reducer_ == nullptr) return;
  before_ = reducer_->synchronise();
  reducer_->set_synchronise(false);
}

DataParallel::NoSync::~NoSync() {
  if (reducer_ != nullptr) reducer_->set_synchronise(before_);
}

}  // namespace lockstep::nn
