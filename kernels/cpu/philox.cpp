#include "lockstep/kernels/philox.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "lockstep/kernels/cpu/blocks.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/strided.h"
#include "lockstep/kernels/text.h"
#include "lockstep/kernels/vector_math.h"

// Each counter gives 128 bits, 64 for each of two neighbouring elements: element e takes half e % 2
// of counter e / 2, and a normal pair is made of both. All arithmetic is additions, products,
// quotients and square roots in a fixed order, so that every processor gives the same bits.
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

// The digits of T's significand, which is how many bits of a uniform number it can hold.
template <class T>
constexpr int significand_bits() {
  if constexpr (std::is_same_v<T, Half>) return 11;
  if constexpr (std::is_same_v<T, BFloat16>) return 8;
  return std::numeric_limits<Lane<T>>::digits;
}

template <class T>
LOCKSTEP_INLINE T uniform(uint64_t bits) {
  constexpr int kBits = significand_bits<T>();
  constexpr auto kScale = static_cast<Lane<T>>(1.0 / static_cast<double>(uint64_t{1} << kBits));
  if constexpr (kBits > 31) {
    return static_cast<Lane<T>>(static_cast<int64_t>(bits >> (64 - kBits))) * kScale;
  } else {
    return T(static_cast<Lane<T>>(static_cast<int32_t>(bits >> (64 - kBits))) * kScale);
  }
}

// [1, 2) in steps of 2^-52, by the upper bits.
LOCKSTEP_INLINE double one_to_two(uint64_t bits) {
  return std::bit_cast<double>((bits >> 12) | 0x3ff0000000000000u);
}

// log(u) for u in [2^-53, 1], by the series of 2 atanh(s) with s = (m - 1) / (m + 1), where m is
// u's mantissa within [sqrt(1/2), sqrt(2)) and s at most 0.172: the first term left out is below
// 2^-64.
LOCKSTEP_INLINE double log_of(double u) {
  const auto bits = std::bit_cast<uint64_t>(u);
  const uint64_t offset = bits - 0x3fe6a09e667f3bcdu;  // sqrt(1/2)
  const auto exponent = static_cast<int32_t>(static_cast<uint32_t>(offset >> 32)) >> 20;
  const double m = std::bit_cast<double>((offset & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu);
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  double p = 1.0 / 23;
  p = p * z + 1.0 / 21;
  p = p * z + 1.0 / 19;
  p = p * z + 1.0 / 17;
  p = p * z + 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  return exponent * 0.69314718055994531 + 2 * s * (1 + z * p);
}

struct CosSin {
  double cos;
  double sin;
};

// The cosine and sine of a / 2^64 turns, from their series at the nearest of the four
// axes, within an eighth of a turn (0.785).
LOCKSTEP_INLINE CosSin cos_sin(uint64_t a) {
  const uint64_t quarter = ((a >> 61) + 1) >> 1;  // the nearest axis, 0 to 4
  const double turn = one_to_two(a) - 1;
  const double r =
      (turn - static_cast<double>(static_cast<int32_t>(quarter)) * 0.25) * 6.2831853071795865;
  const double z = r * r;
  double s = 1.0 / 355687428096000;
  s = s * z - 1.0 / 1307674368000;
  s = s * z + 1.0 / 6227020800;
  s = s * z - 1.0 / 39916800;
  s = s * z + 1.0 / 362880;
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  s = s * z - 1.0 / 6;
  const double sine = r + r * (z * s);
  double c = -1.0 / 6402373705728000;
  c = c * z + 1.0 / 20922789888000;
  c = c * z - 1.0 / 87178291200;
  c = c * z + 1.0 / 479001600;
  c = c * z - 1.0 / 3628800;
  c = c * z + 1.0 / 40320;
  c = c * z - 1.0 / 720;
  c = c * z + 1.0 / 24;
  c = c * z - 0.5;
  const double cosine = 1 + z * c;
  const bool odd = (quarter & 1) != 0;
  const double x = odd ? sine : cosine;
  const double y = odd ? cosine : sine;
  const bool x_negative = ((quarter + 1) & 2) != 0;
  const bool y_negative = (quarter & 2) != 0;
  return {x_negative ? -x : x, y_negative ? -y : y};
}

}  // namespace

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
        const double u = 2 - one_to_two(bits[i]);  // (0, 1]
        const double radius = sqrt(-2 * log_of(u));
        const CosSin angle = cos_sin(bits[i + 1]);
        wide[i] = radius * angle.cos;
        wide[i + 1] = radius * angle.sin;
      }
      for (int64_t i = 0; i < n; ++i) values[i] = T(static_cast<Lane<T>>(wide[i]));
    });
  });
}

void RandInt::cpu(const View& x, int64_t low, int64_t high, uint64_t seed, uint64_t offset) {
  check(low < high, "randint",
        [&] { return str_cat("want low < high, got ", low, " and ", high); });
  check(x.dtype != DType::kBool, "randint", "want a dtype of numbers, got bool");
  const uint64_t span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    fill<T>(x, seed, offset,
            [=](const uint64_t* bits, T* values, int64_t n) LOCKSTEP_INLINE_LAMBDA {
              for (int64_t i = 0; i < n; ++i) {
                const auto product = static_cast<unsigned __int128>(bits[i]) * span;
                const uint64_t drawn = static_cast<uint64_t>(product >> 64);
                const auto value = static_cast<int64_t>(static_cast<uint64_t>(low) + drawn);
                values[i] = static_cast<T>(static_cast<Lane<T>>(value));
              }
            });
  });
}

void Bernoulli::cpu(const View& x, double p, uint64_t seed, uint64_t offset) {
  check(p >= 0 && p <= 1, "bernoulli",
        [&] { return str_cat("want a probability from 0 to 1, got ", p); });
  // One where the 64 bits are below p * 2^64, which 64 bits hold unless p is 1.
  const bool always = p == 1;
  const uint64_t threshold = always ? 0 : static_cast<uint64_t>(p * 0x1p64);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T one = static_cast<T>(Lane<T>{1});
    const T zero = static_cast<T>(Lane<T>{0});
    fill<T>(x, seed, offset,
            [=](const uint64_t* bits, T* values, int64_t n) LOCKSTEP_INLINE_LAMBDA {
#pragma omp simd
              for (int64_t i = 0; i < n; ++i) {
                values[i] = (always | (bits[i] < threshold)) ? one : zero;
              }
            });
  });
}

}  // namespace lockstep::kernels
