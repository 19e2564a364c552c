// Streams: ordered queues whose heads run in a random order, in the thread that waits or asks. So a
// schedule can be replayed, and a missing event wait is a wrong value in some.
#include "streams.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "simt/simt.h"

namespace simt {

Random random_source([] {
  const char* seed = std::getenv("SIMT_SEED");
  return seed == nullptr ? uint64_t{1} : std::strtoull(seed, nullptr, 10);
}());

// The one barrier that this run goes without: remove_waits.py sees whether some test misses it.
bool is_left_out(const Site* site) {
  static const char* without = std::getenv("SIMT_WITHOUT");  // FILE:LINE
  if (without == nullptr) return false;
  return (std::string(site->file) + ":" + std::to_string(site->line)).ends_with(without);
}

World& world() {
  static auto* instance = [] {
    auto* made = new World;
    if (const char* count = std::getenv("SIMT_DEVICES")) made->device_count = std::atoi(count);
    return made;
  }();
  return *instance;
}

thread_local int this_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local bool in_callback = false;
std::atomic_flag busy = ATOMIC_FLAG_INIT;

namespace {

using Clock = std::chrono::steady_clock;
std::chrono::seconds patience{300};
Clock::time_point last_progress;

template <class F>
void each_stream(const F& f) {
  for (auto& [handle, stream] : world().streams) f(*stream);
  for (DeviceState& device : world().devices) {
    if (device.null_stream != nullptr) f(*device.null_stream);
  }
}

}  // namespace

cudaError_t stick(int device, const Fault& fault) {
  World& w = world();
  w.report += fault.report + "\n";
  std::fprintf(stderr, "simt: %s\n", fault.report.c_str());
  w.devices[device].sticky = fault.error;
  each_stream([&](CUstream_st& stream) {
    if (stream.device != device) return;
    acquire(stream.done);
    for (Op& op : stream.queue) {
      if (op.record != nullptr) op.record->completed = op.count;
    }
    stream.finished = stream.pushed;
    stream.queue.clear();
  });
  return fault.error;
}

namespace {

bool is_ready(const CUstream_st& stream) {
  if (stream.queue.empty()) return false;
  const Op& head = stream.queue.front();
  if (head.word != nullptr) {
    return static_cast<int64_t>(__atomic_load_n(head.word, __ATOMIC_ACQUIRE) - head.count) >= 0;
  }
  return head.wait == nullptr || head.wait->completed >= head.count;
}

CUstream_st* pick() {
  std::erase_if(world().streams, [](const auto& one) {
    return one.second->is_destroyed && one.second->queue.empty();
  });
  std::vector<CUstream_st*> ready;
  each_stream([&](CUstream_st& stream) {
    if (is_ready(stream)) ready.push_back(&stream);
  });
  if (ready.empty()) return nullptr;
  // A priority is a preference, and never a promise.
  if (random_source.below(4) != 0) {
    int best = ready[0]->priority;
    for (const CUstream_st* stream : ready) best = std::min(best, stream->priority);
    std::erase_if(ready, [&](const CUstream_st* stream) { return stream->priority != best; });
  }
  return ready[random_source.below(static_cast<unsigned>(ready.size()))];
}

// Runs the head of a stream, or a piece of it.
Progress run_head(CUstream_st& stream) {
  DeviceState& device = world().devices[stream.device];
  Op& op = stream.queue.front();
  void* host = current_context();
  // Blocks that a cache keeps keep their streams.
  if (has_many_contexts()) {
    each_stream([&](CUstream_st& other) {
      if (&other != &stream) other.end_spare();
    });
  }
  if (stream.context == nullptr) stream.context = new_context();
  if (op.work || op.launch != nullptr) {
    open_memory(op.on_host ? -1 : stream.device, device.peers);
  }
  switch_context(stream.context);
  acquire(*op.token);
  Progress progress = Progress::kDone;
  try {
    if (op.wait != nullptr) acquire(op.wait->token);
    if (op.work) op.work();
    if (op.launch != nullptr) progress = run(*op.launch);
    device.clock_us += 1 + random_source.below(100);
    if (progress == Progress::kDone && op.record != nullptr) {
      op.record->stamp_us = device.clock_us;
      release(op.record->token);
    }
  } catch (const Fault&) {
    release(stream.done);
    switch_context(host);
    throw;
  }
  release(stream.done);
  switch_context(host);
  if (progress != Progress::kDone) return progress;
  if (op.record != nullptr) op.record->completed = op.count;
  stream.queue.pop_front();
  ++stream.finished;
  return progress;
}

// Runs one piece of something; false where nothing can run now. A fault sticks to its device.
bool step() {
  CUstream_st* stream = pick();
  if (stream == nullptr) return false;
  try {
    if (run_head(*stream) == Progress::kAsleep) return false;
  } catch (const Fault& fault) {
    stick(stream->device, fault);
  }
  last_progress = Clock::now();
  return true;
}

// What waits has done so for too long: an error of each device that has such a stream.
void give_up() {
  std::string stuck[kMaxDevices];
  each_stream([&](const CUstream_st& stream) {
    if (stream.queue.empty()) return;
    const Op& head = stream.queue.front();
    std::string& out = stuck[stream.device];
    if (head.launch != nullptr) {
      out += " kernel " + kernel_name(head.launch->kernel) + " sleeps;";
    } else if (head.word != nullptr) {
      out += " a word is " + std::to_string(__atomic_load_n(head.word, __ATOMIC_ACQUIRE)) +
             " and not " + std::to_string(head.count) + ";";
    } else {
      out += " an event is not reached;";
    }
  });
  for (int d = 0; d < kMaxDevices; ++d) {
    if (stuck[d].empty()) continue;
    stick(d, {cudaErrorLaunchFailure, "streams wait for ever:" + stuck[d]});
  }
}

void close_all() {
  try {
    open_memory(-1, 0);
  } catch (const Fault& fault) {
    for (int d = 0; d < world().device_count; ++d) stick(d, fault);
  }
}

// Runs what is queued until `done` holds. REQUIRES: the lock is held; it is given up while nothing
// can run, for then another thread or process must do something.
template <class Done>
void drive(const Done& done) {
  last_progress = Clock::now();
  while (!done()) {
    if (step()) continue;
    close_all();
    if (Clock::now() - last_progress > patience) give_up();
    Lock::give();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    Lock::take();
  }
  close_all();
}

// Lets a little of what is queued run, now and then.
void drift() {
  if (random_source.below(3) != 0) return;
  for (unsigned n = random_source.below(3); n > 0 && step();) --n;
  close_all();
}

}  // namespace

void use_device() { world().devices[this_device].has_context = true; }

CUstream_st* find_stream(cudaStream_t stream) {
  use_device();
  World& w = world();
  if (stream == nullptr) {
    auto& null_stream = w.devices[this_device].null_stream;
    if (null_stream == nullptr) {
      null_stream = std::make_unique<CUstream_st>();
      null_stream->device = this_device;
    }
    return null_stream.get();
  }
  const auto it = w.streams.find(stream);
  return it == w.streams.end() || it->second->is_destroyed ? nullptr : it->second.get();
}

std::shared_ptr<CUevent_st> find_event(cudaEvent_t event) {
  use_device();
  const auto it = world().events.find(event);
  return it == world().events.end() ? nullptr : it->second;
}

cudaError_t push(cudaStream_t handle, Op op) {
  if (in_callback) return fail(cudaErrorNotPermitted);
  CUstream_st* stream = find_stream(handle);
  if (stream == nullptr) return fail(cudaErrorInvalidResourceHandle);
  const cudaError_t before = world().devices[stream->device].sticky;
  if (before != cudaSuccess) return fail(before);
  if (stream->capture != nullptr || (op.wait != nullptr && op.wait->capture != nullptr)) {
    return keep(*stream, std::move(op));
  }
  op.token = &stream->tokens[stream->pushed % kTokens];
  release(*op.token);
  stream->queue.push_back(std::move(op));
  ++stream->pushed;
  drift();
  return cudaSuccess;
}

cudaError_t synchronize(CUstream_st& stream) {
  const uint64_t until = stream.pushed;
  drive([&] { return stream.finished >= until; });
  acquire(stream.done);
  const cudaError_t error = world().devices[stream.device].sticky;
  return error == cudaSuccess ? error : fail(error);
}

void wait_for(const CUevent_st& event, uint64_t until) {
  drive([&] { return event.completed >= until; });
}

void poll() {
  step();
  close_all();
}

void seed(uint64_t value) {
  Lock lock;
  random_source = Random(value);
}
int device_count() {
  Lock lock;
  return world().device_count;
}
void set_device_count(int count) {
  Lock lock;
  if (std::getenv("SIMT_DEVICES") == nullptr) world().device_count = count;
}
void set_device_bytes(size_t bytes) {
  Lock lock;
  set_memory_limit(bytes);
}
void set_patience(int seconds) {
  Lock lock;
  patience = std::chrono::seconds(seconds);
}
std::string take_report() {
  Lock lock;
  for (DeviceState& device : world().devices) device.sticky = cudaSuccess;
  last_error = cudaSuccess;
  return std::exchange(world().report, {});
}
unsigned long long launches() {
  Lock lock;
  return world().launches;
}
long long clock() { return static_cast<long long>(world().devices[this_device].clock_us * 1000); }

uintptr_t find_foreign(const void* data, size_t bytes) {
  for (size_t at = 0; at + 8 <= bytes; at += 8) {
    uintptr_t word;
    std::memcpy(&word, static_cast<const char*>(data) + at, sizeof word);
    if (is_plain_host_address(word)) return word;
  }
  return 0;
}

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, void* const* arguments,
                   Bind bind) {
  Lock lock;
  const dim3 grid = config.gridDim, block = config.blockDim;
  const size_t threads = size_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
    return fail(cudaErrorInvalidConfiguration);
  }
  if (config.dynamicSmemBytes > dynamic_limit(kernel)) return fail(cudaErrorInvalidValue);
  uintptr_t foreign = 0;
  std::function<void()> body = bind(kernel, arguments, &foreign);
  if (foreign != 0) {
    char text[32];
    std::snprintf(text, sizeof text, "%#zx", static_cast<size_t>(foreign));
    return fail(stick(this_device, {cudaErrorIllegalAddress,
                                    "kernel " + kernel_name(kernel) + " was given the address " +
                                        text + ", which is the host's, or freed"}));
  }
  Op op;
  op.launch = std::make_unique<Launch>();
  op.launch->grid = grid;
  op.launch->block = block;
  op.launch->dynamic_bytes = config.dynamicSmemBytes;
  op.launch->kernel = kernel;
  op.launch->bind = bind;
  op.launch->body = std::move(body);
  CUstream_st* stream = find_stream(config.stream);
  if (stream == nullptr) return fail(cudaErrorInvalidResourceHandle);
  op.launch->contexts = &stream->spare;
  ++world().launches;
  return push(config.stream, std::move(op));
}

size_t dynamic_limit(const void* kernel) {
  const auto found = world().dynamic_limits.find(kernel);
  return found == world().dynamic_limits.end() ? kStaticSharedBytes
                                               : static_cast<size_t>(found->second);
}

cudaError_t set_max_dynamic_shared(const void* kernel, int bytes) {
  Lock lock;
  if (bytes < 0 || static_cast<size_t>(bytes) > kDynamicSharedBytes)
    return fail(cudaErrorInvalidValue);
  world().dynamic_limits[kernel] = bytes;
  return cudaSuccess;
}

}  // namespace simt
