// Large collectives of a SharedGroup: straight between the ranks' buffers where all of them can be
// mapped, otherwise by reading them (two_shot_read.cpp) or in chunks through the staging areas.

#include <algorithm>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "lockstep/comm/shared_await.h"
#include "lockstep/comm/shared_group.h"

namespace lockstep::comm {
namespace {

// Chunks of a staging area that are under way at once, for each of its parts.
constexpr int64_t kDepth = 4;
// Bytes of a part of a staging area. Smaller ones stay in the second-level cache, but ranks meet
// more often, which costs more: 1 MiB on 2 ranks took 84 us with 128 KiB, 66 with 256 and 57 with
// 512.
constexpr int64_t kPartBytes = int64_t{512} << 10;
// After this much work on others' buffers a rank looks whether somebody has left.
constexpr int64_t kLookBytes = int64_t{256} << 10;

int64_t align_down(int64_t bytes) { return bytes / 64 * 64; }

// Whether `rank`'s recv is written by those who fold, and not by itself alone.
bool written_by_others(const Collective& collective, int rank) {
  const Kind kind = collective.request.kind;
  return kind == Kind::kAllReduce || (kind == Kind::kReduce && collective.takes(rank));
}

}  // namespace

// Meetings of the staged way: one for each step, and those that fill and empty the pipeline.
double SharedGroup::staged_meetings(size_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(kPartBytes) + 3;
}

// A staging area has kDepth slots, each with one part for every block of a chunk (what this rank
// hands over for others to fold) and one part for results.
size_t SharedGroup::chunk_bytes(int size) {
  return static_cast<size_t>(kDepth * 2 * std::max<int64_t>(kPartBytes, 4096 * size));
}

// How a collective is cut into steps through the staging areas.
struct SharedGroup::Staging {
  Blocks blocks;
  bool scatters = false;  // blocks are handed over and folded
  bool gathers = false;   // results are copied out, by those who take them
  bool broadcasts = false;
  int64_t part = 0;   // bytes of half a slot
  int64_t inner = 0;  // bytes of one block's part of a chunk that is handed over
  int64_t chunk = 0;  // elements of a block in one step
  int64_t steps = 0;

  std::byte* handed(std::byte* staging, uint64_t step, int block) const {
    return staging + static_cast<int64_t>(step % kDepth) * 2 * part + block * inner;
  }
  std::byte* result(std::byte* staging, uint64_t step) const {
    return staging + static_cast<int64_t>(step % kDepth) * 2 * part + part;
  }
  int64_t first(int block, int64_t step) const {
    return std::min(blocks.end(block), blocks.begin(block) + step * chunk);
  }
  int64_t length(int block, int64_t step) const {
    return std::min(chunk, blocks.end(block) - first(block, step));
  }
};

bool SharedGroup::all_mapped(const Collective& collective) {
  const auto mapped = [](Place place) { return (place & kForeign) == 0; };
  for (int peer = 0; peer < size(); ++peer) {
    const Places theirs = told_places(peer);
    if (collective.gives(peer) && !mapped(theirs.send)) return false;
    if (written_by_others(collective, peer) && !mapped(theirs.recv)) return false;
  }
  return true;
}

void SharedGroup::two_shot(const Collective& collective) {
  const bool moves = collective.request.count != 0 && collective.request.kind != Kind::kBarrier;
  arrive(collective, nullptr, 0, moves ? places_of(collective) : Places{});
  if (!moves) return;
  // The same on every rank: all see the same places.
  const auto bytes = static_cast<size_t>(collective.send_bytes(size()));
  if (all_mapped(collective)) {
    direct(collective);
  } else if (collective.request.kind != Kind::kReduce && prefers_reading(bytes)) {
    read(collective);  // into recv, which every rank must have
  } else {
    staged(collective);
  }
}

bool SharedGroup::somebody_left() const {
  for (const Peer& peer : peers_) {
    if (peer.member->left.load() != 0) return true;
  }
  return cancelled_.load();
}

// Every rank reads its block from all ranks' buffers, folds it, and writes it to all ranks'
// buffers; or copies what it needs. Then it waits until all have finished with its own buffers.
void SharedGroup::direct(const Collective& collective) {
  const int64_t element = collective.element_size();
  const Blocks blocks = collective.blocks(size());
  const kernels::FoldSpec spec = collective.fold(size());
  const Kind kind = collective.request.kind;
  const auto send_of = [&](int peer) -> const std::byte* {
    if (peer == rank()) return static_cast<const std::byte*>(collective.send);
    return reach(peer, arrival(peer).send);
  };
  absl::InlinedVector<const std::byte*, kFewRanks> sends(size());
  for (int peer = 0; peer < size(); ++peer) {
    if (collective.gives(peer)) sends[peer] = send_of(peer);
  }
  auto* recv = static_cast<std::byte*>(collective.recv);
  absl::InlinedVector<std::byte*, kFewRanks> outputs(size());
  size_t written = 0;  // of outputs
  if (collective.takes(rank())) outputs[written++] = recv;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && written_by_others(collective, peer)) {
      outputs[written++] = reach(peer, arrival(peer).recv);
    }
  }

  // From here to the end of the loop nobody who leaves may free a buffer: they look at `touching`
  // after they set `left`, and here it is the other way round.
  self().touching.store(1);
  bool left = somebody_left();
  // In pieces, piece by piece from each rank.
  const auto copy_from = [&](int peer, std::byte* to, int64_t bytes) {
    if (to == sends[peer]) return;
    for (int64_t at = 0; at < bytes && !left; at += kLookBytes) {
      std::memcpy(to + at, sends[peer] + at, std::min(kLookBytes, bytes - at));
      left = somebody_left();
    }
  };
  if (collective.folds()) {
    const int64_t begin = blocks.begin(rank());
    const int64_t end = blocks.end(rank());
    const int64_t look = kLookBytes / element;
    const int64_t base = kind == Kind::kReduceScatter ? begin : 0;
    absl::InlinedVector<void*, kFewRanks> targets(written);
    for (int64_t at = begin; at < end && !left; at += look) {
      for (int i = 0; i < size(); ++i) sources_[i] = sends[blocks.order(rank(), i)] + at * element;
      for (size_t i = 0; i < written; ++i) targets[i] = outputs[i] + (at - base) * element;
      kernels::Fold::cpu(spec, sources_.data(), targets.data(), static_cast<int>(targets.size()),
                         std::min(look, end - at));
      left = somebody_left();
    }
  } else if (collective.gathers()) {
    const int64_t bytes = blocks.size * element;
    for (int i = 0; i < size(); ++i) {
      const int peer = (rank() + i) % size();
      copy_from(peer, recv + peer * bytes, bytes);
    }
  } else {
    copy_from(collective.request.root, recv, collective.request.count * element);
  }
  self().touching.store(0);

  if (!left) store_before_await(self().done.value, round_);
  await([&](int peer) { return !left && peers_[peer].member->done.value.load() >= round_; });
}

void SharedGroup::staged(const Collective& collective) {
  const Kind kind = collective.request.kind;
  const int64_t element = collective.element_size();
  Staging staging;
  staging.blocks = collective.blocks(size());
  staging.scatters = collective.folds();
  staging.gathers = kind != Kind::kReduceScatter;
  staging.broadcasts = kind == Kind::kBroadcast;
  staging.part = static_cast<int64_t>(chunk_bytes(size())) / kDepth / 2;
  staging.inner = align_down(staging.scatters ? staging.part / size() : staging.part);
  staging.chunk = staging.inner / element;
  staging.steps = (staging.blocks.size + staging.chunk - 1) / staging.chunk;
  if (collective.gathers()) {
    auto* own = static_cast<std::byte*>(collective.recv) + staging.blocks.begin(rank()) * element;
    const auto bytes = static_cast<size_t>(staging.blocks.size * element);
    if (own != collective.send) std::memcpy(own, collective.send, bytes);
  }
  const bool copies = staging.gathers && collective.takes(rank());
  // Each step's parts are one behind the other, so that the others have done theirs when they are
  // needed.
  for (int64_t step = 0; step < staging.steps + 2; ++step) {
    if (staging.scatters && step < staging.steps) stage(collective, staging, step);
    if (step >= 1 && step - 1 < staging.steps) fold(collective, staging, step - 1);
    if (copies && step >= 2) copy(collective, staging, step - 2);
  }
  chunks_ += static_cast<uint64_t>(staging.steps);
  // What this collective left out counts as done.
  if (!staging.scatters) post(self().staged, chunks_);
  if (!copies) post(self().copied, chunks_);
}

// Hands the others their blocks' next chunk.
void SharedGroup::stage(const Collective& collective, const Staging& staging, int64_t step) {
  const uint64_t at = chunks_ + static_cast<uint64_t>(step);
  const int64_t element = collective.element_size();
  await([&](int peer) { return peers_[peer].member->folded.value.load() + kDepth > at; });
  for (int i = 1; i < size(); ++i) {
    const int block = (rank() + i) % size();
    std::memcpy(
        staging.handed(peers_[rank()].staging, at, block),
        static_cast<const std::byte*>(collective.send) + staging.first(block, step) * element,
        staging.length(block, step) * element);
  }
  post(self().staged, at + 1);
}

// Folds this rank's block of a chunk, into recv and for the others; or, where nothing is folded,
// puts this rank's own data there.
void SharedGroup::fold(const Collective& collective, const Staging& staging, int64_t step) {
  const uint64_t at = chunks_ + static_cast<uint64_t>(step);
  const int64_t element = collective.element_size();
  auto* recv = static_cast<std::byte*>(collective.recv);
  const auto* send = static_cast<const std::byte*>(collective.send);
  std::byte* result = staging.result(peers_[rank()].staging, at);
  await([&](int peer) {
    const Member& member = *peers_[peer].member;
    return (!staging.scatters || member.staged.value.load() > at) &&
           (!staging.gathers || !collective.takes(peer) ||
            member.copied.value.load() + kDepth > at);
  });
  const int own = staging.broadcasts ? 0 : rank();
  const int64_t first = staging.first(own, step);
  const int64_t length = staging.length(own, step);
  if (staging.scatters) {
    for (int i = 0; i < size(); ++i) {
      const int peer = staging.blocks.order(rank(), i);
      sources_[i] = peer == rank() ? send + first * element
                                   : staging.handed(peers_[peer].staging, at, rank());
    }
    const int64_t base = staging.gathers ? 0 : staging.blocks.begin(rank());
    absl::InlinedVector<void*, 2> outputs;
    if (collective.takes(rank())) outputs.push_back(recv + (first - base) * element);
    if (staging.gathers) outputs.push_back(result);
    kernels::Fold::cpu(collective.fold(size()), sources_.data(), outputs.data(),
                       static_cast<int>(outputs.size()), length);
  } else if (!staging.broadcasts || collective.request.root == rank()) {
    std::memcpy(result, send + (first - staging.blocks.begin(own)) * element, length * element);
  }
  post(self().folded, at + 1);
}

// Takes the others' results of a chunk.
void SharedGroup::copy(const Collective& collective, const Staging& staging, int64_t step) {
  const uint64_t at = chunks_ + static_cast<uint64_t>(step);
  const int64_t element = collective.element_size();
  auto* recv = static_cast<std::byte*>(collective.recv);
  await([&](int peer) { return peers_[peer].member->folded.value.load() > at; });
  for (int i = 1; i < size(); ++i) {
    const int peer = (rank() + i) % size();
    if (staging.broadcasts && peer != collective.request.root) continue;
    const int block = staging.broadcasts ? 0 : peer;
    std::memcpy(recv + staging.first(block, step) * element,
                staging.result(peers_[peer].staging, at), staging.length(block, step) * element);
  }
  post(self().copied, at + 1);
}

}  // namespace lockstep::comm
