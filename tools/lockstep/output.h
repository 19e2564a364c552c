#pragma once

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::cli {

// Makes one readable stream of what many ranks write: each line whole, with "[rank] " before it, in
// the rank's colour on a terminal (unless NO_COLOR is set or TERM is dumb).
//
// Text after a carriage return replaces what stood before it in its line. Where rank 0 writes to
// a terminal, its unfinished line is shown live, prefixed, below all that is printed meanwhile: a
// progress bar stays a bar. Elsewhere only a line's last state is printed.
//
// Nothing here blocks: bytes are queued, and write_some() is called when waiting_fd() is writable.
// Not thread-safe.
class Output {
 public:
  Output();

  // Whether this stream (STDOUT_FILENO or STDERR_FILENO) of a rank is shown live, and so deserves
  // a terminal at the rank's end too.
  bool is_live(int rank, int stream) const;

  // What a rank wrote to a stream, in any pieces.
  void feed(int rank, int stream, std::string_view bytes);
  // The stream has ended: its last line is printed even without a line's end.
  void end(int rank, int stream);
  // A line of the launcher's own, on standard error.
  void say(std::string_view message);

  // The descriptor that the next bytes go to; -1 where nothing is queued.
  int waiting_fd() const { return queue_.empty() ? -1 : queue_.front().first; }
  // Writes a little of it. REQUIRES: waiting_fd() is writable.
  void write_some();
  // True while so much is queued that the ranks should wait.
  bool full() const { return queued_ > kFull; }
  // True once nobody reads standard output any more.
  bool reader_gone() const { return broken_[1]; }

 private:
  static constexpr size_t kFull = size_t{1} << 20;
  using Source = std::pair<int, int>;  // rank, stream

  void print(const Source& source, std::string_view line);
  void hide_live();
  void show_live();
  std::string prefix(int rank, int stream) const;
  void put(int stream, std::string bytes);

  bool terminal_[3] = {};  // by stream
  bool colour_[3] = {};
  bool broken_[3] = {};

  std::map<Source, std::string> partial_;  // lines that have not ended
  static constexpr Source kNone{-1, -1};
  Source live_ = kNone;  // whose partial line is shown live
  bool live_shown_ = false;

  std::deque<std::pair<int, std::string>> queue_;
  size_t queued_ = 0;   // bytes in the queue
  size_t written_ = 0;  // of the queue's front
};

}  // namespace lockstep::cli
