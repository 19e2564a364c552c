#include "lockstep/nn/data_parallel.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "absl/strings/match.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/graph.h"
#include "lockstep/kernels/text.h"
#include "lockstep/kernels/transfer.h"
#include "lockstep/nn/join.h"

namespace lockstep::nn {

namespace {

// Whether `path` is `name`, or below it.
bool is_within(const std::string& path, const std::string& name) {
  return path == name || (absl::StartsWith(path, name) && path[name.size()] == '.');
}

}  // namespace

DataParallel::DataParallel(std::shared_ptr<Module> module,
                           std::shared_ptr<comm::Communicator> group, DataParallelOptions options)
    : module_(std::move(module)), group_(std::move(group)), options_(std::move(options)) {
  check(module_ != nullptr && group_ != nullptr, "DataParallel",
        "want a module and a communicator, got null");
  register_module("", module_);
  const NamedTensors all = module_->named_parameters();
  for (const std::string& name : options_.ignore) {
    check(std::any_of(all.begin(), all.end(),
                      [&](const auto& entry) { return is_within(entry.first, name); }),
          "DataParallel", [&] { return str_cat("there is no parameter '", name, "' to ignore"); });
  }
  wrapped_ = managed(all);
  for (const auto& entry : wrapped_) options_of_.push_back(entry.second.options());
  for (const auto& [path, tensor] : compared()) check_device(path, tensor);
  check_same_layout(compared(), *group_, "DataParallel");
  if (options_.broadcast_at_start) broadcast_values(compared(), *group_);
  check_same_values(compared(), *group_, "DataParallel");

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
  seen_ = look();
}

void DataParallel::check_device(const std::string& path, const Tensor& tensor) const {
  const Device device = tensor.device();
  check(group_->size() == 1 || device.is_cpu() || device == group_->device(), "DataParallel", [&] {
    const bool none = group_->device().is_cpu();
    return str_cat("want '", path, "' on cpu or on the communicator's device, ",
                   none ? "of which it has none" : group_->device().name(), ", got it on ",
                   device.name(), "; make the communicator with Options::device");
  });
}

// Those that are not ignored, and not in a part that has a wrapper of its own.
NamedTensors DataParallel::managed(NamedTensors tensors) const {
  std::unordered_set<const TensorImpl*> elsewhere;
  module_->apply([&](Module& part) {
    if (dynamic_cast<DataParallel*>(&part) == nullptr) return;
    for (const auto& [path, tensor] : part.named_parameters())
      elsewhere.insert(tensor.impl().get());
    for (const auto& [path, tensor] : part.named_buffers()) elsewhere.insert(tensor.impl().get());
  });
  std::erase_if(tensors, [&](const auto& entry) {
    return elsewhere.contains(entry.second.impl().get()) ||
           std::any_of(options_.ignore.begin(), options_.ignore.end(),
                       [&](const std::string& name) { return is_within(entry.first, name); });
  });
  return tensors;
}

NamedTensors DataParallel::compared() const {
  NamedTensors all = wrapped_;
  if (options_.buffers == BufferMode::kLeave) return all;
  for (auto& buffer : managed(module_->named_buffers())) all.push_back(std::move(buffer));
  return all;
}

Tensor DataParallel::forward(const Tensor& x) {
  return call([&] { return module_->forward(x); });
}

void DataParallel::before_forward() {
  check_parameters();
  if (reducer_ == nullptr || !grad_enabled()) return;
  refuse_capture("DataParallel",
                 "ranks meet on the host for each bucket; capture a step of a group of one");
  reducer_->note_forward(is_training());
  if (!is_training()) return;
  Join::check_joined(*this);
  bring_buffers_into_line();
  if (options_.check_every > 0 && forwards_++ % options_.check_every == 0) {
    check_same_values(wrapped_, *group_, "DataParallel");
  }
}

void DataParallel::bring_buffers_into_line() {
  try {
    if (options_.buffers == BufferMode::kBroadcast) {
      broadcast_buffers(managed(module_->named_buffers()));
    } else if (options_.buffers == BufferMode::kAverage) {
      average_buffers();
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kMismatch) throw;
    throw Error(
        ErrorCode::kMismatch, "DataParallel",
        str_cat("ranks run different parts of a training step, of which rank ", group_->rank(),
                " begins a forward in training mode and sends buffers; call train() or "
                "eval(), forward and backward in the same way on every rank: ",
                error.what()));
  }
}

// Backward passes here even on a rank whose loss reaches no parameter.
Tensor DataParallel::watch(const Tensor& output) {
  if (!output.requires_grad()) return output;
  Tensor out = output.detach();
  out.impl()->set_view(false);  // `output` itself goes away
  return record("data_parallel", out, {output},
                [weak = std::weak_ptr<Reducer>(reducer_)](const Tensor& g) {
                  const auto reducer = weak.lock();
                  check(reducer != nullptr, "DataParallel",
                        "the wrapper that made this output is gone, so its gradients would not be "
                        "averaged; keep it until after backward()");
                  reducer->arm();
                  return Tensors{g};
                });
}

void DataParallel::set_comm_hook(std::shared_ptr<CommHook> hook) {
  if (reducer_ != nullptr) reducer_->set_comm_hook(std::move(hook));
}

std::vector<DataParallel::Seen> DataParallel::look() const {
  std::vector<Seen> seen;
  seen.reserve(seen_.size());
  module_->for_each_parameter([&](const Tensor& parameter) {
    if (!parameter.defined()) return seen.push_back({});
    seen.push_back(
        {parameter.impl().get(), parameter.requires_grad(), parameter.dtype(), parameter.device()});
  });
  return seen;
}

// Names are built only where something changed.
void DataParallel::check_parameters() {
  std::vector<Seen> present = look();
  if (present == seen_) return;
  const NamedTensors now = managed(module_->named_parameters());
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
    if (reducer_ == nullptr) continue;
    if (now[i].second.dtype() != options_of_[i].dtype) fail(now[i].first, "converted");
    if (now[i].second.device() != options_of_[i].device) fail(now[i].first, "moved");
  }
  if (now.size() > common) fail(now[common].first, "added");
  if (wrapped_.size() > common) fail(wrapped_[common].first, "removed");
  seen_ = std::move(present);  // ignored ones, or ones that were frozen
}

// All of a device in one collective, of the model's own group: there it meets the buckets of a rank
// that is in another part of its step, which is an error at once.
void DataParallel::broadcast_buffers(const NamedTensors& buffers) const {
  NoGrad no_grad;
  for (const bool on_cpu : {true, false}) {
    std::vector<Tensor> part;
    for (const auto& [path, buffer] : buffers) {
      if (buffer.device().is_cpu() == on_cpu) part.push_back(buffer);
    }
    if (!part.empty()) broadcast_packed(part);
  }
}

// REQUIRES: tensors of one device. A graph may still need a tensor's present values, so other
// values go into new memory. What a device has is not compared on the host, which would wait for
// it.
void DataParallel::broadcast_packed(std::vector<Tensor>& tensors) const {
  const Device device = tensors[0].device();
  const Stream stream = current_stream(device);
  const int source = reducer_->share().source;
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.nbytes();
  const Tensor packed = Tensor::empty({bytes}, {DType::kU8, device});
  auto* place = static_cast<char*>(packed.view().data);
  std::vector<Tensor> dense;
  for (const Tensor& tensor : tensors) {
    dense.push_back(tensor.contiguous());
    const auto size = static_cast<size_t>(tensor.nbytes());
    copy_async(place, dense.back().view().data, size, stream);
    place += size;
  }
  reducer_->group().broadcast(packed.view().data, bytes, DType::kU8, source).wait();
  if (reducer_->group().rank() == source) return;
  place = static_cast<char*>(packed.view().data);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto size = static_cast<size_t>(tensors[i].nbytes());
    const bool is_same =
        size == 0 || (device.is_cpu() && std::memcmp(dense[i].view().data, place, size) == 0);
    if (!is_same) {
      const Tensor values = Tensor::empty(tensors[i].shape(), tensors[i].options());
      copy_async(values.view().data, place, size, stream);
      tensors[i].set_data(values);
    }
    place += size;
  }
}

void DataParallel::average_buffers() const {
  NoGrad no_grad;
  std::vector<Tensor> floating[2];  // on the CPU, on a device
  NamedTensors others;
  for (auto& entry : managed(module_->named_buffers())) {
    if (is_floating(entry.second.dtype())) {
      floating[entry.second.device().is_cpu() ? 0 : 1].push_back(std::move(entry.second));
    } else {
      others.push_back(std::move(entry));
    }
  }
  for (std::vector<Tensor>& part : floating) {
    if (!part.empty()) average_packed(part);
  }
  broadcast_buffers(others);
}

// REQUIRES: tensors of one device. In f64.
void DataParallel::average_packed(std::vector<Tensor>& tensors) const {
  int64_t count = 0;
  for (const Tensor& tensor : tensors) count += tensor.numel();
  Tensor packed = Tensor::empty({count + 1}, {DType::kF64, tensors[0].device()});
  int64_t offset = 0;
  const auto next = [&](const Tensor& tensor) {
    const int64_t begin = std::exchange(offset, offset + tensor.numel());
    return packed.narrow(0, begin, tensor.numel()).reshape(tensor.shape());
  };
  for (const Tensor& tensor : tensors) next(tensor).copy_(tensor);
  // Those of a rank without a batch have not seen one for a while, and do not count.
  const double counting = reducer_->share().discard ? 0 : 1;
  packed.mul_(counting);
  const Tensor all_counting = packed.narrow(0, count, 1);
  Tensor(all_counting).fill_(counting);
  void* data = packed.view().data;
  reducer_->group().all_reduce(data, data, count + 1, DType::kF64, comm::ReduceOp::kSum).wait();
  packed.div_(all_counting.clone());
  offset = 0;
  for (Tensor& tensor : tensors) {
    Tensor values = Tensor::empty(tensor.shape(), tensor.options());
    values.copy_(next(tensor));
    tensor.set_data(values);
  }
}

void DataParallel::check_in_lockstep() const {
  check_same_layout(wrapped_, *group_, "DataParallel");
  check_same_values(wrapped_, *group_, "DataParallel");
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
