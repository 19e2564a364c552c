#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sanitizers.h"

// What the emulator's files share. All of it is used under one lock, that of streams.cpp.
namespace simt {

inline constexpr unsigned kWarp = 32;
inline constexpr int kMaxDevices = 8;
inline constexpr size_t kStaticSharedBytes = 48 << 10;
inline constexpr size_t kDynamicSharedBytes = 227 << 10;  // where a kernel asks for it

// xorshift64*: every choice of the emulator comes from one of these.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x1234567u) {}
  uint64_t operator()() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Du;
  }
  unsigned below(unsigned n) { return static_cast<unsigned>((*this)() >> 33) % n; }
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[below(static_cast<unsigned>(i))]);
    }
  }

 private:
  uint64_t state_;
};
extern Random random_source;

// ---- streams.cpp ----

bool is_left_out(const Site* site);
// The dynamic shared memory that a kernel may be launched with.
size_t dynamic_limit(const void* kernel);

// ---- block.cpp ----

// ThreadSanitizer's contexts of one block; used again by a later block of the same stream.
struct Contexts {
  void* block = nullptr;
  std::vector<void*> lanes;
};

struct Block;

struct Launch {
  dim3 grid;
  dim3 block;
  size_t dynamic_bytes = 0;
  const void* kernel = nullptr;
  Bind bind = nullptr;
  std::function<void()> body;

  std::vector<unsigned> order;  // of blocks, once started
  size_t next = 0;
  std::vector<std::unique_ptr<Block>> active;
  std::vector<Contexts>* contexts = nullptr;  // the stream's spare ones
  Token start;
  Token end;

  Launch();
  ~Launch();
};

enum class Progress { kDone, kMore, kAsleep };

// Runs a piece of the launch in the calling thread: a block, or what there is of it until all of
// its lanes sleep. Throws Fault; the launch must not be run again then.
Progress run(Launch& launch);

// A kernel, or a call, did what no program may do. `error` is what sticks to the device.
struct Fault {
  cudaError_t error;
  std::string report;
};

// "block_sum<float>(float const*, float*, int)", where the program has symbols.
std::string kernel_name(const void* kernel);

// What runs now, for reports: "kernel NAME, block (x, y, z), thread (x, y, z)" or "".
std::string running();

// ---- memory.cpp ----

enum class MemoryKind { kDevice, kPinned };

struct Allocation {
  MemoryKind kind = MemoryKind::kDevice;
  int device = 0;
  char* base = nullptr;
  size_t bytes = 0;
  char* pages = nullptr;  // the whole mapping
  size_t page_bytes = 0;
  int file = -1;          // the memory file behind it
  bool imported = false;  // another process's, or the program's own that it registered
  bool is_open = true;    // to reads and writes
};

// Null where `device` (or the host) has no such much.
Allocation* allocate_memory(MemoryKind kind, int device, size_t bytes);
bool free_memory(void* base, MemoryKind kind);
// The allocation that holds [p, p + bytes), or null.
const Allocation* find_memory(const void* p, size_t bytes = 1);
size_t memory_in_use(int device);
void set_memory_limit(size_t bytes);
size_t memory_limit();
void free_all_memory();
// Makes memory of the host pinned memory, and plain again.
bool register_memory(void* memory, size_t bytes);
bool unregister_memory(void* memory);

// Lets the calling process touch device memory: that of `device` and of the peers that it was given
// access to, and no other. -1 closes all. Throws Fault where an allocation's edges were written.
void open_memory(int device, unsigned peers);

bool export_memory(const void* base, cudaIpcMemHandle_t* handle);
void* import_memory(const cudaIpcMemHandle_t& handle, int device);

// True for an address of this process that is neither device memory nor pinned.
bool is_plain_host_address(uintptr_t address);

}  // namespace simt
