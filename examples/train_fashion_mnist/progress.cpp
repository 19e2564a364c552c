#include "progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

namespace {

constexpr std::chrono::milliseconds kRedraw{100};

int terminal_columns() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
  char text[256];
  va_list values;
  va_start(values, pattern);
  std::vsnprintf(text, sizeof text, pattern, values);
  va_end(values);
  return text;
}

double seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

std::string loss_text(double loss) { return std::isnan(loss) ? "-" : format("%.4f", loss); }

}  // namespace

std::string clock_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "-:--";
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  const auto hours = static_cast<long long>(whole / 3600);
  const auto minutes = static_cast<long long>(whole / 60 % 60);
  const auto rest = static_cast<long long>(whole % 60);
  return hours > 0 ? format("%lld:%02lld:%02lld", hours, minutes, rest)
                   : format("%lld:%02lld", minutes, rest);
}

Progress::Style Progress::style_of_output() {
  return isatty(STDOUT_FILENO) != 0 ? Style::kBar : Style::kLines;
}

Progress::Progress(Style style, int64_t epochs, int64_t steps_per_epoch, int64_t images_per_step)
    : style_(style),
      epochs_(epochs),
      steps_per_epoch_(steps_per_epoch),
      images_per_step_(images_per_step) {}

Progress::~Progress() {
  if (!drawn_) return;
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

void Progress::start_epoch(int64_t epoch, int64_t steps_done) {
  epoch_ = epoch;
  first_step_ = steps_done;
  tenths_ = 10 * steps_done / steps_per_epoch_;
  epoch_start_ = Clock::now();
}

void Progress::step(int64_t steps_done, double loss) {
  if (style_ == Style::kQuiet) return;
  const Clock::time_point now = Clock::now();
  const auto images = static_cast<double>((steps_done - first_step_) * images_per_step_);
  const double rate = images / std::max(seconds(now - epoch_start_), 1e-9);
  if (style_ == Style::kBar) {
    if (drawn_ && now - last_draw_ < kRedraw) return;
    last_draw_ = now;
    draw(steps_done, loss, rate);
    return;
  }
  const int64_t tenths = 10 * steps_done / steps_per_epoch_;
  if (tenths == tenths_) return;
  tenths_ = tenths;
  std::printf("epoch %lld/%lld  %3lld%%  loss %s  %.0f images/s\n",
              static_cast<long long>(epoch_ + 1), static_cast<long long>(epochs_),
              static_cast<long long>(100 * steps_done / steps_per_epoch_), loss_text(loss).c_str(),
              rate);
  std::fflush(stdout);
}

void Progress::draw(int64_t steps_done, double loss, double rate) {
  const int64_t steps_left = (epochs_ - epoch_) * steps_per_epoch_ - steps_done;
  const double seconds_left = static_cast<double>(steps_left * images_per_step_) / rate;
  const std::string head = format("epoch %lld/%lld ", static_cast<long long>(epoch_ + 1),
                                  static_cast<long long>(epochs_));
  const std::string tail = format(" %3lld%%  %.0f images/s  loss %s  %s left",
                                  static_cast<long long>(100 * steps_done / steps_per_epoch_), rate,
                                  loss_text(loss).c_str(), clock_text(seconds_left).c_str());
  const int room = terminal_columns() - static_cast<int>(head.size() + tail.size()) - 3;
  std::string text = head;
  if (room >= 4) {
    const auto cells = static_cast<size_t>(std::min(room, 40));
    const size_t full =
        cells * static_cast<size_t>(steps_done) / static_cast<size_t>(steps_per_epoch_);
    text += '[' + std::string(full, '#') + std::string(cells - full, '.') + ']';
  }
  text = (text + tail).substr(0, static_cast<size_t>(terminal_columns()) - 1);
  // \033[K clears what a longer text left behind.
  std::printf("\r%s\033[K", text.c_str());
  std::fflush(stdout);
  drawn_ = true;
}

void Progress::clear() {
  if (drawn_) std::fputs("\r\033[K", stdout);
  drawn_ = false;
}

void Progress::say(const std::string& text) {
  if (style_ == Style::kQuiet) return;
  clear();
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}
