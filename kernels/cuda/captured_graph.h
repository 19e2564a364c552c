#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/kernels/stream.h"

struct CUgraph_st;  // what CUDA's own types point to
struct CUgraphExec_st;
struct CUgraphNode_st;

namespace lockstep::cuda {

// Kernels of a graph that get new arguments at each replay, from what launched them.
struct RenewedPart {
  std::function<void()> launches;
  std::vector<CUgraphNode_st*> nodes = {};  // one for each kernel, in order
};

// What the calling thread has to do with a graph.
struct Capture {
  uint64_t pool = 0;            // the graph's memory
  bool renews = false;          // no capture: kernels that are launched get their arguments renewed
  RenewedPart* part = nullptr;  // in one of these
  size_t next = 0;              // of its nodes, while it is renewed
  CUgraphExec_st* exec = nullptr;
  std::vector<RenewedPart> parts = {};
};
// Null where it has nothing to do with one.
inline constinit thread_local Capture* capture = nullptr;

// Calls launches() as a part of the graph that is captured.
void capture_part(std::function<void()> launches);

// For kernels/graph.h.
class CapturedGraph {
 public:
  CapturedGraph(const Stream& stream, const std::function<void()>& work);
  ~CapturedGraph();
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  void replay();

 private:
  // Memory that was taken in the capture; given back when all else here is gone.
  struct Pool {
    explicit Pool(uint64_t pool) : number(pool) {}
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;
    const uint64_t number;
  };

  void renew(RenewedPart& part);

  const Stream stream_;
  const Pool pool_;
  std::vector<RenewedPart> parts_;
  std::shared_ptr<CUgraph_st> graph_;  // whose nodes are named when one of exec_ is changed
  std::shared_ptr<CUgraphExec_st> exec_;
  bool was_replayed_ = false;
};

}  // namespace lockstep::cuda
