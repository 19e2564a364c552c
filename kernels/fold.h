#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/kernels/dtype.h"

namespace lockstep::kernels {

// How collectives reduce. The numbers are part of the wire: never reorder them.
//
//   sum      integers wrap; bool: or
//   avg      floats: the inputs are scaled by a power of two before they are added, so that no sum
//            overflows where the average does not; integers: the sum in twice the bits or more,
//            divided with truncation toward zero; bool: and (the average of 0s and 1s, truncated)
//   min, max NaN if any input is NaN; bool: and, or
//   product  integers wrap; bool: and
//   and, or  bit by bit for integers; bool: logical; not for floats (is_defined)
//
// f16 and bf16 are summed, averaged and multiplied in f32 and rounded once, to nearest even. A NaN
// that comes out of sum, avg or product is the quiet NaN with no payload, whatever went in, so that
// its bits do not depend on the order of operands in an instruction.
enum class FoldOp : uint8_t {
  kSum = 0,
  kAvg = 1,
  kMin = 2,
  kMax = 3,
  kProduct = 4,
  kAnd = 5,
  kOr = 6,
};

inline constexpr int kFoldOpCount = 7;

// "sum", "avg", "min", "max", "prod", "and", "or".
std::string_view name(FoldOp op);

// Reads the names above, "mean" and "product". Throws Error(kInvalidArgument) that lists the names.
FoldOp parse_fold_op(std::string_view text);

// False for kAnd and kOr of floats, which every kernel below refuses with kInvalidArgument.
bool is_defined(FoldOp op, DType dtype);

// What is folded: one input of `dtype` from each of `ranks` ranks, in an order that the caller
// fixes. REQUIRES: ranks >= 1.
struct FoldSpec {
  DType dtype = DType::kF32;
  FoldOp op = FoldOp::kSum;
  int ranks = 1;
};

// Bytes of an element of a partial result: a fold of some of the ranks' inputs, not yet finished.
// f32 for f16 and bf16, and wider integers for the average of integers.
size_t partial_size(DType dtype, FoldOp op);

// True where the partial result of one rank is that rank's input, byte for byte.
bool partial_is_input(DType dtype, FoldOp op);

// All kernels below take `count` elements. An output is an input (the same address) or does not
// overlap it; inputs and outputs may be at any address that suits their element type. However a
// fold is cut into calls, and on whatever processor, the bits are the same.

// outputs[k][i] = finish(((sources[0][i] + sources[1][i]) + sources[2][i]) + ...), for every k in
// [0, output_count), with all of `spec.ranks` sources at once; + stands for the op.
struct Fold {
  static void cpu(const FoldSpec& spec, const void* const* sources, void* const* outputs,
                  int output_count, int64_t count);
  // Sources and outputs are memory that the current device reaches, its own or a peer's.
  // Throws Error(kInvalidArgument) for more than kMostCudaFolds of either.
  static void cuda(const FoldSpec& spec, const void* const* sources, void* const* outputs,
                   int output_count, int64_t count);
};
inline constexpr int kMostCudaFolds = 32;

// The same fold in steps, for a ring: begin, then ranks - 2 times step, then finish. On CUDA the
// operands are memory that the current device reaches, its own or a peer's.
struct FoldBegin {  // partial[i] = source[i]
  static void cpu(const FoldSpec& spec, const void* source, void* partial, int64_t count);
  static void cuda(const FoldSpec& spec, const void* source, void* partial, int64_t count);
};
struct FoldStep {  // output[i] = partial[i] + source[i]; output may be partial
  static void cpu(const FoldSpec& spec, const void* partial, const void* source, void* output,
                  int64_t count);
  static void cuda(const FoldSpec& spec, const void* partial, const void* source, void* output,
                   int64_t count);
};
struct FoldFinish {  // output[i] = finish(partial[i] + source[i])
  static void cpu(const FoldSpec& spec, const void* partial, const void* source, void* output,
                  int64_t count);
  static void cuda(const FoldSpec& spec, const void* partial, const void* source, void* output,
                   int64_t count);
};

}  // namespace lockstep::kernels
