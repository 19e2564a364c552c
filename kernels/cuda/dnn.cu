// Convolutions by cuDNN 9's graph interface; cuDNN's older one for convolutions is deprecated.
#include "lockstep/kernels/cuda/dnn.h"

#include "lockstep/kernels/error.h"

#ifdef LOCKSTEP_WITH_CUDNN
#include <cudnn_graph.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/kernels/cuda/library.cuh"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/memory.h"

namespace lockstep::cuda {
namespace {

// The op that the calling thread is in, for what its calls throw.
thread_local std::string_view current_op;

void require(cudnnStatus_t status, std::string_view call,
             std::source_location where = std::source_location::current()) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char why[512] = "";
  cudnnGetLastErrorString(why, sizeof why);
  throw Error(ErrorCode::kDevice, current_op,
              str_cat(cudnnGetErrorString(status), " from ", call, *why == '\0' ? "" : ": ", why),
              where);
}
#define LOCKSTEP_DNN_CHECK(call) require((call), #call)

// A descriptor of the graph interface: attributes are set, then it is finalized.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    LOCKSTEP_DNN_CHECK(cudnnBackendCreateDescriptor(type, &raw_));
  }
  Descriptor(Descriptor&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (raw_ != nullptr) cudnnBackendDestroyDescriptor(raw_);
  }

  cudnnBackendDescriptor_t raw() const { return raw_; }

  template <class T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T* values,
           size_t count = 1) {
    LOCKSTEP_DNN_CHECK(
        cudnnBackendSetAttribute(raw_, name, type, static_cast<int64_t>(count), values));
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &value.raw_);
  }
  template <size_t n>
  void set(cudnnBackendAttributeName_t name, const std::array<int64_t, n>& values) {
    set(name, CUDNN_TYPE_INT64, values.data(), n);
  }
  void set(cudnnBackendAttributeName_t name, int64_t value) { set(name, std::array{value}); }

  // Fills up to `count` values; returns how many there are.
  template <class T>
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, T* values,
              size_t count) const {
    int64_t found = 0;
    LOCKSTEP_DNN_CHECK(
        cudnnBackendGetAttribute(raw_, name, type, static_cast<int64_t>(count), &found, values));
    return found;
  }

  cudnnStatus_t try_finalize() { return cudnnBackendFinalize(raw_); }
  void finalize() { LOCKSTEP_DNN_CHECK(try_finalize()); }

 private:
  cudnnBackendDescriptor_t raw_ = nullptr;
};

// How one call is done. `config` is what `plan` was made of.
struct Plan {
  Descriptor config;
  Descriptor plan;
  size_t workspace_bytes = 0;
};

// All by which a plan is chosen.
using Key = std::array<int64_t, 36>;

struct Library {
  explicit Library(int) { LOCKSTEP_DNN_CHECK(cudnnCreate(&handle)); }

  cudnnHandle_t handle = nullptr;
  std::mutex mutex;  // a handle is one thread's at a time
  std::map<Key, Plan> plans;
};

cudnnDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return CUDNN_DATA_DOUBLE;
    case DType::kF16:
      return CUDNN_DATA_HALF;
    case DType::kBF16:
      return CUDNN_DATA_BFLOAT16;
    default:
      return CUDNN_DATA_FLOAT;
  }
}

int64_t aligned(const View& x) { return alignment(x.data, 16); }

std::array<int64_t, 4> four(const Shape& numbers) {
  return {numbers[0], numbers[1], numbers[2], numbers[3]};
}

constexpr std::array<int64_t, 3> kNames = {'x', 'w', 'y'};

Descriptor describe(const View& view, int64_t unique_name) {
  Descriptor out(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const cudnnDataType_t type = type_of(view.dtype);
  out.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
  out.set(CUDNN_ATTR_TENSOR_DIMENSIONS, four(view.shape));
  out.set(CUDNN_ATTR_TENSOR_STRIDES, four(view.strides));
  out.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, unique_name);
  out.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, aligned(view));
  out.finalize();
  return out;
}

Descriptor describe(DType dtype, const kernels::Conv2dParams& params) {
  Descriptor out(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const cudnnDataType_t compute = dtype == DType::kF64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  out.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &compute);
  out.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, &mode);
  out.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 2);
  out.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, params.stride);
  out.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, params.padding);
  out.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, params.padding);
  out.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, params.dilation);
  out.finalize();
  return out;
}

// What the interface calls an operation and its attributes.
struct OperationNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t convolution, x, weight, y, alpha, beta;
};

OperationNames names_of(Computes what) {
  switch (what) {
    case Computes::kX:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    case Computes::kWeight:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
    case Computes::kY:
      break;
  }
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
}

// A graph of one operation, with all that it is made of. The number of groups is x's channels over
// weight's.
struct Graph {
  Graph(Library& library, Computes what, const View& x, const View& weight, const View& y,
        const kernels::Conv2dParams& params, bool adds)
      : parts{describe(x.dtype, params), describe(x, kNames[0]), describe(weight, kNames[1]),
              describe(y, kNames[2])},
        operation(names_of(what).type) {
    const OperationNames names = names_of(what);
    operation.set(names.convolution, parts[0]);
    operation.set(names.x, parts[1]);
    operation.set(names.weight, parts[2]);
    operation.set(names.y, parts[3]);
    const double wide_alpha = 1, wide_beta = adds ? 1 : 0;
    const float alpha = 1, beta = adds ? 1 : 0;
    if (x.dtype == DType::kF64) {
      operation.set(names.alpha, CUDNN_TYPE_DOUBLE, &wide_alpha);
      operation.set(names.beta, CUDNN_TYPE_DOUBLE, &wide_beta);
    } else {
      operation.set(names.alpha, CUDNN_TYPE_FLOAT, &alpha);
      operation.set(names.beta, CUDNN_TYPE_FLOAT, &beta);
    }
    operation.finalize();
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &library.handle);
    graph.finalize();
  }

  std::array<Descriptor, 4> parts;
  Descriptor operation;
  Descriptor graph{CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR};
};

// What a workspace may take: what the device has free, and what allocate() keeps unused.
size_t available_memory(Device device) {
  const MemoryStats stats = memory_stats(device);
  return memory_info(device).free + static_cast<size_t>(stats.cached);
}

// Whether an engine gives the same bits each time and the accuracy that is promised.
bool keeps_promises(const Descriptor& config, DType dtype) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.raw();
  config.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw, 1);
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes;
  const int64_t count = engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   notes.data(), notes.size());
  const bool exact = dtype == DType::kF32 && !allows_tf32();
  return std::none_of(notes.begin(), notes.begin() + count, [&](cudnnBackendNumericalNote_t note) {
    return note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC ||
           note == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION ||
           (exact && (note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE ||
                      note == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS));
  });
}

// The engines that cuDNN advises, the fastest first.
std::vector<Descriptor> advised(const Descriptor& graph, cudnnBackendHeurMode_t mode) {
  Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, &mode);
  std::vector<Descriptor> out;
  if (heuristic.try_finalize() != CUDNN_STATUS_SUCCESS) return out;  // it knows none
  const int64_t count =
      heuristic.get<void>(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, nullptr, 0);
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < count; ++i) {
    out.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    raw.push_back(out.back().raw());
  }
  const int64_t filled = heuristic.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       raw.data(), raw.size());
  while (static_cast<int64_t>(out.size()) > filled) out.pop_back();
  return out;
}

Plan make_plan(Library& library, Computes what, const View& x, const View& weight, const View& y,
               const kernels::Conv2dParams& params, bool adds) {
  const size_t room = available_memory(x.device);
  const Graph made(library, what, x, weight, y, params, adds);
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (Descriptor& config : advised(made.graph, mode)) {
      if (!keeps_promises(config, x.dtype)) continue;
      Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &library.handle);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
      if (plan.try_finalize() != CUDNN_STATUS_SUCCESS) continue;  // not for this shape
      int64_t bytes = 0;
      plan.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, &bytes, 1);
      if (static_cast<size_t>(bytes) > room) continue;  // a slower one wants less
      return {std::move(config), std::move(plan), static_cast<size_t>(bytes)};
    }
  }
  throw Error(
      ErrorCode::kDevice, current_op,
      str_cat("cuDNN has no engine that always gives the same bits and whose workspace fits "
              "the device for x ",
              to_string(x.shape), ", weight ", to_string(weight.shape), " and y ",
              to_string(y.shape), " of ", name(x.dtype)));
}

Key key_of(Computes what, const View& x, const View& weight, const View& y,
           const kernels::Conv2dParams& params, bool adds) {
  Key key = {};
  auto end = key.begin();
  const auto append = [&](const auto& numbers) {
    end = std::copy(numbers.begin(), numbers.end(), end);
  };
  append(std::array<int64_t, 6>{static_cast<int64_t>(what), static_cast<int64_t>(x.dtype), adds,
                                aligned(x), aligned(weight), aligned(y)});
  for (const View* view : {&x, &weight, &y}) {
    append(view->shape);
    append(view->strides);
  }
  for (const auto* pair : {&params.stride, &params.padding, &params.dilation}) append(*pair);
  return key;
}

}  // namespace

void convolve(std::string_view op, Computes what, const View& x, const View& weight, const View& y,
              const kernels::Conv2dParams& params, bool adds) {
  current_op = op;
  auto& library = of_current_device<Library>();
  const Key key = key_of(what, x, weight, y, params, adds);
  std::lock_guard lock(library.mutex);
  LOCKSTEP_DNN_CHECK(cudnnSetStream(library.handle, stream()));
  auto known = library.plans.find(key);
  if (known == library.plans.end()) {
    if (library.plans.size() >= kMostPlans) library.plans.clear();
    known = library.plans.emplace(key, make_plan(library, what, x, weight, y, params, adds)).first;
  }
  const Plan& plan = known->second;
  const std::shared_ptr<void> workspace = allocate(plan.workspace_bytes, x.device);
  const std::array<void*, 3> data = {x.data, weight.data, y.data};
  void* const scratch = workspace.get();
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, kNames);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, data.data(), data.size());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &scratch);
  pack.finalize();
  LOCKSTEP_DNN_CHECK(cudnnBackendExecute(library.handle, plan.plan.raw(), pack.raw()));
}

}  // namespace lockstep::cuda

#else

namespace lockstep::cuda {

void convolve(std::string_view op, Computes, const View&, const View&, const View&,
              const kernels::Conv2dParams&, bool) {
  throw Error(ErrorCode::kDevice, op,
              "cuDNN was not found when this library was built; convolutions run on the CPU alone. "
              "Install cuDNN 9 and build again");
}

}  // namespace lockstep::cuda

#endif
