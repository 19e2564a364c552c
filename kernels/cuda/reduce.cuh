#pragma once

#include <algorithm>
#include <memory>

#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/kernels/memory.h"

// The loops of reductions. A block of 256 threads is folded into columns (results) and rows (shares
// of what is reduced): 1 by 256 where the reduced elements are the neighbours in memory, 32 by 8
// where the kept ones are. Where there are fewer results than the device has room for, what is
// reduced is cut into pieces, whose states a second launch combines. The order in which they are
// combined depends on shapes and strides alone. Each element is read once.
//
// A fold is a struct of pointers, passed to the kernel, with
//
//   kInputs                  views whose elements are reduced
//   kOperands                these and the views that have one element for each result
//   State                    what elements are folded into
//   identity()               the state of no elements
//   load(result, at, place)  that of one: result has kOperands offsets, those of the result's own
//                            elements, at has the kInputs offsets of the element, place its number
//   combine(a, b)            a's elements come first
//   finish(result, state)    writes the result
namespace lockstep::cuda {

// What a launch reduces: kept results, each of `gone` elements in `pieces` pieces of `length`, the
// last of what is left.
struct Extent {
  int64_t kept;
  int64_t gone;
  int64_t pieces;
  int64_t length;
};

// Folds the rows of the block into row 0, whose threads alone get the result. blockDim.y is a power
// of two.
template <class Fold>
__device__ typename Fold::State fold_rows(typename Fold::State state) {
  using State = typename Fold::State;
  LOCKSTEP_SHARED(State, states, kThreads);
  const unsigned at = threadIdx.y * blockDim.x + threadIdx.x;
  states[at] = state;
  for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) states[at] = Fold::combine(states[at], states[at + half * blockDim.x]);
  }
  return states[at];
}

// partial[result * pieces + piece], or the result itself where there is one piece.
template <class Fold>
__global__ void __launch_bounds__(kThreads, kBlocks)
    reduce_kernel(Fold fold, Indexer<Fold::kOperands> kept, Indexer<Fold::kInputs> gone,
                  Extent extent, typename Fold::State* partial) {
  const int64_t piece = blockIdx.y;
  const int64_t begin = piece * extent.length;
  const int64_t end = begin + extent.length < extent.gone ? begin + extent.length : extent.gone;
  for (int64_t first = int64_t{blockIdx.x} * blockDim.x; first < extent.kept;
       first += int64_t{gridDim.x} * blockDim.x) {
    const int64_t result = first + threadIdx.x;
    typename Fold::State state = Fold::identity();
    typename Indexer<Fold::kOperands>::Offsets of_result = {};
    if (result < extent.kept) {
      of_result = kept.locate(result);
      for (int64_t i = begin + threadIdx.y; i < end; i += blockDim.y) {
        auto at = gone.locate(i);
        for (int k = 0; k < Fold::kInputs; ++k) at.at[k] += of_result.at[k];
        state = Fold::combine(state, fold.load(of_result.at, at.at, i));
      }
    }
    state = fold_rows<Fold>(state);
    if (threadIdx.y == 0 && result < extent.kept) {
      if (extent.pieces > 1) {
        partial[result * extent.pieces + piece] = state;
      } else {
        fold.finish(of_result.at, state);
      }
    }
    __syncthreads();  // the states have been read
  }
}

template <class Fold>
__global__ void __launch_bounds__(kThreads)
    finish_kernel(Fold fold, const typename Fold::State* partial, Indexer<Fold::kOperands> kept,
                  Extent extent) {
  for (int64_t result = blockIdx.x; result < extent.kept; result += gridDim.x) {
    typename Fold::State state = Fold::identity();
    for (int64_t i = threadIdx.y; i < extent.pieces; i += blockDim.y) {
      state = Fold::combine(state, partial[result * extent.pieces + i]);
    }
    state = fold_rows<Fold>(state);
    if (threadIdx.y == 0) fold.finish(kept.locate(result).at, state);
    __syncthreads();  // the states have been read
  }
}

// `kept_count` results of `gone_count` elements each; gone_count may be 0.
template <class Fold>
void reduce(const Fold& fold, const Indexer<Fold::kOperands>& kept, int64_t kept_count,
            const Indexer<Fold::kInputs>& gone, int64_t gone_count, Device device) {
  using State = typename Fold::State;
  Extent extent = {kept_count, gone_count, 1, 0};
  if (extent.kept == 0) return;
  const bool columns = kept.rank > 0 && kept.strides[0][0] == 1 && extent.kept > 1;
  const dim3 block = columns ? dim3(32, kThreads / 32) : dim3(1, kThreads);
  const int64_t units = (extent.kept + block.x - 1) / block.x;
  const int64_t room = full_grid();
  // A piece is worth a block if each thread of it folds several elements.
  extent.pieces =
      std::clamp<int64_t>(extent.gone / (16 * block.y), 1, std::max<int64_t>(1, room / units));
  extent.length = (extent.gone + extent.pieces - 1) / extent.pieces;
  std::shared_ptr<void> partial;
  if (extent.pieces > 1) {
    partial = allocate(static_cast<size_t>(extent.kept * extent.pieces) * sizeof(State), device);
  }
  auto* states = static_cast<State*>(partial.get());
  const dim3 grid(grid_for(units, 1).x, static_cast<unsigned>(extent.pieces));
  launch_kernel(grid, block, reduce_kernel<Fold>, fold, kept, gone, extent, states);
  if (extent.pieces > 1) {
    launch_kernel(grid_for(extent.kept, 1), dim3(1, kThreads), finish_kernel<Fold>, fold, states,
                  kept, extent);
  }
}

}  // namespace lockstep::cuda
