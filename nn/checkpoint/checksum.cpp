#include "lockstep/nn/checkpoint/checksum.h"

#include <xxhash.h>

namespace lockstep::nn {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

}  // namespace

uint64_t xxh3(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

std::string to_hex(uint64_t value) {
  std::string text(16, '0');
  for (size_t i = 0; i < 16; ++i) text[i] = kDigits[(value >> (60 - 4 * i)) & 15];
  return text;
}

std::optional<uint64_t> parse_hex(std::string_view text) {
  if (text.size() != 16) return std::nullopt;
  uint64_t value = 0;
  for (char digit : text) {
    const size_t place = kDigits.find(digit);
    if (place == std::string_view::npos) return std::nullopt;
    value = value << 4 | place;
  }
  return value;
}

}  // namespace lockstep::nn
