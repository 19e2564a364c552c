// The timeline of a job: what LOCKSTEP_TIMELINE=FILE leaves in FILE.

#include "lockstep/kernels/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "lockstep/core/autograd.h"
#include "lockstep/core/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/optim.h"
#include "lockstep/nn/sequential.h"
#include "ranks.h"

namespace lockstep::nn {
namespace {

constexpr int kRanks = 3;
constexpr size_t kSteps = 4;

std::string file_name() {
  return std::filesystem::temp_directory_path() /
         ("timeline-" + std::to_string(getpid()) + ".json");
}

// Before anything asks whether there is a timeline.
[[maybe_unused]] const int kSet = setenv("LOCKSTEP_TIMELINE", file_name().c_str(), 1);

// Its backward takes long enough for a thread that is looked for to come.
class Slow : public Module {
 public:
  Tensor forward(const Tensor& x) override {
    return record("slow", x.detach().clone(), {x}, [](const Tensor& g) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return Tensors{g};
    });
  }
};

struct Span {
  std::string name, kind;
  int rank = 0, track = 0;
  double start = 0, end = 0;
};

class Timeline : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    with_ranks(kRanks, [](std::shared_ptr<comm::Communicator> group) {
      manual_seed(1);
      auto net = std::make_shared<Sequential>(
          std::make_shared<Linear>(123, 321), std::make_shared<Slow>(),
          std::make_shared<Linear>(321, 321), std::make_shared<Linear>(321, 7));
      DataParallel model(net, group, {.reducer = {.first_bucket_bytes = 100'000}});
      SGD optimizer(net->named_parameters(), {.lr = 0.01});
      manual_seed(2 + static_cast<uint64_t>(group->rank()));
      const Tensor x = randn({5, 123});
      for (size_t step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        mean(square(model(x))).backward();
        optimizer.step();
      }
    });
    timeline::flush();
    std::ifstream file(file_name());
    text_.assign(std::istreambuf_iterator<char>(file), {});
    std::filesystem::remove(file_name());
    ASSERT_GT(text_.size(), 2u);
    // The array form of the format may lack its end.
    events_ = nlohmann::json::parse(text_ + "{}]");
    for (const nlohmann::json& event : events_) {
      if (event.value("ph", "") != "X") continue;
      const double start = event["ts"];
      const double duration = event["dur"];
      spans_.push_back(
          {event["name"], event["cat"], event["pid"], event["tid"], start, start + duration});
    }
  }

  static std::vector<Span> of(int rank, std::string_view kind) {
    std::vector<Span> found;
    for (const Span& span : spans_) {
      if (span.rank == rank && span.kind == kind) found.push_back(span);
    }
    return found;
  }

  static std::string text_;
  static nlohmann::json events_;
  static std::vector<Span> spans_;
};

std::string Timeline::text_;
nlohmann::json Timeline::events_;
std::vector<Span> Timeline::spans_;

TEST_F(Timeline, HasEveryKindOfEveryRank) {
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(of(rank, timeline::kind::kForward).size(), kSteps);
    EXPECT_EQ(of(rank, timeline::kind::kBackward).size(), kSteps);
    EXPECT_EQ(of(rank, timeline::kind::kOptimizer).size(), kSteps);
    EXPECT_EQ(of(rank, timeline::kind::kAgree).size(), kSteps);
    // The first backward finds the order, and its gradients move again when the buckets do.
    EXPECT_GE(of(rank, timeline::kind::kCopy).size(), 6 * kSteps);
    EXPECT_GE(of(rank, timeline::kind::kCollective).size(), 3 * kSteps);
    EXPECT_GE(of(rank, timeline::kind::kWait).size(), kSteps);
  }
  EXPECT_EQ(std::count_if(spans_.begin(), spans_.end(),
                          [](const Span& span) { return span.rank >= kRanks; }),
            0);
}

TEST_F(Timeline, NamesRanksAndThreads) {
  std::map<int, std::set<std::string>> tracks;
  for (const nlohmann::json& event : events_) {
    if (event.value("ph", "") != "M") continue;
    const int rank = event["pid"];
    const std::string name = event["args"]["name"];
    if (event["name"] == "process_name") {
      EXPECT_EQ(name, "rank " + std::to_string(rank));
    } else {
      tracks[rank].insert(name);
    }
  }
  ASSERT_EQ(tracks.size(), static_cast<size_t>(kRanks));
  for (const auto& [rank, names] : tracks) EXPECT_TRUE(names.contains("training")) << rank;
}

// Two spans of a track are one inside the other, or apart. Times are cut to nanoseconds.
TEST_F(Timeline, SpansNest) {
  std::map<std::pair<int, int>, std::vector<Span>> tracks;
  for (const Span& span : spans_) tracks[{span.rank, span.track}].push_back(span);
  constexpr double kSlack = 0.0015;
  for (auto& [track, spans] : tracks) {
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
      return a.start != b.start ? a.start < b.start : a.end > b.end;
    });
    std::vector<Span> open;
    for (const Span& span : spans) {
      while (!open.empty() && open.back().end <= span.start + kSlack) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(span.end, open.back().end + kSlack)
            << span.name << " begins in " << open.back().name << " and ends after it";
      }
      open.push_back(span);
    }
  }
}

// The last layers' bucket is on its way while the layers before them wait for their turn.
TEST_F(Timeline, ReductionsOverlapBackward) {
  for (int rank = 0; rank < kRanks; ++rank) {
    int overlapping = 0;
    for (const Span& backward : of(rank, timeline::kind::kBackward)) {
      for (const Span& reduction : of(rank, timeline::kind::kCollective)) {
        overlapping += reduction.name == "all_reduce" && reduction.track != backward.track &&
                       reduction.start > backward.start && reduction.end < backward.end;
      }
    }
    EXPECT_GE(overlapping, 1) << "rank " << rank;
  }
}

TEST_F(Timeline, IsOneEventALine) {
  std::istringstream lines(text_);
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "[");
  while (std::getline(lines, line)) {
    ASSERT_EQ(line.back(), ',');
    EXPECT_TRUE(nlohmann::json::accept(line.substr(0, line.size() - 1))) << line;
  }
}

}  // namespace
}  // namespace lockstep::nn
