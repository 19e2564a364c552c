#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/blocks.h"
#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/fold.h"
#include "lockstep/kernels/stream.h"

namespace lockstep::comm {

// The numbers below are part of the wire.
enum class Kind : uint8_t {
  kBarrier = 0,
  kAllReduce = 1,
  kReduceScatter = 2,
  kAllGather = 3,
  kBroadcast = 4,
  kSplit = 5,  // what the ranks tell each other in split(): an all-gather
  kReduce = 6,
  kGather = 7,
  kScatter = 8,
  kAllToAll = 9,
  kAllGatherV = 10,
  kAllToAllV = 11,
  // Between two ranks alone: see pair_streams.h.
  kSend = 12,
  kRecv = 13,
};

inline constexpr std::array<std::string_view, 14> kKindNames = {
    "barrier", "all_reduce", "reduce_scatter", "all_gather",   "broadcast",    "split", "reduce",
    "gather",  "scatter",    "all_to_all",     "all_gather_v", "all_to_all_v", "send",  "recv"};

// Ways to run a collective. kAuto is the choice of the transport, by size.
enum class Algorithm : uint8_t { kAuto = 0, kRing = 1, kTwoShot = 2, kOneShot = 3 };

// What a rank asks of the others. All of it must be the same on every rank.
struct Request {
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kU8;
  kernels::FoldOp op = kernels::FoldOp::kSum;  // of all_reduce, reduce_scatter and reduce
  Algorithm algorithm = Algorithm::kAuto;
  int32_t root = 0;        // of broadcast, reduce, gather, scatter; of send and recv the other rank
  int64_t count = 0;       // elements: per rank for reduce_scatter, all_gather, gather, scatter and
                           // all_to_all; 0 where each rank has its own counts
  bool on_device = false;  // goes between the memories of the ranks' devices

  friend bool operator==(const Request&, const Request&) = default;

  // The request in 64 bits besides its count, for a header that is compared as numbers.
  uint64_t code() const {
    return static_cast<uint64_t>(kind) | static_cast<uint64_t>(dtype) << 8 |
           static_cast<uint64_t>(op) << 16 | static_cast<uint64_t>(algorithm) << 24 |
           static_cast<uint64_t>(on_device ? 1 : 0) << 31 |
           static_cast<uint64_t>(static_cast<uint32_t>(root)) << 32;
  }
  static Request decode(uint64_t code, int64_t count);
  // "all_reduce", "barrier", ...: the public name.
  std::string_view name() const {
    const auto index = static_cast<size_t>(kind);
    return index < kKindNames.size() ? kKindNames[index] : "an unknown collective";
  }
  // "all_reduce sum of 6 f32", "broadcast of 6 f32 from rank 0", "barrier".
  std::string text() const;
};

// How many elements a rank sends to each rank, and has from each, where that is not the same for
// all.
struct Counts {
  std::vector<int64_t> send;  // by rank
  std::vector<int64_t> recv;

  // What the ranks tell each other: send, then recv.
  std::vector<int64_t> table() const;
  int64_t sent() const;  // elements in all
  int64_t received() const;
};

// Bytes of a buffer.
struct Part {
  int64_t offset = 0;
  int64_t bytes = 0;
};

// What orders a collective whose buffers are a device's memory; shared with who waits for it.
struct OnDevice {
  Device device;
  Event ready;      // the buffers may be read and written
  Event completed;  // set before the collective counts as finished: they may be used again
  // For the timeline, where there is one: when its stream came to it, and what it is called there.
  Event begun = {};
  std::string label = {};
  // Of a send or recv: its buffer, while pinned memory stands in its place.
  std::byte* data = nullptr;
  std::shared_ptr<void> pinned;

  // What is put on the stream between the two is the collective.
  void begin(const Stream& stream);
  void complete(const Stream& stream);
};

// A request with this rank's memory and place in the sequence.
struct Collective {
  Request request;
  uint64_t sequence = 0;  // the first is 1
  const void* send = nullptr;
  void* recv = nullptr;
  std::shared_ptr<const Counts> counts = nullptr;  // of all_gather_v and all_to_all_v
  std::shared_ptr<OnDevice> on_device = nullptr;   // null: buffers are the CPU's

  bool folds() const {
    return request.kind == Kind::kAllReduce || request.kind == Kind::kReduceScatter ||
           request.kind == Kind::kReduce;
  }
  // Every rank ends with what every rank gave, in order.
  bool gathers() const { return request.kind == Kind::kAllGather || request.kind == Kind::kSplit; }
  // Every rank's data go to other ranks as they are, and to each its own part: see sent_part().
  bool exchanges() const {
    return request.kind >= Kind::kGather && request.kind <= Kind::kAllToAllV;
  }
  // Between this rank and one other.
  bool is_transfer() const { return request.kind == Kind::kSend || request.kind == Kind::kRecv; }
  // Whether a rank's send, or its recv, is used.
  bool gives(int rank) const {
    const bool from_root = request.kind == Kind::kBroadcast || request.kind == Kind::kScatter;
    return (!from_root || rank == request.root) && request.kind != Kind::kRecv;
  }
  bool takes(int rank) const {
    const bool to_root = request.kind == Kind::kReduce || request.kind == Kind::kGather;
    return (!to_root || rank == request.root) && request.kind != Kind::kSend;
  }
  // Of an exchange: what `from` sends to `to`, in its send; `theirs` is from's table of counts,
  // null where counts are the same for all. And what rank has from `from`, in its recv.
  Part sent_part(int from, int to, const int64_t* theirs) const;
  Part received_part(int from, int rank) const;
  // How the collective's elements lie in blocks: by rank, or for a broadcast and a barrier in one.
  Blocks blocks(int ranks) const {
    const bool each = request.kind == Kind::kReduceScatter || gathers();
    const bool all = request.kind == Kind::kAllReduce || request.kind == Kind::kReduce;
    return each  ? Blocks::of_each(request.count, ranks)
           : all ? Blocks::of_all(request.count, ranks)
                 : Blocks{request.count, request.count, ranks};
  }
  kernels::FoldSpec fold(int ranks) const { return {request.dtype, request.op, ranks}; }
  int64_t element_size() const { return static_cast<int64_t>(size_of(request.dtype)); }
  // Bytes of send and of recv on a rank of `ranks` that uses them.
  int64_t send_bytes(int ranks) const {
    const int64_t own = request.count * element_size();
    switch (request.kind) {
      case Kind::kReduceScatter:
      case Kind::kScatter:
      case Kind::kAllToAll:
        return own * ranks;
      case Kind::kAllGatherV:
        return counts->send[0] * element_size();
      case Kind::kAllToAllV:
        return counts->sent() * element_size();
      default:
        return own;
    }
  }
  int64_t recv_bytes(int ranks) const {
    const int64_t own = request.count * element_size();
    switch (request.kind) {
      case Kind::kAllGather:
      case Kind::kSplit:
      case Kind::kGather:
      case Kind::kAllToAll:
        return own * ranks;
      case Kind::kAllGatherV:
      case Kind::kAllToAllV:
        return counts->received() * element_size();
      default:
        return own;
    }
  }
};

// "ring", "two_shot", "one_shot"; "" is kAuto. Throws kInvalidArgument that lists the names and
// begins with `what`, the option or variable that the text came from.
Algorithm parse_algorithm(std::string_view text, std::string_view what);

// What one rank is known to have asked for.
struct Asked {
  int rank;
  Request request;
};

// The error for ranks that disagree: who asked for what in the `sequence`-th collective.
Error mismatch(std::string_view op, uint64_t sequence, std::span<const Asked> asked);

// The same for two ranks, one of which waits for a send or a recv of the other.
Error mismatch(std::string_view op, const Asked& mine, const Asked& theirs);

// Throws kMismatch, the same on every rank, where a rank does not send what another expects.
// tables[rank] is a table of counts.
void check_tables(const Collective& collective, std::span<const int64_t* const> tables);

}  // namespace lockstep::comm
