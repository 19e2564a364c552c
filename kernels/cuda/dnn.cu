// Convolutions by cuDNN 9's graph interface; cuDNN's older one for convolutions is deprecated.
#include "lockstep/kernels/cuda/dnn.h"

#include "lockstep/kernels/error.h"

#ifdef LOCKSTEP_WITH_CUDNN
#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "lockstep/kernels/cuda/dnn_graph.cuh"
#include "lockstep/kernels/cuda/library.cuh"
#include "lockstep/kernels/memory.h"

namespace lockstep::cuda {
namespace {

// All by which a plan is chosen.
using Key = std::array<int64_t, 36>;

struct Library {
  explicit Library(int) { LOCKSTEP_DNN_CHECK(cudnnCreate(&handle)); }

  cudnnHandle_t handle = nullptr;
  std::mutex mutex;  // a handle is one thread's at a time
  std::map<Key, Plan> plans;
};

std::optional<Plan> find_plan(Library& library, Computes what, const View& x, const View& weight,
                              const View& y, const kernels::Conv2dParams& params, bool adds) {
  const size_t room = available_memory(x.device);  // a slower one may want less
  const ConvolutionGraph made(library.handle, what, x, weight, y, params, adds);
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (Descriptor& config : advised(made.graph, mode)) {
      if (!keeps_promises(config, x.dtype)) continue;
      if (auto plan = make_plan(library.handle, std::move(config), room)) return plan;
    }
  }
  return std::nullopt;
}

Key key_of(Computes what, const View& x, const View& weight, const View& y,
           const kernels::Conv2dParams& params, bool adds) {
  Key key = {};
  auto end = key.begin();
  const auto append = [&](const auto& numbers) {
    end = std::copy(numbers.begin(), numbers.end(), end);
  };
  append(std::array<int64_t, 6>{static_cast<int64_t>(what), static_cast<int64_t>(x.dtype), adds,
                                dnn_aligned(x), dnn_aligned(weight), dnn_aligned(y)});
  for (const View* view : {&x, &weight, &y}) {
    append(view->shape);
    append(view->strides);
  }
  for (const auto* pair : {&params.stride, &params.padding, &params.dilation}) append(*pair);
  return key;
}

}  // namespace

bool convolve(std::string_view op, Computes what, const View& x, const View& weight, const View& y,
              const kernels::Conv2dParams& params, bool adds) {
  current_op = op;
  auto& library = of_current_device<Library>();
  const Key key = key_of(what, x, weight, y, params, adds);
  std::lock_guard lock(library.mutex);
  LOCKSTEP_DNN_CHECK(cudnnSetStream(library.handle, stream()));
  auto known = library.plans.find(key);
  if (known == library.plans.end()) {
    // Where there is none, that may be for want of memory, and another time there is one.
    std::optional<Plan> plan = find_plan(library, what, x, weight, y, params, adds);
    if (!plan) return false;
    if (library.plans.size() >= kMostPlans) library.plans.clear();
    known = library.plans.emplace(key, std::move(*plan)).first;
  }
  const Plan& plan = known->second;
  const std::shared_ptr<void> workspace = allocate(plan.workspace_bytes, x.device);
  execute(library.handle, plan, x, weight, y, workspace.get());
  return true;
}

}  // namespace lockstep::cuda

#else

namespace lockstep::cuda {

bool convolve(std::string_view op, Computes, const View&, const View&, const View&,
              const kernels::Conv2dParams&, bool) {
  throw Error(ErrorCode::kDevice, op,
              "cuDNN was not found when this library was built; convolutions run on the CPU alone. "
              "Install cuDNN 9 and build again");
}

}  // namespace lockstep::cuda

#endif
