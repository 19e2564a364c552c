#include "lockstep/nn/checkpoint/together.h"

#include <algorithm>
#include <new>
#include <optional>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"

namespace lockstep::nn {
namespace {

constexpr uint64_t kFine = ~uint64_t{0};

struct Failure {
  ErrorCode code;
  std::string message;  // without the op
};

std::optional<Failure> failure_of(const std::function<void()>& f) {
  try {
    f();
    return std::nullopt;
  } catch (const Error& error) {
    const std::string_view text = error.what();
    return Failure{error.code(), std::string(text.substr(error.op().size() + 3))};
  } catch (const std::bad_alloc&) {
    return Failure{ErrorCode::kOutOfMemory, "there is not enough memory"};
  } catch (const std::exception& error) {
    return Failure{ErrorCode::kInternal, error.what()};
  }
}

void broadcast_text(comm::Communicator& group, std::string& text, int root) {
  int64_t bytes = static_cast<int64_t>(text.size());
  group.broadcast(&bytes, 1, DType::kI64, root).wait();
  text.resize(static_cast<size_t>(bytes));
  group.broadcast(text.data(), bytes, DType::kU8, root).wait();
}

}  // namespace

int rank_of(const comm::Communicator* group) { return group == nullptr ? 0 : group->rank(); }
int size_of_group(const comm::Communicator* group) { return group == nullptr ? 1 : group->size(); }

void together(comm::Communicator* group, std::string_view op, const std::function<void()>& f) {
  std::optional<Failure> failure = failure_of(f);
  if (size_of_group(group) == 1) {
    if (failure) throw Error(failure->code, op, failure->message);
    return;
  }
  const std::vector<uint64_t> codes =
      gather_words(group, {failure ? static_cast<uint64_t>(failure->code) : kFine});
  const auto first =
      std::find_if(codes.begin(), codes.end(), [](uint64_t c) { return c != kFine; });
  if (first == codes.end()) return;
  const int root = static_cast<int>(first - codes.begin());
  std::string message = failure ? failure->message : "";
  broadcast_text(*group, message, root);
  throw Error(static_cast<ErrorCode>(*first), op, str_cat("on rank ", root, ": ", message));
}

void share_text(comm::Communicator* group, std::string& text) {
  if (size_of_group(group) > 1) broadcast_text(*group, text, 0);
}

void share_bytes(comm::Communicator* group, void* data, size_t bytes) {
  if (size_of_group(group) == 1) return;
  group->broadcast(data, static_cast<int64_t>(bytes), DType::kU8, 0).wait();
}

std::vector<uint64_t> gather_words(comm::Communicator* group, const std::vector<uint64_t>& words) {
  if (size_of_group(group) == 1) return words;
  std::vector<uint64_t> all(words.size() * static_cast<size_t>(group->size()));
  group->all_gather(words.data(), all.data(), static_cast<int64_t>(words.size()), DType::kI64)
      .wait();
  return all;
}

}  // namespace lockstep::nn
