#include "lockstep/core/anomaly.h"

#include <execinfo.h>

#include "absl/debugging/symbolize.h"
#include "lockstep/core/ops/elementwise.h"
#include "lockstep/core/ops/reduce.h"
#include "lockstep/core/watch.h"
#include "lockstep/kernels/text.h"

namespace lockstep {
namespace {

thread_local bool watching = false;

constexpr int kDeepest = 48;  // frames
constexpr int kOwn = 2;       // the innermost ones: watched() and record()

// Where a node was made, as addresses: names are looked up when somebody asks.
struct Calls {
  void* frames[kDeepest];
  int count = 0;

  std::string to_string() const {
    std::string text;
    for (int i = kOwn; i < count; ++i) {
      char label[512];
      // The address after a call may belong to the next function.
      const auto* address = static_cast<const char*>(frames[i]) - 1;
      const bool known = absl::Symbolize(address, label, sizeof(label));
      absl::StrAppend(&text, "\n    ", known ? label : "?", " [", absl::Hex(frames[i]), "]");
      if (known && std::string_view(label) == "main") break;
    }
    return text;
  }
};

std::string describe(const Tensor& input) {
  const std::string name = input.name().empty() ? "" : str_cat(" (", input.name(), ")");
  return str_cat(name, " of shape ", to_string(input.shape()));
}

}  // namespace

AnomalyMode::AnomalyMode(bool enabled) : before_(watching) { watching = enabled; }
AnomalyMode::~AnomalyMode() { watching = before_; }

bool anomaly_enabled() { return watching; }

BackwardFunction watched(std::string_view op, std::span<const Tensor> inputs,
                         BackwardFunction backward) {
  auto calls = std::make_shared<Calls>();
  // By unwinding tables: Abseil's own walk wants frame pointers, which optimised code has not.
  calls->count = ::backtrace(calls->frames, kDeepest);
  std::vector<std::string> labels;
  for (const Tensor& input : inputs) labels.push_back(input.defined() ? describe(input) : "");
  return [op, calls, labels, backward = std::move(backward)](const Tensor& g) {
    const bool came_in = any(isnan(g)).item() != 0;
    Tensors gradients = backward(g);
    for (size_t i = 0; i < gradients.size(); ++i) {
      const Tensor& part = gradients[i];
      if (!part.defined() || any(isnan(part)).item() == 0) continue;
      const char* origin = came_in ? ", as had the gradient that it was given (by a hook, or by "
                                     "an op that was not watched),"
                                   : "";
      throw Error(ErrorCode::kInvalidArgument, op,
                  str_cat("backward of '", op, "' gave NaN", origin, " for input ", i,
                          i < labels.size() ? labels[i] : "", "; the op was called from",
                          calls->to_string()));
    }
    return gradients;
  };
}

}  // namespace lockstep
