#include "lockstep/nn/sharded_optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "lockstep/comm/blocks.h"
#include "lockstep/core/autograd.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/text.h"
#include "lockstep/kernels/transfer.h"
#include "lockstep/nn/fingerprint.h"
#include "lockstep/nn/grad_norm.h"

namespace lockstep::nn {
namespace {

constexpr const char* kOp = "ShardedOptimizer";

// Leaves each rank the averages of its own block of each bucket.
class ReduceScatterHook final : public CommHook {
 public:
  void start(GradBucket& bucket, comm::Communicator& group) override {
    check(!bucket.carried, kOp, [&] {
      return str_cat("backward added to gradients that were averaged already, beginning with '",
                     bucket.names.front(),
                     "', of which this rank has a part; run all backwards but the last before a "
                     "step under no_sync(), and clear gradients where a step is left out");
    });
    const int64_t block = bucket.padded.numel() / group.size();
    auto* send = static_cast<char*>(bucket.padded.view().data);
    const auto bytes = static_cast<size_t>(block) * size_of(bucket.padded.dtype());
    char* recv = send + static_cast<size_t>(group.rank()) * bytes;
    works_.push_back(
        group.reduce_scatter(send, recv, block, bucket.padded.dtype(), comm::ReduceOp::kAvg));
  }
  void finish(GradBucket&, comm::Communicator&) override {
    if (works_.empty()) return;  // it was refused
    // Buckets are finished in the order in which they were started.
    comm::Work work = works_.front();
    works_.erase(works_.begin());
    work.wait();
  }
  bool leaves_all() const override { return false; }

 private:
  std::vector<comm::Work> works_;
};

// Elements [begin, end) of a contiguous tensor in its own memory, without its versions: how often a
// rank's pieces change is no measure of how often a parameter did.
Tensor piece_of(const Tensor& tensor, int64_t begin, int64_t end) {
  auto* data =
      static_cast<char*>(tensor.view().data) + static_cast<size_t>(begin) * size_of(tensor.dtype());
  const std::shared_ptr<void> memory(data, [keep = tensor](void*) {});
  return Tensor::wrap(memory, {end - begin}, tensor.options());
}

char* bytes_at(const Tensor& tensor, int64_t element) {
  return static_cast<char*>(tensor.view().data) +
         static_cast<size_t>(element) * size_of(tensor.dtype());
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(std::unique_ptr<Optimizer> optimizer,
                                   std::shared_ptr<comm::Communicator> group)
    : ShardedOptimizer(std::move(optimizer), std::move(group), nullptr) {}

ShardedOptimizer::ShardedOptimizer(std::unique_ptr<Optimizer> optimizer, DataParallel& model)
    : ShardedOptimizer(std::move(optimizer), model.group(), &model) {}

ShardedOptimizer::ShardedOptimizer(std::unique_ptr<Optimizer> optimizer,
                                   std::shared_ptr<comm::Communicator> group, DataParallel* model)
    : optimizer_(std::move(optimizer)), group_(std::move(group)) {
  check(optimizer_ != nullptr && group_ != nullptr, kOp,
        "want an optimiser and a communicator, got null");
  const NamedTensors state = optimizer_->named_state();
  check_same_layout(optimizer_->named_parameters(), *group_, kOp);
  for (Group& part : optimizer_->groups_) {
    NamedTensors parameters;
    for (const Entry& entry : part.entries) {
      check(entry.parameter.is_contiguous(), kOp, [&] {
        return str_cat("want contiguous parameters, but '", entry.name, "' has shape ",
                       to_string(entry.parameter.shape()), " and strides ",
                       to_string(entry.parameter.strides()));
      });
      const Tensor& first = optimizer_->groups_[0].entries[0].parameter;
      check(entry.parameter.device() == first.device(), kOp, [&] {
        return str_cat("want all parameters on one device, got '", entry.name, "' on ",
                       entry.parameter.device().name(), " besides others on ",
                       first.device().name());
      });
      parameters.emplace_back(entry.name, entry.parameter);
    }
    append_group(std::move(parameters), part.options);
  }
  optimizer_->groups_.clear();
  if (model != nullptr && model->reducer() != nullptr) {
    check(is_elementwise(), kOp,
          "want an optimiser whose step is element by element where gradients are scattered: this "
          "one needs whole parameters; give the group in place of the model");
    for (const auto& [name, parameter] : named_parameters()) {
      check(!parameter.requires_grad() || model->reducer()->manages(parameter), kOp,
            [&, name = name] {
              return str_cat("the model does not average the gradient of '", name,
                             "', so that its step would differ by rank");
            });
    }
    model_ = model;
    model_->set_comm_hook(std::make_shared<ReduceScatterHook>());
    buckets_ = model_->reducer()->bucket_parameters();
    set_pieces(bucket_pieces());
  } else {
    set_pieces(is_elementwise() ? even_pieces() : whole_pieces());
  }
  load_named_state(state);
}

ShardedOptimizer::~ShardedOptimizer() {
  if (model_ != nullptr) model_->set_comm_hook(nullptr);
}

std::vector<Optimizer::StateKind> ShardedOptimizer::state_kinds() const {
  return optimizer_->state_kinds();
}

const Optimizer::Entry& ShardedOptimizer::entry_of(const Piece& piece) const {
  return groups_[piece.group].entries[piece.entry];
}

int64_t ShardedOptimizer::piece_bytes(const Piece& piece) const {
  return (piece.end - piece.begin) *
         static_cast<int64_t>(size_of(entry_of(piece).parameter.dtype()));
}

// All parameters behind each other, cut at equal bytes, in whole cache lines.
std::vector<ShardedOptimizer::Piece> ShardedOptimizer::even_pieces() const {
  constexpr int64_t kLine = 64;
  int64_t all = 0;
  for (const auto& [name, parameter] : named_parameters()) all += parameter.nbytes();
  const int64_t even = all / group_->size() + (all % group_->size() != 0 ? 1 : 0);
  const int64_t share = std::max<int64_t>(kLine, (even + kLine - 1) / kLine * kLine);
  std::vector<Piece> pieces;
  int64_t before = 0;  // bytes
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t e = 0; e < groups_[g].entries.size(); ++e) {
      const Tensor& parameter = groups_[g].entries[e].parameter;
      const auto size = static_cast<int64_t>(size_of(parameter.dtype()));
      for (int64_t begin = 0; begin < parameter.numel();) {
        const int64_t rank = (before + begin * size) / share;
        // The elements that begin in this share.
        const int64_t room = (rank + 1) * share - before;
        const int64_t end = std::min(parameter.numel(), (room + size - 1) / size);
        pieces.push_back({g, e, begin, end, static_cast<int>(rank)});
        begin = end;
      }
      before += parameter.nbytes();
    }
  }
  return pieces;
}

// The largest first, each to the rank that has the fewest bytes.
std::vector<ShardedOptimizer::Piece> ShardedOptimizer::whole_pieces() const {
  std::vector<Piece> pieces;
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t e = 0; e < groups_[g].entries.size(); ++e) {
      const int64_t numel = groups_[g].entries[e].parameter.numel();
      if (numel > 0) pieces.push_back({g, e, 0, numel});
    }
  }
  std::stable_sort(pieces.begin(), pieces.end(), [this](const Piece& a, const Piece& b) {
    return piece_bytes(a) > piece_bytes(b);
  });
  std::vector<int64_t> loads(static_cast<size_t>(group_->size()));
  for (Piece& piece : pieces) {
    const auto least = std::min_element(loads.begin(), loads.end());
    piece.rank = static_cast<int>(least - loads.begin());
    *least += piece_bytes(piece);
  }
  return pieces;
}

// Where the blocks of the model's buckets end.
std::vector<ShardedOptimizer::Piece> ShardedOptimizer::bucket_pieces() const {
  std::map<const TensorImpl*, std::pair<size_t, size_t>> places;
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t e = 0; e < groups_[g].entries.size(); ++e) {
      places.emplace(groups_[g].entries[e].parameter.impl().get(), std::pair(g, e));
    }
  }
  std::vector<Piece> pieces;
  for (const std::vector<Tensor>& bucket : buckets_) {
    int64_t all = 0;
    for (const Tensor& parameter : bucket) all += parameter.numel();
    const comm::Blocks blocks = comm::Blocks::of_all(all, group_->size());
    int64_t before = 0;
    for (const Tensor& parameter : bucket) {
      const auto place = places.find(parameter.impl().get());
      for (int r = 0; r < group_->size() && place != places.end(); ++r) {
        const int64_t begin = std::clamp<int64_t>(blocks.begin(r) - before, 0, parameter.numel());
        const int64_t end = std::clamp<int64_t>(blocks.end(r) - before, 0, parameter.numel());
        if (begin < end) {
          pieces.push_back({place->second.first, place->second.second, begin, end, r});
        }
      }
      before += parameter.numel();
    }
  }
  return pieces;
}

void ShardedOptimizer::set_pieces(std::vector<Piece> pieces) {
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::tuple(a.rank, a.group, a.entry, a.begin) <
           std::tuple(b.rank, b.group, b.entry, b.begin);
  });
  for (Piece& piece : pieces) {
    piece.own.name = entry_of(piece).name;
    piece.own.state.resize(state_kinds().size());
  }
  pieces_ = std::move(pieces);
}

// Collective where the buckets have another layout than before: once, in the first step.
void ShardedOptimizer::follow_buckets() {
  auto now = model_->reducer()->bucket_parameters();
  const bool same =
      std::equal(now.begin(), now.end(), buckets_.begin(), buckets_.end(),
                 [](const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
                   return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                                     [](const Tensor& x, const Tensor& y) { return x.is_same(y); });
                 });
  if (same) return;
  const NamedTensors state = named_state();
  buckets_ = std::move(now);
  set_pieces(bucket_pieces());
  load_named_state(state);
}

// Collective. Every rank's bytes of `pieces`, which are all ranks' and in their order, to `places`,
// one for each; null: nowhere. `own` says where they are on the rank that has them.
void ShardedOptimizer::gather(const std::vector<const Piece*>& pieces,
                              const std::vector<const char*>& own,
                              const std::vector<char*>& places) const {
  const Stream stream = current_stream(device());
  std::vector<int64_t> counts(static_cast<size_t>(group_->size()));
  for (const Piece* piece : pieces) counts[static_cast<size_t>(piece->rank)] += piece_bytes(*piece);
  // Blocks of one size go straight between devices.
  const int64_t block = *std::max_element(counts.begin(), counts.end());
  if (device().is_cuda()) std::fill(counts.begin(), counts.end(), block);
  std::vector<size_t> starts(counts.size() + 1);
  for (size_t r = 0; r < counts.size(); ++r) {
    starts[r + 1] = starts[r] + static_cast<size_t>(counts[r]);
  }
  const std::shared_ptr<void> memory = allocate(starts.back(), device());
  const auto for_each_piece = [&](const auto& f) {
    std::vector<size_t> at = starts;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto size = static_cast<size_t>(piece_bytes(*pieces[i]));
      size_t& begin = at[static_cast<size_t>(pieces[i]->rank)];
      f(i, static_cast<char*>(memory.get()) + begin, size);
      begin += size;
    }
  };
  for_each_piece([&](size_t i, char* place, size_t size) {
    if (pieces[i]->rank == group_->rank()) copy_async(place, own[i], size, stream);
  });
  char* mine = static_cast<char*>(memory.get()) + starts[static_cast<size_t>(group_->rank())];
  if (device().is_cuda()) {
    group_->all_gather(mine, memory.get(), block, DType::kU8).wait();
  } else {
    group_->all_gather_v(mine, memory.get(), counts, DType::kU8).wait();
  }
  for_each_piece([&](size_t i, const char* place, size_t size) {
    if (places[i] != nullptr) copy_async(places[i], place, size, stream);
  });
}

void ShardedOptimizer::update(const Group& group, const std::vector<Entry*>& entries) {
  if (model_ != nullptr) follow_buckets();
  const auto g = static_cast<size_t>(&group - groups_.data());
  std::set<const Entry*> with_gradient(entries.begin(), entries.end());
  std::vector<const Piece*> pieces;
  std::vector<Entry*> own;
  for (Piece& piece : pieces_) {
    const Entry& entry = entry_of(piece);
    if (piece.group != g || !with_gradient.contains(&entry)) continue;
    pieces.push_back(&piece);
    if (piece.rank != group_->rank()) continue;
    piece.own.parameter = piece_of(entry.parameter, piece.begin, piece.end);
    const Tensor gradient = entry.parameter.grad().contiguous();
    piece.own.parameter.set_grad(piece_of(gradient, piece.begin, piece.end));
    follow(piece.own);
    own.push_back(&piece.own);
  }
  if (!own.empty()) optimizer_->update(group, own);
  std::vector<const char*> sources;
  std::vector<char*> places;
  for (const Piece* piece : pieces) {
    char* data = bytes_at(entry_of(*piece).parameter, piece->begin);
    sources.push_back(data);
    places.push_back(piece->rank == group_->rank() ? nullptr : data);
  }
  for (Entry* entry : own) entry->parameter = Tensor();  // the memory may change places until then
  if (group_->size() > 1) gather(pieces, sources, places);
  for (Entry* entry : entries) {
    entry->parameter.mark_changed(kOp);
    if (model_ != nullptr) entry->parameter.clear_grad();
  }
}

NamedTensors ShardedOptimizer::named_state() const {
  NoGrad no_grad;
  const std::vector<StateKind> kinds = state_kinds();
  // For each kind of each parameter: whether there is such a state, and its value if it is a count.
  std::vector<size_t> first;  // of each group, in the table
  size_t rows = 0;
  for (const Group& group : groups_) {
    first.push_back(rows);
    rows += group.entries.size();
  }
  const auto cell = [&](size_t group, size_t entry, size_t kind) {
    return ((first[group] + entry) * kinds.size() + kind) * 2;
  };
  std::vector<int64_t> table(rows * kinds.size() * 2);
  for (const Piece& piece : pieces_) {
    for (size_t k = 0; k < kinds.size(); ++k) {
      const Tensor& state = piece.own.state[k];
      if (piece.rank != group_->rank() || !state.defined()) continue;
      table[cell(piece.group, piece.entry, k)] = 1;
      if (kinds[k].is_count) table[cell(piece.group, piece.entry, k) + 1] = state.item_i64();
    }
  }
  group_
      ->all_reduce(table.data(), table.data(), static_cast<int64_t>(table.size()), DType::kI64,
                   comm::ReduceOp::kMax)
      .wait();
  NamedTensors out;
  std::map<size_t, Tensor> whole;  // by cell
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t e = 0; e < groups_[g].entries.size(); ++e) {
      const Entry& entry = groups_[g].entries[e];
      for (size_t k = 0; k < kinds.size(); ++k) {
        const size_t c = cell(g, e, k);
        if (table[c] == 0) continue;
        Tensor state = make_state(kinds[k], entry.parameter);
        if (kinds[k].is_count) state.copy_(Tensor::from<int64_t>({table[c + 1]}, {}));
        out.emplace_back(str_cat(kinds[k].name, ".", entry.name), state);
        whole.emplace(c, state);
      }
    }
  }
  // One kind after another.
  for (size_t k = 0; k < kinds.size(); ++k) {
    if (kinds[k].is_count) continue;
    std::vector<const Piece*> pieces;
    std::vector<Tensor> states;  // of this rank, where the parameters are now
    std::vector<const char*> own;
    std::vector<char*> places;
    for (const Piece& piece : pieces_) {
      const auto found = whole.find(cell(piece.group, piece.entry, k));
      if (found == whole.end()) continue;
      pieces.push_back(&piece);
      places.push_back(bytes_at(found->second, piece.begin));
      own.push_back(nullptr);
      if (piece.rank != group_->rank()) continue;
      states.push_back(piece.own.state[k].to(device()));
      own.back() = bytes_at(states.back(), 0);
    }
    gather(pieces, own, places);
  }
  return out;
}

void ShardedOptimizer::load_named_state(const NamedTensors& state) {
  check_named_state(state);
  NoGrad no_grad;
  const std::map<std::string, Tensor> values(state.begin(), state.end());
  const std::vector<StateKind> kinds = state_kinds();
  for (Piece& piece : pieces_) {
    if (piece.rank != group_->rank()) continue;
    const Entry& entry = entry_of(piece);
    for (size_t k = 0; k < kinds.size(); ++k) {
      const auto found = values.find(str_cat(kinds[k].name, ".", entry.name));
      if (found == values.end()) {
        piece.own.state[k] = Tensor();
        continue;
      }
      Tensor& own = piece.own.state[k];
      own = make_state(kinds[k], piece_of(entry.parameter, piece.begin, piece.end));
      own.copy_(kinds[k].is_count ? found->second
                                  : piece_of(found->second.contiguous(), piece.begin, piece.end));
    }
  }
}

int64_t ShardedOptimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const Piece& piece : pieces_) {
    for (const Tensor& state : piece.own.state) bytes += state.defined() ? state.nbytes() : 0;
  }
  return bytes;
}

bool ShardedOptimizer::agree(bool mine) const {
  int64_t all = mine ? 1 : 0;
  group_->all_reduce(&all, &all, 1, DType::kI64, comm::ReduceOp::kMin).wait();
  return all != 0;
}

double ShardedOptimizer::clip_grad_norm(double max_norm) {
  check(max_norm >= 0, "clip_grad_norm",
        [&] { return str_cat("want a max_norm of 0 and more, got ", max_norm); });
  NoGrad no_grad;
  if (model_ != nullptr) follow_buckets();
  std::vector<Tensor> gradients;
  for (const Piece& piece : pieces_) {
    const Tensor& parameter = entry_of(piece).parameter;
    if (piece.rank != group_->rank() || !parameter.has_grad()) continue;
    gradients.push_back(piece_of(parameter.grad().contiguous(), piece.begin, piece.end));
  }
  double squares = squared_norm(gradients);
  group_->all_reduce(&squares, &squares, 1, DType::kF64, comm::ReduceOp::kSum).wait();
  const double norm = std::sqrt(squares);
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return norm;
  std::vector<Tensor> all;
  for (const auto& [name, parameter] : named_parameters()) {
    if (parameter.has_grad()) all.push_back(parameter.grad());
  }
  scale_all("clip_grad_norm", all, factor);
  return norm;
}

}  // namespace lockstep::nn
