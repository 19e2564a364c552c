#include "lockstep/comm/cuda_peers.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/cuda/runtime.h"

namespace lockstep::comm {
namespace {

constexpr size_t kProbeBytes = 256;
constexpr size_t kPage = 4096;
// More than any tell(), and by less than half of what 64 bits count.
constexpr uint64_t kOver = uint64_t{1} << 62;
// How often a rank that leaves looks whether others have passed.
constexpr std::chrono::microseconds kLook{200};
// How long the end of a process may take.
constexpr std::chrono::milliseconds kDying{1000};

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

// The marks of the ranks in this process, by number: threads find each other's by these, and own
// them together, whichever of them goes first.
class CudaPeers::AllMarks {
 public:
  uint64_t add(const std::shared_ptr<Marks>& marks) {
    const std::lock_guard lock(mutex_);
    std::erase_if(marks_, [](const auto& one) { return one.second.expired(); });
    marks_[++numbers_] = marks;
    return numbers_;
  }
  // Null where its rank is gone.
  std::shared_ptr<Marks> find(uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = marks_.find(number);
    return found == marks_.end() ? nullptr : found->second.lock();
  }

  static AllMarks& of_process() {
    static auto* instance = new AllMarks;
    return *instance;
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<Marks>> marks_;
  uint64_t numbers_ = 0;
};

struct CudaPeers::Card {
  std::array<uint64_t, 2> process;
  uint64_t marks;  // their number in that process
  int64_t device;
  Place board;
  DevicePlace probe;
  bool exported;
  std::array<char, 200> why_not;  // exported
};

CudaPeers::CudaPeers(SharedGroup& group, Device device)
    : group_(group),
      rank_(group.rank()),
      device_(device),
      memory_(std::make_shared<SharedDeviceMemory>(device)),
      peers_(static_cast<size_t>(group.size())) {}

void CudaPeers::connect() {
  const Card mine = own_card();
  std::vector<Card> cards(peers_.size());
  group_.meet(telling(sizeof mine), &mine, sizeof mine, cards.data());
  // A rank that gives up now leaves its memory as it is until nobody maps it any more.
  group_.start_touching();
  try {
    know_all(cards);
  } catch (const std::exception& error) {
    why_not_ = error.what();
  }
  group_.stop_touching();
  agree();
  probe_ = nullptr;
  has_boards_ = apart_ && why_not_.empty();
}

CudaPeers::Card CudaPeers::own_card() {
  Card card = {};
  own().is_here = true;
  own().marks = std::make_shared<Marks>();
  for (int i = 0; i <= size(); ++i) {
    own().marks->of.emplace_back(device_, cuda::make_event(device_, false));
  }
  card.process = process_identity();
  card.marks = AllMarks::of_process().add(own().marks);
  card.device = device_.index;
  try {
    board_pages_ = group_.allocate(board_bytes());
    card.board = group_.place_of(board_pages_.get(), board_bytes());
    probe_ = memory_->allocate(kProbeBytes);
    card.probe = memory_->find(probe_.get(), kProbeBytes);
    card.exported = true;
  } catch (const Error& error) {
    // Some systems share nothing between processes; threads do not need it.
    std::string(error.what()).copy(card.why_not.data(), card.why_not.size() - 1);
  }
  return card;
}

void CudaPeers::know_all(const std::vector<Card>& cards) {
  for (int rank = 0; rank < size(); ++rank) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    peer.is_here = cards[static_cast<size_t>(rank)].process == process_identity();
    apart_ = apart_ || !peer.is_here;
  }
  for (int rank = 0; rank < size(); ++rank) know(rank, cards[static_cast<size_t>(rank)]);
  if (!apart_) return;
  check(cuda::has_words(device_), "connect", [&] {
    return concat("streams of ", device_.name(), " cannot wait for words of the host's memory");
  });
  memory_->set_is_mapped([words = own().board.words, pages = board_pages_, n = size()] {
    const Board board{words, nullptr};
    for (int rank = 0; rank < n; ++rank) {
      if (board.mapped(rank, n).load() != 0) return true;
    }
    return false;
  });
}

// Finds what this rank and another need to wait for each other, and sees whether its memory can be
// reached.
void CudaPeers::know(int rank, const Card& card) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (rank != rank_ && peer.is_here) {
    const Device theirs = {DeviceType::kCuda, static_cast<int>(card.device)};
    check(cuda::reach_peer(device_, theirs), "connect",
          [&] { return concat(device_.name(), " cannot reach the memory of ", theirs.name()); });
    peer.marks = AllMarks::of_process().find(card.marks);
    check(peer.marks != nullptr, "connect", [&] { return concat("rank ", rank, " gave up"); });
    return;
  }
  if (!apart_) return;
  check(card.exported, "connect",
        [&] { return concat("rank ", rank, " cannot share its memory: ", card.why_not.data()); });
  if (rank != rank_) cuda::import_memory(card.probe.handle, device_);
  void* pages = rank == rank_ ? board_pages_.get() : group_.reach(rank, card.board);
  peer.board.words = static_cast<Word*>(pages);
  peer.board.on_device = cuda::register_words(pages, board_bytes(), device_);
}

// One rank's reason is everybody's.
void CudaPeers::agree() {
  using Reason = std::array<char, 512>;
  Reason mine = {};
  why_not_.copy(mine.data(), mine.size() - 1);
  std::vector<Reason> all(peers_.size());
  group_.meet(telling(sizeof mine), &mine, sizeof mine, all.data());
  why_not_.clear();
  for (size_t rank = 0; rank < all.size() && why_not_.empty(); ++rank) {
    if (all[rank][0] != '\0') why_not_ = concat("rank ", rank, ": ", all[rank].data());
  }
}

size_t CudaPeers::board_bytes() const {
  return ((1 + 2 * peers_.size()) * sizeof(Word) + kPage - 1) / kPage * kPage;
}

DevicePlace CudaPeers::place_of(const void* data, size_t bytes) {
  if (apart_ && data != nullptr) return memory_->find(data, bytes);
  DevicePlace place;
  place.address = std::bit_cast<uintptr_t>(data);
  return place;
}

std::byte* CudaPeers::reach(int rank, const DevicePlace& place) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (peer.is_here) return std::bit_cast<std::byte*>(place.address);
  std::shared_ptr<void>& memory = mapped_[{rank, place.number}];
  if (memory == nullptr) {
    // In this order: its owner must not free it meanwhile.
    peer.is_mapped = true;
    peer.board.mapped(rank_, size()).store(1);
    try {
      memory = cuda::import_memory(place.handle, device_);
    } catch (const Error& error) {
      raise_if_dying(rank, error.op());
      throw;
    }
  }
  return static_cast<std::byte*>(memory.get()) + place.offset;
}

// In this process; other processes must be shown.
void CudaPeers::mark(const Stream& stream) {
  ++told_;
  cuda::record(own().marks->at(told_), stream);
}

void CudaPeers::show(const Stream& stream, int rank) {
  const Peer& peer = peers_[static_cast<size_t>(rank)];
  if (!has_boards_ || (rank != rank_ && peer.is_here)) return;
  cuda::set_word(peer.board.came_on_device(rank_), told_, stream);
}

void CudaPeers::wait_for(const Stream& stream, int rank) {
  const Peer& peer = peers_[static_cast<size_t>(rank)];
  if (peer.is_here) {
    stream.wait(peer.marks->at(told_));
  } else {
    cuda::wait_for_word(own().board.came_on_device(rank), told_, stream);
  }
}

// Of a rank whose memory cannot be mapped: a process that dies takes it along somewhat before it is
// known to be dead.
void CudaPeers::raise_if_dying(int rank, std::string_view op) {
  const Deadline deadline = deadline_after(kDying);
  while (!group_.is_dead(rank)) {
    if (Clock::now() >= deadline) return;
    std::this_thread::sleep_for(kLook);
  }
  throw Error(ErrorCode::kPeerLost, op,
              concat("rank ", rank, " died: its process ended without leaving the group"));
}

void CudaPeers::tell(const Stream& stream) {
  mark(stream);
  for (int rank = 0; rank < size(); ++rank) show(stream, rank);
}

void CudaPeers::wait(const Stream& stream) {
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != rank_) wait_for(stream, rank);
  }
}

void CudaPeers::tell_next(const Stream& stream) {
  mark(stream);
  show(stream, (rank_ + 1) % size());
  show(stream, rank_);
  group_.post_queued(told_);
}

void CudaPeers::wait_for_before(const Stream& stream) {
  const int before = (rank_ + size() - 1) % size();
  group_.await_queued(before, told_);
  wait_for(stream, before);
}

void CudaPeers::pass(const Stream& stream) {
  mark(stream);
  show(stream, rank_);
}

void CudaPeers::begin(uint64_t tells) {
  // Who leaves says so before it looks at these, and here it is the other way round.
  own().marks->begun.store(told_ + tells);
  if (has_boards_) own().board.begun().store(told_ + tells);
  group_.start_touching();
}

void CudaPeers::let_go() noexcept {
  if (!has_boards_) return;
  for (int rank = 0; rank < size(); ++rank) {
    if (!peers_[static_cast<size_t>(rank)].is_here) own().board.came(rank).store(kOver);
  }
}

void CudaPeers::end() noexcept {
  if (own().marks != nullptr) own().marks->begun.store(0);
  group_.stop_touching();
  if (!has_boards_) return;
  mapped_.clear();
  own().board.begun().store(0);
  for (int rank = 0; rank < size(); ++rank) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (peer.is_here) continue;
    if (std::exchange(peer.is_mapped, false)) peer.board.mapped(rank_, size()).store(0);
    if (group_.is_dead(rank)) own().board.mapped(rank, size()).store(0);
    // Its own stream has written that already, unless this device has failed. One that has left
    // waits for nothing, and may have given its board back.
    if (!group_.has_left(rank)) peer.board.came(rank_).store(kOver);
  }
}

bool CudaPeers::has_passed(int rank) {
  const Peer& peer = peers_[static_cast<size_t>(rank)];
  if (!peer.is_here) {
    return !has_boards_ || peer.board.came(rank).load() >= peer.board.begun().load() ||
           group_.is_dead(rank);
  }
  const uint64_t begun = peer.marks == nullptr ? 0 : peer.marks->begun.load();
  try {
    return begun == 0 || peer.marks->at(begun).done();
  } catch (...) {
    return true;  // the device has failed, and nothing is on its way any more
  }
}

bool CudaPeers::await_passed(Deadline deadline) noexcept {
  if (!group_.await_untouched(deadline)) return false;
  for (int rank = 0; rank < size(); ++rank) {
    while (rank != rank_ && !has_passed(rank)) {
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(kLook);
    }
  }
  return true;
}

void CudaPeers::keep(bool own_too) noexcept {
  memory_->keep();
  if (!own_too || !has_boards_) return;
  struct Kept {
    std::map<std::pair<int, uint64_t>, std::shared_ptr<void>> mapped;
    std::shared_ptr<void> board_pages;
    std::vector<Peer> peers;
  };
  static std::mutex mutex;
  static auto* kept = new std::vector<Kept>;  // never destroyed
  const std::lock_guard lock(mutex);
  kept->push_back({std::move(mapped_), board_pages_, peers_});
}

}  // namespace lockstep::comm
