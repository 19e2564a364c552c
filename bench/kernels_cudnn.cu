// cuDNN alone.
#include "kernels_candidates.h"
#include "kernels_nvidia.h"
#include "lockstep/kernels/cuda/dnn_graph.cuh"

namespace lockstep::bench {
namespace {

cudnnHandle_t handle() {
  static cudnnHandle_t handle = nullptr;
  if (handle == nullptr) LOCKSTEP_DNN_CHECK(cudnnCreate(&handle));
  return handle;
}

}  // namespace

double cudnn_rate(cuda::Computes what, const View& x, const View& weight, const View& y,
                  const kernels::Conv2dParams& params, double flops) {
  const cuda::DeviceGuard guard(x.device);
  cuda::current_op = "cudnn_rate";
  LOCKSTEP_DNN_CHECK(cudnnSetStream(handle(), cuda::stream()));
  const size_t room = cuda::available_memory(x.device);
  const cuda::ConvolutionGraph made(handle(), what, x, weight, y, params, false);
  Fastest fastest(x.device);
  for (const cudnnBackendHeurMode_t mode :
       {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK}) {
    for (cuda::Descriptor& config : cuda::advised(made.graph, mode)) {
      if (!cuda::keeps_promises(config, x.dtype, /*same_bits=*/false)) continue;
      const auto plan = cuda::make_plan(handle(), std::move(config), room);
      if (!plan) continue;
      const auto workspace = allocate(plan->workspace_bytes, x.device);
      fastest.measure([&] { cuda::execute(handle(), *plan, x, weight, y, workspace.get()); });
    }
  }
  return fastest.rate(flops);
}

}  // namespace lockstep::bench
