#include "lockstep/comm/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kOp = "allocate";
constexpr uint64_t kCapacity = uint64_t{1} << 44;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr int kOffsetBits = 48;

uint64_t round_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

size_t fixed_bytes(size_t staging_bytes) {
  return round_up(sizeof(ShmHeader), kPage) + round_up(staging_bytes, kPage);
}

}  // namespace

Mapping::Mapping(int fd, uint64_t offset, size_t bytes) : bytes_(bytes) {
  void* data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (data == MAP_FAILED) {
    throw Error(ErrorCode::kOutOfMemory, kOp,
                concat("cannot map ", bytes, " bytes of shared memory: ", std::strerror(errno),
                       "; see ulimit -v"));
  }
  madvise(data, bytes, MADV_HUGEPAGE);  // where the system has huge pages for shared memory
  data_ = static_cast<std::byte*>(data);
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

ShmSegment::ShmSegment(size_t staging_bytes)
    : fd_(memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  if (!fd_) {
    throw Error(ErrorCode::kIo, kOp, concat("memfd_create: ", std::strerror(errno)));
  }
  // A file beyond the limit would be a signal.
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  capacity_ = std::min<uint64_t>(kCapacity, limit.rlim_cur) / kPage * kPage;
  const size_t fixed = fixed_bytes(staging_bytes);
  check(capacity_ > fixed, kOp, [&] {
    return concat("the file size limit of ", capacity_, " bytes leaves no room for shared memory; ",
                  "see ulimit -f");
  });
  if (ftruncate(fd_.get(), static_cast<off_t>(capacity_)) != 0 ||
      fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw Error(ErrorCode::kIo, kOp, concat("cannot set up shared memory: ", std::strerror(errno)));
  }
  reserve(0, fixed);
  fixed_ = Mapping(fd_.get(), 0, fixed);
}

std::byte* ShmSegment::staging() const {
  return fixed_.data() + round_up(sizeof(ShmHeader), kPage);
}

void ShmSegment::reserve(uint64_t offset, size_t bytes) {
  int result = 0;
  do {
    result = fallocate(fd_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    throw Error(ErrorCode::kOutOfMemory, kOp,
                concat("the system gave no ", bytes, " bytes of shared memory: ",
                       std::strerror(errno), "; see the memory limit of this container"));
  }
}

// The first gap between what is in use. REQUIRES: locked.
uint64_t ShmSegment::find_room(size_t bytes) const {
  std::vector<std::pair<uint64_t, uint64_t>> used;
  for (const auto& [address, block] : blocks_) {
    const ShmHeader::Allocation& allocation = header().allocations[block.number];
    used.emplace_back(allocation.offset, allocation.bytes);
  }
  std::sort(used.begin(), used.end());
  uint64_t offset = round_up(fixed_.bytes(), kHugePage);
  for (const auto& [begin, length] : used) {
    if (begin - offset >= bytes) break;
    offset = round_up(begin + length, kHugePage);
  }
  return offset;
}

std::shared_ptr<void> ShmSegment::allocate(size_t wanted) {
  if (wanted == 0) return nullptr;
  check(wanted <= capacity_, kOp, [&] {
    return concat("want at most ", capacity_, " bytes of shared memory, got ", wanted);
  });
  const size_t bytes = round_up(wanted, kPage);
  const std::lock_guard lock(mutex_);
  auto& allocations = header().allocations;
  size_t number = 0;
  while (number < allocations.size() && allocations[number].bytes != 0) ++number;
  check(number < allocations.size(), kOp, [&] {
    return concat("a communicator has at most ", allocations.size(),
                  " buffers at a time: make fewer and larger ones");
  });
  const uint64_t offset = find_room(bytes);
  if (offset > capacity_ - bytes) {
    throw Error(ErrorCode::kOutOfMemory, kOp,
                concat("no room for ", bytes, " bytes in a segment of ", capacity_));
  }
  reserve(offset, bytes);
  Mapping mapping(fd_.get(), offset, bytes);
  std::byte* data = mapping.data();
  allocations[number] = {offset, bytes};
  blocks_.emplace(reinterpret_cast<uintptr_t>(data), Block{number, std::move(mapping)});
  return {data, [segment = shared_from_this()](void* freed) {
            segment->release(static_cast<std::byte*>(freed));
          }};
}

void ShmSegment::release(std::byte* data) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(reinterpret_cast<uintptr_t>(data));
  ShmHeader::Allocation& allocation = header().allocations[block->second.number];
  // Gives the pages back although other ranks may still map them.
  fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            static_cast<off_t>(allocation.offset), static_cast<off_t>(allocation.bytes));
  allocation = {0, 0};
  blocks_.erase(block);
}

Place ShmSegment::place_of(const void* data, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const std::lock_guard lock(mutex_);
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return 0;
  const auto& [begin, block] = *--after;
  const uintptr_t offset = address - begin;
  if (offset > block.mapping.bytes() || bytes > block.mapping.bytes() - offset) return 0;
  return (static_cast<Place>(block.number + 1) << kOffsetBits) | offset;
}

PeerSegment::PeerSegment(Fd fd, size_t staging_bytes, int rank)
    : fd_(std::move(fd)), known_(ShmHeader::kAllocations) {
  struct stat status {};
  const int seals = fcntl(fd_.get(), F_GET_SEALS);
  const size_t fixed = fixed_bytes(staging_bytes);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd_.get(), &status) != 0 ||
      static_cast<uint64_t>(status.st_size) < fixed) {
    throw Error(ErrorCode::kMismatch, "connect",
                concat("rank ", rank, " sent a descriptor that is not a segment of this build"));
  }
  fixed_ = Mapping(fd_.get(), 0, fixed);
}

std::byte* PeerSegment::staging() const {
  return fixed_.data() + round_up(sizeof(ShmHeader), kPage);
}

std::byte* PeerSegment::reach(Place place) {
  const uint64_t number = (place >> kOffsetBits) - 1;
  const uint64_t offset = place & ((uint64_t{1} << kOffsetBits) - 1);
  const bool numbered = number < known_.size();
  const ShmHeader::Allocation allocation =
      numbered ? header().allocations[number] : ShmHeader::Allocation{};
  if (offset >= allocation.bytes || allocation.bytes > kCapacity ||
      allocation.offset > kCapacity - allocation.bytes) {
    throw Error(ErrorCode::kInternal, kOp, "a rank named a buffer that it does not have");
  }
  Known& known = known_[number];
  // The same pages of the file are the same memory, whatever was freed and made meanwhile.
  if (known.offset != allocation.offset || known.mapping.bytes() != allocation.bytes) {
    known.mapping = Mapping();
    known.mapping = Mapping(fd_.get(), allocation.offset, allocation.bytes);
    known.offset = allocation.offset;
  }
  return known.mapping.data() + offset;
}

}  // namespace lockstep::comm
