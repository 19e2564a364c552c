#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/kernels/stream_timeline.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/reducer.h"
#include "lockstep/nn/tensor_visitor.h"

namespace lockstep::nn {

// What becomes of buffers (running statistics, say) before each forward in training mode.
enum class BufferMode {
  kBroadcast,  // every rank gets rank 0's
  kAverage,    // floating ones are averaged over the ranks, the others are rank 0's
  kLeave,      // each rank keeps its own
};

struct DataParallelOptions {
  ReducerOptions reducer = {};
  BufferMode buffers = BufferMode::kBroadcast;
  // Compare all parameters bit by bit before every so many forwards in training mode; 0: never.
  int64_t check_every = 0;
  // Send rank 0's values to all when wrapping. Off, for large models that every rank has loaded
  // itself: values are only compared, and a difference is an error.
  bool broadcast_at_start = true;
  // Parameters that this wrapper does not touch: full names, or names of modules that hold them
  // ("experts", "head.weight"). A part that is wrapped in a DataParallel of its own (on another
  // group, say) is left to that one without being named here.
  std::vector<std::string> ignore = {};
};

// Keeps the replicas of a module in lockstep: one replica on each rank of a group, each fed its own
// part of the batch, with their gradients averaged in every backward (see Reducer).
//
//   auto model = std::make_shared<DataParallel>(net, comm::init());
//   cross_entropy(model->forward(x), y).backward();   // net's gradients are the group's average
//
// Each rank's gradient weighs the same. With a loss that is a mean over unequal local batches the
// result is the mean of the ranks' means; for the mean over all N samples multiply the loss of n
// samples by n * world_size / N (mean_over_samples() in collectives.h does). Ranks with fewer
// batches than others: see Join.
//
// A module on a CUDA device is averaged there: buckets lie in the device's memory and are reduced
// beside what backward computes. The end of backward puts a wait on the thread's current stream,
// where the optimiser finds averages, and waits itself for no device. Move the module first, then
// wrap it.
//
// Names stay those of the module: wrapping adds no prefix. Every rank is in the same mode: where
// some run a forward in training mode and others in eval mode, and then a backward, every rank gets
// Error(kMismatch). In eval mode, or with gradients off, a forward is not collective. Used from one
// thread.
class DataParallel : public Module {
 public:
  // Collective. Throws Error(kMismatch) on every rank, naming the first difference, unless every
  // rank has the same names, shapes and dtypes; then every rank gets rank 0's parameters and
  // buffers. Throws Error(kInvalidArgument) if no parameter requires a gradient, an ignored name is
  // not there, or a parameter or buffer is neither on the CPU nor on the group's device
  // (comm::Options::device).
  DataParallel(std::shared_ptr<Module> module, std::shared_ptr<comm::Communicator> group,
               DataParallelOptions options = {});

  // The module's forward. Throws Error(kInvalidArgument) that names a parameter that was replaced,
  // added, removed, unfrozen, converted or moved since wrapping. The wrapper must outlive the
  // backward.
  Tensor forward(const Tensor& x) override;
  // Any other forward of the module, of any arguments and any result that for_each_tensor() takes:
  //
  //   auto [mean, variance] = model.call([&] { return net->encode(x, mask); });
  //
  // Calling the module itself works as well, with two differences: parameters are not checked and
  // buffers are not brought into line, and a backward that reaches no parameter at all on some rank
  // is not noticed there, so that the others wait until the timeout.
  template <class F>
  auto call(F&& forward) {
    const timeline::Span span(timeline::kind::kForward, "forward");
    const timeline::StreamSpan on_device(timeline::kind::kForward, "forward",
                                         options_of_.front().device);
    before_forward();
    auto result = std::forward<F>(forward)();
    if (reducer_ != nullptr) {
      for_each_tensor(result, [this](Tensor& output) { output = watch(output); });
    }
    return result;
  }
  std::string type_name() const override { return "DataParallel"; }

  // How gradients are averaged from the next backward on; null: plainly. See CommHook. No-op in a
  // group of one.
  void set_comm_hook(std::shared_ptr<CommHook> hook);

  // While the returned object lives, backward leaves gradients on this rank; the first backward
  // after that averages what has accumulated. What counts is where backward runs, not forward.
  class NoSync {
   public:
    explicit NoSync(std::shared_ptr<Reducer> reducer);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    std::shared_ptr<Reducer> reducer_;
    bool before_ = true;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(reducer_); }

  // Collective. Throws Error(kMismatch) on every rank where parameters, or buffers that are not
  // left alone, differ in any bit, naming the first one and the ranks.
  void check_in_lockstep() const;

  const std::shared_ptr<Module>& module() const { return module_; }
  const std::shared_ptr<comm::Communicator>& group() const { return group_; }
  // Null in a group of one.
  const std::shared_ptr<Reducer>& reducer() const { return reducer_; }

 private:
  friend class Join;

  // What a parameter's member held when it was last found to be all right.
  struct Seen {
    const TensorImpl* parameter = nullptr;
    bool requires_grad = false;
    DType dtype = DType::kF32;
    Device device;

    bool operator==(const Seen&) const = default;
  };

  void before_forward();
  void bring_buffers_into_line();
  Tensor watch(const Tensor& output);
  NamedTensors managed(NamedTensors tensors) const;
  NamedTensors compared() const;
  std::vector<Seen> look() const;
  void check_parameters();
  void check_device(const std::string& path, const Tensor& tensor) const;
  void broadcast_buffers(const NamedTensors& buffers) const;
  void broadcast_packed(std::vector<Tensor>& tensors) const;
  void average_buffers() const;
  void average_packed(std::vector<Tensor>& tensors) const;

  std::shared_ptr<Module> module_;
  std::shared_ptr<comm::Communicator> group_;
  DataParallelOptions options_;
  std::shared_ptr<Reducer> reducer_;
  NamedTensors wrapped_;                   // the managed parameters as they were when wrapped
  std::vector<TensorOptions> options_of_;  // of wrapped_ then
  std::vector<Seen> seen_;
  int64_t forwards_ = 0;
};

}  // namespace lockstep::nn
