#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lockstep {

// What kind of thing went wrong; a program branches on this, a person reads what().
enum class ErrorCode {
  kInvalidArgument,  // the caller asked for something that has no meaning
  kOutOfMemory,      // an allocation failed
  kDevice,           // a device, its driver or its library failed
  kPeerLost,         // another rank died or closed its connection
  kTimeout,          // another rank did not arrive in time
  kMismatch,         // ranks, shapes or names that must agree do not
  kIo,               // a file or socket operation failed
  kCorrupt,          // bytes that were read do not verify
  kCancelled,        // the work was aborted
  kInternal,         // a promise of this library was broken
};

// "invalid argument", "peer lost", …
std::string_view name(ErrorCode code);

// The one exception type of the library. what() reads "[op] message".
class Error : public std::runtime_error {
 public:
  // `op` is the public name of the call that failed. `message` says what was wanted, what came,
  // which rank and which name, and what to do.
  Error(ErrorCode code, std::string_view op, std::string_view message,
        std::source_location where = std::source_location::current());

  ErrorCode code() const { return code_; }
  const std::string& op() const { return op_; }
  // The place in Lockstep's source that threw.
  const std::source_location& where() const { return where_; }

 private:
  ErrorCode code_;
  std::string op_;
  std::source_location where_;
};

// Throws Error(kInvalidArgument) unless `ok`. The message is only built on failure:
//   check(a.dim() == 2, "mm", [&] { return absl::StrCat("want a matrix, got ", ...); });
template <class Message>
void check(bool ok, std::string_view op, Message&& message,
           std::source_location where = std::source_location::current()) {
  if (!ok) [[unlikely]] {
    if constexpr (std::is_invocable_v<Message>) {
      throw Error(ErrorCode::kInvalidArgument, op, message(), where);
    } else {
      throw Error(ErrorCode::kInvalidArgument, op, message, where);
    }
  }
}

}  // namespace lockstep
