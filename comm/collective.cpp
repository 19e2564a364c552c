#include "lockstep/comm/collective.h"

#include <array>
#include <utility>
#include <vector>

#include "lockstep/comm/text.h"

namespace lockstep::comm {
namespace {

constexpr std::array<std::string_view, 6> kKinds = {"barrier",    "all_reduce", "reduce_scatter",
                                                    "all_gather", "broadcast",  "split"};
constexpr std::array<std::string_view, 4> kAlgorithms = {"", "ring", "two_shot", "one_shot"};

}  // namespace

uint64_t Request::code() const {
  return static_cast<uint64_t>(kind) | static_cast<uint64_t>(dtype) << 8 |
         static_cast<uint64_t>(op) << 16 | static_cast<uint64_t>(algorithm) << 24 |
         static_cast<uint64_t>(static_cast<uint32_t>(root)) << 32;
}

Request Request::decode(uint64_t code, int64_t count) {
  Request request;
  request.kind = static_cast<Kind>(code & 0xff);
  request.dtype = static_cast<DType>(code >> 8 & 0xff);
  request.op = static_cast<kernels::FoldOp>(code >> 16 & 0xff);
  request.algorithm = static_cast<Algorithm>(code >> 24 & 0xff);
  request.root = static_cast<int32_t>(code >> 32);
  request.count = count;
  return request;
}

std::string_view Request::name() const {
  const auto index = static_cast<size_t>(kind);
  return index < kKinds.size() ? kKinds[index] : "an unknown collective";
}

std::string Request::text() const {
  std::string out(name());
  if (kind == Kind::kBarrier || kind == Kind::kSplit) return out;
  if (kind == Kind::kAllReduce || kind == Kind::kReduceScatter) {
    out += concat(" ", kernels::name(op));
  }
  out += concat(" of ", count, " ", lockstep::name(dtype));
  if (kind == Kind::kReduceScatter || kind == Kind::kAllGather) out += " per rank";
  if (kind == Kind::kBroadcast) out += concat(" from rank ", root);
  const auto index = static_cast<size_t>(algorithm);
  if (algorithm != Algorithm::kAuto && index < kAlgorithms.size()) {
    out += concat(" by ", kAlgorithms[index]);
  }
  return out;
}

Blocks Collective::blocks(int ranks) const {
  switch (request.kind) {
    case Kind::kAllReduce:
      return Blocks::of_all(request.count, ranks);
    case Kind::kReduceScatter:
    case Kind::kAllGather:
    case Kind::kSplit:
      return Blocks::of_each(request.count, ranks);
    case Kind::kBroadcast:
    case Kind::kBarrier:
      break;
  }
  return {request.count, request.count, ranks};
}

int64_t Collective::send_bytes(int ranks) const {
  const int64_t own = request.count * element_size();
  return request.kind == Kind::kReduceScatter ? own * ranks : own;
}

int64_t Collective::recv_bytes(int ranks) const {
  const int64_t own = request.count * element_size();
  return gathers() ? own * ranks : own;
}

Algorithm parse_algorithm(std::string_view text, std::string_view what) {
  for (size_t i = 0; i < kAlgorithms.size(); ++i) {
    if (kAlgorithms[i] == text) return static_cast<Algorithm>(i);
  }
  std::string message = concat(what, " wants one of");
  for (size_t i = 1; i < kAlgorithms.size(); ++i) message += concat(" ", kAlgorithms[i]);
  throw Error(ErrorCode::kInvalidArgument, "connect", concat(message, ", got \"", text, "\""));
}

Error mismatch(std::string_view op, uint64_t sequence, std::span<const Asked> asked) {
  // Ranks that asked for the same are named together, in order of the lowest of them.
  std::vector<std::pair<Request, std::vector<int>>> groups;
  for (const Asked& one : asked) {
    auto group = groups.begin();
    while (group != groups.end() && group->first != one.request) ++group;
    if (group == groups.end()) group = groups.insert(group, {one.request, {}});
    group->second.push_back(one.rank);
  }
  std::string message =
      concat("ranks must make the same calls in the same order, but disagree about collective ",
             sequence, " of this communicator: ");
  for (size_t i = 0; i < groups.size(); ++i) {
    message += concat(i == 0 ? "" : "; ", rank_list(groups[i].second), " asked for ",
                      groups[i].first.text());
  }
  return Error(ErrorCode::kMismatch, op, message);
}

}  // namespace lockstep::comm
