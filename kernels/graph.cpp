#include "lockstep/kernels/graph.h"

#include <utility>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#ifdef LOCKSTEP_WITH_CUDA
#include "lockstep/kernels/cuda/captured_graph.h"
#endif

namespace lockstep {

Graph Graph::capture(const Stream& stream, const std::function<void()>& work) {
  check(stream.device().is_cuda(), "Graph", [&] {
    return str_cat("want a stream of a CUDA device, got one of ", stream.device().name());
  });
  refuse_capture("Graph", "this thread is in another capture");
  Graph out;
#ifdef LOCKSTEP_WITH_CUDA
  out.graph_ = std::make_shared<cuda::CapturedGraph>(stream, work);
#else
  (void)work;
#endif
  return out;
}

void Graph::replay() const {
  check(graph_ != nullptr, "Graph", "want a graph of capture(), got none");
  refuse_capture("Graph::replay", "a graph has no graphs in it");
#ifdef LOCKSTEP_WITH_CUDA
  graph_->replay();
#endif
}

bool is_capturing() {
#ifdef LOCKSTEP_WITH_CUDA
  return cuda::capture != nullptr && !cuda::capture->renews;
#else
  return false;
#endif
}

void refuse_capture(std::string_view op, std::string_view why) {
  check(!is_capturing(), op, [&] { return str_cat("cannot be captured in a graph: ", why); });
}

void renew_at_replays(std::function<void()> launches) {
#ifdef LOCKSTEP_WITH_CUDA
  cuda::capture_part(std::move(launches));
#else
  launches();
#endif
}

}  // namespace lockstep
