#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

struct z_stream_s;  // zlib's

namespace lockstep::nn {

// The most bytes that one byte of deflate's output format stands for: 258 for two bits (RFC 1951).
inline constexpr uint64_t kMaxExpansion = 1032;

enum class Compression { kDeflate, kGzip };

// Decompresses bytes in memory, front to back. Not thread-safe.
class Inflater {
 public:
  // `compressed` is borrowed. Throws Error(kOutOfMemory), which names `op`.
  Inflater(std::span<const uint8_t> compressed, Compression compression, std::string_view op);
  ~Inflater();
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // Fills `out`, or as much of it as there is; returns how much. After an error it is 0.
  size_t read(std::span<uint8_t> out);
  // The compressed stream's own end was reached (and its checksum is right, where it has one).
  bool ended() const { return ended_; }
  // What is wrong with the stream; null while nothing is.
  const char* error() const { return error_; }
  // Compressed bytes that were not needed yet.
  size_t left() const { return left_.size(); }

 private:
  std::span<const uint8_t> left_;
  std::unique_ptr<z_stream_s> stream_;
  bool ended_ = false;
  const char* error_ = nullptr;
};

}  // namespace lockstep::nn
