#pragma once

#include <atomic>

// What fake_nccl.cpp, a libnccl.so.2 that moves no data, was asked to do, and is to do wrong.
struct FakeNccl {
  std::atomic<int> calls{0};   // collectives, sends and receives
  std::atomic<int> groups{0};  // that were ended
  std::atomic<int> registered{0};
  std::atomic<int> finalized{0};
  std::atomic<int> destroyed{0};
  std::atomic<int> aborted{0};
  // Communicators that block, calls for ones that are gone, and calls before the last has ended.
  std::atomic<int> misused{0};

  std::atomic<int> fails{-1};            // the rank that notices an error by itself
  std::atomic<bool> stays_busy{false};   // no call ends
  std::atomic<bool> abort_hangs{false};  // as where other ranks do not abort
};

extern "C" FakeNccl* fake_nccl();
