// How a device's clock is put on the host's, which happens once in a process: this one.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/kernels/stream_timeline.h"

namespace lockstep {
namespace {

constexpr Device kDevice = {DeviceType::kCuda, 0};

std::string file_name() {
  return std::filesystem::temp_directory_path() /
         ("timeline-clock-" + std::to_string(getpid()) + ".json");
}

// Before anything asks whether there is a timeline.
[[maybe_unused]] const int kSet = setenv("LOCKSTEP_TIMELINE", file_name().c_str(), 1);

// A mark that the device has not come to yet when the host looks at its own clock would show what
// comes before it too early.
TEST(DeviceClock, NothingIsShownBeforeItWasPutThere) {
  std::vector<Stream> busy, streams;
  for (int i = 0; i < 200; ++i) busy.push_back(Stream::create(kDevice, StreamPriority::kHigh));
  for (int i = 0; i < 64; ++i) streams.push_back(Stream::create(kDevice, StreamPriority::kHigh));
  for (int i = 0; i < 50; ++i) {
    for (const Stream& stream : busy) stream.record();
  }
  {
    const timeline::Span put("test", "put");
    for (const Stream& stream : streams) {
      const StreamGuard guard(stream);
      const timeline::StreamSpan span("test", "work", kDevice);
    }
  }
  for (const Stream& stream : streams) stream.synchronize();
  timeline::flush();
  std::ifstream file(file_name());
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::filesystem::remove(file_name());
  size_t works = 0;
  double put = 0, first = std::numeric_limits<double>::infinity();
  for (const nlohmann::json& event : nlohmann::json::parse(text + "{}]")) {
    const std::string name = event.value("name", "");
    if (event.value("ph", "") != "X") continue;
    if (name == "put") put = event["ts"];
    if (!name.starts_with("work")) continue;
    first = std::min(first, event["ts"].get<double>());
    ++works;
  }
  EXPECT_EQ(works, streams.size());
  EXPECT_GE(first, put);
}

}  // namespace
}  // namespace lockstep
