#include "lockstep/nn/reducer.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "lockstep/comm/blocks.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/stream_timeline.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/collectives.h"

namespace lockstep::nn {

Reducer::Reducer(NamedTensors parameters, std::shared_ptr<comm::Communicator> group,
                 const ReducerOptions& options)
    : parent_(std::move(group)), group_(parent_->duplicate()), options_(options) {
  for (const auto& entry : parameters) {
    const std::string& path = entry.first;
    const Tensor& parameter = entry.second;
    check(parameter.is_contiguous(), "DataParallel", [&] {
      return str_cat("want contiguous parameters, but '", path, "' has shape ",
                     to_string(parameter.shape()), " and strides ", to_string(parameter.strides()));
    });
    Slot slot;
    slot.name = path;
    slot.parameter = parameter;
    slots_.push_back(std::move(slot));
  }
  // The last layers' gradients are complete first.
  std::vector<size_t> order(slots_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  lay_out(order);
  reset();
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].hook = slots_[i].parameter.register_post_accumulate_hook(
        [this, i](const Tensor&) { on_accumulated(i); });
  }
  version_base_ = version_sum();
}

Reducer::~Reducer() {
  set_share({});
  for (Slot& slot : slots_) slot.parameter.remove_hook(slot.hook);
  if (armed_) give_up();
}

void Reducer::set_share(const Share& share) {
  share_ = share;
  for (Slot& slot : slots_) {
    if (slot.discard_hook) slot.parameter.remove_hook(*slot.discard_hook);
    slot.discard_hook.reset();
    if (!share.discard || !slot.parameter.requires_grad()) continue;
    slot.discard_hook = slot.parameter.register_hook([](const Tensor& g) {
      // A recorded gradient's average is differentiated on every rank alike.
      return g.requires_grad() ? g * 0.0 : zeros_like(g);
    });
  }
}

bool Reducer::manages(const Tensor& parameter) const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [&](const Slot& slot) { return slot.parameter.is_same(parameter); });
}

std::vector<std::vector<Tensor>> Reducer::bucket_parameters() const {
  std::vector<std::vector<Tensor>> parameters;
  for (const Bucket& bucket : buckets_) {
    parameters.emplace_back();
    for (size_t i : bucket.slots) parameters.back().push_back(slots_[i].parameter);
  }
  return parameters;
}

std::vector<int64_t> Reducer::bucket_sizes() const {
  std::vector<int64_t> sizes;
  for (const Bucket& bucket : buckets_) sizes.push_back(bucket.grad.data.numel());
  return sizes;
}

void Reducer::lay_out(const std::vector<size_t>& order) {
  buckets_.clear();
  std::vector<size_t> open;  // at most one open bucket for each dtype and device
  std::vector<int64_t> elements;
  for (size_t i : order) {
    const Tensor& parameter = slots_[i].parameter;
    auto it = std::find_if(open.begin(), open.end(), [&](size_t b) {
      const Tensor& other = slots_[buckets_[b].slots[0]].parameter;
      return other.dtype() == parameter.dtype() && other.device() == parameter.device();
    });
    if (it == open.end()) {
      open.push_back(buckets_.size());
      buckets_.emplace_back();
      elements.push_back(0);
      it = open.end() - 1;
    }
    const size_t b = *it;
    slots_[i].bucket = b;
    buckets_[b].slots.push_back(i);
    elements[b] += parameter.numel();
    const int64_t cap = b == 0 ? options_.first_bucket_bytes : options_.bucket_bytes;
    if (elements[b] * static_cast<int64_t>(size_of(parameter.dtype())) >= cap) open.erase(it);
  }
  NoGrad no_grad;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    Bucket& bucket = buckets_[b];
    const TensorOptions options = slots_[bucket.slots[0]].parameter.options();
    const int ranks = group_->size();
    const int64_t padded = comm::Blocks::of_all(elements[b], ranks).size * ranks;
    const std::shared_ptr<void> memory =
        group_->allocate(static_cast<size_t>(padded) * size_of(options.dtype), options.device);
    bucket.grad.index = b;
    bucket.grad.is_last = b + 1 == buckets_.size();
    bucket.grad.data = Tensor::wrap(memory, {elements[b]}, options);
    bucket.grad.padded = Tensor::wrap(memory, {padded}, options);
    int64_t offset = 0;
    for (size_t i : bucket.slots) {
      Slot& slot = slots_[i];
      const int64_t count = slot.parameter.numel();
      slot.view = reshape(narrow(bucket.grad.data, 0, offset, count), slot.parameter.shape());
      slot.bytes = static_cast<size_t>(slot.view.nbytes());
      bucket.grad.gradients.push_back(slot.view);
      bucket.grad.names.push_back(slot.name);
      offset += count;
      if (slot.parameter.has_grad()) place(slot);
    }
    bucket.missing = bucket.slots.size();
  }
}

void Reducer::set_comm_hook(std::shared_ptr<CommHook> hook) {
  check(!armed_, "set_comm_hook", "a backward is running");
  hook_ = std::move(hook);
}

void Reducer::reset() noexcept {
  for (Slot& slot : slots_) {
    slot.arrived = 0;
    slot.ready = false;
    slot.hidden = false;
    slot.present = false;
    slot.before = Tensor();
    slot.recorded = Tensor();
  }
  for (Bucket& bucket : buckets_) {
    bucket.missing = bucket.slots.size();
    bucket.grad.carried = false;
    bucket.work = comm::Work();
    bucket.hook = nullptr;
  }
  next_bucket_ = 0;
  armed_ = false;
}

void Reducer::arm() {
  if (!in_backward()) return;
  if (!synchronise_) return count_local();
  if (armed_) return;
  armed_ = true;
  if (!order_adopted_) first_order_.clear();
  // Dropped with the callback, also when this backward ends in an error before its end.
  struct Guard {
    std::weak_ptr<Reducer> reducer;
    bool finished = false;
    ~Guard() {
      const auto self = reducer.lock();
      if (self != nullptr && !finished) self->give_up();
    }
  };
  const auto guard = std::make_shared<Guard>();
  guard->reducer = weak_from_this();
  queue_backward_callback([this, guard] {
    try {
      finish();
    } catch (const Error& error) {
      rethrow_explained(error);
    }
    guard->finished = true;
    reset();
  });
}

// The ranks' calls differ where some run another part of a step. The other ranks' modes cannot be
// asked for any more.
void Reducer::rethrow_explained(const Error& error) const {
  if (error.code() != ErrorCode::kMismatch || error.op() == "DataParallel") throw;
  const std::string mode = forward_mode_ == nullptr
                               ? "rank has run no forward"
                               : str_cat("rank's newest forward was in ", forward_mode_, " mode");
  throw Error(ErrorCode::kMismatch, "DataParallel",
              str_cat("ranks run different parts of a training step, of which rank ",
                      group_->rank(), " averages gradients, and that ", mode,
                      "; call train() or eval(), forward and backward in the same way on every "
                      "rank (a forward in training mode sends buffers, which another mode does "
                      "not): ",
                      error.what()));
}

// Once for a backward, also for one that fails.
void Reducer::count_local() {
  if (counting_) return;
  counting_ = true;
  ++local_backwards_;
  const std::shared_ptr<void> end(nullptr, [weak = weak_from_this()](void*) {
    if (const auto self = weak.lock()) self->counting_ = false;
  });
  queue_backward_callback([end] {});
}

// The other ranks wait for this backward's buckets, and the next backward's must not take their
// place: they are told, and nobody reads or writes the buckets any more when this returns.
void Reducer::give_up() noexcept {
  for (const auto& group : {group_, parent_}) {
    try {
      group->abort("a backward failed on this rank before its gradients were averaged");
    } catch (const std::exception&) {
      // It is told by this rank's end at the latest.
    }
  }
  for (size_t b = 0; b < next_bucket_; ++b) {
    try {
      complete(buckets_[b]);
    } catch (const std::exception&) {
      // The work was cancelled, which is what was wanted.
    }
  }
  for (Slot& slot : slots_) {
    if (slot.present && !slot.parameter.has_grad()) slot.parameter.set_grad(slot.view);
  }
  reset();
}

void Reducer::on_accumulated(size_t i) {
  Slot& slot = slots_[i];
  if (!slot.dirty && slot.parameter.impl()->grad.is_same(slot.view)) {
    buckets_[slot.bucket].grad.carried = true;
  }
  slot.dirty = true;
  arm();
  if (!synchronise_) return;
  ++slot.arrived;
  if (slot.hidden || slot.arrived < slot.expected) return;
  place(slot);
  if (slot.ready) return;
  slot.ready = true;
  if (!order_adopted_) first_order_.push_back(i);
  --buckets_[slot.bucket].missing;
  launch_complete_buckets();
}

// Moves the gradient into its bucket and lets grad() name that place. Runs for each parameter in
// each step, so nothing is looked up or copied here but the gradient.
void Reducer::place(Slot& slot) {
  const Tensor& gradient = slot.parameter.impl()->grad;
  if (gradient.is_same(slot.view)) return;
  check(gradient.defined() && gradient.shape() == slot.view.shape() &&
            gradient.dtype() == slot.view.dtype() && gradient.device() == slot.view.device(),
        "DataParallel", [&] {
          return str_cat(
              "want a gradient of '", slot.name, "' of shape ", to_string(slot.view.shape()),
              " and its parameter's dtype and device when backward has computed it, got ",
              gradient.defined() ? to_string(gradient.shape()) : "none",
              "; a hook must leave it, and the parameter, as they are until step()");
        });
  check(!gradient.requires_grad() || hook_ == nullptr || hook_->leaves_all(), "DataParallel", [&] {
    return str_cat(
        "the gradient of '", slot.name,
        "' has a graph (create_graph), but gradients are scattered over the ranks, which "
        "cannot be differentiated");
  });
  const timeline::Span span(timeline::kind::kCopy, "into bucket", static_cast<int64_t>(slot.bytes));
  const timeline::StreamSpan on_device(timeline::kind::kCopy, "into bucket", slot.view.device(),
                                       static_cast<int64_t>(slot.bytes));
  if (gradient.is_contiguous() && slot.view.device() == kCpu) {
    std::memcpy(slot.view.impl()->data(), gradient.impl()->data(), slot.bytes);
  } else {
    NoGrad no_grad;
    slot.view.copy_(gradient.detach());
  }
  if (gradient.requires_grad()) {
    slot.recorded = gradient;
  } else {
    show(slot);
  }
}

// The view has the parameter's shape, which set_grad() would look at again.
void Reducer::show(Slot& slot) { slot.parameter.impl()->grad = slot.view; }

// None goes out before the buckets have their final layout: the order in which an element is summed
// depends on its place, and a run that is resumed must give the bits of one that never stopped.
void Reducer::launch_complete_buckets() {
  if (!order_adopted_) return;
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].missing == 0) {
    launch(buckets_[next_bucket_++]);
  }
}

void Reducer::launch(Bucket& bucket) {
  for (size_t i : bucket.slots) {
    Slot& slot = slots_[i];
    slot.hidden = true;
    slot.present = slot.parameter.has_grad();
    slot.parameter.impl()->grad = Tensor();
  }
  const timeline::Label label("bucket", bucket.grad.index);
  bucket.hook = hook_;
  if (bucket.hook != nullptr) return bucket.hook->start(bucket.grad, *group_);
  bucket.work = average_in_place(bucket.grad.data, *group_);
}

void Reducer::complete(Bucket& bucket) {
  const timeline::Label label("bucket", bucket.grad.index);
  if (bucket.hook != nullptr) {
    bucket.hook->finish(bucket.grad, *group_);
  } else {
    bucket.work.wait();
  }
  bucket.grad.data.mark_changed("all_reduce");
}

void Reducer::finish() {
  NoGrad no_grad;
  if (!order_adopted_) adopt_first_order();
  for (size_t b = next_bucket_; b < buckets_.size(); ++b) {
    for (size_t i : buckets_[b].slots) {
      Slot& slot = slots_[i];
      if (slot.ready) continue;
      if (!slot.parameter.has_grad()) {
        slot.view.zero_();
        continue;
      }
      if (!slot.dirty) slot.before = slot.parameter.grad().detach().clone();
      place(slot);
    }
    buckets_[b].missing = 0;
  }
  launch_complete_buckets();
  // A hook's collectives at the end of its buckets come before the agreement on every rank.
  if (hook_ != nullptr) {
    for (Bucket& bucket : buckets_) complete(bucket);
  }
  const std::vector<int64_t>& used = agree();
  if (hook_ == nullptr) {
    for (Bucket& bucket : buckets_) complete(bucket);
  }
  if (share_.scale != 1) {
    for (Bucket& bucket : buckets_) bucket.grad.data.mul_(share_.scale);
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.dirty = false;
    if (slot.arrived > slot.expected) slot.expected = slot.arrived;
    if (used[i] == 0) {
      if (!slot.present) continue;
      slot.view.copy_(slot.before);
      slot.parameter.set_grad(slot.recorded.defined() ? slot.recorded : slot.view);
      continue;
    }
    if (used[i] == 2) add_late(slot);
    if (slot.recorded.defined()) {
      // Not scaled: a second backward is, and the gradient of what is the same on every rank is
      // averaged over all of them.
      slot.parameter.set_grad(average_recorded(slot.recorded, slot.view.clone(), group_));
    } else {
      show(slot);
    }
  }
}

// Collective. The average of sums is the sum of averages.
void Reducer::add_late(Slot& slot) {
  const bool here = slot.parameter.has_grad();
  const Tensor late = here ? slot.parameter.grad() : zeros_like(slot.view);
  slot.view.add_(all_reduce(late.detach(), group_, comm::ReduceOp::kAvg), share_.scale);
  if (!late.requires_grad() && !slot.recorded.defined()) return;
  const EnableGrad enable;
  slot.recorded = slot.recorded.defined() ? slot.recorded + late : late;
}

int64_t Reducer::version_sum() const {
  uint64_t sum = 0;
  for (const Slot& slot : slots_) sum += slot.parameter.version();
  return static_cast<int64_t>(sum);
}

const std::vector<int64_t>& Reducer::agree() {
  const timeline::Span span(timeline::kind::kAgree, "agree on used parameters");
  votes_.clear();
  for (const Slot& slot : slots_) {
    votes_.push_back(slot.parameter.has_grad() ? 2 : slot.dirty && slot.present ? 1 : 0);
  }
  // Equal replicas are changed equally often. Where one was not (a checkpoint loaded on one rank
  // alone), the greatest and the least version differ, and the values are compared.
  const int64_t version = version_sum() - version_base_;
  for (const int64_t count : {version, local_backwards_}) {
    votes_.push_back(count);
    votes_.push_back(-count);
  }
  const int64_t mine = local_backwards_;
  local_backwards_ = 0;
  group_
      ->all_reduce(votes_.data(), votes_.data(), static_cast<int64_t>(votes_.size()), DType::kI64,
                   comm::ReduceOp::kMax)
      .wait();
  const int64_t* counts = votes_.data() + slots_.size();
  if (counts[2] != -counts[3]) {
    throw Error(ErrorCode::kMismatch, "DataParallel",
                str_cat("ranks accumulated gradients in ", -counts[3], " to ", counts[2],
                        " backwards under no_sync() before this one, rank ", group_->rank(), " in ",
                        mine, "; run the same number on every rank"));
  }
  const int64_t greatest = counts[0], least = -counts[1];
  if (least != greatest) {
    NamedTensors parameters;
    for (const Slot& slot : slots_) parameters.emplace_back(slot.name, slot.parameter);
    check_same_values(parameters, *group_, "DataParallel");
    version_base_ = version_sum();
  }
  return votes_;
}

// Buckets follow the order in which gradients really become complete, as rank 0 saw it.
void Reducer::adopt_first_order() {
  order_adopted_ = true;
  std::vector<bool> seen(slots_.size(), false);
  for (size_t i : first_order_) seen[i] = true;
  for (size_t i = slots_.size(); i-- > 0;) {
    if (!seen[i]) first_order_.push_back(i);
  }
  std::vector<int64_t> order(first_order_.begin(), first_order_.end());
  group_->broadcast(order.data(), static_cast<int64_t>(order.size()), DType::kI64, 0).wait();
  const std::vector<size_t> adopted(order.begin(), order.end());
  first_order_.clear();
  lay_out(adopted);
}

}  // namespace lockstep::nn
