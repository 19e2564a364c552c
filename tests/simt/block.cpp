// Blocks: lanes as fibers, warps, barriers, shared memory.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <boost/context/detail/fcontext.hpp>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>

#include "absl/debugging/symbolize.h"
#include "runtime.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace simt {
namespace {

namespace ctx = boost::context::detail;

#if defined(SIMT_TSAN) || defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 128 << 10;
#else
constexpr size_t kStackBytes = 32 << 10;
#endif
constexpr uint64_t kCanary = 0xC3C3C3C3C3C3C3C3u;
constexpr size_t kRedZone = 64;
constexpr size_t kMaxActiveBlocks = 64;

enum class State : uint8_t { kReady, kBarrier, kWarp, kAsleep, kDone };

struct Lane {
  ctx::fcontext_t context = nullptr;
  void* tsan = nullptr;
  void* fake_stack = nullptr;
  char* stack = nullptr;
  uint3 thread{};
  unsigned index = 0;
  State state = State::kReady;
  const Site* site = nullptr;
  BarrierOp barrier_op = BarrierOp::kSync;
  WarpOp warp_op = WarpOp::kSync;
  unsigned mask = 0;
  unsigned source = 0;
  int predicate = 0;
  uint64_t in = 0;
  uint64_t out = 0;
};

// Copies that ThreadSanitizer does not see.
void copy_unseen(void* to, const void* from, size_t n) {
  auto* t = static_cast<volatile char*>(to);
  const auto* f = static_cast<const volatile char*>(from);
  for (size_t i = 0; i < n; ++i) t[i] = f[i];
}

std::string text(const dim3& d) {
  return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")";
}
dim3 to_dim(const uint3& u) { return {u.x, u.y, u.z}; }

std::string text(const Site* site) {
  return site == nullptr ? "nowhere" : std::string(site->file) + ":" + std::to_string(site->line);
}

// Stacks are mapped once and used again, but under ThreadSanitizer, which must forget who used one.
class Stacks {
 public:
  char* take(size_t lanes) {
    if (kTsan) return static_cast<char*>(std::malloc(lanes * kStackBytes));
    auto& spare = spare_[lanes];
    if (!spare.empty()) {
      char* stacks = spare.back();
      spare.pop_back();
      return stacks;
    }
    void* stacks = mmap(nullptr, lanes * kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) std::abort();
    return static_cast<char*>(stacks);
  }
  void give_back(char* stacks, size_t lanes) {
    if (kTsan) return std::free(stacks);
    unpoison(stacks, lanes * kStackBytes);  // lanes that were dropped left their marks
    spare_[lanes].push_back(stacks);
  }

 private:
  std::map<size_t, std::vector<char*>> spare_;
};
Stacks& stacks() {
  static auto* instance = new Stacks;
  return *instance;
}

// An array of shared memory with what tells that its edges were written.
struct SharedArray {
  const Site* site;
  char* memory;
  size_t bytes;
};

}  // namespace

struct Block {
  Launch* launch = nullptr;
  dim3 index;
  std::vector<Lane> lanes;
  std::vector<int> ready;  // lanes that can run, by warp
  char* stack_memory = nullptr;
  Contexts contexts;
  std::vector<SharedArray> arrays;
  size_t static_bytes = 0;
  char* dynamic = nullptr;
  Token start;  // of the block, as lanes see it
  Token end;
  Token barrier_tokens[2];
  std::array<Token, 32> warp_tokens;
  unsigned barriers = 0;

  ctx::fcontext_t scheduler = nullptr;
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  size_t scheduler_stack_bytes = 0;
  Lane* current = nullptr;
  std::unique_ptr<Fault> fault;

  ~Block();
};

unsigned lane_index = 0;
static Block* block = nullptr;

Launch::Launch() = default;
Launch::~Launch() = default;

namespace {

std::string describe(const Block& b, const Lane* lane) {
  std::string out = "kernel " + kernel_name(b.launch->kernel) + ", block " + text(b.index);
  if (lane != nullptr) out += ", thread " + text(to_dim(lane->thread));
  return out;
}

// Leaves the lane for the scheduler; comes back when it is run again.
void to_scheduler() {
  Block& b = *block;
#ifdef __SANITIZE_ADDRESS__
  Lane& lane = *b.current;
  __sanitizer_start_switch_fiber(&lane.fake_stack, b.scheduler_stack, b.scheduler_stack_bytes);
#endif
  switch_context(b.contexts.block);
  b.scheduler = ctx::jump_fcontext(b.scheduler, nullptr).fctx;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(lane.fake_stack, &block->scheduler_stack,
                                  &block->scheduler_stack_bytes);
#endif
}

[[noreturn]] void lane_fault(cudaError_t error, const std::string& what) {
  block->fault =
      std::make_unique<Fault>(Fault{error, describe(*block, block->current) + ": " + what});
  while (true) to_scheduler();  // never run again
}

void lane_main(ctx::transfer_t from) {
  block->scheduler = from.fctx;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &block->scheduler_stack, &block->scheduler_stack_bytes);
#endif
  acquire(block->start);
  block->launch->body();
  release(block->end);
  block->current->state = State::kDone;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(nullptr, block->scheduler_stack, block->scheduler_stack_bytes);
#endif
  switch_context(block->contexts.block);
  ctx::jump_fcontext(block->scheduler, nullptr);
}

void run_lane(Block& b, Lane& lane) {
  b.current = &lane;
  threadIdx = lane.thread;
  lane_index = lane.index % kWarp;
  switch_context(lane.tsan);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&b.scheduler_fake_stack, lane.stack, kStackBytes);
#endif
  lane.context = ctx::jump_fcontext(lane.context, nullptr).fctx;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(b.scheduler_fake_stack, nullptr, nullptr);
#endif
  b.current = nullptr;
  if (b.fault != nullptr) throw Fault(*b.fault);
  uint64_t canary;
  copy_unseen(&canary, lane.stack, sizeof canary);
  if (!kAsan && canary != kCanary) {
    throw Fault{cudaErrorLaunchFailure, describe(b, &lane) + ": its local memory overflowed"};
  }
}

// Parks the running lane until the scheduler makes it ready again; what others did before the token
// was released is then seen.
void park(State state, const Site* site, Token& token) {
  Lane& lane = *block->current;
  lane.state = state;
  lane.site = site;
  release(token);
  to_scheduler();
  acquire(token);
}

unsigned result_of(const Lane& lane, const Lane* warp_lanes) {
  unsigned out = lane.warp_op == WarpOp::kAnd || lane.warp_op == WarpOp::kMin ? ~0u : 0u;
  for (unsigned k = 0; k < kWarp; ++k) {
    if ((lane.mask >> k & 1) == 0) continue;
    const auto value = static_cast<unsigned>(warp_lanes[k].in);
    switch (lane.warp_op) {
      case WarpOp::kBallot:
        out |= value << k;
        break;
      case WarpOp::kMatch:
        out |= static_cast<unsigned>(warp_lanes[k].in == lane.in) << k;
        break;
      case WarpOp::kAdd:
        out += value;
        break;
      case WarpOp::kMin:
        out = std::min(out, value);
        break;
      case WarpOp::kMax:
        out = std::max(out, value);
        break;
      case WarpOp::kAnd:
        out &= value;
        break;
      case WarpOp::kOr:
        out |= value;
        break;
      default:
        out ^= value;
    }
  }
  return out;
}

// Completes one call of lanes of warp `w` that have all come; false where there is none.
bool resolve_warp(Block& b, unsigned w) {
  const unsigned first = w * kWarp;
  const unsigned count = std::min(kWarp, static_cast<unsigned>(b.lanes.size()) - first);
  Lane* lanes = &b.lanes[first];
  for (unsigned i = 0; i < count; ++i) {
    const Lane& lane = lanes[i];
    if (lane.state != State::kWarp) continue;
    const auto fail = [&](const std::string& what) {
      throw Fault{cudaErrorLaunchFailure,
                  describe(b, &lane) + ": at " + text(lane.site) + " " + what};
    };
    if ((lane.mask >> i & 1) == 0) fail("it is not in its own mask");
    bool all = true;
    for (unsigned k = 0; k < kWarp && all; ++k) {
      if ((lane.mask >> k & 1) == 0) continue;
      if (k >= count) fail("the mask names lane " + std::to_string(k) + ", which the block lacks");
      if (lanes[k].state == State::kDone) {
        fail("the mask names lane " + std::to_string(k) + ", which has exited");
      }
      all = lanes[k].state == State::kWarp && lanes[k].site == lane.site &&
            lanes[k].mask == lane.mask && lanes[k].warp_op == lane.warp_op;
    }
    if (!all) continue;
    for (unsigned k = 0; k < kWarp; ++k) {
      if ((lane.mask >> k & 1) == 0) continue;
      Lane& to = lanes[k];
      if (to.warp_op == WarpOp::kShuffle) {
        if ((lane.mask >> to.source & 1) == 0) {
          fail("a shuffle reads from lane " + std::to_string(to.source) + ", outside of the mask");
        }
        to.out = lanes[to.source].in;
      } else if (to.warp_op != WarpOp::kSync) {
        to.out = result_of(to, lanes);
      }
    }
    for (unsigned k = 0; k < kWarp; ++k) {
      if ((lane.mask >> k & 1) == 0) continue;
      lanes[k].state = State::kReady;
      ++b.ready[w];
    }
    return true;
  }
  return false;
}

// Runs warps, picked at random, until none can go on.
void run_warps(Block& b) {
  std::vector<unsigned> order;
  const auto step = [&](unsigned w) {
    if (b.ready[w] == 0 && !resolve_warp(b, w)) return false;
    order.clear();
    const unsigned end = std::min(static_cast<unsigned>(b.lanes.size()), (w + 1) * kWarp);
    for (unsigned i = w * kWarp; i < end; ++i) {
      if (b.lanes[i].state == State::kReady) order.push_back(i);
    }
    random_source.shuffle(order);
    b.ready[w] = 0;
    for (unsigned i : order) run_lane(b, b.lanes[i]);
    return true;
  };
  std::vector<unsigned> warps(b.ready.size());
  for (unsigned w = 0; w < warps.size(); ++w) warps[w] = w;
  while (!warps.empty()) {
    const unsigned at = random_source.below(static_cast<unsigned>(warps.size()));
    bool runs = true;
    do {
      runs = step(warps[at]);
    } while (runs && random_source.below(4) != 0);
    // What a warp waits for beyond its own lanes is a barrier.
    if (!runs) warps.erase(warps.begin() + at);
  }
}

// Lets the lanes go on that wait at a barrier. Returns whether all lanes have ended; throws where
// they wait for what cannot come.
Progress meet(Block& b) {
  const Lane* first = nullptr;
  unsigned waiting = 0, done = 0, asleep = 0, count = 0;
  bool every = true, any = false;
  for (const Lane& lane : b.lanes) {
    done += lane.state == State::kDone;
    asleep += lane.state == State::kAsleep;
    if (lane.state != State::kBarrier) continue;
    if (first == nullptr) first = &lane;
    if (lane.site != first->site) {
      throw Fault{cudaErrorLaunchFailure, describe(b, &lane) + ": waits at the barrier of " +
                                              text(lane.site) + " while others wait at " +
                                              text(first->site)};
    }
    ++waiting;
    count += lane.predicate != 0;
    every = every && lane.predicate != 0;
    any = any || lane.predicate != 0;
  }
  if (done == b.lanes.size()) return Progress::kDone;
  if (waiting > 0 && waiting + done == b.lanes.size()) {
    ++b.barriers;
    for (Lane& lane : b.lanes) {
      if (lane.state != State::kBarrier) continue;
      lane.out = lane.barrier_op == BarrierOp::kCount ? count
                 : lane.barrier_op == BarrierOp::kAnd ? every
                                                      : any;
      lane.state = State::kReady;
      ++b.ready[lane.index / kWarp];
    }
    return Progress::kMore;
  }
  if (asleep > 0) {
    for (Lane& lane : b.lanes) {
      if (lane.state != State::kAsleep) continue;
      lane.state = State::kReady;
      ++b.ready[lane.index / kWarp];
    }
    return Progress::kAsleep;
  }
  std::ostringstream out;
  out << describe(b, nullptr) << ": lanes wait for each other for ever:";
  int listed = 0;
  for (const Lane& lane : b.lanes) {
    if (lane.state == State::kDone || ++listed > 6) continue;
    out << " thread " << lane.index << (lane.state == State::kBarrier ? " at the barrier " : " at ")
        << text(lane.site);
    if (lane.state == State::kWarp) out << " with mask " << std::hex << lane.mask << std::dec;
  }
  throw Fault{cudaErrorLaunchFailure, out.str()};
}

void check_shared(const Block& b) {
  for (const SharedArray& array : b.arrays) {
    if (kAsan) continue;
    for (size_t i = 0; i < kRedZone; ++i) {
      char before, after;
      copy_unseen(&before, array.memory - kRedZone + i, 1);
      copy_unseen(&after, array.memory + array.bytes + i, 1);
      if (before != '\xC3' || after != '\xC3') {
        throw Fault{
            cudaErrorIllegalAddress,
            describe(b, nullptr) + ": wrote beyond the shared array of " + text(array.site)};
      }
    }
  }
}

// Poisoned with 0xFF, which is NaN for floats, between red zones.
char* new_shared(Block& b, const Site* site, size_t bytes) {
  char* memory = nullptr;
  const size_t total = kAsan ? bytes : bytes + 2 * kRedZone;
  if (posix_memalign(reinterpret_cast<void**>(&memory), kRedZone, total) != 0) std::abort();
  for (size_t i = 0; i < total; ++i) {
    const bool inside = kAsan || (i >= kRedZone && i < kRedZone + bytes);
    static_cast<volatile char*>(memory)[i] = inside ? '\xFF' : '\xC3';
  }
  if (!kAsan) memory += kRedZone;
  b.arrays.push_back({site, memory, bytes});
  return memory;
}

std::unique_ptr<Block> new_block(Launch& launch, unsigned number) {
  static const Site kDynamic = {"dynamic shared memory", 0};
  auto b = std::make_unique<Block>();
  b->launch = &launch;
  const dim3 grid = launch.grid, dims = launch.block;
  b->index = dim3(number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y);
  b->lanes.resize(dims.x * dims.y * dims.z);
  b->ready.assign((b->lanes.size() + kWarp - 1) / kWarp, 0);
  if (!launch.contexts->empty() && launch.contexts->size() > 1) {
    // The oldest: so two blocks that follow each other never share them.
    b->contexts = std::move(launch.contexts->front());
    launch.contexts->erase(launch.contexts->begin());
  }
  if (b->contexts.block == nullptr) b->contexts.block = new_own_context();
  while (b->contexts.lanes.size() < b->lanes.size()) b->contexts.lanes.push_back(new_context());
  b->stack_memory = stacks().take(b->lanes.size());
  for (unsigned i = 0; i < b->lanes.size(); ++i) {
    Lane& lane = b->lanes[i];
    lane.index = i;
    lane.tsan = b->contexts.lanes[i];
    lane.stack = b->stack_memory + i * kStackBytes;
    copy_unseen(lane.stack, &kCanary, sizeof kCanary);
    lane.context = ctx::make_fcontext(lane.stack + kStackBytes, kStackBytes, lane_main);
    lane.thread = {i % dims.x, i / dims.x % dims.y, i / dims.x / dims.y};
    ++b->ready[i / kWarp];
  }
  if (launch.dynamic_bytes > 0) b->dynamic = new_shared(*b, &kDynamic, launch.dynamic_bytes);
  return b;
}

// A block that is done is freed here, in its own context: what follows in the stream's must not
// seem to come after its lanes, else races between blocks would go unseen.
Progress run_block(std::unique_ptr<Block>& owner) {
  Block& b = *owner;
  block = &b;
  void* outside = current_context();
  switch_context(b.contexts.block);
  struct Restore {
    void* outside;
    ~Restore() {
      switch_context(outside);
      block = nullptr;
    }
  } restore{outside};
  acquire(b.launch->start);
  release(b.start);
  blockIdx = {b.index.x, b.index.y, b.index.z};
  blockDim = b.launch->block;
  gridDim = b.launch->grid;
  while (true) {
    run_warps(b);
    const Progress progress = meet(b);
    if (progress == Progress::kMore) continue;
    if (progress == Progress::kDone) {
      check_shared(b);
      acquire(b.end);
      Launch& launch = *b.launch;
      owner.reset();
      release(launch.end);
    }
    return progress;
  }
}

}  // namespace

Block::~Block() {
  for (const SharedArray& array : arrays) std::free(array.memory - (kAsan ? 0 : kRedZone));
  stacks().give_back(stack_memory, lanes.size());
  launch->contexts->push_back(std::move(contexts));
}

Progress run(Launch& launch) {
  if (launch.order.empty()) {
    launch.order.resize(size_t{launch.grid.x} * launch.grid.y * launch.grid.z);
    for (unsigned i = 0; i < launch.order.size(); ++i) launch.order[i] = i;
    random_source.shuffle(launch.order);
  }
  // Blocks that sleep may wait for one that has not begun.
  const bool begin = launch.next < launch.order.size() && launch.active.size() < kMaxActiveBlocks &&
                     (launch.active.empty() || random_source.below(2) == 0);
  if (begin) launch.active.push_back(new_block(launch, launch.order[launch.next++]));
  const size_t at = begin ? launch.active.size() - 1
                          : random_source.below(static_cast<unsigned>(launch.active.size()));
  release(launch.start);
  try {
    if (run_block(launch.active[at]) == Progress::kAsleep) return Progress::kAsleep;
  } catch (const Fault&) {
    // What the lanes did that are dropped now comes before all that the stream does next.
    void* outside = current_context();
    for (const auto& dropped : launch.active) {
      for (const Lane& lane : dropped->lanes) {
        switch_context(lane.tsan);
        release(launch.end);
      }
    }
    switch_context(outside);
    acquire(launch.end);
    throw;
  }
  launch.active.erase(launch.active.begin() + static_cast<std::ptrdiff_t>(at));
  if (launch.next < launch.order.size() || !launch.active.empty()) return Progress::kMore;
  acquire(launch.end);
  return Progress::kDone;
}

std::string kernel_name(const void* kernel) {
  char name[512];
  if (kTsan)
    return "of a build with ThreadSanitizer";  // which would see the symbolizer's own files
  return absl::Symbolize(kernel, name, sizeof name) ? name : "without a symbol";
}

std::string running() { return block == nullptr ? "" : describe(*block, block->current); }

// ---- What lanes call ----

int barrier(const Site* site, BarrierOp op, int predicate) {
  if (is_left_out(site)) return 0;
  Lane& lane = *block->current;
  lane.barrier_op = op;
  lane.predicate = predicate;
  park(State::kBarrier, site, block->barrier_tokens[block->barriers & 1]);
  return static_cast<int>(lane.out);
}

void warp(WarpOp op, unsigned mask, const Site* site, const void* in, void* out, size_t n,
          unsigned source) {
  Lane& lane = *block->current;
  lane.warp_op = op;
  lane.mask = mask;
  lane.source = source & (kWarp - 1);
  lane.in = 0;
  copy_unseen(&lane.in, in, n);
  park(State::kWarp, site, block->warp_tokens[lane.index / kWarp]);
  copy_unseen(out, &lane.out, op == WarpOp::kShuffle ? n : sizeof(unsigned));
}

unsigned active_mask() {
  const unsigned first = block->current->index / kWarp * kWarp;
  unsigned mask = 0;
  for (unsigned i = first; i < first + kWarp && i < block->lanes.size(); ++i) {
    if (block->lanes[i].state != State::kDone) mask |= 1u << (i - first);
  }
  return mask;
}

void* static_shared(const Site* site, size_t bytes) {
  for (const SharedArray& array : block->arrays) {
    if (array.site != site) continue;
    acquire(block->start);
    return array.memory;
  }
  block->static_bytes += bytes;
  const Launch& launch = *block->launch;
  const bool asked = dynamic_limit(launch.kernel) > kStaticSharedBytes;
  if (block->static_bytes > kStaticSharedBytes ||
      block->static_bytes + launch.dynamic_bytes >
          (asked ? kDynamicSharedBytes : kStaticSharedBytes)) {
    lane_fault(cudaErrorInvalidValue, "static shared memory of " +
                                          std::to_string(block->static_bytes) + " bytes beside " +
                                          std::to_string(launch.dynamic_bytes) + " dynamic ones");
  }
  // An allocation counts as a write, which comes before all lanes.
  switch_context(block->contexts.block);
  void* memory = new_shared(*block, site, bytes);
  release(block->start);
  switch_context(block->current->tsan);
  acquire(block->start);
  return memory;
}

void* dynamic_shared() {
  if (block->dynamic == nullptr) {
    lane_fault(cudaErrorIllegalAddress, "uses dynamic shared memory, and was launched with none");
  }
  return block->dynamic;
}

void fence() {
  static Token token;
  acquire(token);
  release(token);
}

void sleep() {
  block->current->state = State::kAsleep;
  to_scheduler();
}

void trap(const Site* site) { lane_fault(cudaErrorLaunchFailure, "trap at " + text(site)); }

}  // namespace simt
