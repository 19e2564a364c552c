#pragma once

#include <string>
#include <utility>
#include <vector>

// A picture of one or more panels of lines, as SVG text. Colours suit a light and a dark page.
struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x, y; those that are not finite are left out
  bool markers = false;                           // a dot at each point
};

struct Panel {
  std::string title;
  std::string x_label;
  bool percent = false;  // y in [0, 1], shown as 0 % to 100 %
  std::vector<Series> series;
};

std::string chart_svg(const std::string& title, const std::vector<Panel>& panels);

// Ticks at round numbers (1, 2 or 5 times a power of ten) from at most `low` to at least `high`,
// about `count` of them. REQUIRES: low <= high, both finite.
std::vector<double> round_ticks(double low, double high, int count);
