// How the ways between devices are measured, by a transport that takes its time.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>

#include "lockstep/comm/collective.h"
#include "lockstep/comm/costs.h"
#include "lockstep/comm/transport.h"
#include "lockstep/kernels/cuda/ipc.h"

namespace lockstep::comm {
namespace {

constexpr Device kDevice = {DeviceType::kCuda, 0};

// A word that a stream sets and the host reads.
class Word {
 public:
  void set(const Stream& stream, uint64_t value) { cuda::set_word(word_.get(), value, stream); }
  uint64_t value() const { return static_cast<std::atomic<uint64_t>*>(page_.get())->load(); }

 private:
  static constexpr size_t kPage = 4096;
  static std::shared_ptr<void> zeros() {
    const std::shared_ptr<void> page(std::aligned_alloc(kPage, kPage), std::free);
    static_cast<std::atomic<uint64_t>*>(page.get())->store(0);
    return page;
  }

  const std::shared_ptr<void> page_ = zeros();
  const std::shared_ptr<void> word_ = cuda::register_words(page_.get(), kPage, kDevice);
};

// Its n-th collective sets a word to n, on a stream of its own and behind much else.
class SlowTransport final : public Transport {
 public:
  SlowTransport(Word& before, Word& word)
      : Transport(0, 2, std::chrono::seconds(1)), before_(before), word_(word) {}

  Device device() const override { return kDevice; }
  void run(const Collective& collective) override {
    EXPECT_EQ(before_.value(), runs_ + 1);
    EXPECT_EQ(word_.value(), runs_);
    ++runs_;
    collective.on_device->begin(stream_);
    for (int i = 0; i < 50; ++i) ignored_.set(stream_, 1);
    word_.set(stream_, runs_);
    collective.on_device->complete(stream_);
    before_.set(current_stream(kDevice), runs_ + 1);
  }
  uint64_t runs() const { return runs_; }

  std::string_view name() const override { return "slow"; }
  void run(std::span<Transfer* const>) override {}
  void meet(const Collective&, const void*, size_t, void*) override {}
  void nudge() noexcept override {}
  std::shared_ptr<void> allocate(size_t bytes) override { return lockstep::allocate(bytes); }
  Costs measure_costs(int) override { return {}; }
  std::string pair_text(int) const override { return ""; }
  std::string way_text(size_t) const override { return ""; }
  void leave(const Failure&) noexcept override {}
  int find_dead() override { return -1; }
  void cancel() noexcept override {}

 private:
  const Stream stream_ = Stream::create(kDevice);
  Word& before_;
  Word& word_;
  Word ignored_;
  uint64_t runs_ = 0;
};

TEST(DeviceCosts, AreOfACollectiveFromItsBeginningOnTheDeviceToItsEnd) {
  Word before, word;
  SlowTransport transport(before, word);
  before.set(current_stream(kDevice), 1);
  const Costs costs = measure_device_costs(transport, 3);
  EXPECT_EQ(transport.runs(), 6);
  EXPECT_EQ(word.value(), 6);
  EXPECT_GT(costs.meet, 0);
}

}  // namespace
}  // namespace lockstep::comm
