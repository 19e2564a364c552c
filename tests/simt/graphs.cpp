// Captures and graphs: what streams are given while they capture is kept, and at each launch put on
// streams and behind events of the graph's own. So a launch has the order of its capture and no
// more, under random schedules.
#include <algorithm>
#include <map>

#include "streams.h"

using namespace simt;

struct CUgraphNode_st {
  Op op;
  size_t lane = 0;  // of the stream that was given it
};

struct CUgraph_st {
  std::deque<CUgraphNode_st> nodes;
  std::vector<std::pair<int, int>> lanes;  // device and priority of each stream, the first's first
  bool destroyed = false;
};

struct CUgraphExec_st {
  std::shared_ptr<CUgraph_st> graph;
  std::vector<cudaStream_t> lanes;
};

struct simt::Capture {
  std::thread::id thread = std::this_thread::get_id();
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::shared_ptr<CUgraph_st> graph = std::make_shared<CUgraph_st>();
  // By lane: the number of its nodes and of the others' that come before what it is given next.
  std::vector<std::vector<uint64_t>> before = {};
  std::vector<cudaGraphNode_t> last = {};
  bool invalid = false;
  bool ended = false;

  void add_lane(CUstream_st& stream) {
    stream.lane = graph->lanes.size();
    graph->lanes.emplace_back(stream.device, stream.priority);
    last.push_back(nullptr);
    before.resize(graph->lanes.size());
    for (auto& counts : before) counts.resize(graph->lanes.size());
  }
};

namespace {

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
std::vector<std::shared_ptr<Capture>> captures;
std::map<cudaGraph_t, std::shared_ptr<CUgraph_st>> graphs;

cudaError_t spoil(Capture& capture, cudaError_t error) {
  capture.invalid = true;
  return fail(error);
}

// An op like the one that was captured, with an event of this launch in the place of its own.
Op again(const Op& op, std::map<CUevent_st*, std::shared_ptr<CUevent_st>>& events,
         CUstream_st& stream) {
  Op out;
  out.work = op.work;
  out.on_host = op.on_host;
  for (auto member : {&Op::record, &Op::wait}) {
    if (op.*member == nullptr) continue;
    std::shared_ptr<CUevent_st>& event = events[(op.*member).get()];
    if (event == nullptr) event = std::make_shared<CUevent_st>();
    out.*member = event;
  }
  if (out.record != nullptr) out.count = ++out.record->recorded;
  if (out.wait != nullptr) out.count = out.wait->recorded;
  if (op.launch == nullptr) return out;
  out.launch = std::make_unique<Launch>();
  out.launch->grid = op.launch->grid;
  out.launch->block = op.launch->block;
  out.launch->dynamic_bytes = op.launch->dynamic_bytes;
  out.launch->kernel = op.launch->kernel;
  out.launch->body = op.launch->body;
  out.launch->contexts = &stream.spare;
  return out;
}

}  // namespace

namespace simt {

cudaError_t refuse(Capture* subject, cudaError_t error) {
  if (subject != nullptr) {
    subject->invalid = true;
    return error;
  }
  for (const auto& capture : captures) {
    const bool mine = capture->thread == std::this_thread::get_id();
    const bool all =
        capture->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
    if (thread_mode == cudaStreamCaptureModeRelaxed ||
        capture->mode == cudaStreamCaptureModeRelaxed || (!mine && !all)) {
      continue;
    }
    capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}

cudaError_t keep(CUstream_st& stream, Op op) {
  if (op.wait != nullptr) {
    const std::shared_ptr<Capture>& theirs = op.wait->capture;
    if (theirs == nullptr) {
      if (op.count == 0) return cudaSuccess;  // never recorded
      return spoil(*stream.capture, cudaErrorStreamCaptureIsolation);
    }
    if (theirs->ended || (stream.capture != nullptr && stream.capture != theirs)) {
      if (stream.capture != nullptr) stream.capture->invalid = theirs->invalid = true;
      return fail(theirs->ended ? cudaErrorCapturedEvent : cudaErrorStreamCaptureMerge);
    }
    if (stream.capture == nullptr) {
      stream.capture = theirs;
      theirs->add_lane(stream);
    }
  }
  Capture& capture = *stream.capture;
  if (capture.invalid) return fail(cudaErrorStreamCaptureInvalidated);
  if (op.word != nullptr) return spoil(capture, cudaErrorStreamCaptureUnsupported);
  std::vector<uint64_t>& before = capture.before[stream.lane];
  if (op.wait != nullptr) {
    const std::vector<uint64_t>& theirs = op.wait->before;
    for (size_t i = 0; i < theirs.size(); ++i) before[i] = std::max(before[i], theirs[i]);
  }
  if (op.record != nullptr) {
    op.record->capture = stream.capture;
    op.record->before = before;
  }
  const bool is_node = op.record == nullptr && op.wait == nullptr;
  capture.graph->nodes.push_back({std::move(op), stream.lane});
  if (is_node) {
    ++before[stream.lane];
    capture.last[stream.lane] = &capture.graph->nodes.back();
  }
  return cudaSuccess;
}

}  // namespace simt

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Lock lock;
  if (handle == nullptr) return fail(cudaErrorStreamCaptureUnsupported);
  CUstream_st* stream = find_stream(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) return fail(cudaErrorIllegalState);
  stream->capture = std::make_shared<Capture>();
  stream->capture->mode = mode;
  stream->capture->add_lane(*stream);
  captures.push_back(stream->capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  Lock lock;
  *graph = nullptr;
  CUstream_st* stream = find_stream(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return fail(cudaErrorIllegalState);
  if (stream->lane != 0) return spoil(*capture, cudaErrorStreamCaptureUnmatched);
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return spoil(*capture, cudaErrorStreamCaptureWrongThread);
  }
  for (auto& [other, state] : world().streams) {
    if (state->capture == capture) state->capture = nullptr;
  }
  capture->ended = true;
  std::erase(captures, capture);
  if (capture->invalid) return fail(cudaErrorStreamCaptureInvalidated);
  for (size_t lane = 0; lane < capture->before.size(); ++lane) {
    if (capture->before[0][lane] < capture->before[lane][lane]) {
      return fail(cudaErrorStreamCaptureUnjoined);
    }
  }
  *graph = capture->graph.get();
  graphs[*graph] = capture->graph;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                     unsigned long long*, cudaGraph_t*,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData**, size_t* count) {
  Lock lock;
  CUstream_st* stream = find_stream(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidResourceHandle);
  Capture* capture = stream->capture.get();
  *status = capture == nullptr ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  if (*status != cudaStreamCaptureStatusActive) return cudaSuccess;
  // Of those of other lanes nobody asks.
  if (dependencies != nullptr) *dependencies = &capture->last[stream->lane];
  if (count != nullptr) *count = capture->last[stream->lane] == nullptr ? 0 : 1;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  Lock lock;
  const auto found = graphs.find(graph);
  if (found == graphs.end()) return fail(cudaErrorInvalidValue);
  found->second->destroyed = true;
  graphs.erase(found);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  Lock lock;
  const auto found = graphs.find(graph);
  if (found == graphs.end()) return fail(cudaErrorInvalidValue);
  *exec = new CUgraphExec_st{found->second, {}};
  for (size_t lane = 1; lane < graph->lanes.size(); ++lane) {
    auto stream = std::make_unique<CUstream_st>();
    std::tie(stream->device, stream->priority) = graph->lanes[lane];
    (*exec)->lanes.push_back(stream.get());
    world().streams[stream.get()] = std::move(stream);
  }
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  Lock lock;
  if (find_stream(stream) == nullptr) return fail(cudaErrorInvalidResourceHandle);
  if (Capture* capture = find_stream(stream)->capture.get(); capture != nullptr) {
    return fail(refuse(capture, cudaErrorStreamCaptureUnsupported));  // CUDA makes it a node
  }
  std::vector<cudaStream_t> lanes = {stream};
  lanes.insert(lanes.end(), exec->lanes.begin(), exec->lanes.end());
  cudaError_t error = cudaSuccess;
  const auto put = [&](cudaStream_t lane, Op op) {
    error = std::max(error, push(lane, std::move(op)));
  };
  // What is on `later` from here on comes after what is on `earlier` now.
  const auto order = [&](cudaStream_t earlier, cudaStream_t later) {
    Op record, wait;
    record.record = wait.wait = std::make_shared<CUevent_st>();
    record.count = wait.count = record.record->recorded = 1;
    put(earlier, std::move(record));
    put(later, std::move(wait));
  };
  std::map<CUevent_st*, std::shared_ptr<CUevent_st>> events;
  for (size_t i = 1; i < lanes.size(); ++i) order(stream, lanes[i]);
  for (const CUgraphNode_st& node : exec->graph->nodes) {
    const cudaStream_t lane = lanes[node.lane];
    put(lane, again(node.op, events, *find_stream(lane)));
  }
  for (size_t i = 1; i < lanes.size(); ++i) order(lanes[i], stream);
  return error;
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* params) {
  Lock lock;
  // Handles are those of the graph, which must be there for them.
  const auto& nodes = exec->graph->nodes;
  const bool known = !exec->graph->destroyed &&
                     std::any_of(nodes.begin(), nodes.end(),
                                 [&](const CUgraphNode_st& other) { return &other == node; });
  if (!known || node->op.launch == nullptr || node->op.launch->kernel != params->func) {
    return fail(cudaErrorInvalidValue);
  }
  Launch& launch = *node->op.launch;
  uintptr_t foreign = 0;
  launch.body = launch.bind(params->func, params->kernelParams, &foreign);
  if (foreign != 0) return fail(cudaErrorInvalidValue);
  launch.grid = params->gridDim;
  launch.block = params->blockDim;
  launch.dynamic_bytes = params->sharedMemBytes;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  Lock lock;
  for (const cudaStream_t lane : exec->lanes) find_stream(lane)->is_destroyed = true;
  delete exec;
  return cudaSuccess;
}
