#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/optim.h"

namespace lockstep::nn {

// An optimiser whose state is shared out among the ranks of a group (Rajbhandari et al., "ZeRO:
// Memory Optimizations Toward Training Trillion Parameter Models", 2020, stage 1): each rank steps
// its part of the parameters, and then every rank gets all of them.
//
//   ShardedOptimizer optimizer(std::make_unique<AdamW>(net->named_parameters()), model);
//   loss.backward();
//   optimizer.step();
//
// Parameters, options, learning rates and names are those of the optimiser that it was made from,
// so that schedules, scalers and checkpoints take the one for the other. Parts are pieces of equal
// bytes; or whole parameters, for an optimiser whose step is not element by element (LAMB, or one
// of the program's own). The results have the bits of the optimiser alone.
//
// step(), named_state(), agree() and clip_grad_norm() are collective. Used from one thread.
class ShardedOptimizer : public Optimizer {
 public:
  // Collective. Gradients are equal on all ranks at every step: DataParallel averages them, with
  // all_reduce. `optimizer` may have made steps; its state is shared out.
  //
  // Throws Error(kInvalidArgument) for null pointers and parameters that are not contiguous, or not
  // all on one device, and Error(kMismatch) on every rank unless all have the same parameters.
  ShardedOptimizer(std::unique_ptr<Optimizer> optimizer, std::shared_ptr<comm::Communicator> group);

  // Collective. Takes the averaging over from `model`, whose backward then only reduces and
  // scatters its buckets; the all_gather of parameters in step() stands in for the other half of an
  // all_reduce. After backward() each rank's gradients are averages in its own part alone, and
  // something else in the others; step() makes them null. Clip with clip_grad_norm(). Where several
  // backwards come before a step, all but the last run under no_sync(); a backward that adds to
  // gradients which were averaged already is an Error(kInvalidArgument), as is one with
  // create_graph.
  //
  // It replaces the model's communication hook; the model must outlive it. Besides the above throws
  // Error(kInvalidArgument) for an optimiser that wants whole parameters, and for parameters that
  // the model does not average.
  ShardedOptimizer(std::unique_ptr<Optimizer> optimizer, DataParallel& model);
  ~ShardedOptimizer() override;

  // Collective. The state in full, as of the optimiser alone: copies, on every rank.
  NamedTensors named_state() const override;
  // Every rank is given the same state, in full, whatever the number of ranks that saved it.
  void load_named_state(const NamedTensors& state) override;
  // Of this rank's part.
  int64_t state_bytes() const override;
  bool agree(bool mine) const override;

  // Collective. clip_grad_norm_() over all parameters, for gradients that are equal on all ranks
  // and for those that are scattered. The same norm on every rank.
  double clip_grad_norm(double max_norm);

  const std::shared_ptr<comm::Communicator>& group() const { return group_; }

 protected:
  std::vector<StateKind> state_kinds() const override;
  bool is_elementwise() const override { return optimizer_->is_elementwise(); }
  void check_options(const Group& group) const override { optimizer_->check_options(group); }
  void update(const Group& group, const std::vector<Entry*>& entries) override;

 private:
  // Elements [begin, end) of a parameter, which `rank` steps.
  struct Piece {
    size_t group = 0;
    size_t entry = 0;
    int64_t begin = 0;
    int64_t end = 0;
    int rank = 0;
    Entry own = {};  // on that rank: what the optimiser sees
  };

  ShardedOptimizer(std::unique_ptr<Optimizer> optimizer, std::shared_ptr<comm::Communicator> group,
                   DataParallel* model);
  std::vector<Piece> even_pieces() const;
  std::vector<Piece> whole_pieces() const;
  std::vector<Piece> bucket_pieces() const;
  void set_pieces(std::vector<Piece> pieces);
  void follow_buckets();
  const Entry& entry_of(const Piece& piece) const;
  int64_t piece_bytes(const Piece& piece) const;
  void gather(const std::vector<const Piece*>& pieces, const std::vector<const char*>& own,
              const std::vector<char*>& places) const;
  Device device() const { return groups_[0].entries[0].parameter.device(); }

  std::unique_ptr<Optimizer> optimizer_;  // the rule; its own entries are gone
  std::shared_ptr<comm::Communicator> group_;
  DataParallel* model_ = nullptr;             // whose gradients are scattered
  std::vector<Piece> pieces_;                 // of all ranks, rank after rank
  std::vector<std::vector<Tensor>> buckets_;  // that pieces_ follow
};

}  // namespace lockstep::nn
