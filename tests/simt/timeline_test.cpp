// The rows of CUDA devices in the timeline of a job: what LOCKSTEP_TIMELINE=FILE leaves in FILE.
#include "lockstep/kernels/timeline.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "lockstep/core/autograd.h"
#include "lockstep/nn/data_parallel.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/optim.h"
#include "lockstep/nn/sequential.h"
#include "ranks_on_devices.h"

namespace lockstep::nn {
namespace {

constexpr size_t kSteps = 5;

std::string file_name() {
  return std::filesystem::temp_directory_path() /
         ("timeline-simt-" + std::to_string(getpid()) + ".json");
}

// Before anything asks whether there is a timeline.
[[maybe_unused]] const int kSet = setenv("LOCKSTEP_TIMELINE", file_name().c_str(), 1);

// Its backward takes long enough for a thread that is looked for to come.
class Slow : public Module {
 public:
  Tensor forward(const Tensor& x) override {
    return record("slow", x.detach().clone(), {x}, [](const Tensor& g) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return Tensors{g};
    });
  }
};

struct Span {
  std::string name, kind;
  int rank = 0;
  std::string row;
  double start = 0, end = 0;
};

// Times are cut to nanoseconds, and an emulated device's are whole microseconds.
constexpr double kSlack = 0.0025;

const Ranks kTwo = {{kFirst, kSecond}};

class CudaTimeline : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    simt::seed(5);
    run(kTwo, [](const Group& group, Device device) {
      auto net =
          std::make_shared<Sequential>(std::make_shared<Linear>(13, 37), std::make_shared<Slow>(),
                                       std::make_shared<Linear>(37, 37), std::make_shared<Slow>(),
                                       std::make_shared<Linear>(37, 5));
      net->to(device);
      DataParallel model(net, group,
                         {.reducer = {.first_bucket_bytes = 500, .bucket_bytes = 1500}});
      SGD optimizer(net->named_parameters(), {.lr = 0.01});
      for (size_t step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        const int salt = static_cast<int>(step) * 10 + group->rank();
        loss_of(model(wave({3, 13}, salt, {DType::kF32, device}))).backward();
        optimizer.step();
      }
      current_stream(device).synchronize();
      group->barrier().wait();
      if (group->rank() == 0) {
        for (const auto& parameters : model.reducer()->bucket_parameters()) {
          parameters_.push_back(parameters.size());
        }
      }
      return Numbers();
    });
    timeline::flush();
    std::ifstream file(file_name());
    const std::string text(std::istreambuf_iterator<char>(file), {});
    std::filesystem::remove(file_name());
    const nlohmann::json events = nlohmann::json::parse(text + "{}]");
    std::map<std::pair<int, int>, std::string> rows;
    for (const nlohmann::json& event : events) {
      if (event.value("name", "") == "thread_name") {
        rows[{event["pid"], event["tid"]}] = event["args"]["name"];
      }
    }
    for (const nlohmann::json& event : events) {
      if (event.value("ph", "") != "X") continue;
      const double start = event["ts"];
      const double duration = event["dur"];
      EXPECT_GE(duration, 0);
      spans_.push_back({event["name"], event["cat"], event["pid"],
                        rows[{event["pid"], event["tid"]}], start, start + duration});
    }
  }

  static std::string device(int rank) { return kTwo.devices[static_cast<size_t>(rank)].name(); }

  // Of a rank's device, in the order in which they began.
  static std::vector<Span> of(int rank, std::string_view kind) {
    const std::string category = std::string(kind) + "," + device(rank);
    std::vector<Span> found;
    for (const Span& span : spans_) {
      if (span.rank == rank && span.kind == category) found.push_back(span);
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const Span& a, const Span& b) { return a.start < b.start; });
    return found;
  }
  static std::vector<Span> within(const std::vector<Span>& spans, const Span& outer) {
    std::vector<Span> found;
    for (const Span& span : spans) {
      if (span.start >= outer.start - kSlack && span.end <= outer.end + kSlack) {
        found.push_back(span);
      }
    }
    return found;
  }
  static std::vector<Span> buckets_in(int rank, const Span& backward) {
    std::vector<Span> found = within(of(rank, timeline::kind::kCollective), backward);
    std::erase_if(found, [](const Span& span) { return !span.name.starts_with("bucket "); });
    return found;
  }

  static std::vector<Span> spans_;
  static std::vector<size_t> parameters_;  // in each bucket
};

std::vector<Span> CudaTimeline::spans_;
std::vector<size_t> CudaTimeline::parameters_;

TEST_F(CudaTimeline, ADeviceHasARowForTheTrainingAndOneForItsCollectives) {
  for (int rank : {0, 1}) {
    std::map<std::string, std::set<std::string>> kinds;
    for (const Span& span : spans_) {
      if (span.rank == rank && span.kind.find(',') != std::string::npos) {
        kinds[span.row].insert(span.kind.substr(0, span.kind.find(',')));
        EXPECT_TRUE(span.name.ends_with(" (" + device(rank) + ")")) << span.name;
      }
    }
    const std::string suffix = " (" + device(rank) + ")";
    EXPECT_EQ(kinds["training" + suffix],
              (std::set<std::string>{"forward", "backward", "copy", "wait", "optimizer"}));
    kinds.erase("training" + suffix);
    for (const auto& [row, shown] : kinds) {
      EXPECT_TRUE(row.starts_with("collectives of ") && row.ends_with(suffix)) << row;
      EXPECT_EQ(shown, (std::set<std::string>{"collective"}));
    }
    EXPECT_GE(kinds.size(), 1u);
  }
}

TEST_F(CudaTimeline, AStepIsForwardThenBackwardThenTheOptimiser) {
  for (int rank : {0, 1}) {
    const std::vector<Span> forward = of(rank, timeline::kind::kForward);
    const std::vector<Span> backward = of(rank, timeline::kind::kBackward);
    const std::vector<Span> optimizer = of(rank, timeline::kind::kOptimizer);
    ASSERT_EQ(forward.size(), kSteps);
    ASSERT_EQ(backward.size(), kSteps);
    ASSERT_EQ(optimizer.size(), kSteps);
    for (size_t step = 0; step < kSteps; ++step) {
      EXPECT_GE(backward[step].start, forward[step].end - kSlack);
      EXPECT_GE(optimizer[step].start, backward[step].end - kSlack);
      if (step == 0) continue;
      EXPECT_GE(forward[step].start, optimizer[step - 1].end - kSlack);
    }
  }
}

TEST_F(CudaTimeline, EveryBucketIsReducedInABackwardInItsOrder) {
  ASSERT_GE(parameters_.size(), 3u);
  for (int rank : {0, 1}) {
    for (const Span& backward : of(rank, timeline::kind::kBackward)) {
      const std::vector<Span> buckets = buckets_in(rank, backward);
      ASSERT_EQ(buckets.size(), parameters_.size());
      for (size_t b = 0; b < buckets.size(); ++b) {
        EXPECT_EQ(buckets[b].name, "bucket " + std::to_string(b) + " (" + device(rank) + ")");
        if (b == 0) continue;
        EXPECT_GE(buckets[b].start, buckets[b - 1].end - kSlack);
      }
    }
  }
}

// The first backward finds the order of gradients, which then come into their buckets in turn.
TEST_F(CudaTimeline, AReductionBeginsAfterItsLastGradientWasReady) {
  for (int rank : {0, 1}) {
    const std::vector<Span> backwards = of(rank, timeline::kind::kBackward);
    for (size_t step = 1; step < backwards.size(); ++step) {
      const std::vector<Span> copies = within(of(rank, timeline::kind::kCopy), backwards[step]);
      const std::vector<Span> buckets = buckets_in(rank, backwards[step]);
      size_t last = 0;
      for (size_t b = 0; b < buckets.size(); ++b) {
        last += parameters_[b];
        ASSERT_LE(last, copies.size());
        EXPECT_GE(buckets[b].start, copies[last - 1].end - kSlack);
      }
      EXPECT_EQ(last, copies.size());
    }
  }
}

TEST_F(CudaTimeline, ReductionsOverlapBackward) {
  for (int rank : {0, 1}) {
    int overlapping = 0;
    for (const Span& backward : of(rank, timeline::kind::kBackward)) {
      const std::vector<Span> copies = within(of(rank, timeline::kind::kCopy), backward);
      for (const Span& bucket : buckets_in(rank, backward)) {
        overlapping += bucket.start < copies.back().start;
      }
    }
    EXPECT_GE(overlapping, 1) << "rank " << rank;
  }
}

// What a thread waits for at the end of backward is what the stream's wait shows.
TEST_F(CudaTimeline, WaitsOfBackwardEndAfterTheirBuckets) {
  for (int rank : {0, 1}) {
    for (const Span& backward : of(rank, timeline::kind::kBackward)) {
      const std::vector<Span> waits = within(of(rank, timeline::kind::kWait), backward);
      ASSERT_FALSE(waits.empty());
      EXPECT_GE(waits.back().end, buckets_in(rank, backward).back().end - kSlack);
    }
  }
}

// An emulated device's clock goes more slowly, from the same beginning.
TEST_F(CudaTimeline, ThreadsKeepTheirRowsAndTheClockBeginsWithTheHosts) {
  for (int rank : {0, 1}) {
    size_t backwards = 0;
    double host = INFINITY, device = INFINITY;
    for (const Span& span : spans_) {
      if (span.rank != rank) continue;
      backwards += span.kind == timeline::kind::kBackward;
      double& first = span.kind.find(',') == std::string::npos ? host : device;
      first = std::min(first, span.start);
    }
    EXPECT_EQ(backwards, kSteps);
    EXPECT_GE(device, host);
    EXPECT_LE(device, host + 60e6);
  }
}

}  // namespace
}  // namespace lockstep::nn
