#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/comm/store.h"
#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {

// What store clients and the server say to each other once authenticated. Numbers are little
// endian. Every message is a frame, a length (u32) and so many bytes:
//
//   request  op (u8), then per op      set: key, value     get, try_get, erase: key
//                                      add: key, i64       barrier: name, rank i64, size i64
//                                      give_up: milliseconds waited i64
//                                      gather: group, rank i64    fail: group, ErrorCode i64, why
//   reply    status (u8): 0, or 1 + ErrorCode; then the value, or the message of the error
//
// where texts are a length (u32) and bytes, and a reply's value is its rest. Requests of a
// connection are answered in order, one at a time. give_up has no answer of its own: it makes the
// server answer a get or barrier that still waits, with a timeout, and a gather well.
static_assert(std::endian::native == std::endian::little,
              "frames are written as they lie in memory");

enum class StoreOp : uint8_t {
  kSet = 1,
  kGet,
  kTryGet,
  kAdd,
  kErase,
  kBarrier,
  kGiveUp,
  kGather,
  kFail
};

inline constexpr size_t kMaxFrameBytes = kMaxKeyBytes + kMaxValueBytes + 64;
inline constexpr uint8_t kStatusOk = 0;

// Says who may talk to whom: the context of the handshake (auth.h).
inline std::string store_context(std::string_view job) { return concat("store|", job); }

class FrameWriter {
 public:
  explicit FrameWriter(uint8_t first) : frame_(sizeof(uint32_t), '\0') {
    frame_ += static_cast<char>(first);
  }
  FrameWriter& number(int64_t value) { return raw(&value, sizeof value); }
  FrameWriter& text(std::string_view value) {
    const auto bytes = static_cast<uint32_t>(value.size());
    return raw(&bytes, sizeof bytes).rest(value);
  }
  FrameWriter& rest(std::string_view value) { return raw(value.data(), value.size()); }

  std::string take() {
    const auto bytes = static_cast<uint32_t>(frame_.size() - sizeof(uint32_t));
    std::memcpy(frame_.data(), &bytes, sizeof bytes);
    return std::move(frame_);
  }

 private:
  FrameWriter& raw(const void* data, size_t bytes) {
    frame_.append(static_cast<const char*>(data), bytes);
    return *this;
  }
  std::string frame_;
};

// Takes the first frame off the bytes of a connection, without its length; nullopt until all of it
// has come. Throws kCorrupt for a length beyond the bounds.
inline std::optional<std::string> take_frame(std::string& in) {
  uint32_t bytes = 0;
  if (in.size() < sizeof bytes) return std::nullopt;
  std::memcpy(&bytes, in.data(), sizeof bytes);
  if (bytes > kMaxFrameBytes) throw Error(ErrorCode::kCorrupt, "store", "a frame is too long");
  if (in.size() - sizeof bytes < bytes) return std::nullopt;
  std::string frame = in.substr(sizeof bytes, bytes);
  in.erase(0, sizeof bytes + bytes);
  return frame;
}

// Reads a frame's bytes; what is not there throws kCorrupt.
class FrameReader {
 public:
  explicit FrameReader(std::string_view frame) : left_(frame) {}
  uint8_t byte() { return static_cast<uint8_t>(take(1)[0]); }
  int64_t number() {
    int64_t value = 0;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view text() {
    uint32_t bytes = 0;
    std::memcpy(&bytes, take(sizeof bytes).data(), sizeof bytes);
    return take(bytes);
  }
  std::string_view rest() { return take(left_.size()); }

 private:
  std::string_view take(size_t bytes) {
    if (bytes > left_.size()) {
      throw Error(ErrorCode::kCorrupt, "store", "a message of the store ends too early");
    }
    const std::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }
  std::string_view left_;
};

}  // namespace lockstep::comm
