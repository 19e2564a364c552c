#include "lockstep/comm/cuda_direct.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/memory.h"

namespace lockstep::comm {
namespace {

// What other ranks cannot reach where it is, or are not to wait for twice, goes in pieces of this
// size through memory that they can reach. A piece takes one or two meetings, which cost about as
// much as copying a MiB.
constexpr int64_t kPieceBytes = int64_t{8} << 20;
constexpr uint64_t kLeastTurnBytes = uint64_t{64} << 10;

// Of these others write the recv of every rank that takes, and not it alone.
bool writes_to_others(const Collective& asked) {
  return asked.request.kind == Kind::kAllReduce || asked.request.kind == Kind::kReduce;
}

}  // namespace

// What a rank tells the others of a collective.
struct CudaDirect::Places {
  DevicePlace send;
  DevicePlace recv;
};

// Elements [first, last) of a collective's `count`, and where every rank has them. Pointers are to
// element `first`, and null where nobody needs them.
struct CudaDirect::Piece {
  int64_t first = 0;
  int64_t last = 0;
  std::vector<const std::byte*> sends;
  std::vector<std::byte*> recvs;
  int64_t send_stride = 0;  // of a reduce_scatter: elements from one block to the next
};

CudaDirect::CudaDirect(SharedGroup& group, CudaPeers& peers, Device device, Stream stream)
    : group_(group), peers_(peers), device_(device), stream_(std::move(stream)) {}

void CudaDirect::run(const Collective& collective) {
  Collective asked = collective;
  asked.request.on_device = true;
  const bool has_others = asked.request.kind == Kind::kAllReduce && size() > 1;
  if (has_others && asked.request.algorithm == Algorithm::kOneShot) return one_shot(asked);
  if (has_others && asked.request.algorithm == Algorithm::kRing) return ring(asked);
  two_shot(asked);
}

// ---- Two-shot, and what only moves ----

void CudaDirect::two_shot(const Collective& asked) {
  const int64_t count = asked.request.count;
  const bool gives = asked.gives(rank());
  const bool takes = asked.takes(rank());
  Places mine;
  if (gives) mine.send = place_of(asked.send, asked.send_bytes(size()));
  if (takes) mine.recv = place_of(asked.recv, asked.recv_bytes(size()));
  const std::vector<Places> all = meet_ready(asked, mine);
  if (!all_reachable(asked, all)) return in_pieces(asked);
  peers_.begin();
  Piece piece{0, count, {}, {}, count};
  find(asked, all, piece);
  if (takes) piece.recvs[static_cast<size_t>(rank())] = static_cast<std::byte*>(asked.recv);
  work(asked, piece);
  meet_done(asked);
}

// Of a buffer, which this rank's stream, and behind it those of others, will use.
DevicePlace CudaDirect::place_of(const void* data, int64_t bytes) {
  used_on(data, stream_);
  return peers_.place_of(data, static_cast<size_t>(bytes));
}

// Waits, on the host, until all ranks have told where their buffers are, and on the stream until
// they may be read and written.
std::vector<CudaDirect::Places> CudaDirect::meet_ready(const Collective& asked,
                                                       const Places& mine) {
  std::vector<Places> all(static_cast<size_t>(size()));
  peers_.tell(stream_);
  group_.meet(asked, &mine, sizeof mine, all.data());
  peers_.wait(stream_);
  return all;
}

// The same until all have finished with this rank's buffers.
void CudaDirect::meet_done(const Collective& asked) {
  peers_.tell(stream_);
  group_.meet(asked, nullptr, 0, nullptr);
  group_.stop_touching();
  peers_.wait(stream_);
}

// The same on every rank.
bool CudaDirect::all_reachable(const Collective& asked, const std::vector<Places>& all) const {
  for (int peer = 0; peer < size(); ++peer) {
    const Places& theirs = all[static_cast<size_t>(peer)];
    if (asked.gives(peer) && !peers_.is_reachable(theirs.send)) return false;
    const bool written = writes_to_others(asked) && asked.takes(peer);
    if (written && !peers_.is_reachable(theirs.recv)) return false;
  }
  return true;
}

void CudaDirect::find(const Collective& asked, const std::vector<Places>& all, Piece& piece) {
  piece.sends.assign(all.size(), nullptr);
  piece.recvs.assign(all.size(), nullptr);
  for (int peer = 0; peer < size(); ++peer) {
    const auto at = static_cast<size_t>(peer);
    if (asked.gives(peer)) piece.sends[at] = peers_.reach(peer, all[at].send);
    if (writes_to_others(asked) && asked.takes(peer)) {
      piece.recvs[at] = peers_.reach(peer, all[at].recv);
    }
  }
}

// This rank's share of a piece: it folds a part for all ranks that take it, or copies what it
// takes.
void CudaDirect::work(const Collective& asked, const Piece& piece) {
  const int64_t element = asked.element_size();
  const int64_t length = piece.last - piece.first;
  std::byte* recv = piece.recvs[static_cast<size_t>(rank())];
  switch (asked.request.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce: {
      // Of a whole collective this is the rank's block.
      const Blocks shares = Blocks::of_all(length, size());
      return fold(asked, piece, piece.first + shares.begin(rank()),
                  piece.first + shares.end(rank()));
    }
    case Kind::kReduceScatter:
      return fold_in_block(asked, piece, rank(), piece.first, piece.last);
    case Kind::kAllGather:
      for (int i = 0; i < size(); ++i) {
        const int peer = (rank() + i) % size();
        copy(piece.sends[static_cast<size_t>(peer)], recv + peer * asked.request.count * element,
             length * element);
      }
      return;
    default:
      return copy(piece.sends[static_cast<size_t>(asked.request.root)], recv, length * element);
  }
}

// Folds elements [begin, end), each in the order of its block, into all results of the piece.
void CudaDirect::fold(const Collective& asked, const Piece& piece, int64_t begin, int64_t end) {
  const Blocks blocks = asked.blocks(size());
  for (int block = 0; block < size(); ++block) {
    fold_in_block(asked, piece, block, std::max(begin, blocks.begin(block)),
                  std::min(end, blocks.end(block)));
  }
}

// Folds elements [begin, end) in the order of a block; of a reduce_scatter they are those of each
// block.
void CudaDirect::fold_in_block(const Collective& asked, const Piece& piece, int block,
                               int64_t begin, int64_t end) {
  if (begin >= end) return;
  const Blocks blocks = asked.blocks(size());
  const int64_t element = asked.element_size();
  const bool scatters = asked.request.kind == Kind::kReduceScatter;
  const int64_t skip = (scatters ? block * piece.send_stride : 0) + begin - piece.first;
  std::vector<const void*> sources;
  for (int i = 0; i < size(); ++i) {
    sources.push_back(piece.sends[static_cast<size_t>(blocks.order(block, i))] + skip * element);
  }
  std::vector<void*> outputs;
  for (std::byte* recv : piece.recvs) {
    if (recv != nullptr) outputs.push_back(recv + (begin - piece.first) * element);
  }
  launch<kernels::Fold>(device_, asked.fold(size()), sources.data(), outputs.data(),
                        static_cast<int>(outputs.size()), end - begin);
}

void CudaDirect::copy(const std::byte* from, std::byte* to, int64_t bytes) {
  if (to != from && bytes != 0) {
    cuda::copy_async(to, from, static_cast<size_t>(bytes), stream_);
  }
}

// Through memory of this rank that all can reach. In the order of the stream, what is put there
// for a piece comes after all ranks have finished with the one before.
void CudaDirect::in_pieces(const Collective& asked) {
  if (staging_ == nullptr) staging_ = peers_.allocate(2 * kPieceBytes);
  auto* in = static_cast<std::byte*>(staging_.get());
  std::byte* out = in + kPieceBytes;
  const int64_t element = asked.element_size();
  const bool scatters = asked.request.kind == Kind::kReduceScatter;
  const int64_t blocks = scatters ? size() : 1;
  const int64_t most = std::max<int64_t>(kPieceBytes / element / blocks / 64 * 64, 1);
  const auto* send = static_cast<const std::byte*>(asked.send);
  auto* recv = static_cast<std::byte*>(asked.recv);
  const bool gives = asked.gives(rank());
  const bool takes = asked.takes(rank());
  const Places mine{peers_.place_of(in, kPieceBytes), peers_.place_of(out, kPieceBytes)};
  for (int64_t first = 0; first < asked.request.count; first += most) {
    Piece piece{first, std::min(asked.request.count, first + most), {}, {}, most};
    const int64_t bytes = (piece.last - first) * element;
    for (int64_t block = 0; block < blocks && gives; ++block) {
      copy(send + (block * asked.request.count + first) * element, in + block * most * element,
           bytes);
    }
    const std::vector<Places> all = meet_ready(asked, mine);
    peers_.begin();
    find(asked, all, piece);
    const bool through = writes_to_others(asked);
    if (takes && !through) piece.recvs[static_cast<size_t>(rank())] = recv + first * element;
    work(asked, piece);
    meet_done(asked);
    if (takes && through) copy(out, recv + first * element, bytes);
  }
}

// ---- One-shot and ring ----

// Memory of this rank that the others read after one meeting. There are two, and no second meeting:
// at a meeting every rank tells what its stream has come past, and it tells after its last read of
// the others' memory; so once all have met for the next turn, nobody reads that of this one any
// more, and the turn after it may have the same memory.
//
// They are as large as the largest so far. What was too small stays, for others may still read it.
std::byte* CudaDirect::take_turn(int64_t bytes) {
  if (turns_.empty() || bytes > turn_bytes_) {
    turn_bytes_ = static_cast<int64_t>(std::bit_ceil(std::max<uint64_t>(bytes, kLeastTurnBytes)));
    turns_.push_back(peers_.allocate(static_cast<size_t>(2 * turn_bytes_)));
  }
  return static_cast<std::byte*>(turns_.back().get()) + turns_taken_++ % 2 * turn_bytes_;
}

// Where all ranks' memory of this turn is, which they have filled; `tells` follow until this rank
// has read it.
std::vector<const std::byte*> CudaDirect::meet_in_turn(const Collective& asked, std::byte* own,
                                                       uint64_t tells) {
  // Before they meet, for a rank may have done its part, and leave, as soon as they have.
  peers_.begin(1 + tells);
  peers_.tell(stream_);
  const DevicePlace mine = peers_.place_of(own, static_cast<size_t>(turn_bytes_));
  std::vector<DevicePlace> all(static_cast<size_t>(size()));
  group_.meet(asked, &mine, sizeof mine, all.data());
  peers_.wait(stream_);
  std::vector<const std::byte*> found;
  for (int peer = 0; peer < size(); ++peer) {
    found.push_back(peer == rank() ? own : peers_.reach(peer, all[static_cast<size_t>(peer)]));
  }
  return found;
}

// Each rank copies its payload to where the others read it, and folds all payloads by itself.
void CudaDirect::one_shot(const Collective& asked) {
  const int64_t element = asked.element_size();
  const int64_t most = kPieceBytes / element;
  const auto* send = static_cast<const std::byte*>(asked.send);
  auto* recv = static_cast<std::byte*>(asked.recv);
  used_on(send, stream_);
  used_on(recv, stream_);
  int64_t first = 0;
  do {
    Piece piece{first, std::min(asked.request.count, first + most), {}, {recv + first * element}};
    const int64_t bytes = (piece.last - first) * element;
    std::byte* own = take_turn(bytes);
    copy(send + first * element, own, bytes);
    piece.sends = meet_in_turn(asked, own, 1);
    fold(asked, piece, first, piece.last);
    peers_.pass(stream_);
    group_.stop_touching();
    first = piece.last;
  } while (first < asked.request.count);
}

// Elements [skip, skip + length) of every block, as far as a block has them, in slots of as many.
struct CudaDirect::RingPiece {
  int64_t skip;
  int64_t length;
  int64_t slot_bytes;
};

// A piece is a part of each block, so that all ranks are at work on one at the same time.
void CudaDirect::ring(const Collective& asked) {
  used_on(asked.send, stream_);
  used_on(asked.recv, stream_);
  const auto partial =
      static_cast<int64_t>(kernels::partial_size(asked.request.dtype, asked.request.op));
  const int64_t width = std::max(partial, asked.element_size());
  const int64_t block = asked.blocks(size()).size;
  const int64_t length = std::min(kPieceBytes / size() / width / 64 * 64, block);
  int64_t skip = 0;
  do {
    ring_piece(asked, {skip, length, length * width});
    skip += length;
  } while (skip < block);
}

// In step s this rank, r, has to do with block r - 1 - s: in step 0 it lays down its input; in the
// n - 1 that follow it takes what the rank before left in the step before, adds its own, and leaves
// that for the next rank; in the last of them its own block is finished; in n - 1 more finished
// blocks are taken and left in the same way. What it leaves in step s lies in slot s modulo n: the
// next rank has read it in its step s + 1, and of that the step that comes to the slot again, s +
// n, is n - 1 ranks further around the ring.
void CudaDirect::ring_piece(const Collective& asked, const RingPiece& piece) {
  const int n = size();
  const int last = 2 * (n - 1);
  std::byte* own = take_turn(n * piece.slot_bytes);
  const auto slot = [&](int step) { return step % n * piece.slot_bytes; };
  ring_step(asked, piece, 0, nullptr, own);
  const std::byte* before = meet_in_turn(asked, own, last)[(rank() + n - 1) % n];
  for (int step = 1; step <= last; ++step) {
    if (step > 1) peers_.wait_for_before(stream_);
    ring_step(asked, piece, step, before + slot(step - 1), own + slot(step));
    step < last ? peers_.tell_next(stream_) : peers_.pass(stream_);
  }
  group_.stop_touching();
}

void CudaDirect::ring_step(const Collective& asked, const RingPiece& piece, int step,
                           const std::byte* from, std::byte* to) {
  const int n = size();
  const Blocks blocks = asked.blocks(n);
  const int block = (rank() - 1 - step + 2 * n) % n;
  const int64_t first = std::min(blocks.begin(block) + piece.skip, blocks.end(block));
  const int64_t count = std::min(piece.length, blocks.end(block) - first);
  if (count == 0) return;
  const int64_t element = asked.element_size();
  const std::byte* input = static_cast<const std::byte*>(asked.send) + first * element;
  std::byte* result = static_cast<std::byte*>(asked.recv) + first * element;
  const kernels::FoldSpec spec = asked.fold(n);
  if (step == 0) return launch<kernels::FoldBegin>(device_, spec, input, to, count);
  if (step < n - 1) return launch<kernels::FoldStep>(device_, spec, from, input, to, count);
  if (step == n - 1) {
    launch<kernels::FoldFinish>(device_, spec, from, input, result, count);
  } else {
    copy(from, result, count * element);
  }
  if (step < 2 * (n - 1)) copy(result, to, count * element);
}

}  // namespace lockstep::comm
