// The same bits on every transport and by every algorithm, for every dtype and op: those that the
// order of the ring gives, computed element by element.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <stdexcept>
#include <tuple>

#include "collective_cases.h"
#include "lockstep/comm/communicator.h"

namespace lockstep::comm {
namespace {

class Bits : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, Bits, ::testing::Range(2, 8));

TEST_P(Bits, AreTheSameOnEveryPathForEveryDTypeAndOp) {
  const int size = GetParam();
  // In one message, in several, and for some ranks none; the last is beyond one shot everywhere.
  const std::vector<int64_t> counts =
      kSanitized ? std::vector<int64_t>{67, 1021} : std::vector<int64_t>{1, 1021, 17011};
  std::map<std::tuple<DType, ReduceOp, int64_t>, Bytes> wants;
  for (const DType dtype : kAllDTypes) {
    for (const ReduceOp op : ops_of(dtype)) {
      for (const int64_t count : counts) {
        wants[{dtype, op, count}] = folded_inputs(dtype, op, Blocks::of_all(count, size));
      }
    }
  }
  for (const Path& path : all_paths()) {
    SCOPED_TRACE(path_name(path));
    const auto fold_all = [&](Communicator& comm) {
      for (const auto& [key, want] : wants) {
        const auto& [dtype, op, count] = key;
        const Bytes send = input_of(dtype, comm.rank(), count);
        Bytes recv(send.size(), std::byte{0x5a});
        comm.all_reduce(send.data(), recv.data(), count, dtype, op).wait();
        ASSERT_EQ(recv, want) << name(dtype) << " " << kernels::name(op) << " " << count;
        recv = send;
        comm.all_reduce(recv.data(), recv.data(), count, dtype, op).wait();
        ASSERT_EQ(recv, want) << "in place " << name(dtype) << " " << kernels::name(op) << " "
                              << count;
        const int root = static_cast<int>(count) % size;
        recv = send;
        comm.reduce(recv.data(), recv.data(), count, dtype, op, root).wait();
        ASSERT_EQ(recv, comm.rank() == root ? want : send)
            << "to one " << name(dtype) << " " << kernels::name(op) << " " << count;
      }
    };
    run_ranks(size, fold_all, options_of(path));
  }
}

// More than 2^31 bytes of addresses with few pages behind them: the same window again and again,
// and behind 2^31 a tail of its own.
class LongBuffer {
 public:
  static constexpr size_t kWindow = size_t{16} << 20;
  static constexpr size_t kHead = size_t{1} << 31;
  static constexpr size_t kTail = 12345;

  LongBuffer() : fd_(memfd_create("long_buffer", MFD_CLOEXEC)) {
    void* all = mmap(nullptr, kHead + kTail, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bool mapped = fd_ >= 0 && all != MAP_FAILED && ftruncate(fd_, kWindow) == 0;
    for (size_t at = 0; mapped && at < kHead; at += kWindow) {
      mapped = mmap(static_cast<std::byte*>(all) + at, kWindow, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED, fd_, 0) != MAP_FAILED;
    }
    if (!mapped) throw std::runtime_error("no memory for a long buffer");
    data_ = static_cast<uint8_t*>(all);
  }
  ~LongBuffer() {
    munmap(data_, kHead + kTail);
    close(fd_);
  }
  LongBuffer(const LongBuffer&) = delete;
  LongBuffer& operator=(const LongBuffer&) = delete;

  uint8_t* window() { return data_; }
  uint8_t* tail() { return data_ + kHead; }

 private:
  int fd_;
  uint8_t* data_ = nullptr;
};

// Counts have 64 bits everywhere: what does not fit 32 arrives whole.
TEST(Counts, MoreThanTwoToThe31ElementsArrive) {
  const Bytes window = input_of(DType::kU8, 0, LongBuffer::kWindow);
  const Bytes tail = input_of(DType::kU8, 1, LongBuffer::kTail);
  const auto broadcast = [&](Communicator& comm) {
    LongBuffer data;
    if (comm.rank() == 1) {
      std::memcpy(data.window(), window.data(), window.size());
      std::memcpy(data.tail(), tail.data(), tail.size());
    }
    constexpr auto kCount = static_cast<int64_t>(LongBuffer::kHead + LongBuffer::kTail);
    comm.broadcast(data.window(), kCount, DType::kU8, 1).wait();
    EXPECT_EQ(std::memcmp(data.window(), window.data(), window.size()), 0);
    EXPECT_EQ(std::memcmp(data.tail(), tail.data(), tail.size()), 0);
  };
  const std::chrono::seconds timeout(kSanitized ? 240 : 60);  // each page has shadows
  for (const char* transport : {"thread", "tcp"}) {
    run_ranks(2, broadcast, options_of({transport, ""}, timeout));
  }
}

}  // namespace
}  // namespace lockstep::comm
