#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::nn {

// XXH3, 64 bits, seed 0 (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md).
uint64_t xxh3(const void* data, size_t bytes);
inline uint64_t xxh3(std::string_view text) { return xxh3(text.data(), text.size()); }

// 16 lower-case hexadecimal digits.
std::string to_hex(uint64_t value);
// nullopt for anything but what to_hex gives.
std::optional<uint64_t> parse_hex(std::string_view text);

}  // namespace lockstep::nn
