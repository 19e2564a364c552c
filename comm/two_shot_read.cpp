// Two-shot for memory that others cannot map but can read: each rank reads its block of the others'
// buffers, folds it into its own, and reads the other blocks' results out of theirs.

#include <algorithm>
#include <cstring>

#include "lockstep/comm/shared_await.h"
#include "lockstep/comm/shared_group.h"

namespace lockstep::comm {
namespace {

// What was read waits in a cache until it is folded: so many bytes of all others. Where ranks share
// cores, fewer calls gain more than a nearer cache: 1 MiB on 4 ranks and 2 cores takes 600 us
// instead of 760.
constexpr int64_t kReadBytes = int64_t{512} << 10;
constexpr int64_t kReadBytesCrowded = int64_t{1536} << 10;
// A call costs about as much as 16 KiB that it reads.
constexpr int64_t kLeastBytes = int64_t{16} << 10;

}  // namespace

// Bytes of one rank's block that are read at once. The same on every rank: steps are counted.
int64_t SharedGroup::read_chunk() const {
  const int64_t all = crowded_ ? kReadBytesCrowded : kReadBytes;
  return std::max(kLeastBytes, all / (size() - 1));
}

// Reads of other ranks' memory that an all-reduce takes.
double SharedGroup::read_calls(size_t bytes) const {
  const double block = static_cast<double>(bytes) / size();
  return 2 * (size() - 1) * (block / static_cast<double>(read_chunk()) + 1);
}

// In steps of a chunk of a block. A chunk's results are read one step after they are folded, while
// they are in a cache; where ranks share cores, after all are folded, since each meeting then costs
// a change of threads.
void SharedGroup::read(const Collective& collective) {
  const int64_t element = collective.element_size();
  const Blocks blocks = collective.blocks(size());
  const Request& request = collective.request;
  const bool folds = collective.folds();
  const bool gathers = request.kind != Kind::kReduceScatter;
  auto* recv = static_cast<std::byte*>(collective.recv);
  const int64_t chunk = read_chunk() / element;
  const int64_t steps = (blocks.size + chunk - 1) / chunk;
  const auto begin = [&](int block, int64_t step) {
    return std::min(blocks.end(block), blocks.begin(block) + step * chunk);
  };
  bool left = false;
  const auto fold = [&](int64_t step) {
    left = !read_fold(collective, begin(rank(), step), begin(rank(), step + 1));
    if (!left) post(self().folded, chunks_ + static_cast<uint64_t>(step) + 1);
  };
  const auto gather = [&](int64_t step) {
    for (int i = 1; i < size() && !left; ++i) {
      const int peer = (rank() + i) % size();
      const bool broadcast = request.kind == Kind::kBroadcast;
      if (broadcast && peer != request.root) continue;
      if (folds) {
        const uint64_t at = chunks_ + static_cast<uint64_t>(step);
        await([&](int of) { return of != peer || peers_[of].member->folded.value.load() > at; });
      }
      const int block = broadcast ? 0 : peer;
      const int64_t first = begin(block, step);
      // Folded results are in the others' recv; without a fold their own elements are in send.
      const int64_t base = folds ? 0 : blocks.begin(block);
      const Arrival& theirs = arrival(peer);
      left = !read_part(peer, folds ? theirs.recv : theirs.send, (first - base) * element,
                        recv + first * element, (begin(block, step + 1) - first) * element);
    }
  };
  if (collective.gathers()) {
    std::byte* own = recv + blocks.begin(rank()) * element;
    if (own != collective.send) std::memcpy(own, collective.send, blocks.size * element);
  }
  const int64_t lag = !folds ? 0 : crowded_ ? steps : 1;
  for (int64_t step = 0; step < steps + lag && !left; ++step) {
    if (folds && step < steps) fold(step);
    if (gathers && step >= lag && !left) gather(step - lag);
  }
  chunks_ += static_cast<uint64_t>(steps);
  // What this collective left out counts as done.
  post(self().staged, chunks_);
  post(self().folded, chunks_);
  post(self().copied, chunks_);
  if (!left) store_before_await(self().done.value, round_);
  await([&](int peer) { return !left && peers_[peer].member->done.value.load() >= round_; });
}

// Elements [first, last) of this rank's block: from all ranks into recv. False where somebody has
// left.
bool SharedGroup::read_fold(const Collective& collective, int64_t first, int64_t last) {
  const int64_t element = collective.element_size();
  const int64_t bytes = (last - first) * element;
  const Blocks blocks = collective.blocks(size());
  read_.resize(read_chunk() * (size() - 1));
  std::byte* room = read_.data();
  for (int i = 0; i < size(); ++i) {
    const int peer = blocks.order(rank(), i);
    if (peer == rank()) {
      sources_[i] = static_cast<const std::byte*>(collective.send) + first * element;
      continue;
    }
    if (!read_part(peer, arrival(peer).send, first * element, room, bytes)) return false;
    sources_[i] = room;
    room += bytes;
  }
  const int64_t base = collective.request.kind == Kind::kReduceScatter ? blocks.begin(rank()) : 0;
  void* output = static_cast<std::byte*>(collective.recv) + (first - base) * element;
  kernels::Fold::cpu(collective.fold(size()), sources_.data(), &output, 1, last - first);
  return true;
}

// Bytes of a peer's buffer; false where somebody has left, so that they may not be there any more.
bool SharedGroup::read_part(int peer, Place place, int64_t offset, std::byte* to, int64_t bytes) {
  if (bytes == 0) return true;
  // Whoever leaves looks at `touching` after it set `left`; here it is the other way round.
  self().touching.store(1);
  bool there = !somebody_left();
  try {
    if (there && (place & kForeign) != 0) {
      const uint64_t address = (place & ~kForeign) + static_cast<uint64_t>(offset);
      there = read_peer(peer, address, to, static_cast<size_t>(bytes));
    } else if (there) {
      std::memcpy(to, reach(peer, place) + offset, bytes);
    }
  } catch (...) {
    self().touching.store(0);
    throw;
  }
  self().touching.store(0);
  return there;
}

}  // namespace lockstep::comm
