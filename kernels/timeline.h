#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

// The timeline of a job: where LOCKSTEP_TIMELINE names a file, spans of all ranks go there in
// Chrome's trace format (the array form, whose end may be missing), one event a line. It opens in
// Perfetto (ui.perfetto.dev) and in chrome://tracing. Each rank is a process of the picture and
// each of its threads a track, on which spans nest.
//
// A span takes two looks at the clock and a place in a list; a thread writes its list when it is
// long and when the thread ends. Where the variable is not set a span is one comparison.
namespace lockstep::timeline {

// What a span shows: its category in the file.
namespace kind {
inline constexpr std::string_view kForward = "forward";
inline constexpr std::string_view kBackward = "backward";
inline constexpr std::string_view kCopy = "copy";              // a gradient goes into its bucket
inline constexpr std::string_view kCollective = "collective";  // in whichever thread runs it
inline constexpr std::string_view kWait = "wait";    // for a collective, running it or not
inline constexpr std::string_view kAgree = "agree";  // on which parameters were used
inline constexpr std::string_view kOptimizer = "optimizer";
}  // namespace kind

namespace internal {
inline constinit std::atomic<int> state{-1};  // 1: on, 0: off, -1: nobody has looked
bool look();
void record(std::string_view kind, std::string_view name, int64_t start_ns, int64_t bytes);

// For stream_timeline.cpp: tracks that are no thread's. Views live as long as the program.
struct Track;
struct Owner {
  int rank = 0;
  std::string track;
};
Owner owner();                                       // what set_thread() made of this thread
Track& make_track(int rank, std::string_view name);  // never destroyed
void record(Track& track, std::string_view kind, std::string_view name, int64_t start_ns,
            int64_t end_ns, int64_t bytes);
// Of it: gives tracks what devices have come past. Called before all that is written at an end.
void record_passed() noexcept;
}  // namespace internal

// Whether spans are recorded. Reads the variable once.
inline bool enabled() {
  const int state = internal::state.load(std::memory_order_relaxed);
  return state == 1 || (state < 0 && internal::look());
}

// CLOCK_MONOTONIC, one for all processes of a host.
int64_t now_ns();

// From construction to destruction. Nothing where !enabled().
class Span {
 public:
  // `kind` and `name` must live as long as the program. `bytes` is shown where it is not negative.
  explicit Span(std::string_view kind, std::string_view name, int64_t bytes = -1)
      : kind_(kind), name_(name), bytes_(bytes) {
    if (enabled()) [[unlikely]]
      start_ns_ = now_ns();
  }
  ~Span() {
    if (start_ns_ != kOff) [[unlikely]]
      internal::record(kind_, name_, start_ns_, bytes_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  static constexpr int64_t kOff = -1;

  std::string_view kind_;
  std::string_view name_;
  int64_t bytes_;
  int64_t start_ns_ = kOff;
};

// The calling thread's spans belong to `rank` from now on, on a track of this name. Spans of
// threads that say nothing are rank 0's.
void set_thread(int rank, std::string_view name);

// Which file this process writes, and which instant of now_ns() is 0 there. Without a call this
// process makes the file, and 0 is its first span. The first call counts.
struct Opening {
  std::string suffix = {};  // of the file's name
  bool makes = true;        // the file, in place of an earlier one; others must wait for that
  int64_t zero_ns = 0;
};
void open(const Opening& opening);

// Writes what this process has recorded. It is called when a process ends through exit() or main().
void flush() noexcept;

}  // namespace lockstep::timeline
