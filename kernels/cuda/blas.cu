// Products by cuBLASLt. It counts matrices by columns: out by rows is its transpose by columns,
// which is b's transpose times a's.
#include "lockstep/kernels/cuda/blas.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "lockstep/kernels/cuda/blas_lt.cuh"
#include "lockstep/kernels/cuda/library.cuh"
#include "lockstep/kernels/memory.h"

namespace lockstep::cuda {
namespace {

// What NVIDIA advises for devices 9.0. The memory is the allocator's, which keeps it for the next.
constexpr uint64_t kWorkspaceBytes = uint64_t{32} << 20;
// A batch is a dimension of the grid.
constexpr int64_t kMostBatches = 65535;

// First where the system looks, then where it was when Lockstep was built.
BlasFunctions load() {
  const std::string name = str_cat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) library = dlopen(LOCKSTEP_CUBLASLT, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    throw Error(ErrorCode::kDevice, "matmul",
                str_cat("cannot load ", name, ", by which CUDA devices multiply: ", why));
  }
  const auto find = [&]<class F>(F& function, const char* symbol) {
    function = reinterpret_cast<F>(dlsym(library, symbol));
    if (function == nullptr) {
      throw Error(ErrorCode::kDevice, "matmul", str_cat("cuBLASLt lacks ", symbol));
    }
  };
  BlasFunctions functions;
#define LOCKSTEP_FIND(f) find(functions.f, #f);
  LOCKSTEP_BLAS_FUNCTIONS(LOCKSTEP_FIND)
#undef LOCKSTEP_FIND
  return functions;
}

// All by which an algorithm is chosen.
using Key = std::array<int64_t, 19>;

struct Algorithm {
  cublasLtMatmulAlgo_t chosen;
  size_t workspace_bytes = 0;
};

struct Library {
  explicit Library(int number) : device{DeviceType::kCuda, number} {
    LOCKSTEP_BLAS_CHECK(cublasLtCreate(&handle));
  }

  const Device device;
  cublasLtHandle_t handle = nullptr;
  std::mutex mutex;
  std::map<Key, std::optional<Algorithm>> algorithms;  // nothing where there is none
};

cublasLtEpilogue_t epilogue(const Product& p) {
  if (!p.gelus) return p.bias == nullptr ? CUBLASLT_EPILOGUE_DEFAULT : CUBLASLT_EPILOGUE_BIAS;
  if (p.before == nullptr) {
    return p.bias == nullptr ? CUBLASLT_EPILOGUE_GELU : CUBLASLT_EPILOGUE_GELU_BIAS;
  }
  return p.bias == nullptr ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

bool by_rows(const Matrix& x) { return x.column == 1; }

// One product in the library's words.
struct Problem {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t a, b, out;

  explicit Problem(const Product& p) {
    LOCKSTEP_BLAS_CHECK(
        cublasLtMatmulDescInit_internal(&product, sizeof product, blas_compute_type(p.dtype),
                                        p.dtype == DType::kF64 ? CUDA_R_64F : CUDA_R_32F));
    // The left factor is b, seen as its transpose, and the right one a.
    set(&product, CUBLASLT_MATMUL_DESC_TRANSA, by_rows(p.b) ? CUBLAS_OP_N : CUBLAS_OP_T);
    set(&product, CUBLASLT_MATMUL_DESC_TRANSB, by_rows(p.a) ? CUBLAS_OP_N : CUBLAS_OP_T);
    set(&product, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(p));
    if (p.bias != nullptr) set(&product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    if (p.before != nullptr) {
      set(&product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.before);
      set(&product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.out.row);
      set(&product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, p.out.batch);
    }
    lay(&a, p, p.a, p.m, p.k);
    lay(&b, p, p.b, p.k, p.n);
    lay(&out, p, p.out, p.m, p.n);
  }

 private:
  static void lay(cublasLtMatrixLayout_t layout, const Product& p, const Matrix& x, int64_t rows,
                  int64_t columns) {
    if (by_rows(x)) std::swap(rows, columns);
    LOCKSTEP_BLAS_CHECK(cublasLtMatrixLayoutInit_internal(
        layout, sizeof *layout, blas_type(p.dtype), static_cast<uint64_t>(rows),
        static_cast<uint64_t>(columns), by_rows(x) ? x.row : x.column));
    set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(p.batches));
    set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, x.batch);
  }
};

uint32_t aligned(const void* address) { return static_cast<uint32_t>(alignment(address, 256)); }

std::optional<Algorithm> find_algorithm(Library& library, Problem& problem, const Product& p) {
  cublasLtMatmulPreferenceOpaque_t preference;
  LOCKSTEP_BLAS_CHECK(cublasLtMatmulPreferenceInit_internal(&preference, sizeof preference));
  set(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  // Parts of a sum are added in f32 or f64 before they are rounded.
  set(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, aligned(p.b.data));
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, aligned(p.a.data));
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, aligned(p.out.data));
  set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, aligned(p.out.data));
  cublasLtMatmulHeuristicResult_t result = {};
  int found = 0;
  const cublasStatus_t status = blas().cublasLtMatmulAlgoGetHeuristic(
      library.handle, &problem.product, &problem.b, &problem.a, &problem.out, &problem.out,
      &preference, 1, &result, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return std::nullopt;
  require(status, "cublasLtMatmulAlgoGetHeuristic");
  if (found == 0 || result.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  return Algorithm{result.algo, result.workspaceSize};
}

std::optional<Algorithm> algorithm(Library& library, Problem& problem, const Product& p) {
  const Key key = {static_cast<int64_t>(p.dtype),
                   p.batches,
                   p.m,
                   p.n,
                   p.k,
                   p.a.row,
                   p.a.column,
                   p.a.batch,
                   p.b.row,
                   p.b.column,
                   p.b.batch,
                   p.out.row,
                   p.out.batch,
                   p.adds ? -1 : static_cast<int64_t>(epilogue(p)),
                   aligned(p.a.data),
                   aligned(p.b.data),
                   aligned(p.out.data),
                   aligned(p.bias),
                   aligned(p.before)};
  std::lock_guard lock(library.mutex);
  const auto known = library.algorithms.find(key);
  if (known != library.algorithms.end()) return known->second;
  if (library.algorithms.size() >= kMostPlans) library.algorithms.clear();
  return library.algorithms[key] = find_algorithm(library, problem, p);
}

bool multiply_part(Library& library, const Product& p) {
  Problem problem(p);
  const std::optional<Algorithm> best = algorithm(library, problem, p);
  if (!best) {
    if (p.bias != nullptr || p.gelus) return false;
    throw Error(ErrorCode::kDevice, "matmul",
                str_cat("cuBLASLt has no algorithm for ", p.batches, " products (", p.m, ", ", p.k,
                        ") x (", p.k, ", ", p.n, ") of ", name(p.dtype)));
  }
  const std::shared_ptr<void> workspace = allocate(best->workspace_bytes, library.device);
  const float one = 1, out_factor = p.adds ? 1 : 0;
  const double wide_one = 1, wide_out_factor = p.adds ? 1 : 0;
  const bool wide = p.dtype == DType::kF64;
  LOCKSTEP_BLAS_CHECK(cublasLtMatmul(
      library.handle, &problem.product, wide ? static_cast<const void*>(&wide_one) : &one, p.b.data,
      &problem.b, p.a.data, &problem.a,
      wide ? static_cast<const void*>(&wide_out_factor) : &out_factor, p.out.data, &problem.out,
      p.out.data, &problem.out, &best->chosen, workspace.get(), best->workspace_bytes, stream()));
  return true;
}

}  // namespace

const BlasFunctions& blas() {
  static const auto* functions = new BlasFunctions(load());
  return *functions;
}

bool multiply(const Product& product) {
  auto& library = of_current_device<Library>();
  for (int64_t first = 0; first < product.batches; first += kMostBatches) {
    Product part = product;
    part.batches = std::min(kMostBatches, product.batches - first);
    for (Matrix* x : {&part.a, &part.b, &part.out}) {
      x->data = static_cast<char*>(x->data) +
                first * x->batch * static_cast<int64_t>(size_of(product.dtype));
    }
    if (part.before != nullptr) {
      part.before = static_cast<char*>(part.before) +
                    first * part.out.batch * static_cast<int64_t>(size_of(product.dtype));
    }
    if (!multiply_part(library, part)) return false;
  }
  return true;
}

}  // namespace lockstep::cuda
