#include "train_timeline.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/kernels/timeline.h"

namespace bench {
namespace {

namespace kind = lockstep::timeline::kind;
using lockstep::str_cat;

struct Span {
  int track = 0;
  double start = 0, end = 0;

  double length() const { return end - start; }
  double overlap(const Span& other) const {
    return std::max(0.0, std::min(end, other.end) - std::max(start, other.start));
  }
};

// Of rank 0, by time.
std::vector<Span> spans_of(const nlohmann::json& events, std::string_view kind) {
  std::vector<Span> spans;
  for (const nlohmann::json& event : events) {
    if (event.value("cat", "") != kind || event["pid"] != 0) continue;
    const double start = event["ts"];
    const double length = event["dur"];
    spans.push_back({event["tid"], 1e-6 * start, 1e-6 * (start + length)});
  }
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.start < b.start; });
  return spans;
}

}  // namespace

Communication read_timeline(const std::string& path, int steps, lockstep::Device device) {
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const nlohmann::json events = nlohmann::json::parse(text + "{}]", nullptr, false);
  const auto shown = [&](std::string_view kind) {
    const bool here = device.is_cpu();
    return spans_of(events, here ? std::string(kind) : str_cat(kind, ",", device.name()));
  };
  const auto last = static_cast<std::ptrdiff_t>(steps);
  const auto forwards = shown(kind::kForward);
  const auto updates = shown(kind::kOptimizer);
  if (events.is_discarded() || std::ssize(forwards) < last || updates.empty()) {
    throw lockstep::Error(lockstep::ErrorCode::kInternal, "bench_train",
                          str_cat("want a timeline of ", steps, " steps on ", device.name(),
                                  " in '", path, "', it has ", forwards.size()));
  }
  const Span window = {forwards.front().track, (forwards.end() - last)->start, updates.back().end};
  const auto waits = shown(kind::kWait);
  Communication sum;
  sum.step = window.length();
  for (const Span& wait : waits) {
    if (wait.track == window.track) sum.exposed += wait.overlap(window);
  }
  for (const Span& collective : shown(kind::kCollective)) {
    if (collective.track == window.track) continue;
    sum.hidden += collective.overlap(window);
    for (const Span& wait : waits) {
      if (wait.track == window.track && wait.start >= window.start) {
        sum.hidden -= collective.overlap(wait);
      }
    }
  }
  // The agreement waits for the buckets before it too; its own collective is the last inside.
  const auto collectives = spans_of(events, kind::kCollective);
  const auto agreements = spans_of(events, kind::kAgree);
  for (auto it = agreements.end() - std::min(last, std::ssize(agreements)); it != agreements.end();
       ++it) {
    Span own;
    for (const Span& collective : collectives) {
      if (collective.overlap(*it) > 0 && collective.end > own.end) own = collective;
    }
    sum.agreement += own.length();
  }
  return {sum.step / steps, sum.exposed / steps, sum.hidden / steps, sum.agreement / steps};
}

}  // namespace bench
