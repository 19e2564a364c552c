#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/kernels/stream.h"
#include "lockstep/kernels/timeline.h"

// The timeline of CUDA devices: rows beside the threads', "training (cuda:0)", with the times at
// which a device came to what threads had put on its streams. Their spans are named "backward
// (cuda:0)", and their categories are "backward,cuda:0".
//
// A span is two timed events. They are read when the device has passed them, at later spans and
// when the timeline is written: nobody waits for a device, and what it has not passed when the
// process ends is not shown. A device's clock is put on the host's once, before its first span,
// which waits for the device's answer; from then on the two are as equal as their rates.
namespace lockstep::timeline {

// What is put on the current stream of `device` from construction to destruction. Nothing where
// !enabled(), and on the CPU, whose own Span shows it.
class StreamSpan {
 public:
  // `kind` and `name` must live as long as the program.
  StreamSpan(std::string_view kind, std::string_view name, Device device, int64_t bytes = -1) {
    if (enabled() && device.is_cuda()) [[unlikely]]
      begin(kind, name, device, bytes);
  }
  ~StreamSpan() {
    if (open_) [[unlikely]]
      end();
  }
  StreamSpan(const StreamSpan&) = delete;
  StreamSpan& operator=(const StreamSpan&) = delete;

 private:
  struct Open {
    std::string_view kind;
    std::string_view name;
    int64_t bytes;
    Stream stream;
    Event start;
  };
  void begin(std::string_view kind, std::string_view name, Device device, int64_t bytes) noexcept;
  void end() noexcept;

  std::optional<Open> open_;
};

// A timed event on a stream, for record(); the first of a device puts its clock on the host's. One
// without a handle where !enabled(), and on the CPU.
Event mark(const Stream& stream);

// Shows what is between two such events of a stream, on the row of that stream and of `track`: the
// name of a thread's. A stream may be null where the track has one. Nothing where !enabled().
void record(std::string_view kind, std::string_view name, std::string_view track,
            const CUstream_st* stream, const Event& start, const Event& end,
            int64_t bytes) noexcept;

// While one lives, collectives that the calling thread starts are called "bucket 3" on a device's
// rows, and not by what they do. Nothing where !enabled(). Not nested.
class Label {
 public:
  Label(std::string_view what, size_t number) {
    if (enabled()) [[unlikely]]
      set(what, number);
  }
  ~Label() {
    if (enabled()) [[unlikely]]
      current().clear();
  }
  Label(const Label&) = delete;
  Label& operator=(const Label&) = delete;

  static std::string& current();

 private:
  static void set(std::string_view what, size_t number);
};

}  // namespace lockstep::timeline
