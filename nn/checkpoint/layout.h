#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

// The fixed parts of a data file, shared by its writer and its reader.
namespace lockstep::nn {

static_assert(std::endian::native == std::endian::little,
              "data files are little endian and are written from memory as it is");

// 64 bytes each. Both keep their layout in every version, so that any reader can tell a later
// version from a damaged file.
inline constexpr std::array<uint8_t, 8> kHeaderMagic = {0x89, 'L', 'S', 'C', 'K', '\r', '\n', 0x1a};
inline constexpr std::array<uint8_t, 8> kFooterMagic = {'L', 'S', 'C', 'K', 'E', 'N', 'D', '\n'};

struct FileHeader {
  std::array<uint8_t, 8> magic = kHeaderMagic;
  uint32_t version = 0;
  uint32_t features = 0;  // what a reader must know; see format.h
  std::array<uint64_t, 5> reserved = {};
  uint64_t checksum = 0;  // of the 56 bytes before it
};

struct FileFooter {
  uint64_t index_offset = 0;
  uint64_t index_bytes = 0;
  uint64_t index_checksum = 0;
  uint64_t file_bytes = 0;
  std::array<uint64_t, 2> reserved = {};
  uint64_t checksum = 0;  // of the 48 bytes before it
  std::array<uint8_t, 8> magic = kFooterMagic;
};

static_assert(sizeof(FileHeader) == 64 && offsetof(FileHeader, checksum) == 56);
static_assert(sizeof(FileFooter) == 64 && offsetof(FileFooter, checksum) == 48);
static_assert(std::is_trivially_copyable_v<FileHeader> && std::is_trivially_copyable_v<FileFooter>);

}  // namespace lockstep::nn
