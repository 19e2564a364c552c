#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <thread>

#include "lockstep/kernels/cuda/ipc.h"

namespace lockstep {

// Holds streams of a device up until it is opened, so that a test knows what has not run.
class Gate {
 public:
  explicit Gate(Device device) : words_(cuda::register_words(page_.get(), kPage, device)) {}
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // What is put on the stream from here on waits.
  void hold(const Stream& stream) const { cuda::wait_for_word(words_.get(), 1, stream); }
  void open() const { static_cast<std::atomic<uint64_t>*>(page_.get())->store(1); }

 private:
  static constexpr size_t kPage = 4096;
  static std::shared_ptr<void> zeros() {
    const std::shared_ptr<void> page(std::aligned_alloc(kPage, kPage), std::free);
    static_cast<std::atomic<uint64_t>*>(page.get())->store(0);
    return page;
  }

  const std::shared_ptr<void> page_ = zeros();
  const std::shared_ptr<void> words_;  // the same for streams; the first to go
};

// False where the host came through `work`, with a stream held up by the gate, only because the
// gate was opened in the end.
template <class F>
bool comes_through_while_held(const Gate& gate, const F& work) {
  std::atomic<bool> through{false};
  std::atomic<bool> opened{false};
  std::thread opener([&] {
    for (int i = 0; i < 6000 && !through.load(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    opened.store(!through.load());
    gate.open();
  });
  try {
    work();
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  through.store(true);
  opener.join();
  return !opened.load();
}

}  // namespace lockstep
