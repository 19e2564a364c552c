// What a rank may rely on when another of its group fails, leaves or dies while devices are still
// at work: memory that it let go is left alone, whatever is queued; errors name who is lost; and a
// barrier tells whether all was finished.
#include <gmock/gmock.h>

#include <thread>

#include "../errors.h"
#include "device_buffers.h"
#include "devices.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/cuda_transport.h"
#include "lockstep/comm/thread_transport.h"
#include "lockstep/kernels/cuda/runtime.h"
#include "processes.h"
#include "simt/simt.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kCount = 3001;
constexpr size_t kBytes = kCount * sizeof(float);

View floats(void* memory, Device device, int64_t count = kCount) {
  return {memory, DType::kF32, device, {count}, {1}};
}
void fill(const std::shared_ptr<void>& memory, Device device, double value) {
  launch<kernels::Fill>(device, floats(memory.get(), device), value);
}
std::vector<float> values_of(const std::shared_ptr<void>& memory, Device device) {
  const Bytes bytes = from_device(device, memory, kBytes);
  std::vector<float> out(kCount);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}
Work reduce(Communicator& comm, const std::shared_ptr<void>& x) {
  return comm.all_reduce(x.get(), x.get(), kCount, DType::kF32, ReduceOp::kSum);
}

// Far more on the current stream than the emulator does by itself within seconds.
void queue_much(Device device) {
  const auto memory = allocate(4, device);
  for (int i = 0; i < 1500; ++i) {
    launch<kernels::Fill>(device, floats(memory.get(), device, 1), static_cast<double>(i));
  }
}

class CudaLosses : public ChildrenTest {};

// Rank 1 gives up while rank 0's part of a collective, for which all had come, is still behind
// other work on its device. Returns how the ranks ended; `after` is run by rank 1 when it has given
// up.
std::vector<int> give_up_before_a_fold(
    int devices, milliseconds timeout, milliseconds sleep, const SharedNumber& ended,
    const std::function<void(Communicator&, std::shared_ptr<void> x)>& after) {
  const SharedNumber queued;
  return run_processes(2, devices, "cuda", timeout, [&](Communicator& comm) {
    const Device device = comm.device();
    auto x = comm.allocate(kBytes, device);
    fill(x, device, comm.rank() + 1.0);
    reduce(comm, x).wait();
    Stream(device).synchronize();
    if (comm.rank() == 0) {
      queue_much(device);
      *queued = 1;
      reduce(comm, x).wait();
      std::this_thread::sleep_for(sleep);
      Stream(device).synchronize();
      *ended = 1;
      return;
    }
    queued.await(1);
    reduce(comm, x).wait();
    Work third = reduce(comm, x);
    std::thread aborter([&] {
      std::this_thread::sleep_for(milliseconds(200));
      comm.abort("it has had enough");
    });
    EXPECT_THAT(message_of(ErrorCode::kCancelled, [&] { third.wait(); }), HasSubstr("enough"));
    aborter.join();
    after(comm, std::move(x));
  });
}

TEST_F(CudaLosses, ARankThatFailsWaitsForWhatOthersStillDoWithItsMemory) {
  for (const int devices : {1, 2}) {
    SCOPED_TRACE(devices);
    const SharedNumber ended;
    const auto after = [&](Communicator& comm, const std::shared_ptr<void>& x) {
      const Device device = comm.device();
      fill(x, device, 7.0);
      Stream(device).synchronize();
      ended.await(1);
      EXPECT_THAT(values_of(x, device), Each(7.0f));
    };
    EXPECT_EQ(give_up_before_a_fold(devices, seconds(60), milliseconds(2500), ended, after),
              std::vector<int>(2, 0));
  }
}

// Where the others take longer than the timeout, what they may still write to is used no more.
TEST_F(CudaLosses, MemoryThatOthersMayStillWriteToIsNotGivenOutAgain) {
  const SharedNumber ended;
  const auto after = [&](Communicator& comm, std::shared_ptr<void> x) {
    EXPECT_EQ((*ended).load(), 0);
    const Device device = comm.device();
    const void* before = x.get();
    x = nullptr;
    const auto y = comm.allocate(kBytes, device);
    EXPECT_NE(y.get(), before);
    fill(y, device, 7.0);
    Stream(device).synchronize();
    ended.await(1);
    EXPECT_THAT(values_of(y, device), Each(7.0f));
  };
  const int slower = kSanitized ? 4 : 1;
  EXPECT_EQ(give_up_before_a_fold(1, slower * milliseconds(1500), slower * milliseconds(5000),
                                  ended, after),
            std::vector<int>(2, 0));
}

// Memory is with CUDA again once nobody has it mapped, and not before (which the emulator reports).
TEST_F(CudaLosses, MemoryGoesBackWhenNobodyHasItMapped) {
  const SharedNumber step;
  const auto ends = run_joining(2, [&](int rank, const Connect& connect) {
    auto comm = connect(options_on(kFirst, "cuda", seconds(60)));
    constexpr size_t kLarge = size_t{32} << 20;  // that CUDA does not keep for others
    auto x = comm->allocate(kLarge, kFirst);
    reduce(*comm, x).wait();
    Stream(kFirst).synchronize();
    const auto free_bytes = [] {
      Stream(kFirst).synchronize();
      return cuda::memory_info(kFirst).free;
    };
    const size_t before = free_bytes();
    if (rank == 1) {
      step.await(1);
      x = nullptr;
      comm = nullptr;
      *step = 2;
      return;
    }
    x = nullptr;
    comm = nullptr;
    EXPECT_LT(free_bytes(), before + kLarge);
    *step = 1;
    step.await(2);
    run_ranks(
        {kFirst}, [](Communicator&) {}, options_of({"cuda", ""}));
    EXPECT_GE(free_bytes(), before + kLarge);
  });
  EXPECT_EQ(ends, std::vector<int>(2, 0));
}

// Rank 1's part comes late, and rank 0 leaves at once.
TEST_F(CudaLosses, WhoLeavesInOrderHasItsLastCollectiveWhole) {
  const auto ends = run_joining(2, [&](int rank, const Connect& connect) {
    auto comm = connect(options_on(kFirst, "cuda", seconds(60)));
    const auto x = comm->allocate(kBytes, kFirst);
    reduce(*comm, x).wait();
    Stream(kFirst).synchronize();
    if (rank == 1) queue_much(kFirst);
    fill(x, kFirst, rank + 1.0);
    reduce(*comm, x).wait();
    if (rank == 1) Stream(kFirst).synchronize();
    comm = nullptr;
    EXPECT_THAT(values_of(x, kFirst), Each(3.0f));
  });
  EXPECT_EQ(ends, std::vector<int>(2, 0));
}

// Where a rank that had died, or its group, would say nothing of the last collective.
TEST_F(CudaLosses, ABarrierThatPassesSaysThatAllDevicesHaveFinished) {
  const auto ends = run_processes(3, 2, "cuda", seconds(60), [](Communicator& comm) {
    const Device device = comm.device();
    const auto x = comm.allocate(kBytes, device);
    fill(x, device, comm.rank() + 1.0);
    if (comm.rank() == 1) queue_much(device);
    reduce(comm, x).wait();
    comm.barrier().wait();
    if (comm.rank() == 1) raise(SIGKILL);
    EXPECT_THAT(values_of(x, device), Each(6.0f));
  });
  EXPECT_EQ(ends, (std::vector<int>{0, kKilled, 0}));
}

TEST_F(CudaLosses, ABarrierTellsWhoDiedInTheLastCollective) {
  for (const int devices : {1, 2}) {
    const auto ends = run_processes(3, devices, "cuda", seconds(60), [](Communicator& comm) {
      const Device device = comm.device();
      const auto x = comm.allocate(kBytes, device);
      reduce(comm, x).wait();
      Stream(device).synchronize();
      if (comm.rank() == 2) queue_much(device);
      reduce(comm, x).wait();
      if (comm.rank() == 2) raise(SIGKILL);
      EXPECT_THAT(message_of(ErrorCode::kPeerLost, [&] { comm.barrier().wait(); }),
                  HasSubstr("rank 2 died"));
    });
    EXPECT_EQ(ends, (std::vector<int>{0, 0, kKilled}));
  }
}

// A rank whose device is not there: the others do not wait for it.
TEST_F(CudaLosses, ARankThatCannotHaveItsDeviceIsNamedByAll) {
  const auto started = std::chrono::steady_clock::now();
  const auto ends = run_joining(3, [&](int rank, const Connect& connect) {
    const Device device = {DeviceType::kCuda, rank == 1 ? 9 : 0};
    const Error error = error_of([&] { connect(options_on(device, "cuda", seconds(60))); });
    EXPECT_THAT(error.what(), HasSubstr("cuda:9"));
    if (rank != 1) {
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
      EXPECT_THAT(error.what(), HasSubstr("rank 1"));
    }
  });
  EXPECT_EQ(ends, std::vector<int>(3, 0));
  EXPECT_LT(std::chrono::steady_clock::now() - started, seconds(20));
}

TEST_F(CudaLosses, ARankThatCannotShareItsMemoryIsNamedByAll) {
  const auto ends = run_joining(3, [&](int rank, const Connect& connect) {
    if (rank == 2) simt::set_device_bytes(0);
    const Error error = error_of([&] { connect(options_on(kFirst, "cuda", seconds(60))); });
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 2"), HasSubstr("memory")));
  });
  EXPECT_EQ(ends, std::vector<int>(3, 0));
}

TEST(CudaLossesOfThreads, ARankThatIsLateWhileTheGroupIsMadeIsNamedByAll) {
  auto transports = make_thread_transports(2, milliseconds(300));
  const auto connect = [&](int rank) {
    make_cuda_transport(std::move(transports[static_cast<size_t>(rank)]), kFirst, true, true);
  };
  EXPECT_THAT(message_of(ErrorCode::kTimeout, [&] { connect(0); }), HasSubstr("for rank 1"));
  EXPECT_THAT(message_of(ErrorCode::kTimeout, [&] { connect(1); }), HasSubstr("rank 0 gave up"));
  EXPECT_EQ(simt::take_report(), "");
}

TEST(CudaLossesOfThreads, ARankThatCannotHaveItsDeviceDoesNotKeepTheOthersWaiting) {
  const auto started = std::chrono::steady_clock::now();
  const Error error = error_of([] {
    run_ranks(
        {kFirst, kSecond, {DeviceType::kCuda, 9}}, [](Communicator&) { ADD_FAILURE() << "made"; },
        options_of({"cuda", ""}));
  });
  EXPECT_THAT(error.what(), HasSubstr("cuda:9"));
  EXPECT_LT(std::chrono::steady_clock::now() - started, seconds(20));
}

TEST(CudaTransport, WithoutADeviceIsAnErrorThatSaysWhatToDo) {
  const auto refused = [](const Options& options) {
    return message_of(ErrorCode::kInvalidArgument, [&] {
      run_ranks(
          2, [](Communicator&) { ADD_FAILURE(); }, options);
    });
  };
  const auto rest = AllOf(HasSubstr("wants \"cuda\""), HasSubstr("got a group without a device"),
                          HasSubstr("CUDA devices"), HasSubstr("Options::device"));
  EXPECT_THAT(refused(options_of({"cuda", ""})), AllOf(HasSubstr("Options::transport"), rest));
  setenv("LOCKSTEP_TRANSPORT", "cuda", 1);
  EXPECT_THAT(refused({}), AllOf(HasSubstr("LOCKSTEP_TRANSPORT"), rest));
  unsetenv("LOCKSTEP_TRANSPORT");
}

}  // namespace
}  // namespace lockstep::comm
