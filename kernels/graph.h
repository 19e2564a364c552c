#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "lockstep/kernels/stream.h"

namespace lockstep {

namespace cuda {
class CapturedGraph;
}

// Work of a CUDA device that was put on its stream once, was captured in place of being run, and is
// run again by one call, as often as one likes: a training step whose shapes are fixed, whose host
// then has next to nothing to do. What torch.cuda.CUDAGraph is. Cheap to copy; all copies are one
// graph, which goes with the last of them.
//
//   step();  // once as ever: libraries choose their algorithms, optimisers make their state
//   const Graph graph = Graph::capture(current_stream(device), step);
//   for (const Batch& batch : loader) {
//     input.copy_(batch.input);  // the tensors that step() reads stay the same
//     graph.replay();
//   }
//
// A replay runs the same kernels on the same memory. What step() allocates is memory of the graph's
// own, which nobody else is given before the graph is gone; its results, a loss or gradients, are
// there until the next replay. All other memory that it reads or writes (parameters, inputs) must
// live as long as the graph. Replays are behind each other, and one thread's at a time.
//
// The host's part of step() runs once, in capture(), and what it has counted then is that of the
// first replay. Two things go on from replay to replay, with the same bits as without a graph: the
// numbers of generators, and the optimisers' counts and options (Adam, AdamW, SGD, RMSprop,
// Adagrad), so that a schedule may change a rate between replays; see renewed(). Both must outlive
// the graph. Other numbers of the host are what they were.
class Graph {
 public:
  // Runs `work` with `stream` as the calling thread's current one. Other streams take part by
  // waiting for an event of it, and must be waited for in the end.
  //
  // Throws what `work` throws, and then there is no graph. What would wait for the device, or read
  // the host's memory, throws Error(kInvalidArgument) in it that names the call: item(), a copy to
  // or from the CPU, synchronize(), done(); likewise collectives, and DataParallel in a group of
  // more than one. Where an op looks at places, classes say, that are on the device (embedding,
  // gather, cross_entropy), one out of range ends in Error(kDevice) at what is called after the
  // replay. Throws Error(kInvalidArgument) for a stream of the CPU, and where this thread captures
  // already.
  static Graph capture(const Stream& stream, const std::function<void()>& work);

  // Puts the work on the stream that it was captured on, behind what is on the calling thread's
  // current stream, which waits for it. Throws Error(kDevice).
  void replay() const;

 private:
  std::shared_ptr<cuda::CapturedGraph> graph_;
};

// Whether the calling thread is in Graph::capture().
bool is_capturing();

// Throws Error(kInvalidArgument) in the name of `op` if it is: "[all_reduce] cannot be captured in
// a graph: <why>".
void refuse_capture(std::string_view op, std::string_view why);

// Calls launches(), which launches our own kernels with numbers of the host that differ from step
// to step. In a capture it is called again at every replay but the first, when nothing is launched,
// but the kernels get the new arguments. It must launch the same kernels each time, and take
// memory of a device alone, the same each time, which stays as long as the graph; what it refers to
// must live as long.
void renew_at_replays(std::function<void()> launches);
template <class Launches>
void renewed(Launches launches) {
  if (!is_capturing()) return launches();
  renew_at_replays(std::move(launches));
}

}  // namespace lockstep
