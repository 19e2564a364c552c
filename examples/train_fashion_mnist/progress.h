#pragma once

#include <chrono>
#include <cstdint>
#include <string>

// Tells a person how training goes: on a terminal a bar that is redrawn in place at most ten times
// a second, elsewhere a line after each tenth of an epoch. A quiet one (ranks other than 0) says
// nothing.
class Progress {
 public:
  enum class Style { kQuiet, kLines, kBar };

  // kBar where standard output is a terminal, else kLines.
  static Style style_of_output();

  // `images_per_step` and the rates are of all ranks together.
  Progress(Style style, int64_t epochs, int64_t steps_per_epoch, int64_t images_per_step);
  // Leaves the terminal's cursor on a line of its own.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Epochs count from 0. `steps_done` of the epoch were done before, by a run that is resumed.
  void start_epoch(int64_t epoch, int64_t steps_done);
  // NaN: no loss is known yet.
  void step(int64_t steps_done, double loss);
  // Writes a line of its own, above the bar if there is one.
  void say(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  void draw(int64_t steps_done, double loss, double rate);
  void clear();

  const Style style_;
  const int64_t epochs_;
  const int64_t steps_per_epoch_;
  const int64_t images_per_step_;
  int64_t epoch_ = 0;
  int64_t first_step_ = 0;
  int64_t tenths_ = 0;  // of the epoch, that were told
  bool drawn_ = false;  // a bar stands on the terminal's last line
  Clock::time_point epoch_start_;
  Clock::time_point last_draw_;
};

// "0:07", "12:30", "1:02:03". Negative or not finite: "-:--".
std::string clock_text(double seconds);
