#include "lockstep/kernels/timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep::timeline {

// What one thread, or one stream of a device, shows. Whoever adds to it writes it when it is long,
// and the process's end does.
struct internal::Track {
  struct Event {
    std::string_view kind;
    std::string_view name;
    int64_t start_ns;
    int64_t end_ns;
    int64_t bytes;
  };

  std::mutex mutex;  // guards what follows
  int rank = 0;
  std::string name = "thread";
  int id = 0;
  bool is_announced = false;  // the file has its name
  std::vector<Event> events;
};

namespace {

using internal::Track;

constexpr const char* kVariable = "LOCKSTEP_TIMELINE";
constexpr size_t kListLength = 4096;

// Times are microseconds with three decimals.
void append_us(std::string& text, int64_t ns) {
  if (ns < 0) {
    text += '-';
    ns = -ns;
  }
  char digits[24];
  text.append(digits, std::to_chars(digits, std::end(digits), ns / 1000).ptr);
  const int64_t rest = ns % 1000;
  text += '.';
  for (const int64_t part : {rest / 100, rest / 10 % 10, rest % 10}) {
    text += static_cast<char>('0' + part);
  }
}

void append_number(std::string& text, int64_t number) {
  char digits[24];
  text.append(digits, std::to_chars(digits, std::end(digits), number).ptr);
}

void append_name(std::string& text, std::string_view name) {
  text += '"';
  for (const char c : name) {
    if (c == '"' || c == '\\') text += '\\';
    text += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  text += '"';
}

// Never destroyed: threads may outlive static objects.
class Writer {
 public:
  static Writer& instance() {
    static auto* const writer = new Writer;
    return *writer;
  }

  std::shared_ptr<Track> new_track() {
    auto track = std::make_shared<Track>();
    track->events.reserve(kListLength);
    const std::lock_guard lock(mutex_);
    track->id = next_id_++;
    tracks_.push_back(track);
    return track;
  }

  // Of a thread that ends.
  void remove(const std::shared_ptr<Track>& track) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase(tracks_, track);
  }

  void open(const Opening& opening) {
    const std::lock_guard lock(mutex_);
    if (!opening_) make(opening);
  }

  // REQUIRES: the track is locked.
  void write(Track& track) noexcept {
    if (track.events.empty()) return;
    try {
      const std::lock_guard lock(mutex_);
      if (!opening_) make({.zero_ns = track.events.front().start_ns});
      std::string text;
      if (!std::exchange(track.is_announced, true)) announce(text, track);
      for (const Track::Event& event : track.events) append(text, track, event);
      put(text);
    } catch (const std::exception&) {
      // Out of memory for a picture: training goes on without it.
    }
    track.events.clear();
  }

  void write_all() noexcept {
    std::vector<std::shared_ptr<Track>> tracks;
    try {
      const std::lock_guard lock(mutex_);
      tracks = tracks_;
    } catch (const std::exception&) {
      return;
    }
    for (const auto& track : tracks) {
      const std::lock_guard lock(track->mutex);
      write(*track);
    }
  }

 private:
  void make(const Opening& opening) {
    opening_ = opening;
    const std::string path = path_ + opening.suffix;
    const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (opening.makes ? O_TRUNC : 0);
    file_ = ::open(path.c_str(), flags, 0666);
    if (file_ < 0) {
      std::fprintf(stderr, "lockstep: no timeline: '%s' (%s) cannot be opened: %s\n", path.c_str(),
                   kVariable, std::strerror(errno));
    } else if (opening.makes) {
      put("[\n");
    }
  }

  void announce(std::string& text, const Track& track) const {
    const auto metadata = [&](std::string_view what, std::string_view name, bool of_thread) {
      text += R"({"ph":"M","name":")";
      text += what;
      text += R"(","pid":)";
      append_number(text, track.rank);
      if (of_thread) {
        text += R"(,"tid":)";
        append_number(text, track.id);
      }
      text += R"(,"args":{"name":)";
      append_name(text, name);
      text += "}},\n";
    };
    metadata("process_name", "rank " + std::to_string(track.rank), false);
    metadata("thread_name", track.name, true);
  }

  void append(std::string& text, const Track& track, const Track::Event& event) const {
    text += R"({"ph":"X","name":)";
    append_name(text, event.name);
    text += R"(,"cat":)";
    append_name(text, event.kind);
    text += R"(,"pid":)";
    append_number(text, track.rank);
    text += R"(,"tid":)";
    append_number(text, track.id);
    text += R"(,"ts":)";
    append_us(text, event.start_ns - opening_->zero_ns);
    text += R"(,"dur":)";
    append_us(text, event.end_ns - event.start_ns);
    if (event.bytes >= 0) {
      text += R"(,"args":{"bytes":)";
      append_number(text, event.bytes);
      text += '}';
    }
    text += "},\n";
  }

  // Whole lines at a time, behind what other ranks have written.
  void put(std::string_view text) const {
    while (file_ >= 0 && !text.empty()) {
      const ssize_t count = ::write(file_, text.data(), text.size());
      if (count < 0 && errno != EINTR) return;
      if (count > 0) text.remove_prefix(static_cast<size_t>(count));
    }
  }

  const std::string path_ = std::getenv(kVariable);
  std::mutex mutex_;  // guards what follows; locked after a track's
  std::vector<std::shared_ptr<Track>> tracks_;
  int next_id_ = 0;
  std::optional<Opening> opening_;
  int file_ = -1;
};

// The thread's track, written when the thread ends: of the main one before CUDA does.
struct Mine {
  std::shared_ptr<Track> track = Writer::instance().new_track();

  ~Mine() {
    internal::record_passed();
    {
      const std::lock_guard lock(track->mutex);
      Writer::instance().write(*track);
    }
    Writer::instance().remove(track);
  }
};

Track& mine() {
  thread_local Mine mine;
  return *mine.track;
}

void add(Track& track, const Track::Event& event) {
  const std::lock_guard lock(track.mutex);
  track.events.push_back(event);
  if (track.events.size() >= kListLength) Writer::instance().write(track);
}

void flush_all() {
  internal::record_passed();
  Writer::instance().write_all();
}

}  // namespace

bool internal::look() {
  const char* path = std::getenv(kVariable);
  const bool on = path != nullptr && *path != '\0';
  if (on) {
    static const int registered = [] {
      Writer::instance();  // the variable may be gone when it is wanted
      return std::atexit(flush_all);
    }();
    static_cast<void>(registered);
  }
  state.store(on ? 1 : 0);
  return on;
}

void internal::record(std::string_view kind, std::string_view name, int64_t start_ns,
                      int64_t bytes) {
  const int64_t end_ns = now_ns();
  add(mine(), {kind, name, start_ns, end_ns, bytes});
}

internal::Owner internal::owner() {
  Track& track = mine();
  const std::lock_guard lock(track.mutex);
  return {track.rank, track.name};
}

Track& internal::make_track(int rank, std::string_view name) {
  const std::shared_ptr<Track> track = Writer::instance().new_track();  // which keeps it
  const std::lock_guard lock(track->mutex);
  track->rank = rank;
  track->name = name;
  return *track;
}

void internal::record(Track& track, std::string_view kind, std::string_view name, int64_t start_ns,
                      int64_t end_ns, int64_t bytes) {
  add(track, {kind, name, start_ns, end_ns, bytes});
}

int64_t now_ns() {
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

void set_thread(int rank, std::string_view name) {
  if (!enabled()) return;
  Track& track = mine();
  const std::lock_guard lock(track.mutex);
  if (track.rank == rank && track.name == name) return;
  Writer::instance().write(track);
  track.rank = rank;
  track.name = name;
  track.is_announced = false;
}

void open(const Opening& opening) {
  if (enabled()) Writer::instance().open(opening);
}

void flush() noexcept {
  if (enabled()) flush_all();
}

}  // namespace lockstep::timeline
