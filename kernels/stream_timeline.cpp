#include "lockstep/kernels/stream_timeline.h"

#include <cmath>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "lockstep/kernels/graph.h"
#include "lockstep/kernels/text.h"

namespace lockstep::timeline {
namespace {

// Milliseconds from one event to another come in a float: of more than this many it cannot tell
// microseconds apart.
constexpr double kMostApart = 4000;

struct Pending {
  internal::Track* track;
  std::string_view kind;
  std::string_view name;
  Event start;
  Event end;
  int64_t bytes;
};

// A mark in a device's time, and when it was in the host's.
struct Anchor {
  Event mark;
  int64_t at_ns = 0;
};

// What devices still have to come past. Never destroyed: threads may outlive static objects.
class Rows {
 public:
  static Rows& instance() {
    static auto* const rows = new Rows;
    return *rows;
  }

  // Once for a device.
  void open(Device device) {
    const std::lock_guard lock(mutex_);
    Anchor& anchor = anchors_[device.index];
    if (anchor.mark.handle() != nullptr) return;
    // A stream on which there is nothing to wait for.
    const Stream stream = Stream::create(device, StreamPriority::kHigh);
    anchor.mark = stream.record(true);
    stream.synchronize();
    // Too late by the way back, if anything, so that nothing is shown before it was put there.
    anchor.at_ns = now_ns();
  }

  void add(std::string_view kind, std::string_view name, std::string_view track,
           const CUstream_st* stream, const Event& start, const Event& end, int64_t bytes) {
    const int rank = internal::owner().rank;
    const std::string device = start.device().name();
    const std::lock_guard lock(mutex_);
    const std::string row = str_cat(track, " (", device, ")");
    internal::Track*& made = tracks_[{rank, stream, row}];
    if (made == nullptr) made = &internal::make_track(rank, row);
    pending_.push_back({made, keep(str_cat(kind, ",", device)),
                        keep(str_cat(name, " (", device, ")")), start, end, bytes});
  }

  void record_passed() {
    const std::lock_guard lock(mutex_);
    // Streams end in no order, so that one that is late hides others for a while.
    while (!pending_.empty() && pending_.front().end.done()) {
      const Pending span = pending_.front();
      pending_.pop_front();
      Anchor& anchor = anchors_[span.start.device().index];
      const double before_ms = milliseconds_between(anchor.mark, span.start);
      const int64_t start_ns = anchor.at_ns + std::llround(before_ms * 1e6);
      const int64_t length_ns = std::llround(milliseconds_between(span.start, span.end) * 1e6);
      if (before_ms > kMostApart) anchor = {span.start, start_ns};
      internal::record(*span.track, span.kind, span.name, start_ns, start_ns + length_ns,
                       span.bytes);
    }
  }

 private:
  std::string_view keep(const std::string& text) { return *texts_.insert(text).first; }

  std::mutex mutex_;  // guards what follows; locked before a track's
  std::map<int, Anchor> anchors_;
  std::map<std::tuple<int, const CUstream_st*, std::string>, internal::Track*> tracks_;
  std::set<std::string> texts_;  // few: kinds and names, for each device
  std::deque<Pending> pending_;
};

}  // namespace

// What fails here is a device whose next user will be told, or memory for a picture.

void internal::record_passed() noexcept {
  try {
    Rows::instance().record_passed();
  } catch (const std::exception&) {
  }
}

void StreamSpan::begin(std::string_view kind, std::string_view name, Device device,
                       int64_t bytes) noexcept {
  if (is_capturing()) return;  // nothing takes any time
  try {
    const Stream stream = current_stream(device);
    open_.emplace(Open{kind, name, bytes, stream, mark(stream)});
  } catch (const std::exception&) {
  }
}

void StreamSpan::end() noexcept {
  try {
    const Stream& stream = open_->stream;
    record(open_->kind, open_->name, internal::owner().track, stream.handle(), open_->start,
           stream.record(true), open_->bytes);
  } catch (const std::exception&) {
  }
}

Event mark(const Stream& stream) {
  if (!enabled() || !stream.device().is_cuda()) return {};
  Rows::instance().open(stream.device());
  return stream.record(true);
}

void record(std::string_view kind, std::string_view name, std::string_view track,
            const CUstream_st* stream, const Event& start, const Event& end,
            int64_t bytes) noexcept {
  if (!enabled()) return;
  try {
    Rows::instance().add(kind, name, track, stream, start, end, bytes);
  } catch (const std::exception&) {
  }
  internal::record_passed();
}

std::string& Label::current() {
  thread_local std::string label;
  return label;
}

void Label::set(std::string_view what, size_t number) { current() = str_cat(what, " ", number); }

}  // namespace lockstep::timeline
