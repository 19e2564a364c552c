#pragma once

#include <cudnn_graph.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/kernels/cuda/dnn.h"
#include "lockstep/kernels/cuda/library.cuh"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/memory.h"

// A convolution in cuDNN 9's graph interface, for dnn.cu, and for bench_kernels, which measures the
// library alone.
namespace lockstep::cuda {

// The op that the calling thread is in, for what its calls throw.
inline thread_local std::string_view current_op;

inline void require(cudnnStatus_t status, std::string_view call,
                    std::source_location where = std::source_location::current()) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  const int kind = CUDNN_STATUS_CATEGORY(static_cast<int>(status));
  const bool is_late = kind == CUDNN_STATUS_EXECUTION_FAILED || kind == CUDNN_STATUS_INTERNAL_ERROR;
  char why[512] = "";
  cudnnGetLastErrorString(why, sizeof why);
  throw Error(ErrorCode::kDevice, current_op,
              str_cat(cudnnGetErrorString(status), " from ", call, *why == '\0' ? "" : ": ", why,
                      failed_in(is_late)),
              where);
}
#define LOCKSTEP_DNN_CHECK(call) ::lockstep::cuda::require((call), #call)

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

inline cudnnDataType_t dnn_type(DType dtype) {
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

inline int64_t dnn_aligned(const View& x) { return alignment(x.data, 16); }

inline std::array<int64_t, 4> four(const Shape& numbers) {
  return {numbers[0], numbers[1], numbers[2], numbers[3]};
}

inline constexpr std::array<int64_t, 3> kTensorNames = {'x', 'w', 'y'};

inline Descriptor describe(const View& view, int64_t unique_name) {
  Descriptor out(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const cudnnDataType_t type = dnn_type(view.dtype);
  out.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
  out.set(CUDNN_ATTR_TENSOR_DIMENSIONS, four(view.shape));
  out.set(CUDNN_ATTR_TENSOR_STRIDES, four(view.strides));
  out.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, unique_name);
  out.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, dnn_aligned(view));
  out.finalize();
  return out;
}

inline Descriptor describe(DType dtype, const kernels::Conv2dParams& params) {
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

inline OperationNames names_of(Computes what) {
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
struct ConvolutionGraph {
  ConvolutionGraph(cudnnHandle_t handle, Computes what, const View& x, const View& weight,
                   const View& y, const kernels::Conv2dParams& params, bool adds)
      : parts{describe(x.dtype, params), describe(x, kTensorNames[0]),
              describe(weight, kTensorNames[1]), describe(y, kTensorNames[2])},
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
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &handle);
    graph.finalize();
  }

  std::array<Descriptor, 4> parts;
  Descriptor operation;
  Descriptor graph{CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR};
};

// What a workspace may take: what the device has free, and what allocate() keeps unused.
inline size_t available_memory(Device device) {
  const MemoryStats stats = memory_stats(device);
  return memory_info(device).free + static_cast<size_t>(stats.cached);
}

// Whether an engine gives the accuracy that is promised and, where that is asked for, the same bits
// each time.
inline bool keeps_promises(const Descriptor& config, DType dtype, bool same_bits = true) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.raw();
  config.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw, 1);
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes;
  const int64_t count = engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   notes.data(), notes.size());
  const bool exact = dtype == DType::kF32 && !allows_tf32();
  const auto end =
      notes.begin() + std::min<int64_t>(count, notes.size());  // a newer cuDNN has more
  return std::none_of(notes.begin(), end, [&](cudnnBackendNumericalNote_t note) {
    return (same_bits && note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) ||
           note == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION ||
           (exact && (note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE ||
                      note == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS));
  });
}

// The engines that cuDNN advises, the fastest first.
inline std::vector<Descriptor> advised(const Descriptor& graph, cudnnBackendHeurMode_t mode) {
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

// Nothing where the engine is not for this shape, or wants more work space than there is.
inline std::optional<Plan> make_plan(cudnnHandle_t handle, Descriptor config, size_t room) {
  Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, &handle);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  if (plan.try_finalize() != CUDNN_STATUS_SUCCESS) return std::nullopt;
  int64_t bytes = 0;
  plan.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, &bytes, 1);
  if (static_cast<size_t>(bytes) > room) return std::nullopt;
  return Plan{std::move(config), std::move(plan), static_cast<size_t>(bytes)};
}

// Puts it on the handle's stream. `workspace` is of the plan's size.
inline void execute(cudnnHandle_t handle, const Plan& plan, const View& x, const View& weight,
                    const View& y, void* workspace) {
  const std::array<void*, 3> data = {x.data, weight.data, y.data};
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, kTensorNames);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, data.data(), data.size());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, &workspace);
  pack.finalize();
  LOCKSTEP_DNN_CHECK(cudnnBackendExecute(handle, plan.plan.raw(), pack.raw()));
}

}  // namespace lockstep::cuda
