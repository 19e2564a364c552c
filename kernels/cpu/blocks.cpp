#include "lockstep/kernels/cpu/blocks.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "lockstep/kernels/cpu/past_cache.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/strided.h"

namespace lockstep::kernels {
namespace {

// Elements per block: a buffer of f32 takes a quarter of the first-level cache, and few ops need
// more than two. Beside 64 MiB, blocks of 512 cost 10 to 20 % more, blocks of 4096 gain nothing.
constexpr int64_t kBlock = 2048;
// Of a block whose result goes past the cache: with 64 MiB and a number, 2048 take 1.7 times as
// long, since the result's buffer then has no room in the first-level cache beside what is read.
constexpr int64_t kPastCacheBlock = 512;
// Of all elements, where the whole op is one block.
constexpr int64_t kOneBlock = 512;

// Elements that are worth a thread.
constexpr int64_t kGrain = 32768;

// The conversions of dtype.h in straight-line form, which compilers turn into vectors; the tests
// hold them equal for every value.
LOCKSTEP_INLINE float half_value(uint16_t raw) {
  const uint32_t sign = uint32_t{raw & 0x8000u} << 16;
  const uint32_t magnitude = uint32_t{raw & 0x7fffu} << 13;
  // 2^112 moves the exponent from half's bias to float's, and makes subnormals normal.
  const uint32_t scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000u;
  return std::bit_cast<float>(sign | (magnitude >= (0x7c00u << 13) ? special : scaled));
}

LOCKSTEP_INLINE uint16_t half_bits(float value) {
  const uint32_t b = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (b >> 16) & 0x8000u;
  const uint32_t a = b & 0x7fffffffu;
  // Adding 0.5 lets the float unit round a subnormal half to a multiple of 2^-24.
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(a) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
  const uint32_t finite = a < 0x38800000u ? small : normal;
  const uint32_t nan = 0x7e00u | ((a >> 13) & 0x3ffu);
  const uint32_t special = a > 0x7f800000u ? nan : 0x7c00u;
  return static_cast<uint16_t>(sign | (a >= 0x47800000u ? special : finite));
}

LOCKSTEP_INLINE uint16_t bfloat_bits(float value) {
  const uint32_t b = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
  const uint32_t nan = (b >> 16) | 0x40u;
  return static_cast<uint16_t>((b & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

// Copies n elements at a stride to or from contiguous lanes.
using Load = void (*)(const void* x, int64_t stride, void* lanes, int64_t n);
using Store = void (*)(const void* lanes, void* y, int64_t stride, int64_t n);

template <class T>
void load(const void* from, int64_t stride, void* to, int64_t n) {
  const T* x = static_cast<const T*>(from);
  Lane<T>* lanes = static_cast<Lane<T>*>(to);
  if (stride == 1) {
    if constexpr (is_reduced_float_v<T>) {
      widen(x, lanes, n);
    } else if (n >= 16) {
      std::memcpy(lanes, x, static_cast<size_t>(n) * sizeof(T));
    } else {
      for (int64_t i = 0; i < n; ++i) lanes[i] = x[i];
    }
  } else if (stride == 0) {
    std::fill_n(lanes, n, static_cast<Lane<T>>(x[0]));
  } else {
    for (int64_t i = 0; i < n; ++i) lanes[i] = static_cast<Lane<T>>(x[i * stride]);
  }
}

template <class T>
void store(const void* from, void* to, int64_t stride, int64_t n) {
  const Lane<T>* lanes = static_cast<const Lane<T>*>(from);
  T* y = static_cast<T*>(to);
  if constexpr (is_reduced_float_v<T>) {
    if (stride == 1) return narrow(lanes, y, n);
  }
  for (int64_t i = 0; i < n; ++i) y[i * stride] = static_cast<T>(lanes[i]);
}

bool is_reduced(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// n lanes with the first element of x, which is not a 16-bit float.
void fill_lanes(const View& x, void* lanes, int64_t n) {
  switch (size_of(x.dtype)) {
    case 1:
      return load<uint8_t>(x.data, 0, lanes, n);
    case 2:
      return load<uint16_t>(x.data, 0, lanes, n);
    case 4:
      return load<uint32_t>(x.data, 0, lanes, n);
    default:
      return load<uint64_t>(x.data, 0, lanes, n);
  }
}

// Where one view's memory is, and how it becomes lanes.
struct Operand {
  Operand() = default;
  Operand(const View& view, const Shape& order)
      : data(static_cast<char*>(view.data)),
        walk(view, order),
        size(static_cast<int64_t>(size_of(view.dtype))),
        converts(is_reduced(view.dtype)),
        load(visit_dtype(
            view.dtype,
            [](auto tag) -> Load { return &kernels::load<typename decltype(tag)::type>; })),
        store(visit_dtype(view.dtype, [](auto tag) -> Store {
          return &kernels::store<typename decltype(tag)::type>;
        })) {}

  bool direct() const { return !converts && walk.dense(); }

  // The memory of elements [begin, begin + n), if these are contiguous lanes already.
  char* in_place(int64_t begin, int64_t n) const {
    if (converts || walk.inner_stride() != 1) return nullptr;
    if (walk.dense()) return data + begin * size;
    char* found = nullptr;
    const int64_t inner = walk.inner_size();
    if (begin % inner + n > inner) return nullptr;
    for_each_run(walk, begin, n, [&](int64_t offset, int64_t) { found = data + offset * size; });
    return found;
  }

  char* data = nullptr;
  Walk walk;
  int64_t size = 0;
  bool converts = false;
  Load load = nullptr;
  Store store = nullptr;
};

// The lanes of one input, a block at a time.
class Reader {
 public:
  const void* get(const Operand& operand, int64_t begin, int64_t n) {
    if (char* memory = operand.in_place(begin, n)) return memory;
    if (operand.walk.scalar()) {
      if (!filled_) operand.load(operand.data, 0, buffer_, kBlock);
      filled_ = true;
      return buffer_;
    }
    char* lanes = buffer_;
    const int64_t lane_size = operand.converts ? static_cast<int64_t>(sizeof(float)) : operand.size;
    for_each_run(operand.walk, begin, n, [&](int64_t offset, int64_t length) {
      operand.load(operand.data + offset * operand.size, operand.walk.inner_stride(), lanes,
                   length);
      lanes += length * lane_size;
    });
    return buffer_;
  }

 private:
  alignas(kPage) char buffer_[kBlock * 8];
  bool filled_ = false;  // with the one value of a scalar
};

// Writes n lanes to a dense operand, where these are whole cache lines of memory.
void write_past_cache(const Operand& operand, int64_t begin, int64_t n, const char* lanes) {
  alignas(kPage) char converted[kPastCacheBlock * 2];
  if (operand.converts) operand.store(lanes, converted, 1, n);
  copy_past_cache(operand.converts ? converted : lanes, operand.data + begin * operand.size,
                  n * operand.size);
}

void write_back(const Operand& operand, int64_t begin, int64_t n, const char* lanes) {
  const int64_t lane_size = operand.converts ? static_cast<int64_t>(sizeof(float)) : operand.size;
  for_each_run(operand.walk, begin, n, [&](int64_t offset, int64_t length) {
    operand.store(lanes, operand.data + offset * operand.size, operand.walk.inner_stride(), length);
    lanes += length * lane_size;
  });
}

}  // namespace

void widen(const Half* x, float* y, int64_t n) {
  const auto* raw = reinterpret_cast<const uint16_t*>(x);
  vector_loop<kLight>(n, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { y[i] = half_value(raw[i]); });
}

void widen(const BFloat16* x, float* y, int64_t n) {
  const auto* raw = reinterpret_cast<const uint16_t*>(x);
  vector_loop<kLight>(n, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA {
    y[i] = std::bit_cast<float>(uint32_t{raw[i]} << 16);
  });
}

void narrow(const float* x, Half* y, int64_t n) {
  auto* raw = reinterpret_cast<uint16_t*>(y);
  vector_loop<kLight>(n, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { raw[i] = half_bits(x[i]); });
}

void narrow(const float* x, BFloat16* y, int64_t n) {
  auto* raw = reinterpret_cast<uint16_t*>(y);
  vector_loop<kLight>(n, [=](int64_t i) LOCKSTEP_INLINE_LAMBDA { raw[i] = bfloat_bits(x[i]); });
}

namespace {

// Runs `loop` over one block, where each input is laid out as the contiguous output or is a scalar
// that is broadcast: without a plan of the walk, which costs more than the loop itself. Returns
// whether it did.
bool run_one_block(std::initializer_list<const View*> inputs, const View& output, int64_t total,
                   BlockLoop loop) {
  if (total > kOneBlock || is_reduced(output.dtype)) return false;
  const bool row = output.shape.size() == 1 && output.strides[0] == 1;
  if (!row && !output.is_contiguous()) return false;
  const auto as_output = [&](const Strides& strides) {
    for (size_t d = 0; d < strides.size(); ++d) {
      if (strides[d] != output.strides[d]) return false;
    }
    return true;
  };
  const void* in[kMaxBlockInputs] = {};
  alignas(64) char scalars[kMaxBlockInputs][kOneBlock * 8];
  size_t count = 0;
  for (const View* input : inputs) {
    if (is_reduced(input->dtype)) return false;
    if (as_output(input->strides)) {
      in[count] = input->data;
    } else if (std::all_of(input->strides.begin(), input->strides.end(),
                           [](int64_t stride) { return stride == 0; })) {
      fill_lanes(*input, scalars[count], total);
      in[count] = scalars[count];
    } else {
      return false;
    }
    ++count;
  }
  loop(in, output.data, total);
  return true;
}

}  // namespace

void run_blocks(std::initializer_list<const View*> inputs, const View& output, BlockLoop loop,
                bool much_arithmetic) {
  const int64_t total = output.numel();
  if (total == 0 || run_one_block(inputs, output, total, loop)) return;
  const Shape order = memory_order(output);
  const Operand to(output, order);
  Operand from[kMaxBlockInputs];
  size_t count = 0;
  bool past_cache = !much_arithmetic && to.walk.dense() &&
                    goes_past_cache(to.data, kPastCacheBlock * to.size, total * to.size);
  bool direct = to.direct();
  for (const View* input : inputs) {
    from[count] = Operand(*input, order);
    direct = direct && from[count].direct();
    past_cache = past_cache && input->data != output.data;  // what is read already costs no more
    ++count;
  }
  parallel_for(total, kGrain, [&](int64_t begin, int64_t end) {
    const void* in[kMaxBlockInputs] = {};
    if (direct && !past_cache) {
      for (size_t k = 0; k < count; ++k) in[k] = from[k].data + begin * from[k].size;
      loop(in, to.data + begin * to.size, end - begin);
      return;
    }
    Reader readers[kMaxBlockInputs];
    alignas(kPage) char buffer[kBlock * 8];
    const int64_t most = past_cache ? kPastCacheBlock : kBlock;
    int64_t n = 0;
    for (int64_t first = begin; first < end; first += n) {
      n = std::min(most - first % most, end - first);
      for (size_t k = 0; k < count; ++k) in[k] = readers[k].get(from[k], first, n);
      const bool streams = past_cache && n == most;
      char* place = streams ? nullptr : to.in_place(first, n);
      loop(in, place != nullptr ? place : buffer, n);
      if (streams) {
        write_past_cache(to, first, n, buffer);
      } else if (place == nullptr) {
        write_back(to, first, n, buffer);
      }
    }
    if (past_cache) end_past_cache();
  });
}

}  // namespace lockstep::kernels
