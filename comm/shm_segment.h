#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/comm/shared_group.h"
#include "lockstep/comm/socket.h"

namespace lockstep::comm {

// The part of a rank's segment that all ranks map from the start; a staging area follows.
struct ShmHeader {
  static constexpr size_t kAllocations = 1024;
  struct Allocation {
    uint64_t offset;  // in the segment
    uint64_t bytes;   // 0: none
  };

  Member member;
  // By number; a Place is number + 1 in the upper 16 bits and the offset in the lower 48. An entry
  // is written before its owner first arrives with it.
  std::array<Allocation, kAllocations> allocations;
};

// Bytes of a segment mapped into this process.
class Mapping {
 public:
  Mapping() = default;
  // Throws kOutOfMemory.
  Mapping(int fd, uint64_t offset, size_t bytes);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// This rank's segment: a memfd that cannot shrink, far larger than any memory. Pages exist, and are
// reserved before they are touched, for what is in use alone, so that a full machine is an Error
// here and not a signal later. Thread-safe.
class ShmSegment : public std::enable_shared_from_this<ShmSegment> {
 public:
  explicit ShmSegment(size_t staging_bytes);

  const Fd& fd() const { return fd_; }
  ShmHeader& header() const { return *reinterpret_cast<ShmHeader*>(fixed_.data()); }
  std::byte* staging() const;

  std::shared_ptr<void> allocate(size_t bytes);
  // The Place of memory that allocate() gave; 0 where some of it is not from there.
  Place place_of(const void* data, size_t bytes);

 private:
  struct Block {
    size_t number;
    Mapping mapping;
  };
  void reserve(uint64_t offset, size_t bytes);
  uint64_t find_room(size_t bytes) const;
  void release(std::byte* data);

  Fd fd_;
  Mapping fixed_;
  uint64_t capacity_ = 0;
  std::mutex mutex_;
  std::map<uintptr_t, Block> blocks_;  // by address
};

// Another rank's segment.
class PeerSegment {
 public:
  PeerSegment() = default;
  // Throws kMismatch where the descriptor is not what a rank of this build would send.
  PeerSegment(Fd fd, size_t staging_bytes, int rank);

  ShmHeader& header() const { return *reinterpret_cast<ShmHeader*>(fixed_.data()); }
  std::byte* staging() const;
  // Maps what is not mapped yet. Throws kOutOfMemory, or kInternal for a place that is none.
  std::byte* reach(Place place);

 private:
  struct Known {
    uint64_t offset = 0;
    Mapping mapping;
  };

  Fd fd_;
  Mapping fixed_;
  std::vector<Known> known_;  // by the allocation's number
};

}  // namespace lockstep::comm
