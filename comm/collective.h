#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/comm/blocks.h"
#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/fold.h"

namespace lockstep::comm {

// The numbers below are part of the wire.
enum class Kind : uint8_t {
  kBarrier = 0,
  kAllReduce = 1,
  kReduceScatter = 2,
  kAllGather = 3,
  kBroadcast = 4,
  kSplit = 5,  // what the ranks tell each other in split(): an all-gather
};

// Ways to run a collective. kAuto is the choice of the transport, by size.
enum class Algorithm : uint8_t { kAuto = 0, kRing = 1, kTwoShot = 2, kOneShot = 3 };

// What a rank asks of the others. All of it must be the same on every rank.
struct Request {
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kU8;
  kernels::FoldOp op = kernels::FoldOp::kSum;  // of all_reduce and reduce_scatter
  Algorithm algorithm = Algorithm::kAuto;
  int32_t root = 0;   // of broadcast
  int64_t count = 0;  // elements: of each rank for reduce_scatter and all_gather

  friend bool operator==(const Request&, const Request&) = default;

  // The request in 64 bits besides its count, for a header that is compared as numbers.
  uint64_t code() const;
  static Request decode(uint64_t code, int64_t count);
  // "all_reduce", "barrier", ...: the public name.
  std::string_view name() const;
  // "all_reduce sum of 6 f32", "broadcast of 6 f32 from rank 0", "barrier".
  std::string text() const;
};

// A request with this rank's memory and place in the sequence.
struct Collective {
  Request request;
  uint64_t sequence = 0;  // the first is 1
  const void* send = nullptr;
  void* recv = nullptr;

  bool folds() const {
    return request.kind == Kind::kAllReduce || request.kind == Kind::kReduceScatter;
  }
  // Every rank ends with what every rank gave, in order.
  bool gathers() const { return request.kind == Kind::kAllGather || request.kind == Kind::kSplit; }
  // How the collective's elements lie in blocks: by rank, or for a broadcast and a barrier in one.
  Blocks blocks(int ranks) const;
  kernels::FoldSpec fold(int ranks) const { return {request.dtype, request.op, ranks}; }
  int64_t element_size() const { return static_cast<int64_t>(size_of(request.dtype)); }
  // Bytes of send and of recv on a rank of `ranks`.
  int64_t send_bytes(int ranks) const;
  int64_t recv_bytes(int ranks) const;
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

}  // namespace lockstep::comm
