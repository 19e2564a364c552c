#include "lockstep/kernels/philox.h"

#include <algorithm>

#include "lockstep/kernels/cpu/blocks.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/philox_math.h"
#include "lockstep/kernels/strided.h"
#include "lockstep/kernels/text.h"
#include "lockstep/kernels/vector_math.h"

// Each counter gives 128 bits, 64 for each of two neighbouring elements: element e takes half e % 2
// of counter e / 2, and a normal pair is made of both (philox_math.h).
namespace lockstep::kernels {
namespace {

constexpr int64_t kBlock = 512;    // elements that are made at once; even
constexpr int64_t kGrain = 16384;  // elements that are worth a thread

// bits[k] is the 64 bits of element first + k for k in [0, n); first and n are even.
LOCKSTEP_INLINE void draw(uint64_t seed, uint64_t first, int64_t n, uint64_t* bits) {
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed),
                                       static_cast<uint32_t>(seed >> 32)};
  const uint64_t counter = first / 2;
  // A function of its own keeps the array out of the loop's variables, else no vectors come of it.
  const auto draw_two = [=](int64_t k) LOCKSTEP_INLINE_LAMBDA {
    const uint64_t c = counter + static_cast<uint64_t>(k);
    const std::array<uint32_t, 4> words =
        philox4x32({static_cast<uint32_t>(c), static_cast<uint32_t>(c >> 32), 0, 0}, key);
    bits[2 * k] = words[0] | uint64_t{words[1]} << 32;
    bits[2 * k + 1] = words[2] | uint64_t{words[3]} << 32;
  };
#pragma omp simd
  for (int64_t k = 0; k < n / 2; ++k) draw_two(k);
}

// Fills x in row-major order. make(bits, values, n) turns the numbers of n elements (even, from an
// even element on) into n values of type T, with the processor's widest vectors.
template <class T, class Make>
void fill(const View& x, uint64_t seed, uint64_t offset, const Make& make) {
  Shape order;
  for (size_t d = 0; d < x.shape.size(); ++d) {
    if (x.shape[d] != 1) order.push_back(static_cast<int64_t>(d));
  }
  const Walk walk(x, order);
  T* data = x.as<T>();
  const int64_t stride = walk.inner_stride();
  parallel_for(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    alignas(64) uint64_t bits[kBlock];
    alignas(64) T values[kBlock];
    while (begin < end) {
      const uint64_t element = offset + static_cast<uint64_t>(begin);
      const auto skip = static_cast<int64_t>(element % 2);
      const int64_t n = std::min(kBlock - skip, end - begin);
      const int64_t drawn = (skip + n + 1) / 2 * 2;
      simd_dispatch([&]() LOCKSTEP_INLINE_LAMBDA {
        draw(seed, element - element % 2, drawn, bits);
        make(bits, values, drawn);
      });
      const T* next = values + skip;
      for_each_run(walk, begin, n, [&](int64_t at, int64_t length) {
        T* to = data + at;
        if (stride == 1) {
          std::copy_n(next, length, to);
        } else {
          for (int64_t i = 0; i < length; ++i) to[i * stride] = next[i];
        }
        next += length;
      });
      begin += n;
    }
  });
}

}  // namespace

void check_randint(const View& x, int64_t low, int64_t high) {
  check(low < high, "randint",
        [&] { return str_cat("want low < high, got ", low, " and ", high); });
  check(x.dtype != DType::kBool, "randint", "want a dtype of numbers, got bool");
}

void check_bernoulli(double p) {
  check(p >= 0 && p <= 1, "bernoulli",
        [&] { return str_cat("want a probability from 0 to 1, got ", p); });
}

void Uniform::cpu(const View& x, uint64_t seed, uint64_t offset) {
  visit_floating(x.dtype, "uniform", [&](auto tag) {
    using T = typename decltype(tag)::type;
    fill<T>(x, seed, offset, [](const uint64_t* bits, T* values, int64_t n) LOCKSTEP_INLINE_LAMBDA {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) values[i] = uniform<T>(bits[i]);
    });
  });
}

void Normal::cpu(const View& x, uint64_t seed, uint64_t offset) {
  visit_floating(x.dtype, "normal", [&](auto tag) {
    using T = typename decltype(tag)::type;
    fill<T>(x, seed, offset, [](const uint64_t* bits, T* values, int64_t n) LOCKSTEP_INLINE_LAMBDA {
      alignas(64) double wide[kBlock];
#pragma omp simd
      for (int64_t i = 0; i < n; i += 2) {
        const NormalPair pair = normal_pair(bits[i], bits[i + 1]);
        wide[i] = pair.first;
        wide[i + 1] = pair.second;
      }
      for (int64_t i = 0; i < n; ++i) values[i] = T(static_cast<Lane<T>>(wide[i]));
    });
  });
}

void RandInt::cpu(const View& x, int64_t low, int64_t high, uint64_t seed, uint64_t offset) {
  check_randint(x, low, high);
  const uint64_t span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    fill<T>(x, seed, offset,
            [=](const uint64_t* bits, T* values, int64_t n) LOCKSTEP_INLINE_LAMBDA {
              for (int64_t i = 0; i < n; ++i) {
                const int64_t value = integer_in(bits[i], low, span);
                values[i] = static_cast<T>(static_cast<Lane<T>>(value));
              }
            });
  });
}

void Bernoulli::cpu(const View& x, double p, uint64_t seed, uint64_t offset) {
  check_bernoulli(p);
  // No structured binding: clang 16 captures none where OpenMP is on.
  const bool always = threshold_of(p).always;
  const uint64_t below = threshold_of(p).below;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T one = static_cast<T>(Lane<T>{1});
    const T zero = static_cast<T>(Lane<T>{0});
    fill<T>(x, seed, offset,
            [=](const uint64_t* bits, T* values, int64_t n) LOCKSTEP_INLINE_LAMBDA {
#pragma omp simd
              for (int64_t i = 0; i < n; ++i) {
                values[i] = (always | (bits[i] < below)) ? one : zero;
              }
            });
  });
}

}  // namespace lockstep::kernels
