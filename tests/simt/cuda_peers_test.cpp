// How ranks that are threads wait for each other's streams, where one stream stands still: the
// suites of collectives cannot tell late from never.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gate.h"
#include "lockstep/comm/cuda_peers.h"
#include "lockstep/comm/thread_transport.h"
#include "simt/simt.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

constexpr Device kDevice = {DeviceType::kCuda, 0};

// Ranks whose calls this thread makes, in an order of the test's own.
class CudaPeersOfThreads : public ::testing::Test {
 protected:
  void connect(int n) {
    transports_ = make_thread_transports(n, std::chrono::seconds(30));
    for (const auto& transport : transports_) {
      auto* group = dynamic_cast<SharedGroup*>(transport.get());
      peers_.push_back(std::make_unique<CudaPeers>(*group, kDevice));
      streams_.push_back(Stream::create(kDevice));
    }
    std::vector<std::thread> threads;
    for (const auto& peers : peers_) threads.emplace_back([&peers] { peers->connect(); });
    for (std::thread& thread : threads) thread.join();
    for (const auto& peers : peers_) ASSERT_EQ(peers->why_not(), "");
  }
  void TearDown() override { EXPECT_EQ(simt::take_report(), ""); }

  // Time enough for all that can run.
  bool comes_to_its_end(size_t rank) {
    for (int i = 0; i < 1000; ++i) {
      if (streams_[rank].done()) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return false;
  }

  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<CudaPeers>> peers_;
  std::vector<Stream> streams_;
};

TEST_F(CudaPeersOfThreads, WhoLeavesWaitsUntilTheOthersStreamsHavePassed) {
  connect(2);
  peers_[0]->begin();
  const Gate gate(kDevice);
  gate.hold(streams_[0]);
  peers_[0]->pass(streams_[0]);
  dynamic_cast<SharedGroup&>(*transports_[0]).stop_touching();
  peers_[1]->end();
  transports_[1]->leave({ErrorCode::kPeerLost, "leave", "it has had enough"});
  EXPECT_FALSE(peers_[1]->await_passed(deadline_after(milliseconds(50))));
  gate.open();
  EXPECT_TRUE(peers_[1]->await_passed(deadline_after(milliseconds(30'000))));
}

// What a rank is about to put on its stream has no mark there yet.
TEST_F(CudaPeersOfThreads, WhoLeavesWaitsForARankThatIsAtACall) {
  connect(2);
  peers_[0]->begin();
  peers_[1]->end();
  transports_[1]->leave({ErrorCode::kPeerLost, "leave", "it has had enough"});
  EXPECT_FALSE(peers_[1]->await_passed(deadline_after(milliseconds(50))));
  peers_[0]->pass(streams_[0]);
  dynamic_cast<SharedGroup&>(*transports_[0]).stop_touching();
  EXPECT_TRUE(peers_[1]->await_passed(deadline_after(milliseconds(30'000))));
}

// Of n ranks, one is n steps ahead of the next at most, and has told of as many besides the one
// that the next waits for.
TEST_F(CudaPeersOfThreads, AWaitForATellIsNotForThoseThatFollow) {
  for (int n = 2; n <= 5; ++n) {
    SCOPED_TRACE(n);
    transports_.clear();
    peers_.clear();
    streams_.clear();
    connect(n);
    peers_[0]->tell_next(streams_[0]);
    const Gate gate(kDevice);
    gate.hold(streams_[0]);
    for (int step = 0; step < n; ++step) peers_[0]->tell_next(streams_[0]);
    peers_[1]->tell_next(streams_[1]);
    peers_[1]->wait_for_before(streams_[1]);
    EXPECT_TRUE(comes_to_its_end(1));
    peers_[1]->tell_next(streams_[1]);
    peers_[1]->wait_for_before(streams_[1]);
    EXPECT_FALSE(comes_to_its_end(1));
    gate.open();
    EXPECT_TRUE(comes_to_its_end(1));
  }
}

// What it would wait for has not been put on the other's stream before that.
TEST_F(CudaPeersOfThreads, AWaitForTheRankBeforeHoldsTheHostUntilItHasTold) {
  connect(2);
  peers_[1]->tell_next(streams_[1]);
  std::atomic<bool> begun{false};
  std::thread waiting([&] {
    begun.store(true);
    peers_[1]->wait_for_before(streams_[1]);
  });
  while (!begun.load()) std::this_thread::yield();
  std::this_thread::sleep_for(milliseconds(20));  // for it to come there first, as it mostly will
  const Gate gate(kDevice);
  gate.hold(streams_[0]);
  peers_[0]->tell_next(streams_[0]);
  waiting.join();
  EXPECT_FALSE(comes_to_its_end(1));
  gate.open();
  EXPECT_TRUE(comes_to_its_end(1));
}

}  // namespace
}  // namespace lockstep::comm
