#pragma once

#include <cstddef>

// What the sanitizers must know of fibers. Each lane, block and stream is a context of its own for
// ThreadSanitizer; switching orders nothing, so that order comes from launches, barriers, shuffles,
// stream order, events and waits alone. The emulator's own files are built without
// -fsanitize=thread and say by SIMT_TSAN that the rest is.

#ifdef SIMT_TSAN
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void __tsan_ignore_thread_begin();
void __tsan_ignore_thread_end();
}
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace simt {

// ThreadSanitizer keeps what it knows of an address in cells of 8 bytes: tokens never share one.
struct alignas(16) Token {
  long unused = 0;
};

#ifdef SIMT_TSAN
inline constexpr bool kTsan = true;
inline void* current_context() { return __tsan_get_current_fiber(); }
inline int contexts = 0;  // there can be 8128
inline void* new_context() {
  ++contexts;
  return __tsan_create_fiber(0);
}
inline void end_context(void* context) {
  if (context == nullptr) return;
  --contexts;
  __tsan_destroy_fiber(context);
}
inline bool has_many_contexts() { return contexts > 4000; }
inline void switch_context(void* to) { __tsan_switch_to_fiber(to, 1 /* orders nothing */); }
// In between, what the calling context reads, writes, allocates and frees goes unseen.
inline void hide() { __tsan_ignore_thread_begin(); }
inline void show() { __tsan_ignore_thread_end(); }
// A context in which the emulator alone runs: what it allocates and frees there goes unseen.
inline void* new_own_context() {
  void* outside = current_context();
  void* context = new_context();
  switch_context(context);
  hide();
  switch_context(outside);
  return context;
}
inline void end_own_context(void* context) {
  if (context == nullptr) return;
  void* outside = current_context();
  switch_context(context);
  show();
  switch_context(outside);
  end_context(context);
}
inline void acquire(Token& token) { __tsan_acquire(&token); }
inline void release(Token& token) { __tsan_release(&token); }
#else
inline constexpr bool kTsan = false;
inline void* current_context() { return nullptr; }
inline void* new_context() { return nullptr; }
inline void end_context(void*) {}
inline bool has_many_contexts() { return false; }
inline void* new_own_context() { return nullptr; }
inline void end_own_context(void*) {}
inline void switch_context(void*) {}
inline void hide() {}
inline void show() {}
inline void acquire(Token&) {}
inline void release(Token&) {}
#endif

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kAsan = true;
inline void poison(void* p, size_t n) { ASAN_POISON_MEMORY_REGION(p, n); }
inline void unpoison(void* p, size_t n) { ASAN_UNPOISON_MEMORY_REGION(p, n); }
#else
inline constexpr bool kAsan = false;
inline void poison(void*, size_t) {}
inline void unpoison(void*, size_t) {}
#endif

}  // namespace simt
