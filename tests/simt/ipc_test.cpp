// What streams of several processes order themselves by.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "../errors.h"
#include "children.h"
#include "devices.h"
#include "lockstep/kernels/copy.h"
#include "lockstep/kernels/cuda/ipc.h"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/memory.h"
#include "schedules.h"
#include "simt/simt.h"

namespace lockstep {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr Device kDevice = {DeviceType::kCuda, 0};
constexpr int64_t kCount = 517;
constexpr size_t kPage = 4096;

// A page of the host.
class Page {
 public:
  Page()
      : memory_(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {}
  ~Page() { munmap(memory_, kPage); }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  void* get() const { return memory_; }
  std::atomic<uint64_t>& operator[](size_t i) const {
    return static_cast<std::atomic<uint64_t>*>(memory_)[i];
  }

 private:
  void* memory_;
};
void* word(const std::shared_ptr<void>& words, int i) {
  return static_cast<uint64_t*>(words.get()) + i;
}

View view(const std::shared_ptr<void>& memory, Device device) {
  return {memory.get(), DType::kF32, device, {kCount}, {1}};
}
void fill_on(const Stream& stream, const std::shared_ptr<void>& memory, double value) {
  const StreamGuard guard(stream);
  launch<kernels::Fill>(stream.device(), view(memory, stream.device()), value);
}
std::vector<float> values(const std::shared_ptr<void>& memory, Device device) {
  std::vector<float> out(kCount);
  cuda::copy(out.data(), kCpu, memory.get(), device, kCount * sizeof(float));
  return out;
}

TEST(Words, OrderStreamsOfTwoDevices) {
  LOCKSTEP_WANT_DEVICES(2);
  const Page page;
  const auto words = cuda::register_words(page.get(), kPage, kDevice);
  ASSERT_TRUE(cuda::reach_peer(kSecond, kDevice));
  for (int seed = 1; seed <= kSchedules; ++seed) {
    simt::seed(static_cast<uint64_t>(seed));
    page[3].store(0);
    const Stream a = Stream::create(kDevice);
    const Stream b = Stream::create(kSecond);
    const StreamGuard first(a);
    const StreamGuard second(b);
    const auto x = allocate(kCount * sizeof(float), kDevice);
    const auto y = allocate(kCount * sizeof(float), kSecond);
    for (uint64_t round = 1; round <= 3; ++round) {
      fill_on(a, x, static_cast<double>(round));
      cuda::set_word(word(words, 3), 2 * round - 1, a);
      cuda::wait_for_word(word(words, 3), 2 * round - 1, b);
      cuda::copy_async(y.get(), x.get(), kCount * sizeof(float), b);
      cuda::set_word(word(words, 3), 2 * round, b);
      cuda::wait_for_word(word(words, 3), 2 * round, a);
    }
    fill_on(a, x, -1.0);
    EXPECT_THAT(values(y, kSecond), Each(3.0f));
    used_on(x.get(), b);
  }
  EXPECT_EQ(simt::take_report(), "");
}

using WordsOfProcesses = ChildrenTest;
TEST_F(WordsOfProcesses, AreWrittenByOneThatThenDies) {
  const auto write = [&](int, const std::string&) {
    const auto words = cuda::register_words(page(), kPage, kDevice);
    const Stream stream = Stream::create(kDevice);
    cuda::set_word(word(words, 0), 5, stream);
    stream.synchronize();
    raise(SIGKILL);
  };
  EXPECT_EQ(run_children(
                1, [] { return ""; }, write),
            std::vector<int>{kKilled});
  const auto words = cuda::register_words(page(), kPage, kDevice);
  const Stream stream = Stream::create(kDevice);
  cuda::wait_for_word(word(words, 0), 5, stream);
  stream.synchronize();
  cuda::wait_for_word(word(words, 0), 6, stream);
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(stream.done());
  // As a host does that gives up.
  static_cast<std::atomic<uint64_t>*>(page())->store(uint64_t{1} << 62);
  stream.synchronize();
  EXPECT_EQ(simt::take_report(), "");
}

TEST(Words, MustBeRegistered) {
  const Page page;
  EXPECT_THAT(
      message_of(ErrorCode::kDevice, [&] { cuda::set_word(page.get(), 1, Stream(kDevice)); }),
      HasSubstr("cuStreamWriteValue64"));
  EXPECT_THAT(
      message_of(ErrorCode::kDevice, [&] { cuda::wait_for_word(page.get(), 1, Stream(kDevice)); }),
      HasSubstr("cuStreamWaitValue64"));
  { const auto words = cuda::register_words(page.get(), kPage, kDevice); }
  EXPECT_THAT(
      message_of(ErrorCode::kDevice, [&] { cuda::set_word(page.get(), 1, Stream(kDevice)); }),
      HasSubstr("cuStreamWriteValue64"));
}

}  // namespace
}  // namespace lockstep
