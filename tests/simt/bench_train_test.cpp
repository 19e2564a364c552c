// bench_train from outside, with the ranks it starts on an emulated CUDA device. Its times mean
// nothing there; that it trains, and what it says, does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../bench/program.h"

namespace {

using ::testing::HasSubstr;

Ended run(const std::string& arguments) {
  return run_program(std::string(PROGRAM) + " --repetitions 1 --turns 1 --steps 1 " + arguments);
}

void expect_trained(const nlohmann::json& written) {
  ASSERT_EQ(written["results"].size(), 3u);
  for (const nlohmann::json& result : written["results"]) {
    EXPECT_EQ(result["ranks"], result["phase"] == "one" ? 1 : 2);
    EXPECT_GT(result["samples_per_second"]["median"], 0);
  }
  const nlohmann::json& model = written["models"][0];
  EXPECT_GT(model["device_memory_bytes"], 3 * 4 * model["parameters"].get<int64_t>());
  EXPECT_FALSE(model.contains("outside_kernels"));
  const nlohmann::json& communication = written["communication"][0];
  EXPECT_GT(communication["step_seconds"], 0);
  EXPECT_GT(communication["exposed_seconds"].get<double>() +
                communication["hidden_seconds"].get<double>(),
            0);
  EXPECT_LT(communication["exposed_seconds"], communication["step_seconds"]);
  EXPECT_GT(communication["agreement_seconds"], 0);
  EXPECT_FALSE(written.contains("costs"));  // those are the CPU's
}

TEST(BenchTrainOnCuda, TwoRanksTrainOnOneDevice) {
  const std::string json = json_path("simt-bench-train");
  const Ended ended =
      run("--device cuda:0 --models tiny --dtype bf16 --tokens 3 --batch 2 --json " + json);
  ASSERT_EQ(ended.status, 0) << ended.text;
  const nlohmann::json written = take_json(json);
  expect_trained(written);
  const nlohmann::json& one = written["results"][0];
  EXPECT_DOUBLE_EQ(one["tokens_per_second"]["median"].get<double>(),
                   3 * one["samples_per_second"]["median"].get<double>());
}

TEST(BenchTrainOnCuda, EachRankMayHaveADeviceOfItsOwn) {
  const std::string json = json_path("simt-bench-train-two");
  const Ended ended = run("--device cuda:0,cuda:1 --models tiny --batch 1 --json " + json);
  ASSERT_EQ(ended.status, 0) << ended.text;
  expect_trained(take_json(json));
}

TEST(BenchTrainOnCuda, SaysThatThereIsNoSuchDevice) {
  const Ended ended = run("--device cuda:999 --models cnn");
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.text, HasSubstr("want device cuda:999"));
}

}  // namespace
