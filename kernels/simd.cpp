#include "lockstep/kernels/simd.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "lockstep/kernels/error.h"

namespace lockstep {
namespace {

SimdLevel widest_here() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) {
    return SimdLevel::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return SimdLevel::kAvx2;
#endif
  return SimdLevel::kBaseline;
}

SimdLevel read_level() {
  const char* wanted = std::getenv("LOCKSTEP_SIMD");
  if (wanted == nullptr || *wanted == '\0') return widest_here();
  const std::string_view text = wanted;
  SimdLevel level = SimdLevel::kBaseline;
  if (text == "avx512") {
    level = SimdLevel::kAvx512;
  } else if (text == "avx2") {
    level = SimdLevel::kAvx2;
  } else {
    check(text == "baseline", "LOCKSTEP_SIMD",
          [&] { return "want baseline, avx2 or avx512, got '" + std::string(text) + "'"; });
  }
  return std::min(level, widest_here());
}

}  // namespace

SimdLevel simd_level() {
  static const SimdLevel level = read_level();
  return level;
}

}  // namespace lockstep
