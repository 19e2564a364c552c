// Graphs of CUDA: work that a stream was given once and runs again.
#include "lockstep/kernels/cuda/captured_graph.h"

#include <atomic>
#include <exception>
#include <utility>

#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/cuda/stream_memory.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"

namespace lockstep::cuda {
namespace {

std::atomic<uint64_t> pools{0};

// Makes it the calling thread's while it lives.
class CaptureGuard {
 public:
  explicit CaptureGuard(Capture& mine) { capture = &mine; }
  ~CaptureGuard() { capture = nullptr; }
  CaptureGuard(const CaptureGuard&) = delete;
  CaptureGuard& operator=(const CaptureGuard&) = delete;
};

}  // namespace

void capture_part(std::function<void()> launches) {
  if (capture->part != nullptr) return launches();  // within another
  RenewedPart part{std::move(launches)};
  capture->part = &part;
  try {
    part.launches();
  } catch (...) {
    capture->part = nullptr;
    throw;
  }
  capture->part = nullptr;
  capture->parts.push_back(std::move(part));
}

std::shared_ptr<void> take_in_part(size_t bytes,
                                   const std::function<std::shared_ptr<void>()>& take) {
  std::vector<RenewedPart::Taken>& taken = capture->part->taken;
  if (!is_renewing()) return taken.emplace_back(RenewedPart::Taken{bytes, take()}).memory;
  const size_t at = capture->next_taken++;
  lockstep::check(at < taken.size() && taken[at].bytes == bytes, "Graph", [&] {
    return str_cat("want the memory of ", taken.size(), " blocks that was captured, got ", bytes,
                   " bytes as block ", at);
  });
  return taken[at].memory;
}

void keep_for_replays(std::shared_ptr<void> memory) { capture->kept.push_back(std::move(memory)); }

bool is_renewed(const cudaLaunchConfig_t& config, const void* kernel, void** arguments) {
  if (!capture->renews) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    LOCKSTEP_CUDA_CHECK(cudaStreamGetCaptureInfo(config.stream, &status));
    lockstep::check(status != cudaStreamCaptureStatusNone, "Graph",
                    "a kernel was launched on a stream that is not captured; let it wait for an "
                    "event of the one that is");
    return false;
  }
  const auto& nodes = capture->part->nodes;
  lockstep::check(capture->next < nodes.size(), "Graph", [&] {
    return str_cat("want the ", nodes.size(), " kernels that were captured, got more");
  });
  cudaKernelNodeParams node = {};
  node.func = const_cast<void*>(kernel);
  node.gridDim = config.gridDim;
  node.blockDim = config.blockDim;
  node.kernelParams = arguments;
  LOCKSTEP_CUDA_CHECK(
      cudaGraphExecKernelNodeSetParams(capture->exec, nodes[capture->next++], &node));
  return true;
}

void note_launch(cudaStream_t stream) {
  if (capture->part == nullptr) return;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* newest = nullptr;
  size_t count = 0;
  LOCKSTEP_CUDA_CHECK(
      cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &newest, nullptr, &count));
  if (count != 1) {
    throw Error(ErrorCode::kInternal, "Graph",
                str_cat("a kernel left ", count, " nodes at the end of its stream"));
  }
  capture->part->nodes.push_back(newest[0]);
}

CapturedGraph::Pool::~Pool() { end_pool(number); }

CapturedGraph::CapturedGraph(const Stream& stream, const std::function<void()>& work)
    : stream_(stream), pool_(++pools) {
  const DeviceGuard device(stream_.device());
  Capture mine;
  mine.pool = pool_.number;
  // Other threads may do what they like meanwhile: wait for a device, take memory.
  LOCKSTEP_CUDA_CHECK(cudaStreamBeginCapture(stream_.handle(), cudaStreamCaptureModeThreadLocal));
  std::exception_ptr failure;
  try {
    const CaptureGuard capturing(mine);
    const StreamGuard current(stream_);
    work();
  } catch (...) {
    failure = std::current_exception();
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t error = cudaStreamEndCapture(stream_.handle(), &graph);
  graph_ = {graph, [on = stream_.device()](cudaGraph_t gone) {
              if (gone != nullptr) let_go(on, [gone] { cudaGraphDestroy(gone); });
            }};
  if (failure != nullptr) {
    cudaGetLastError();
    std::rethrow_exception(failure);
  }
  lockstep::check(error != cudaErrorStreamCaptureUnjoined, "Graph",
                  "want the captured stream to wait in the end for all others that took part, but "
                  "one has work that nobody waits for");
  check(error, "cudaStreamEndCapture");
  cudaGraphExec_t exec = nullptr;
  LOCKSTEP_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  exec_ = {exec, [on = stream_.device()](cudaGraphExec_t gone) {
             let_go(on, [gone] { cudaGraphExecDestroy(gone); });
           }};
  parts_ = std::move(mine.parts);
  kept_ = std::move(mine.kept);
}

CapturedGraph::~CapturedGraph() {
  try {
    stream_.synchronize();  // a replay may be on its way, in memory that goes
  } catch (...) {
    // The device has failed, which its next user will be told.
  }
}

void CapturedGraph::renew(RenewedPart& part) {
  Capture mine;
  mine.renews = true;
  mine.part = &part;
  mine.exec = exec_.get();
  {
    const CaptureGuard renewing(mine);
    part.launches();
  }
  lockstep::check(mine.next == part.nodes.size(), "Graph", [&] {
    return str_cat("want the ", part.nodes.size(), " kernels that were captured, got ", mine.next);
  });
}

void CapturedGraph::replay() {
  const DeviceGuard device(stream_.device());
  if (std::exchange(was_replayed_, true)) {
    for (RenewedPart& part : parts_) renew(part);
  }
  const Stream current = current_stream(stream_.device());
  const bool apart = !(current == stream_);
  if (apart) stream_.wait(current.record());
  LOCKSTEP_CUDA_CHECK(cudaGraphLaunch(exec_.get(), stream_.handle()));
  if (apart) current.wait(stream_.record());
}

}  // namespace lockstep::cuda
