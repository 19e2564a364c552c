// Device and pinned memory. Device memory can be touched while kernels and copies run, and by the
// host never: outside of them its pages have no access. An allocation ends where a page does and
// has no neighbour, so that a step beyond either edge is caught by the processor, by a check of the
// bytes beside it or by AddressSanitizer.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "runtime.h"

namespace simt {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kAlignment = 256;  // of cudaMalloc
constexpr char kEdge = '\xC7';

struct Memory {
  std::map<uintptr_t, Allocation> live;  // by base
  size_t in_use[kMaxDevices] = {};
  size_t limit = size_t{1} << 30;
  int open_device = -1;
  unsigned open_peers = 0;
  std::vector<Allocation*> open;  // of devices
};
Memory& memory() {
  static auto* instance = new Memory;
  return *instance;
}

size_t round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

// Whether the bytes beside an allocation are as they were made. REQUIRES: the memory is open.
bool edges_are_whole(const Allocation& a) {
  if (kAsan || a.imported) return true;
  const auto whole = [](const char* from, const char* to) {
    return std::all_of(from, to, [](char c) { return c == kEdge; });
  };
  return whole(a.pages, a.base) && whole(a.base + a.bytes, a.pages + a.page_bytes);
}

// Whether who runs on the device that is open may touch an allocation, and it is closed.
bool may_open(const Allocation& a) {
  const Memory& m = memory();
  return !a.is_open && m.open_device >= 0 &&
         (a.device == m.open_device || (m.open_peers >> a.device & 1) != 0);
}

void open_pages(Allocation& a) {
  mprotect(a.pages, a.page_bytes, PROT_READ | PROT_WRITE);
  a.is_open = true;
  memory().open.push_back(&a);
}

void close_pages(Allocation& a) {
  mprotect(a.pages, a.page_bytes, PROT_NONE);
  a.is_open = false;
}

Allocation* keep(const Allocation& a) {
  Allocation& kept = memory().live[reinterpret_cast<uintptr_t>(a.base)] = a;
  if (a.kind == MemoryKind::kDevice) close_pages(kept);
  return &kept;
}

[[noreturn]] void throw_spoiled(int device, size_t bytes) {
  throw Fault{cudaErrorIllegalAddress, "something wrote beside an allocation of " +
                                           std::to_string(bytes) +
                                           " bytes on cuda:" + std::to_string(device)};
}

// Maps pages with a hole before and behind.
char* map_apart(size_t bytes, int file, off_t offset) {
  char* space = static_cast<char*>(mmap(nullptr, bytes + 2 * kPage, PROT_NONE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (space == MAP_FAILED) return nullptr;
  void* pages =
      mmap(space + kPage, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, offset);
  return pages == MAP_FAILED ? nullptr : space + kPage;
}

#if !defined(SIMT_TSAN) && !defined(__SANITIZE_ADDRESS__)
constexpr bool kOpensWhatIsTouched = true;
thread_local bool runs_device = false;

// Opens what holds an address, where the thread may touch it.
bool open_touched(const char* address) {
  auto& live = memory().live;
  const auto behind = live.upper_bound(reinterpret_cast<uintptr_t>(address));
  for (auto it = behind == live.begin() ? behind : std::prev(behind); it != live.end(); ++it) {
    Allocation& a = it->second;
    if (address < a.pages) break;
    if (address >= a.pages + a.page_bytes) continue;
    if (!may_open(a)) break;
    open_pages(a);
    return true;
  }
  return false;
}

// Says in CUDA's terms what a segmentation fault was about, where it is no first touch: mprotect()
// takes a microsecond or two, and few allocations are touched of all that may be.
void on_fault(int number, siginfo_t* info, void*) {
  const auto* address = static_cast<const char*>(info->si_addr);
  if (runs_device && open_touched(address)) return;
  signal(number, SIG_DFL);
  const Allocation* a = find_memory(address);
  const std::string where = running();
  if (!where.empty()) {
    std::fprintf(stderr, "simt: illegal address %p in %s%s\n", info->si_addr, where.c_str(),
                 a == nullptr ? "" : ": memory of a device that is not a peer");
  } else if (a != nullptr) {
    std::fprintf(stderr, "simt: the host touched memory of cuda:%d: byte %td of %zu\n", a->device,
                 address - a->base, a->bytes);
  }
}

void install_handler() {
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}
#else
constexpr bool kOpensWhatIsTouched = false;  // the sanitizer handles faults
bool runs_device = false;
void install_handler() {}
#endif

}  // namespace

Allocation* allocate_memory(MemoryKind kind, int device, size_t bytes) {
  static const bool installed = (install_handler(), true);
  (void)installed;
  Memory& m = memory();
  const bool on_device = kind == MemoryKind::kDevice;
  if (bytes > m.limit || (on_device && m.in_use[device] + bytes > m.limit)) return nullptr;
  const size_t page_bytes = round_up(bytes, kPage);
  const int file = memfd_create("simt", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(page_bytes)) != 0) std::abort();
  char* pages = map_apart(page_bytes, file, 0);
  if (pages == nullptr) std::abort();
  char* base = pages + (page_bytes - bytes) / kAlignment * kAlignment;
  // NaN for floats: what a kernel reads before it wrote shows.
  std::fill(pages, pages + page_bytes, kEdge);
  std::fill(base, base + bytes, '\xFF');
  poison(pages, page_bytes);
  unpoison(base, bytes);
  if (on_device) m.in_use[device] += bytes;
  return keep({kind, device, base, bytes, pages, page_bytes, file, false});
}

bool free_memory(void* base, MemoryKind kind) {
  Memory& m = memory();
  const auto it = m.live.find(reinterpret_cast<uintptr_t>(base));
  if (it == m.live.end() || it->second.kind != kind) return false;
  const Allocation a = it->second;
  const bool is_registered = kind == MemoryKind::kPinned && a.imported;
  if (is_registered) return false;
  // A lock that is shared by those who have it mapped, and goes with their processes.
  const bool is_mapped = !a.imported && flock(a.file, LOCK_EX | LOCK_NB) != 0;
  std::erase(m.open, &it->second);
  m.live.erase(it);
  unpoison(a.pages, a.page_bytes);
  if (kind == MemoryKind::kDevice && !a.imported) m.in_use[a.device] -= a.bytes;
  mprotect(a.pages, a.page_bytes, PROT_READ | PROT_WRITE);
  const bool whole = edges_are_whole(a);
  // The address stays taken, so that a late access is never one to somebody else's memory.
  mmap(a.pages, a.page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
       -1, 0);
  if (a.file >= 0) close(a.file);
  if (!whole) throw_spoiled(a.device, a.bytes);
  if (is_mapped) {
    throw Fault{cudaErrorIllegalAddress, "memory of " + std::to_string(a.bytes) +
                                             " bytes was freed while a process has it mapped"};
  }
  return true;
}

bool register_memory(void* p, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  if (address % kPage != 0 || bytes == 0 || bytes % kPage != 0) return false;  // as is safe in CUDA
  if (find_memory(p) != nullptr) return false;
  char* base = static_cast<char*>(p);
  memory().live[address] = {MemoryKind::kPinned, 0, base, bytes, base, bytes, -1, true};
  return true;
}

bool unregister_memory(void* p) {
  const auto it = memory().live.find(reinterpret_cast<uintptr_t>(p));
  if (it == memory().live.end() || it->second.kind != MemoryKind::kPinned || !it->second.imported) {
    return false;
  }
  memory().live.erase(it);
  return true;
}

const Allocation* find_memory(const void* p, size_t bytes) {
  const Memory& m = memory();
  const auto address = reinterpret_cast<uintptr_t>(p);
  auto it = m.live.upper_bound(address);
  if (it == m.live.begin()) return nullptr;
  const Allocation& a = std::prev(it)->second;
  const auto offset = static_cast<size_t>(address - reinterpret_cast<uintptr_t>(a.base));
  return offset <= a.bytes && bytes <= a.bytes - offset ? &a : nullptr;
}

size_t memory_in_use(int device) { return memory().in_use[device]; }
void set_memory_limit(size_t bytes) { memory().limit = bytes; }
size_t memory_limit() { return memory().limit; }

void free_all_memory() {
  std::vector<std::pair<void*, MemoryKind>> all;
  for (const auto& [base, a] : memory().live) all.emplace_back(a.base, a.kind);
  for (const auto& [base, kind] : all) free_memory(base, kind);
}

void open_memory(int device, unsigned peers) {
  Memory& m = memory();
  if (m.open_device == device && m.open_peers == peers) return;
  m.open_device = device;
  m.open_peers = peers;
  runs_device = device >= 0;
  const Allocation* spoiled = nullptr;
  for (Allocation* a : m.open) {
    if (!edges_are_whole(*a)) spoiled = a;
    close_pages(*a);
  }
  m.open.clear();
  if (!kOpensWhatIsTouched) {
    for (auto& [base, a] : m.live) {
      if (may_open(a)) open_pages(a);
    }
  }
  if (spoiled != nullptr) throw_spoiled(spoiled->device, spoiled->bytes);
}

bool is_plain_host_address(uintptr_t address) {
  // Small numbers and what no 47-bit address can be are sizes, values and packed arguments. Linux
  // puts programs, heaps and stacks above 0x55 << 40; the shadows of sanitizers, which are mapped,
  // lie below.
  if (address < (uintptr_t{0x55} << 40) || address >= (uintptr_t{1} << 47)) return false;
  if (find_memory(reinterpret_cast<void*>(address), 0) != nullptr) return false;
  return msync(reinterpret_cast<void*>(address / kPage * kPage), kPage, MS_ASYNC) == 0;
}

// ---- Between processes ----

namespace {
struct Exported {
  int process;
  int file;
  size_t bytes;
  size_t offset;
  size_t page_bytes;
};
static_assert(sizeof(Exported) <= sizeof(cudaIpcMemHandle_t));
}  // namespace

bool export_memory(const void* base, cudaIpcMemHandle_t* handle) {
  const Allocation* a = find_memory(base);
  if (a == nullptr || a->kind != MemoryKind::kDevice || a->imported) return false;
  const Exported out{getpid(), a->file, a->bytes, static_cast<size_t>(a->base - a->pages),
                     a->page_bytes};
  std::memcpy(handle, &out, sizeof out);
  return true;
}

void* import_memory(const cudaIpcMemHandle_t& handle, int device) {
  Exported in;
  std::memcpy(&in, &handle, sizeof in);
  if (in.process == getpid()) return nullptr;  // as CUDA has it
  const std::string path = "/proc/" + std::to_string(in.process) + "/fd/" + std::to_string(in.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  char* pages = flock(file, LOCK_SH | LOCK_NB) == 0 ? map_apart(in.page_bytes, file, 0) : nullptr;
  if (pages == nullptr) {  // it is just being freed
    close(file);
    return nullptr;
  }
  return keep({MemoryKind::kDevice, device, pages + in.offset, in.bytes, pages, in.page_bytes, file,
               true})
      ->base;
}

}  // namespace simt
