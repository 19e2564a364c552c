#include "output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iterator>

#include "lockstep/comm/text.h"

namespace lockstep::cli {
namespace {

// A line longer than this is printed in pieces, so that no rank can make the launcher grow.
constexpr size_t kMaxLine = size_t{64} << 10;

bool set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

// What a terminal would show of a line: the text after its last carriage return, one at its end
// not counted (it comes before a line's end, or before the next state of a bar).
std::string_view last_state(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  const size_t at = line.rfind('\r');
  return at == line.npos ? line : line.substr(at + 1);
}

}  // namespace

Output::Output() {
  const char* term = std::getenv("TERM");
  const bool plain = set("NO_COLOR") || (term != nullptr && std::string_view(term) == "dumb");
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    terminal_[stream] = ::isatty(stream) == 1;
    colour_[stream] = terminal_[stream] && !plain;
  }
}

bool Output::is_live(int rank, int stream) const { return rank == 0 && terminal_[stream]; }

std::string Output::prefix(int rank, int stream) const {
  constexpr int kColours[] = {36, 33, 32, 35, 34, 96, 93, 92, 95, 94};
  if (!colour_[stream]) return comm::concat("[", rank, "] ");
  return comm::concat("\x1b[", kColours[static_cast<size_t>(rank) % std::size(kColours)], "m[",
                      rank, "]\x1b[0m ");
}

void Output::feed(int rank, int stream, std::string_view bytes) {
  const Source source{rank, stream};
  std::string& partial = partial_[source];
  partial += bytes;
  size_t begin = 0;
  for (size_t end; (end = partial.find('\n', begin)) != std::string::npos; begin = end + 1) {
    print(source, last_state(std::string_view(partial).substr(begin, end - begin)));
  }
  partial.erase(0, begin);
  // States that a later one has replaced will never be printed.
  const std::string_view state = last_state(partial);
  partial.erase(0, static_cast<size_t>(state.data() - partial.data()));
  while (partial.size() > kMaxLine) {
    print(source, last_state(std::string_view(partial).substr(0, kMaxLine)));
    partial.erase(0, kMaxLine);
  }
  if (live_ == source && !partial.empty()) {
    live_shown_ = false;  // its new state is drawn over the old one
  } else if (is_live(rank, stream) && (live_ == source || !partial.empty())) {
    hide_live();
    live_ = partial.empty() ? kNone : source;
  }
  show_live();
}

void Output::end(int rank, int stream) {
  const Source source{rank, stream};
  const std::string rest = std::move(partial_[source]);
  partial_.erase(source);
  if (!last_state(rest).empty()) print(source, last_state(rest));
  if (live_ == source) {
    hide_live();
    live_ = kNone;
  }
  show_live();
}

void Output::say(std::string_view message) {
  hide_live();
  const bool colour = colour_[STDERR_FILENO];
  put(STDERR_FILENO,
      comm::concat(colour ? "\x1b[1m" : "", "lockstep: ", message, colour ? "\x1b[0m" : "", "\n"));
  show_live();
}

void Output::print(const Source& source, std::string_view line) {
  if (terminal_[source.second]) hide_live();
  // A rank that was cut off in the middle of a colour must not paint the others' lines.
  const bool reset = colour_[source.second] && line.find('\x1b') != line.npos;
  put(source.second,
      comm::concat(prefix(source.first, source.second), line, reset ? "\x1b[0m\n" : "\n"));
}

void Output::hide_live() {
  if (!live_shown_) return;
  put(live_.second, "\r\x1b[K");
  live_shown_ = false;
}

void Output::show_live() {
  if (live_shown_ || live_.first < 0) return;
  put(live_.second,
      comm::concat("\r", prefix(live_.first, live_.second), last_state(partial_[live_]), "\x1b[K"));
  live_shown_ = true;
}

void Output::put(int stream, std::string bytes) {
  if (broken_[stream]) return;
  queued_ += bytes.size();
  // Small pieces are joined, but what is being written must not grow without end.
  if (!queue_.empty() && queue_.back().first == stream && queue_.back().second.size() < kMaxLine) {
    queue_.back().second += bytes;
  } else {
    queue_.emplace_back(stream, std::move(bytes));
  }
}

void Output::write_some() {
  // A pipe that poll calls writable takes this much without blocking (pipe(7)).
  constexpr size_t kPiece = 4096;
  auto& [stream, bytes] = queue_.front();
  const ssize_t put =
      ::write(stream, bytes.data() + written_, std::min(bytes.size() - written_, kPiece));
  if (put < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (put < 0) broken_[stream] = true;
  written_ += put < 0 ? bytes.size() - written_ : static_cast<size_t>(put);
  if (written_ < bytes.size()) return;
  queued_ -= written_;
  written_ = 0;
  queue_.pop_front();
}

}  // namespace lockstep::cli
