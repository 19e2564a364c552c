// Sorting by comparison, of keys in which an element's place decides between equals: all differ, so
// that any network and any merge gives the one stable order. A block sorts tiles of up to 1024
// elements (Batcher's bitonic network), then runs are merged in pairs: an element's rank is its own
// in its run, and by bisection that in the other. Where only the first elements are wanted no run
// is longer than that. Sorting n elements reads them once and moves 16 bytes of each log2(n / 1024)
// times.
#include "lockstep/kernels/sort.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "lockstep/kernels/cuda/places.cuh"
#include "lockstep/kernels/scan.h"

namespace lockstep::kernels {
namespace {

using cuda::Indexer;
using cuda::kThreads;
using cuda::Wide;

constexpr unsigned kTile = 4 * kThreads;

template <class T>
using Key = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

// A number whose order among unsigned ones is that of x: NaN above all, the two zeros equal.
template <class T>
__device__ Key<T> key_of(T x) {
  using K = Key<T>;
  constexpr K kSign = K{1} << (8 * sizeof(K) - 1);
  if constexpr (is_floating_v<T>) {
    const auto wide = static_cast<Wide<T>>(x);
    if (wide != wide) return ~K{0};
    if (wide == 0) return kSign;
    const K bits = std::bit_cast<K>(wide);
    return (bits & kSign) != 0 ? ~bits : bits | kSign;
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<K>(x) ^ kSign;
  } else {
    return static_cast<K>(x);
  }
}

struct Plan {
  Indexer<2> lines;  // of x, of the places
  int64_t line_count;
  int64_t length;
  int64_t wanted;
  int64_t x_step;
  int64_t places_step;
  int64_t width;  // of a tile: a power of two, at most kTile
  int64_t tiles;  // of a line
  bool descending;
};

// Runs on their way: element r of the run that begins at `first` of a line is at
// line * length + first + r.
template <class K>
struct Runs {
  K* keys;
  int64_t* places;
};

template <class K>
__device__ bool before(K key, int64_t place, K other_key, int64_t other_place) {
  return key < other_key || (key == other_key && place < other_place);
}

// A block sorts kTile / width tiles. The places go to `out` where a line is one tile.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sort_tiles_kernel(const T* x, Plan plan, Runs<Key<T>> runs, int64_t* out) {
  using K = Key<T>;
  LOCKSTEP_SHARED(K, keys, kTile);
  LOCKSTEP_SHARED(uint32_t, slots, kTile);  // where in its tile an element was
  const auto width = static_cast<uint32_t>(plan.width);
  const int64_t tiles = plan.line_count * plan.tiles;
  const int64_t in_block = kTile / width;
  for (int64_t block = blockIdx.x; block * in_block < tiles; block += gridDim.x) {
    for (uint32_t i = threadIdx.x; i < kTile; i += kThreads) {
      const int64_t tile = block * in_block + i / width;
      const int64_t place = tile % plan.tiles * width + i % width;
      K key = ~K{0};  // what is not there comes last, by its slot
      if (tile < tiles && place < plan.length) {
        key = key_of(x[plan.lines.locate(tile / plan.tiles).at[0] + place * plan.x_step]);
        if (plan.descending) key = ~key;
      }
      keys[i] = key;
      slots[i] = i % width;
    }
    for (uint32_t size = 2; size <= width; size *= 2) {
      for (uint32_t half = size / 2; half > 0; half /= 2) {
        __syncthreads();
        for (uint32_t pair = threadIdx.x; pair < kTile / 2; pair += kThreads) {
          const uint32_t i = pair / half * 2 * half + pair % half;
          const uint32_t j = i + half;
          const bool ascending = (i % width & size) == 0;
          const K a = keys[i], b = keys[j];
          const uint32_t a_slot = slots[i], b_slot = slots[j];
          if (before(b, b_slot, a, a_slot) == ascending) {
            keys[i] = b;
            keys[j] = a;
            slots[i] = b_slot;
            slots[j] = a_slot;
          }
        }
      }
    }
    __syncthreads();
    // Each thread reads the slots that it fills next: no barrier stands between.
    for (uint32_t i = threadIdx.x; i < kTile; i += kThreads) {
      const int64_t tile = block * in_block + i / width;
      const int64_t first = tile % plan.tiles * width;
      const int64_t rank = i % width;
      if (tile >= tiles || rank >= plan.wanted || first + rank >= plan.length) continue;
      const int64_t line = tile / plan.tiles;
      if (plan.tiles == 1) {
        out[plan.lines.locate(line).at[1] + rank * plan.places_step] = slots[i];
      } else {
        const int64_t at = line * plan.length + first + rank;
        runs.keys[at] = keys[i];
        runs.places[at] = first + slots[i];
      }
    }
  }
}

// Merges runs of `width` elements, of which the first `wanted` are there, in pairs; into `out`
// where it is given, as the last merge.
template <class K>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(Runs<K> from, Runs<K> to, Plan plan, int64_t width, int64_t* out) {
  const int64_t kept = width < plan.wanted ? width : plan.wanted;
  const int64_t runs = (plan.length + width - 1) / width;
  const int64_t count = plan.line_count * runs * kept;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const int64_t r = i % kept;
    const int64_t run = i / kept % runs;
    const int64_t line = i / kept / runs;
    const int64_t start = line * plan.length;
    const int64_t first = run * width;
    if (first + r >= plan.length) continue;
    const K key = from.keys[start + first + r];
    const int64_t place = from.places[start + first + r];
    // How many elements of the other run come before this one.
    const int64_t other = (run ^ 1) * width;
    int64_t low = 0;
    int64_t high = plan.length - other < kept ? plan.length - other : kept;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      const int64_t at = start + other + middle;
      if (before(from.keys[at], from.places[at], key, place)) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    const int64_t rank = r + low;
    if (rank >= plan.wanted) continue;
    if (out != nullptr) {
      out[plan.lines.locate(line).at[1] + rank * plan.places_step] = place;
    } else {
      const int64_t at = start + (run & ~int64_t{1}) * width + rank;
      to.keys[at] = key;
      to.places[at] = place;
    }
  }
}

// Memory of runs for all lines.
template <class K>
struct Buffer {
  Buffer(int64_t elements, Device device)
      : keys(allocate(static_cast<size_t>(elements) * sizeof(K), device)),
        places(allocate(static_cast<size_t>(elements) * sizeof(int64_t), device)) {}
  Runs<K> runs() const {
    return {static_cast<K*>(keys.get()), static_cast<int64_t*>(places.get())};
  }
  std::shared_ptr<void> keys;
  std::shared_ptr<void> places;
};

template <class T>
void sort(const View& x, const View& places, const Plan& plan) {
  using K = Key<T>;
  const int64_t room = plan.tiles > 1 ? plan.line_count * plan.length : 0;
  const Buffer<K> one(room, x.device);
  const Buffer<K> two(room, x.device);
  const int64_t in_block = kTile / plan.width;
  const int64_t blocks = (plan.line_count * plan.tiles + in_block - 1) / in_block;
  auto* out = places.as<int64_t>();
  cuda::launch_kernel(cuda::grid_for(blocks, 1), dim3(kThreads), sort_tiles_kernel<T>,
                      static_cast<const T*>(x.data), plan, one.runs(), out);
  Runs<K> from = one.runs(), to = two.runs();
  for (int64_t width = plan.width; width < plan.length; width *= 2) {
    const int64_t runs = (plan.length + width - 1) / width;
    const int64_t count = plan.line_count * runs * std::min(width, plan.wanted);
    cuda::launch_kernel(cuda::grid_for(count), dim3(kThreads), merge_kernel<K>, from, to, plan,
                        width, 2 * width < plan.length ? nullptr : out);
    std::swap(from, to);
  }
}

// Elements that are not 0: how many of each block's piece of `length`, a multiple of kThreads.
template <class T>
__global__ void __launch_bounds__(kThreads)
    count_nonzero_kernel(const T* x, Indexer<1> indexer, int64_t count, int64_t length,
                         int64_t* counts) {
  const int64_t begin = blockIdx.x * length;
  const int64_t end = begin + length < count ? begin + length : count;
  int64_t mine = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    mine += static_cast<Wide<T>>(x[indexer.locate(i).at[0]]) != 0 ? 1 : 0;
  }
  mine = cuda::block_reduce(mine, int64_t{0}, [](int64_t a, int64_t b) { return a + b; });
  if (threadIdx.x == 0) counts[blockIdx.x] = mine;
}

// The sizes of what a place has coordinates in; of no dimensions for one that is a number.
struct Coordinates {
  int dims = 0;
  int64_t sizes[cuda::kMaxDims] = {};  // the innermost first
};

// `ends`: the counts up to each block's, that one's included.
template <class T>
__global__ void __launch_bounds__(kThreads)
    write_nonzero_kernel(const T* x, Indexer<1> indexer, int64_t count, int64_t length,
                         const int64_t* ends, Coordinates coordinates, int64_t* places) {
  LOCKSTEP_SHARED(int, in_warps, kThreads / cuda::kWarp);
  const int64_t begin = blockIdx.x * length;
  const int64_t end = begin + length < count ? begin + length : count;
  const unsigned warp = threadIdx.x / cuda::kWarp;
  const unsigned lane = threadIdx.x % cuda::kWarp;
  int64_t written = blockIdx.x == 0 ? 0 : ends[blockIdx.x - 1];
  for (int64_t first = begin; first < end; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const bool hit = i < end && static_cast<Wide<T>>(x[indexer.locate(i).at[0]]) != 0;
    const unsigned hits = __ballot_sync(cuda::kAllLanes, hit);
    if (lane == 0) in_warps[warp] = __popc(hits);
    __syncthreads();
    int64_t at = written + __popc(hits & ((1u << lane) - 1));
    for (unsigned w = 0; w < kThreads / cuda::kWarp; ++w) {
      if (w < warp) at += in_warps[w];
      written += in_warps[w];
    }
    if (hit && coordinates.dims == 0) places[at] = i;
    if (hit && coordinates.dims > 0) {
      int64_t rest = i;
      int64_t* const last = places + (at + 1) * coordinates.dims - 1;
      // To an end that is known: a size at a place that is not takes a stack.
      for (int d = 0; d < cuda::kMaxDims; ++d) {
        if (d >= coordinates.dims) break;
        *(last - d) = rest % coordinates.sizes[d];
        rest /= coordinates.sizes[d];
      }
    }
    __syncthreads();  // the counts have been read
  }
}

// Elements that are not 0, as two kernels see them: pieces of `length` of a block each.
struct Pieces {
  Indexer<1> indexer;
  int64_t count = 0, length = 0, blocks = 0;
  std::shared_ptr<void> memory;

  explicit Pieces(const View& x) : count(x.numel()) {
    const View* const views[1] = {&x};
    indexer = cuda::make_indexer(views, cuda::row_major_order(x.shape), "nonzero");
    blocks = cuda::grid_for(count).x;
    length = ((count + blocks - 1) / blocks + kThreads - 1) / kThreads * kThreads;
    memory = allocate(static_cast<size_t>(blocks) * sizeof(int64_t), x.device);
    visit_dtype(x.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      cuda::launch_kernel(grid(), dim3(kThreads), count_nonzero_kernel<T>,
                          static_cast<const T*>(x.data), indexer, count, length, ends());
    });
    const View all = sums(x.device);
    CumSum::cuda(all, all, 0, false);
  }

  dim3 grid() const { return dim3(static_cast<unsigned>(blocks)); }
  // How many there are up to the end of each piece.
  int64_t* ends() const { return static_cast<int64_t*>(memory.get()); }
  View sums(Device device) const { return {ends(), DType::kI64, device, {blocks}, {1}}; }
};

}  // namespace

void ArgSort::cuda(const View& x, const View& places, int64_t axis, bool descending) {
  if (places.numel() == 0) return;
  const auto d = static_cast<size_t>(axis);
  Plan plan = {};
  plan.length = x.shape[d];
  plan.wanted = places.shape[d];
  plan.line_count = x.numel() / plan.length;
  plan.x_step = x.strides[d];
  plan.places_step = places.strides[d];
  plan.width = static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(std::min<int64_t>(plan.length, kTile))));
  plan.tiles = (plan.length + plan.width - 1) / plan.width;
  plan.descending = descending;
  const View* const views[2] = {&x, &places};
  plan.lines = cuda::make_indexer(views, cuda::dims_but(x.shape, axis), "sort");
  visit_dtype(x.dtype, [&](auto tag) { sort<typename decltype(tag)::type>(x, places, plan); });
}

int64_t CountNonzero::cuda(const View& x) {
  if (x.numel() == 0) return 0;
  const Pieces pieces(x);
  return cuda::element_at<int64_t>(pieces.sums(x.device), pieces.blocks - 1);
}

void Nonzero::cuda(const View& x, const View& places) {
  if (places.numel() == 0) return;
  Coordinates coordinates = {};
  if (places.dim() == 2) {
    cuda::check_rank(x.shape.size(), "nonzero");
    coordinates.dims = static_cast<int>(x.dim());
    std::copy(x.shape.rbegin(), x.shape.rend(), coordinates.sizes);
  }
  const Pieces pieces(x);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    cuda::launch_kernel(pieces.grid(), dim3(kThreads), write_nonzero_kernel<T>,
                        static_cast<const T*>(x.data), pieces.indexer, pieces.count, pieces.length,
                        static_cast<const int64_t*>(pieces.ends()), coordinates,
                        static_cast<int64_t*>(places.data));
  });
}

}  // namespace lockstep::kernels
