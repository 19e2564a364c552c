#include "lockstep/comm/collective.h"

#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/stream_timeline.h"

namespace lockstep::comm {
namespace {

constexpr std::array<std::string_view, 4> kAlgorithms = {"", "ring", "two_shot", "one_shot"};

}  // namespace

Request Request::decode(uint64_t code, int64_t count) {
  Request request;
  request.kind = static_cast<Kind>(code & 0xff);
  request.dtype = static_cast<DType>(code >> 8 & 0xff);
  request.op = static_cast<kernels::FoldOp>(code >> 16 & 0xff);
  request.algorithm = static_cast<Algorithm>(code >> 24 & 0x7f);
  request.on_device = (code >> 31 & 1) != 0;
  request.root = static_cast<int32_t>(code >> 32);
  request.count = count;
  return request;
}

void OnDevice::begin(const Stream& stream) {
  stream.wait(ready);
  begun = timeline::mark(stream);
}

void OnDevice::complete(const Stream& stream) { completed = stream.record(timeline::enabled()); }

std::string Request::text() const {
  std::string out(name());
  if (kind == Kind::kBarrier || kind == Kind::kSplit) return out;
  if (kind == Kind::kAllReduce || kind == Kind::kReduceScatter || kind == Kind::kReduce) {
    out += concat(" ", kernels::name(op));
  }
  if (kind == Kind::kAllGatherV || kind == Kind::kAllToAllV) {
    out += concat(" of ", lockstep::name(dtype));
  } else {
    out += concat(" of ", count, " ", lockstep::name(dtype));
  }
  switch (kind) {
    case Kind::kReduceScatter:
    case Kind::kAllGather:
    case Kind::kAllToAll:
      out += " per rank";
      break;
    case Kind::kGather:
      out += concat(" per rank to rank ", root);
      break;
    case Kind::kScatter:
      out += concat(" per rank from rank ", root);
      break;
    case Kind::kReduce:
    case Kind::kSend:
      out += concat(" to rank ", root);
      break;
    case Kind::kBroadcast:
    case Kind::kRecv:
      out += concat(" from rank ", root);
      break;
    default:
      break;
  }
  const auto index = static_cast<size_t>(algorithm);
  if (algorithm != Algorithm::kAuto && index < kAlgorithms.size()) {
    out += concat(" by ", kAlgorithms[index]);
  }
  if (on_device) out += " between devices";
  return out;
}

std::vector<int64_t> Counts::table() const {
  std::vector<int64_t> out = send;
  out.insert(out.end(), recv.begin(), recv.end());
  return out;
}

int64_t Counts::sent() const { return std::accumulate(send.begin(), send.end(), int64_t{0}); }

int64_t Counts::received() const { return std::accumulate(recv.begin(), recv.end(), int64_t{0}); }

Part Collective::sent_part(int from, int to, const int64_t* theirs) const {
  const int64_t element = element_size();
  const int64_t own = request.count * element;
  switch (request.kind) {
    case Kind::kGather:
      return {0, to == request.root ? own : 0};
    case Kind::kScatter:
      return {to * own, from == request.root ? own : 0};
    case Kind::kAllToAll:
      return {to * own, own};
    case Kind::kAllGatherV:
      return {0, theirs[to] * element};
    case Kind::kAllToAllV:
      return {std::accumulate(theirs, theirs + to, int64_t{0}) * element, theirs[to] * element};
    default:
      throw Error(ErrorCode::kInternal, request.name(), "not an exchange");
  }
}

Part Collective::received_part(int from, int rank) const {
  const int64_t element = element_size();
  const int64_t own = request.count * element;
  switch (request.kind) {
    case Kind::kGather:
      return {from * own, rank == request.root ? own : 0};
    case Kind::kScatter:
      return {0, from == request.root ? own : 0};
    case Kind::kAllToAll:
      return {from * own, own};
    case Kind::kAllGatherV:
    case Kind::kAllToAllV: {
      const auto begin = counts->recv.begin();
      return {std::accumulate(begin, begin + from, int64_t{0}) * element,
              counts->recv[from] * element};
    }
    default:
      throw Error(ErrorCode::kInternal, request.name(), "not an exchange");
  }
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

Error mismatch(std::string_view op, const Asked& mine, const Asked& theirs) {
  return Error(ErrorCode::kMismatch, op,
               concat("ranks must make the same calls in the same order, but two wait for each "
                      "other: rank ",
                      mine.rank, " asked for ", mine.request.text(), "; rank ", theirs.rank,
                      " asked for ", theirs.request.text()));
}

void check_tables(const Collective& collective, std::span<const int64_t* const> tables) {
  const auto ranks = static_cast<int>(tables.size());
  const std::string_view type = lockstep::name(collective.request.dtype);
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      const int64_t sent = tables[from][to];
      const int64_t expected = tables[to][ranks + from];
      if (sent == expected) continue;
      throw Error(ErrorCode::kMismatch, collective.request.name(),
                  concat("ranks disagree about collective ", collective.sequence,
                         " of this communicator: rank ", from, " sends ", sent, " ", type,
                         " to rank ", to, ", which expects ", expected, " of it"));
    }
  }
}

}  // namespace lockstep::comm
