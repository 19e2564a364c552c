#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

namespace lockstep::comm {

// Sleeps while `word` is `expected`, until a wake, at most `timeout`; may return early. Works
// between processes that share the word's memory.
inline void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected,
                       std::chrono::nanoseconds timeout) {
  static_assert(sizeof(word) == sizeof(uint32_t));
  timespec wait{};
  wait.tv_sec = static_cast<time_t>(timeout.count() / 1'000'000'000);
  wait.tv_nsec = static_cast<long>(timeout.count() % 1'000'000'000);
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &wait, nullptr, 0);
}

inline void futex_wake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Tells the processor that this is a loop that waits for another core.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Nothing that this thread reads from here on is read before others can see what it has stored.
inline void order_stores() {
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer knows no fences.
  static std::atomic<int> word{0};
  word.exchange(1);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace lockstep::comm
