#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "allreduce_check.h"
#include "program.h"

namespace {

using ::testing::HasSubstr;

Ended run(const std::string& arguments) {
  return run_program(std::string(BENCH_ALLREDUCE) + " " + arguments);
}

TEST(BenchAllreduce, FindsNothingWrongOnAnyTransport) {
  for (const char* transport : {"thread", "shm", "tcp", "mixed"}) {
    for (const char* ranks : {"2", "3"}) {
      const std::string json = json_path("bench-allreduce");
      const Ended ended = run(std::string("-n ") + ranks + " --transport " + transport +
                              " -b 8 -e 64K -f 32 --iters 2 -w 1 --json " + json);
      ASSERT_EQ(ended.status, 0) << transport << ": " << ended.text;
      EXPECT_THAT(ended.text, HasSubstr("busbw"));
      EXPECT_THAT(ended.text, HasSubstr("%limit"));
      const nlohmann::json written = take_json(json);
      EXPECT_EQ(written["ranks"], std::stoi(ranks));
      ASSERT_EQ(written["rows"].size(), 3u);
      for (const nlohmann::json& row : written["rows"]) {
        for (const char* place : {"out_of_place", "in_place"}) {
          EXPECT_EQ(row[place]["wrong"], 0);
          EXPECT_GT(row[place]["time_us"], 0);
          EXPECT_LE(row[place]["p50_us"], row[place]["p99_us"]);
        }
      }
    }
  }
}

TEST(BenchAllreduce, CoversEveryTypeAndOp) {
  const Ended ended = run("-n 2 -b 64 -e 64 -d all -o all --iters 1 -w 0");
  EXPECT_EQ(ended.status, 0) << ended.text;
  for (const char* name : {"f64", "bf16", "bool", "avg", "max"}) {
    EXPECT_THAT(ended.text, HasSubstr(name));
  }
}

TEST(BenchAllreduce, MeasuresPlainMemoryInPlace) {
  for (const bool registered : {false, true}) {
    const std::string json = json_path("bench-allreduce");
    const Ended ended = run(std::string("-n 2 --transport shm -b 64K -e 64K --iters 2 -w 1 -R ") +
                            (registered ? "1" : "0") + " --json " + json);
    ASSERT_EQ(ended.status, 0) << ended.text;
    EXPECT_THAT(ended.text, HasSubstr(registered ? "in place: memory of Communicator::allocate()"
                                                 : "in place: plain memory"));
    const nlohmann::json written = take_json(json);
    EXPECT_EQ(written["registered"], registered);
    EXPECT_EQ(written["rows"][0]["in_place"]["wrong"], 0);
  }
}

TEST(BenchAllreduce, RefusesWhatHasNoMeaning) {
  for (const char* arguments : {"--nonsense", "-n 0", "-b", "-b 8x", "-d f31", "-o median",
                                "--transport pigeon", "-b 64 -e 8", "-f 1", "-R 2"}) {
    EXPECT_NE(run(arguments).status, 0) << arguments;
  }
}

// Its check looks at every element of what it is given.
TEST(BenchAllreduce, CountsASpoiledElementWhereverItIs) {
  using bench::count_wrong;
  using bench::fill_input;
  using lockstep::comm::ReduceOp;
  constexpr int kRanks = 3;
  constexpr int64_t kCount = 37;
  std::vector<float> sum(kCount, 0);
  for (int rank = 0; rank < kRanks; ++rank) {
    std::vector<float> input(kCount);
    fill_input(input.data(), kCount, lockstep::DType::kF32, ReduceOp::kSum, rank);
    for (size_t i = 0; i < input.size(); ++i) sum[i] += input[i];
  }
  const auto wrong = [&] {
    return count_wrong(sum.data(), kCount, lockstep::DType::kF32, ReduceOp::kSum, kRanks);
  };
  EXPECT_EQ(wrong(), 0);
  for (float& element : sum) {
    element += 1;
    EXPECT_EQ(wrong(), 1);
    element -= 1;
  }
}

}  // namespace
