#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <thread>

#include "runtime.h"

// The state behind the API: devices, streams, events.
namespace simt {

inline constexpr size_t kTokens = 4096;

struct Capture;  // in graphs.cpp

}  // namespace simt

struct CUevent_st {
  unsigned flags = 0;
  uint64_t recorded = 0;
  uint64_t completed = 0;
  uint64_t stamp_us = 0;
  simt::Token token;
  // Where it was recorded in a capture: what comes before it.
  std::shared_ptr<simt::Capture> capture;
  std::vector<uint64_t> before;
};

namespace simt {
struct Op {
  std::function<void()> work;
  std::unique_ptr<Launch> launch;
  std::shared_ptr<CUevent_st> record;
  std::shared_ptr<CUevent_st> wait;
  const uint64_t* word = nullptr;  // that is waited for; others write it too
  uint64_t count = 0;  // of the event that is recorded or waited for, or what the word must reach
  bool on_host = false;
  Token* token = nullptr;
};
}  // namespace simt

struct CUstream_st {
  CUstream_st() = default;
  ~CUstream_st() {
    simt::end_context(context);
    end_spare();
  }
  void end_spare() {
    for (const simt::Contexts& of_block : spare) {
      simt::end_own_context(of_block.block);
      for (void* one : of_block.lanes) simt::end_context(one);
    }
    spare.clear();
  }
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;

  int device = 0;
  int priority = 0;
  bool is_destroyed = false;  // what it has been given still runs
  std::deque<simt::Op> queue;
  uint64_t pushed = 0;
  uint64_t finished = 0;
  void* context = nullptr;
  std::vector<simt::Contexts> spare;
  simt::Token done;
  std::shared_ptr<simt::Capture> capture;
  size_t lane = 0;  // in the capture
  std::vector<simt::Token> tokens = std::vector<simt::Token>(simt::kTokens);
};

namespace simt {

struct DeviceState {
  cudaError_t sticky = cudaSuccess;
  std::atomic<bool> has_context{false};
  unsigned peers = 0;
  uint64_t clock_us = 0;
  std::unique_ptr<CUstream_st> null_stream;
};

struct World {
  int device_count = 2;
  DeviceState devices[kMaxDevices];
  std::map<CUstream_st*, std::shared_ptr<CUstream_st>> streams;
  std::map<CUevent_st*, std::shared_ptr<CUevent_st>> events;
  std::map<const void*, int> dynamic_limits;  // of kernels
  unsigned long long launches = 0;
  std::string report;
};
World& world();

extern thread_local int this_device;
extern thread_local cudaError_t last_error;
extern thread_local bool in_callback;

// A lock that ThreadSanitizer does not see: it orders the emulator's own memory and nothing else.
// Nor does it see what is allocated and freed under it, but in the contexts of streams, blocks and
// lanes.
extern std::atomic_flag busy;
struct Lock {
  Lock() {
    if (in_callback) return;  // whose thread has it
    take();
    hide();
  }
  ~Lock() {
    if (in_callback) return;
    show();
    give();
  }
  // Who waits sleeps: mprotect() interrupts every core that runs one of the process's threads.
  static void take() {
    while (busy.test_and_set(std::memory_order_acquire)) busy.wait(true);
  }
  static void give() {
    busy.clear(std::memory_order_release);
    busy.notify_one();
  }
};

// All of the following REQUIRE the lock.

inline cudaError_t fail(cudaError_t error) { return last_error = error; }
// What sticks to the calling thread's device.
inline cudaError_t sticky() { return world().devices[this_device].sticky; }
// Makes an error stick to a device, and drops what its streams hold.
cudaError_t stick(int device, const Fault& fault);

// Whatever is called makes a context on the current device, though it be about another.
void use_device();
// Null for a handle that is none.
CUstream_st* find_stream(cudaStream_t stream);
std::shared_ptr<CUevent_st> find_event(cudaEvent_t event);

cudaError_t push(cudaStream_t stream, Op op);
// Runs what is queued, of whatever stream, until all that is in this one now has run.
cudaError_t synchronize(CUstream_st& stream);
// The same until an event has counted to `until`.
void wait_for(const CUevent_st& event, uint64_t until);
// Runs one piece of something, if anything can run.
void poll();

// ---- graphs.cpp ----

// The error of a call that a capture does not allow, which spoils it: `error` where its subject, a
// stream or event, is part of one; else for what this thread may not call meanwhile.
cudaError_t refuse(Capture* subject = nullptr,
                   cudaError_t error = cudaErrorStreamCaptureUnsupported);
// Keeps an op for the graph that the stream is captured in, or joins by waiting for it.
cudaError_t keep(CUstream_st& stream, Op op);

}  // namespace simt
