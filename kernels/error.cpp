#include "lockstep/kernels/error.h"

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

std::string format(std::string_view op, std::string_view message) {
  return absl::StrCat("[", absl::string_view(op.data(), op.size()), "] ",
                      absl::string_view(message.data(), message.size()));
}

}  // namespace

std::string_view name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kOutOfMemory:
      return "out of memory";
    case ErrorCode::kDevice:
      return "device";
    case ErrorCode::kPeerLost:
      return "peer lost";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kMismatch:
      return "mismatch";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

Error::Error(ErrorCode code, std::string_view op, std::string_view message,
             std::source_location where)
    : std::runtime_error(format(op, message)), code_(code), op_(op), where_(where) {}

}  // namespace lockstep
