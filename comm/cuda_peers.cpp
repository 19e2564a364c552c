#include "lockstep/comm/cuda_peers.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <random>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/memory.h"

namespace lockstep::comm {
namespace {

constexpr size_t kProbeBytes = 256;

// The same in the threads of a process alone; a child that was forked has another.
std::array<uint64_t, 2> process_identity() {
  static const uint64_t random = [] {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }();
  return {random, static_cast<uint64_t>(getpid())};
}

// What all ranks tell each other while the group is made.
Collective telling(size_t bytes) {
  return {{Kind::kSplit, DType::kU8, kernels::FoldOp::kSum, Algorithm::kAuto, 0,
           static_cast<int64_t>(bytes)}};
}

}  // namespace

SharedDeviceMemory::~SharedDeviceMemory() {
  const Stream own(device_);
  for (const auto& [address, block] : blocks_) {
    try {
      own.wait(block.let_go);
    } catch (...) {
      // The device has failed, and nothing uses the block any more.
    }
    cuda::free_memory(device_, std::bit_cast<void*>(address), own);
  }
}

std::shared_ptr<void> SharedDeviceMemory::allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  const Stream stream = current_stream(device_);
  const std::lock_guard lock(mutex_);
  // The smallest that is large enough, and not twice as large.
  auto best = blocks_.end();
  for (auto it = blocks_.begin(); it != blocks_.end(); ++it) {
    const Block& block = it->second;
    const bool fits = !block.in_use && block.bytes >= bytes && block.bytes / 2 < bytes;
    if (fits && (best == blocks_.end() || block.bytes < best->second.bytes)) best = it;
  }
  if (best == blocks_.end()) {
    void* memory = cuda::take_memory(device_, bytes);
    if (memory == nullptr) {
      empty_cache(device_);  // what lockstep::allocate() keeps is free too
      memory = cuda::take_memory(device_, bytes);
    }
    if (memory == nullptr) {
      throw Error(ErrorCode::kOutOfMemory, "allocate",
                  concat("want ", bytes, " bytes on ", device_.name(),
                         " that other ranks can reach, but it has no more"));
    }
    best = blocks_.emplace(std::bit_cast<uintptr_t>(memory), Block{bytes, ++numbers_}).first;
  }
  Block& block = best->second;
  void* memory = std::bit_cast<void*>(best->first);
  stream.wait(block.let_go);
  cuda::set_zero(memory, block.bytes, stream);
  block.in_use = true;
  return {memory, [all = shared_from_this()](void* gone) { all->release(gone); }};
}

void SharedDeviceMemory::release(void* memory) {
  const std::lock_guard lock(mutex_);
  Block& block = blocks_.find(std::bit_cast<uintptr_t>(memory))->second;
  block.in_use = false;
  try {
    block.let_go = current_stream(device_).record();
  } catch (...) {
    // The device has failed, which its next user will be told.
  }
}

DevicePlace SharedDeviceMemory::find(const void* data, size_t bytes) {
  const auto address = std::bit_cast<uintptr_t>(data);
  DevicePlace place;
  place.address = address;
  const std::lock_guard lock(mutex_);
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return place;
  auto& [begin, block] = *--after;
  const uintptr_t offset = address - begin;
  if (offset > block.bytes || bytes > block.bytes - offset) return place;
  if (!block.handle) block.handle = cuda::export_memory(std::bit_cast<void*>(begin), device_);
  place.number = block.number;
  place.offset = offset;
  place.handle = *block.handle;
  return place;
}

struct CudaPeers::Card {
  std::array<uint64_t, 2> process;
  int64_t device;
  const Event* ready;
  const Event* done;
  cuda::IpcHandle ready_handle;
  cuda::IpcHandle done_handle;
  DevicePlace probe;
  bool exported;
  std::array<char, 200> why_not;  // exported
};

CudaPeers::CudaPeers(SharedGroup& group, Device device)
    : rank_(group.rank()),
      device_(device),
      memory_(std::make_shared<SharedDeviceMemory>(device)),
      peers_(static_cast<size_t>(group.size())) {
  const Card own = own_card();
  std::vector<Card> cards(peers_.size());
  group.meet(telling(sizeof own), &own, sizeof own, cards.data());
  try {
    for (int rank = 0; rank < group.size(); ++rank) know(rank, cards[static_cast<size_t>(rank)]);
  } catch (const Error& error) {
    why_not_ = error.what();
  }
  agree(group);
  probe_.reset();
}

CudaPeers::Card CudaPeers::own_card() {
  Card card = {};
  Peer& own = peers_[static_cast<size_t>(rank_)];
  own.is_here = true;
  card.process = process_identity();
  card.device = device_.index;
  try {
    own.ready = cuda::make_shared_event(device_);
    own.done = cuda::make_shared_event(device_);
    card.ready_handle = cuda::export_event(own.ready);
    card.done_handle = cuda::export_event(own.done);
    probe_ = memory_->allocate(kProbeBytes);
    card.probe = memory_->find(probe_.get(), kProbeBytes);
    card.exported = true;
  } catch (const Error& error) {
    // Some systems share nothing between processes; threads do not need it.
    own.ready = {device_, cuda::make_event(device_, false)};
    own.done = {device_, cuda::make_event(device_, false)};
    std::string(error.what()).copy(card.why_not.data(), card.why_not.size() - 1);
  }
  card.ready = &own.ready;
  card.done = &own.done;
  return card;
}

// Finds the events of another rank, and sees whether its memory can be reached.
void CudaPeers::know(int rank, const Card& card) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.is_here = card.process == process_identity();
  apart_ = apart_ || !peer.is_here;
  if (rank == rank_) return;
  if (peer.is_here) {
    const Device theirs = {DeviceType::kCuda, static_cast<int>(card.device)};
    check(cuda::reach_peer(device_, theirs), "connect",
          [&] { return concat(device_.name(), " cannot reach the memory of ", theirs.name()); });
    peer.ready = *card.ready;
    peer.done = *card.done;
    return;
  }
  check(card.exported, "connect",
        [&] { return concat("rank ", rank, " cannot share its memory: ", card.why_not.data()); });
  peer.ready = cuda::import_event(card.ready_handle, device_);
  peer.done = cuda::import_event(card.done_handle, device_);
  cuda::import_memory(card.probe.handle, device_);
}

// One rank's reason is everybody's.
void CudaPeers::agree(SharedGroup& group) {
  using Reason = std::array<char, 512>;
  Reason mine = {};
  why_not_.copy(mine.data(), mine.size() - 1);
  std::vector<Reason> all(peers_.size());
  group.meet(telling(sizeof mine), &mine, sizeof mine, all.data());
  why_not_.clear();
  for (size_t rank = 0; rank < all.size() && why_not_.empty(); ++rank) {
    if (all[rank][0] != '\0') why_not_ = concat("rank ", rank, ": ", all[rank].data());
  }
}

DevicePlace CudaPeers::place_of(const void* data, size_t bytes) {
  if (apart_ && data != nullptr) return memory_->find(data, bytes);
  DevicePlace place;
  place.address = std::bit_cast<uintptr_t>(data);
  return place;
}

std::byte* CudaPeers::reach(int rank, const DevicePlace& place) {
  if (peers_[static_cast<size_t>(rank)].is_here) return std::bit_cast<std::byte*>(place.address);
  std::shared_ptr<void>& memory = mapped_[{rank, place.number}];
  if (memory == nullptr) memory = cuda::import_memory(place.handle, device_);
  return static_cast<std::byte*>(memory.get()) + place.offset;
}

void CudaPeers::let_go() noexcept {
  try {
    // What was recorded last counts, and this comes at once.
    const Stream free = Stream::create(device_);
    for (const Peer& peer : peers_) {
      if (peer.is_here) continue;
      cuda::record(peer.ready, free);
      cuda::record(peer.done, free);
    }
  } catch (...) {
    // The device has failed: nothing waits on it any more.
  }
}

}  // namespace lockstep::comm
