#include "lockstep/kernels/dtype.h"

#include <array>
#include <string>
#include <utility>

namespace lockstep {
namespace {

constexpr std::array<std::string_view, kDTypeCount> kNames = {"f32", "f64", "f16",  "bf16", "i64",
                                                              "i32", "u8",  "bool", "i8"};

// The first kDTypeCount entries of kNames are read as they are; these are the other spellings.
constexpr std::pair<std::string_view, DType> kAliases[] = {
    {"float", DType::kF32},     {"float32", DType::kF32}, {"double", DType::kF64},
    {"float64", DType::kF64},   {"half", DType::kF16},    {"float16", DType::kF16},
    {"bfloat16", DType::kBF16}, {"int64", DType::kI64},   {"long", DType::kI64},
    {"int32", DType::kI32},     {"int", DType::kI32},     {"uint8", DType::kU8},
    {"int8", DType::kI8},
};

}  // namespace

std::string_view name(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  return index < kNames.size() ? kNames[index] : "not a dtype";
}

DType parse_dtype(std::string_view text) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == text) return static_cast<DType>(i);
  }
  for (const auto& [alias, dtype] : kAliases) {
    if (alias == text) return dtype;
  }
  std::string message = "want one of";
  for (std::string_view known : kNames) message.append(" ").append(known);
  throw Error(ErrorCode::kInvalidArgument, "dtype",
              message.append(", got '").append(text).append("'"));
}

}  // namespace lockstep
