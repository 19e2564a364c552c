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
  struct Taken {
    size_t bytes;
    std::shared_ptr<void> memory;
  };
  std::function<void()> launches;
  std::vector<CUgraphNode_st*> nodes = {};  // one for each kernel, in order
  std::vector<Taken> taken = {};            // device memory, in order
};

// What the calling thread has to do with a graph.
struct Capture {
  uint64_t pool = 0;            // the graph's memory
  bool renews = false;          // no capture: kernels that are launched get their arguments renewed
  RenewedPart* part = nullptr;  // in one of these
  size_t next = 0;              // of its nodes, while it is renewed
  size_t next_taken = 0;        // the same of its memory
  CUgraphExec_st* exec = nullptr;
  std::vector<RenewedPart> parts = {};
  std::vector<std::shared_ptr<void>> kept = {};  // as long as the graph
};
// Null where it has nothing to do with one.
inline constinit thread_local Capture* capture = nullptr;

// Whether the calling thread is in one of its parts.
inline bool is_in_part() { return capture != nullptr && capture->part != nullptr; }
// Whether the calling thread renews arguments: what is put on a stream stays in the graph as it
// was.
inline bool is_renewing() { return capture != nullptr && capture->renews; }

// Calls launches() as a part of the graph that is captured.
void capture_part(std::function<void()> launches);
// Device memory for a part: take()'s in the capture, and that again whenever the part is renewed.
// REQUIRES: is_in_part().
std::shared_ptr<void> take_in_part(size_t bytes,
                                   const std::function<std::shared_ptr<void>()>& take);

// Memory that is not the graph's and is let go in its capture: stays as long as the graph, whose
// replays may use it. REQUIRES: is_capturing().
void keep_for_replays(std::shared_ptr<void> memory);

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
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<RenewedPart> parts_;
  std::shared_ptr<CUgraph_st> graph_;  // whose nodes are named when one of exec_ is changed
  std::shared_ptr<CUgraphExec_st> exec_;
  bool was_replayed_ = false;
};

}  // namespace lockstep::cuda
