// Memory that is not registered is read from its owner where the system allows it, and goes through
// the staging areas where it does not: the same bits.

#include "lockstep/comm/peer_read.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>

#include "collective_cases.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

// Runs `body` in a process of its own; what it returns is the exit status.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    int status = 99;
    try {
      status = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    std::_Exit(status);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// As containers' filters do: process_vm_readv fails with EPERM from here on.
bool refuse_peer_reads() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{std::size(filter), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// How many elements of each kind of collective are wrong on plain memory, over three ranks.
int wrong_collectives() {
  constexpr int64_t kCount = 300007;
  constexpr int kRanks = 3;
  const Bytes sum = folded_inputs(DType::kF32, ReduceOp::kSum, Blocks::of_all(kCount, kRanks));
  const Bytes scattered =
      folded_inputs(DType::kBF16, ReduceOp::kAvg, Blocks::of_each(kCount, kRanks));
  std::atomic<int> wrong{0};
  run_ranks(
      kRanks,
      [&](Communicator& comm) {
        const auto rank = static_cast<size_t>(comm.rank());
        Bytes send = input_of(DType::kF32, comm.rank(), kCount);
        Bytes recv(send.size());
        comm.all_reduce(send.data(), recv.data(), kCount, DType::kF32, ReduceOp::kSum).wait();
        wrong += recv != sum;
        comm.all_reduce(send.data(), send.data(), kCount, DType::kF32, ReduceOp::kSum).wait();
        wrong += send != sum;
        Bytes parts = input_of(DType::kBF16, comm.rank(), kCount * kRanks);
        Bytes part(kCount * 2);
        comm.reduce_scatter(parts.data(), part.data(), kCount, DType::kBF16, ReduceOp::kAvg).wait();
        wrong += !std::equal(part.begin(), part.end(), scattered.begin() + rank * part.size());
        Bytes all(part.size() * kRanks);
        comm.all_gather(part.data(), all.data(), kCount, DType::kBF16).wait();
        wrong += all != scattered;
        Bytes data = input_of(DType::kF32, comm.rank(), kCount);
        comm.broadcast(data.data(), kCount, DType::kF32, 2).wait();
        wrong += data != input_of(DType::kF32, 2, kCount);
      },
      options_of({"shm", "two_shot"}));
  return wrong.load();
}

TEST(PeerRead, ReadsAnotherProcess) {
  static uint64_t number = 0;
  number = std::random_device()();
  const uint64_t want = number;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    close(ends[1]);
    [[maybe_unused]] const ssize_t got = read(ends[0], &byte, 1);
    std::_Exit(0);
  }
  number = 0;  // here, not there
  // Whether the system allows it is asked of the system, not of what is tested.
  uint64_t seen = 0;
  iovec here{&seen, sizeof seen};
  iovec there{&number, sizeof number};
  const bool readable = process_vm_readv(child, &here, 1, &there, 1, 0) == sizeof seen;
  const bool forbidden = !readable && (errno == EPERM || errno == ENOSYS);
  EXPECT_TRUE(readable || forbidden) << std::strerror(errno);
  EXPECT_EQ(can_read_memory(child, std::bit_cast<uint64_t>(&number), want), readable);
  EXPECT_FALSE(can_read_memory(child, std::bit_cast<uint64_t>(&number), want + 1));
  EXPECT_FALSE(can_read_memory(0, std::bit_cast<uint64_t>(&number), want));
  uint64_t value = 0;
  if (readable) {
    EXPECT_TRUE(read_memory(child, std::bit_cast<uint64_t>(&number), &value, sizeof value, 1));
    EXPECT_EQ(value, want);
    EXPECT_THROW(read_memory(child, 64, &value, sizeof value, 1), Error);
  }
  close(ends[1]);
  waitpid(child, nullptr, 0);
  if (!readable) GTEST_SKIP() << "this system does not let processes read each other's memory";
  EXPECT_FALSE(read_memory(child, std::bit_cast<uint64_t>(&number), &value, sizeof value, 1));
}

TEST(PeerRead, GivesTheSameBitsWhereItIsAllowedRefusedOrTurnedOff) {
  EXPECT_EQ(in_child([] { return wrong_collectives(); }), 0) << "as this system is";
  EXPECT_EQ(in_child([] {
              setenv("LOCKSTEP_PEER_READ", "0", 1);
              return wrong_collectives();
            }),
            0)
      << "turned off";
  EXPECT_EQ(in_child([] {
              if (!refuse_peer_reads()) return 98;
              static uint64_t number = 7;
              if (can_read_memory(getpid(), std::bit_cast<uint64_t>(&number), 7)) return 97;
              return wrong_collectives();
            }),
            0)
      << "refused by a filter";
}

TEST(PeerRead, IsTurnedOffByNameAlone) {
  setenv("LOCKSTEP_PEER_READ", "never", 1);
  EXPECT_THROW(peer_reading_allowed(), Error);
  setenv("LOCKSTEP_PEER_READ", "0", 1);
  EXPECT_FALSE(peer_reading_allowed());
  unsetenv("LOCKSTEP_PEER_READ");
  EXPECT_TRUE(peer_reading_allowed());
}

}  // namespace
}  // namespace lockstep::comm
