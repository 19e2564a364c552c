#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <string_view>
#include <vector>

// A collective, a send or a receive as NCCL was asked for it; -1 and null where it has no such
// argument.
struct NcclCall {
  std::string_view name;
  size_t count = 0;
  int type = -1;
  int op = -1;
  int root = -1;  // or the other rank
  const void* send = nullptr;
  const void* recv = nullptr;
  const void* stream = nullptr;
  bool operator==(const NcclCall&) const = default;
};

// What fake_nccl.cpp, a libnccl.so.2 that moves no data, was asked to do, and is to do wrong.
struct FakeNccl {
  std::atomic<int> calls{0};                      // collectives, sends and receives
  std::array<std::vector<NcclCall>, 2> calls_of;  // by rank, of groups of two
  std::atomic<int> groups{0};                     // that were ended
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
