#include "chart.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <limits>

namespace {

constexpr double kPanelWidth = 470;
constexpr double kHeight = 380;
constexpr double kLeft = 58, kRight = 20, kTop = 86, kBottom = 52;
constexpr int kColours = 4;  // classes s0 to s3 of the style sheet

// No CSS variables: many viewers of SVG outside of browsers do not know them.
constexpr const char* kStyle = R"(<style>
  text { font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #667085; }
  .title { font-size: 17px; font-weight: 600; fill: #1f2430; }
  .panel { font-size: 13px; font-weight: 600; fill: #1f2430; }
  .paper, .dot { fill: #ffffff; }
  .grid { stroke: #e4e7ec; }
  .axis { stroke: #667085; }
  .line { fill: none; stroke-linejoin: round; stroke-linecap: round; }
  .line, .dot { stroke-width: 2; }
  .s0 { stroke: #2563eb; } .s1 { stroke: #ea580c; }
  .s2 { stroke: #059669; } .s3 { stroke: #9333ea; }
  @media (prefers-color-scheme: dark) {
    text { fill: #98a2b3; }
    .title, .panel { fill: #e6e9ef; }
    .paper, .dot { fill: #14171f; }
    .grid { stroke: #2b303b; }
    .axis { stroke: #98a2b3; }
    .s0 { stroke: #6ea8fe; } .s1 { stroke: #fb923c; }
    .s2 { stroke: #34d399; } .s3 { stroke: #c084fc; }
  }
</style>
)";

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
  char text[512];
  va_list values;
  va_start(values, pattern);
  std::vsnprintf(text, sizeof text, pattern, values);
  va_end(values);
  return text;
}

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

// Text starts, is centred or ends at x by `anchor`: "start", "middle", "end".
std::string text_at(double x, double y, const char* anchor, const char* style,
                    const std::string& text) {
  return format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">", x, y, anchor,
                style) +
         escape(text) + "</text>\n";
}

std::string line(const char* style, double x1, double y1, double x2, double y2) {
  return format("<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", style, x1,
                y1, x2, y2);
}

std::string colour(size_t series) { return format("s%d", static_cast<int>(series % kColours)); }

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

bool is_finite(const std::pair<double, double>& point) {
  return std::isfinite(point.first) && std::isfinite(point.second);
}

class PanelWriter {
 public:
  PanelWriter(const Panel& panel, double origin) : panel_(panel), origin_(origin) {
    Range x, y;
    for (const Series& series : panel.series) {
      for (const auto& point : series.points) {
        if (!is_finite(point)) continue;
        x.include(point.first);
        y.include(point.second);
      }
    }
    if (x.empty()) x.include(0), x.include(1), y.include(0), y.include(1);
    x.include(0);
    if (panel.percent) y.include(1);
    x_ticks_ = round_ticks(x.low, x.high, 6);
    y_ticks_ = round_ticks(y.low, y.high, 6);
    if (panel.percent) {  // there is no 101 %
      std::erase_if(y_ticks_, [](double tick) { return tick > 1 + 1e-9; });
    }
  }

  std::string write() const {
    std::string out = text_at(origin_ + kLeft, kTop - 34, "start", "panel", panel_.title);
    for (const double tick : y_ticks_) {
      out += line("grid", left(), y(tick), right(), y(tick));
      const int decimals = y_step() < 0.095 ? 2 : 1;
      out +=
          text_at(left() - 8, y(tick) + 4, "end", "tick",
                  panel_.percent ? format("%.0f %%", 100 * tick) : format("%.*f", decimals, tick));
    }
    for (const double tick : x_ticks_) {
      out += line("axis", x(tick), bottom(), x(tick), bottom() + 4);
      out += text_at(x(tick), bottom() + 18, "middle", "tick", format("%g", tick));
    }
    out += line("axis", left(), bottom(), right(), bottom());
    out += text_at((left() + right()) / 2, bottom() + 38, "middle", "label", panel_.x_label);
    double legend = left();
    for (size_t i = 0; i < panel_.series.size(); ++i) {
      out += curve(panel_.series[i], i) + legend_entry(panel_.series[i], i, legend);
      legend += 40 + 6.6 * static_cast<double>(panel_.series[i].name.size());
    }
    return out;
  }

 private:
  double left() const { return origin_ + kLeft; }
  double right() const { return origin_ + kPanelWidth - kRight; }
  double bottom() const { return kHeight - kBottom; }
  double y_step() const { return y_ticks_.size() > 1 ? y_ticks_[1] - y_ticks_[0] : 1; }

  static double place(double value, const std::vector<double>& ticks, double from, double to) {
    return from + (value - ticks.front()) / (ticks.back() - ticks.front()) * (to - from);
  }
  double x(double value) const { return place(value, x_ticks_, left(), right()); }
  double y(double value) const { return place(value, y_ticks_, bottom(), kTop); }

  std::string curve(const Series& series, size_t index) const {
    std::string path, dots;
    for (const auto& point : series.points) {
      if (!is_finite(point)) continue;
      const double px = x(point.first), py = y(point.second);
      path += format("%s%.1f %.1f", path.empty() ? "M" : "L", px, py);
      if (series.markers) {
        dots += format("<circle class=\"dot %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>\n",
                       colour(index).c_str(), px, py);
      }
    }
    if (path.empty()) return "";
    return "<path class=\"line " + colour(index) + "\" d=\"" + path + "\"/>\n" + dots;
  }

  std::string legend_entry(const Series& series, size_t index, double at) const {
    const double height = kTop - 16;
    std::string out = line(("line " + colour(index)).c_str(), at, height - 4, at + 18, height - 4);
    if (series.markers) {
      out += format("<circle class=\"dot %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>\n",
                    colour(index).c_str(), at + 9, height - 4);
    }
    return out + text_at(at + 24, height, "start", "legend", series.name);
  }

  const Panel& panel_;
  double origin_;
  std::vector<double> x_ticks_;
  std::vector<double> y_ticks_;
};

}  // namespace

std::vector<double> round_ticks(double low, double high, int count) {
  if (high - low < 1e-9 * std::max(1.0, std::abs(high))) high = low + 1;
  const double raw = (high - low) / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  const double lead = raw / power;
  const double step = power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
  // The allowance keeps a limit that is a tick itself from opening another one beyond it.
  const auto first = static_cast<int64_t>(std::floor(low / step + 1e-9));
  const auto last = static_cast<int64_t>(std::ceil(high / step - 1e-9));
  std::vector<double> ticks;
  for (int64_t i = first; i <= last; ++i) ticks.push_back(static_cast<double>(i) * step);
  return ticks;
}

std::string chart_svg(const std::string& title, const std::vector<Panel>& panels) {
  const double width = kPanelWidth * static_cast<double>(panels.size());
  std::string out = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
      "height=\"%.0f\" role=\"img\">\n",
      width, kHeight, width, kHeight);
  out += kStyle;
  out +=
      format("<rect class=\"paper\" width=\"%.0f\" height=\"%.0f\" rx=\"10\"/>\n", width, kHeight);
  out += text_at(kLeft, 30, "start", "title", title);
  for (size_t i = 0; i < panels.size(); ++i) {
    out += PanelWriter(panels[i], kPanelWidth * static_cast<double>(i)).write();
  }
  return out + "</svg>\n";
}
