#include "lockstep/nn/join.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_join.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/collectives.h"

namespace lockstep::nn {
namespace {

constexpr const char* kOp = "Join";

thread_local const std::vector<DataParallel*>* open_models = nullptr;

// A tensor's dtype, its number of dimensions, whether it is on a CUDA device, and its sizes, in a
// fixed number of words.
constexpr int64_t kMostDims = 29;
constexpr int64_t kUndefined = -1;
using ShapeWords = std::array<int64_t, 3 + kMostDims>;

ShapeWords words_of(const Tensor& tensor) {
  ShapeWords words{kUndefined};
  if (!tensor.defined()) return words;
  check(tensor.dim() >= 1 && tensor.dim() <= kMostDims, kOp, [&] {
    return str_cat("want a batch of tensors of 1 to ", kMostDims, " dimensions, got shape ",
                   to_string(tensor.shape()));
  });
  words[0] = static_cast<int64_t>(tensor.dtype());
  words[1] = tensor.dim();
  words[2] = tensor.device().is_cuda() ? 1 : 0;
  std::copy(tensor.shape().begin(), tensor.shape().end(), words.begin() + 3);
  return words;
}

// Zero samples of what the words describe; what is on a CUDA device there is on `device` here.
Tensor empty_of(const ShapeWords& words, Device device) {
  if (words[0] == kUndefined) return {};
  Shape shape(words.begin() + 3, words.begin() + 3 + words[1]);
  shape[0] = 0;
  return Tensor::empty(shape, {static_cast<DType>(words[0]), words[2] != 0 ? device : kCpu});
}

Tensor empty_like_batch(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  Shape shape = tensor.shape();
  shape[0] = 0;
  return Tensor::empty(shape, tensor.options());
}

bool same_ranks(const comm::Communicator& a, const comm::Communicator& b) {
  if (a.size() != b.size() || a.rank() != b.rank()) return false;
  for (int r = 0; r < a.size(); ++r) {
    if (a.world_rank(r) != b.world_rank(r)) return false;
  }
  return true;
}

}  // namespace

Join::Join(std::vector<DataParallel*> models, const JoinOptions& options)
    : models_(std::move(models)), options_(options) {
  check(!models_.empty() && std::find(models_.begin(), models_.end(), nullptr) == models_.end(),
        kOp, "want one wrapped model or more, got none or null");
  check(open_models == nullptr, kOp,
        "another Join is open in this thread; give all models to one, and end it first");
  for (const DataParallel* model : models_) {
    check(same_ranks(*model->group(), *models_[0]->group()), kOp, [&] {
      return str_cat("want models of one group of ranks, got one of ", models_[0]->group()->size(),
                     " and one of ", model->group()->size(), " on rank ",
                     models_[0]->group()->rank(), " of the first");
    });
  }
  open_models = &models_;
}

Join::~Join() {
  set_shares({});
  open_models = nullptr;
}

void Join::check_joined(const DataParallel& model) {
  check(open_models == nullptr ||
            std::find(open_models->begin(), open_models->end(), &model) != open_models->end(),
        kOp, [&] {
          return str_cat("the wrapped ", model.module()->type_name(),
                         " runs a forward in training mode while a Join is open that it is no part "
                         "of, so that ranks without a batch would spoil its gradients; give it to "
                         "the Join with the other models");
        });
}

bool Join::next(bool has_batch, int64_t samples) {
  check(samples >= 0, kOp, [&] { return str_cat("want a number of samples, got ", samples); });
  return begin_step({.has_batch = has_batch, .samples = has_batch ? samples : 0});
}

bool Join::take(std::optional<Batch> own, Batch& batch) {
  if (own && !empty_) empty_ = {empty_like_batch(own->input), empty_like_batch(own->target)};
  const int64_t samples = own ? own->size() : 0;
  if (!begin_step({.has_batch = own.has_value(), .samples = samples, .wants_shapes = !empty_})) {
    return false;
  }
  batch = own ? std::move(*own) : *empty_;
  return true;
}

std::vector<Join::Report> Join::gather(const Report& mine) const {
  comm::Communicator& group = *models_[0]->group();
  constexpr int64_t kWords = sizeof(Report) / sizeof(int64_t);
  std::vector<Report> all(static_cast<size_t>(group.size()));
  group.all_gather(&mine, all.data(), kWords, DType::kI64).wait();
  return all;
}

bool Join::begin_step(Report mine) {
  check(!finished_, kOp,
        "next() has said that all ranks' batches have ended; an epoch more wants a "
        "Join of its own");
  mine.divisor = static_cast<int64_t>(options_.divisor);
  mine.throws = options_.throw_on_early_end;
  mine.models = static_cast<int64_t>(models_.size());
  const std::vector<Report> all = gather(mine);
  std::vector<int> with, without;
  int64_t samples = 0;
  bool shapes_wanted = false;
  for (size_t r = 0; r < all.size(); ++r) {
    const Report& other = all[r];
    const auto modes = [](const Report& report) {
      return str_cat("divisor ",
                     report.divisor == static_cast<int64_t>(JoinOptions::Divisor::kActive)
                         ? "kActive"
                         : "kWorldSize",
                     ", throw_on_early_end ", report.throws != 0 ? "true" : "false", " and ",
                     report.models, " models");
    };
    if (modes(other) != modes(all[0])) {
      throw Error(ErrorCode::kMismatch, kOp,
                  str_cat("want the same options and models on every rank, but rank 0 joined with ",
                          modes(all[0]), ", and rank ", r, " with ", modes(other)));
    }
    (other.has_batch != 0 ? with : without).push_back(static_cast<int>(r));
    samples += other.samples;
    shapes_wanted = shapes_wanted || other.wants_shapes != 0;
  }
  if (with.empty()) {
    finish();
    return false;
  }
  if (!without.empty() && options_.throw_on_early_end) {
    finished_ = true;
    set_shares({});
    throw Error(ErrorCode::kMismatch, kOp,
                str_cat("ran out of batches after ", steps_, " steps: rank",
                        without.size() == 1 ? " " : "s ", absl::StrJoin(without, ", "),
                        "; others have more: rank", with.size() == 1 ? " " : "s ",
                        absl::StrJoin(with, ", ")));
  }
  ++steps_;
  active_ = static_cast<int>(with.size());
  source_ = with[0];
  is_shadow_ = mine.has_batch == 0;
  const auto ranks = static_cast<double>(all.size());
  const double scale =
      options_.divisor == JoinOptions::Divisor::kActive ? ranks / static_cast<double>(active_) : 1;
  weight_ = samples == 0 ? 0
                         : static_cast<double>(mine.samples) * ranks /
                               (static_cast<double>(samples) * scale);
  set_shares({.discard = is_shadow_, .scale = scale, .source = source_});
  if (shapes_wanted) share_shapes(source_);
  return true;
}

// Collective. For ranks that never had a batch.
void Join::share_shapes(int source) {
  comm::Communicator& group = *models_[0]->group();
  std::array<ShapeWords, 2> words{};
  if (group.rank() == source) words = {words_of(empty_->input), words_of(empty_->target)};
  group
      .broadcast(words.data(), static_cast<int64_t>(sizeof(words) / sizeof(int64_t)), DType::kI64,
                 source)
      .wait();
  const Device device = group.device();
  if (!empty_) empty_ = {empty_of(words[0], device), empty_of(words[1], device)};
}

void Join::set_shares(const Reducer::Share& share) const {
  for (DataParallel* model : models_) {
    if (model->reducer_ != nullptr) model->reducer_->set_share(share);
  }
}

// Collective.
void Join::finish() {
  finished_ = true;
  is_shadow_ = false;
  active_ = 0;
  set_shares({});
  if (source_ < 0) return;
  for (const DataParallel* model : models_) {
    broadcast_values(model->compared(), *model->group(), source_);
  }
}

Tensor Join::mean_over_samples(const Tensor& loss) const {
  check(steps_ > 0 && !finished_, kOp, "mean_over_samples() belongs to a step that next() began");
  return weighted(loss, weight_);
}

}  // namespace lockstep::nn
