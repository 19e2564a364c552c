// bench_train from outside: what it prints and writes, and how it ends.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "program.h"

namespace {

using ::testing::HasSubstr;

Ended run(const std::string& arguments) {
  return run_program(std::string(BENCH_TRAIN) + " " + arguments);
}

TEST(BenchTrain, MeasuresOneRankSeveralApartAndSeveralTogether) {
  const std::string json = json_path("bench-train");
  const Ended ended =
      run("--models cnn,mlp --ranks 3 --repetitions 2 --turns 2 --steps 2 --batch 4 --no-costs "
          "--json " +
          json);
  ASSERT_EQ(ended.status, 0) << ended.text;
  EXPECT_THAT(ended.text, HasSubstr("speed-up"));
  const nlohmann::json written = take_json(json);
  ASSERT_EQ(written["results"].size(), 6u);
  for (const nlohmann::json& result : written["results"]) {
    EXPECT_EQ(result["library"], "Lockstep");
    EXPECT_EQ(result["ranks"], result["phase"] == "one" ? 1 : 3);
    EXPECT_EQ(result["turns"], 4);
    EXPECT_EQ(result.contains("speed_up"), result["phase"] != "one");
    EXPECT_EQ(result.contains("of_limit"), result["phase"] == "together");
    for (const char* what : {"step_ms", "samples_per_second", "speed_up"}) {
      if (!result.contains(what)) continue;
      EXPECT_GT(result[what]["low"], 0);
      EXPECT_LE(result[what]["low"], result[what]["median"]);
      EXPECT_LE(result[what]["median"], result[what]["high"]);
    }
  }
  ASSERT_EQ(written["communication"].size(), 2u);
  for (const nlohmann::json& model : written["communication"]) {
    EXPECT_GT(model["exposed_seconds"], model["agreement_seconds"]);
    EXPECT_GT(model["agreement_seconds"], 0);
    EXPECT_GE(model["hidden_seconds"], 0);
    EXPECT_LT(model["exposed_seconds"], model["step_seconds"]);
  }
  EXPECT_FALSE(written.contains("costs"));
}

// Parameters as in PyTorch's models of the same kind.
TEST(BenchTrain, TrainsModelsOfKnownSizes) {
  const std::string json = json_path("bench-train-models");
  const Ended ended =
      run("--repetitions 1 --turns 1 --steps 1 --batch 1 --no-costs --json " + json);
  ASSERT_EQ(ended.status, 0) << ended.text;
  const nlohmann::json written = take_json(json);
  const std::map<std::string, int64_t> parameters = {
      {"cnn", 50282}, {"mlp", 1863690}, {"gpt", 3257984}, {"resnet", 11173962}};
  ASSERT_EQ(written["models"].size(), parameters.size());
  for (const nlohmann::json& model : written["models"]) {
    EXPECT_EQ(model["parameters"], parameters.at(model["model"])) << model["model"];
    EXPECT_GT(model["memory_bytes"], 4 * parameters.at(model["model"])) << model["model"];
    EXPECT_GT(model["outside_kernels"], 0) << model["model"];
    EXPECT_LT(model["outside_kernels"], 1) << model["model"];
  }
}

TEST(BenchTrain, TrainsInBf16OnTokensOfWhichThereAreSoMany) {
  const std::string json = json_path("bench-train-bf16");
  const Ended ended =
      run("--models tiny --dtype bf16 --tokens 5 --repetitions 1 --turns 1 --steps 1 --batch 2 "
          "--no-costs --json " +
          json);
  ASSERT_EQ(ended.status, 0) << ended.text;
  EXPECT_THAT(ended.text, HasSubstr("bf16"));
  const nlohmann::json written = take_json(json);
  const nlohmann::json& one = written["results"][0];
  EXPECT_DOUBLE_EQ(one["tokens_per_second"]["median"].get<double>(),
                   5 * one["samples_per_second"]["median"].get<double>());
  EXPECT_EQ(written["models"][0]["parameters"], 3712);
}

TEST(BenchTrain, MeasuresWhatDataParallelCosts) {
  const std::string json = json_path("bench-train-costs");
  const Ended ended =
      run("--models mlp --repetitions 1 --turns 1 --steps 1 --batch 1 --json " + json);
  ASSERT_EQ(ended.status, 0) << ended.text;
  EXPECT_THAT(ended.text, HasSubstr("to agree on who used what"));
  const nlohmann::json costs = take_json(json)["costs"];
  EXPECT_GT(costs["collectives_us"], costs["agreement_us"]);
  EXPECT_GT(costs["agreement_us"], 0);
  EXPECT_GT(costs["iteration_us"], 0);
}

// Of a job of processes, each of which writes to the same file.
TEST(BenchTrain, KeepsATimelineOfAllRanks) {
  const std::string path = json_path("bench-train-timeline");
  const Ended ended =
      run("--models mlp --ranks 3 --repetitions 1 --turns 1 --steps 2 --batch 3 --no-costs "
          "--timeline " +
          path);
  ASSERT_EQ(ended.status, 0) << ended.text;
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::filesystem::remove(path);
  std::map<int, std::map<std::string, int>> kinds;  // by rank
  for (const nlohmann::json& event : nlohmann::json::parse(text + "{}]")) {
    if (event.contains("cat")) ++kinds[event["pid"]][event["cat"]];
  }
  ASSERT_EQ(kinds.size(), 3u);
  for (auto& [rank, counts] : kinds) {
    EXPECT_EQ(counts["forward"], 5) << rank;  // three come before the two
    EXPECT_EQ(counts["backward"], 5) << rank;
    EXPECT_EQ(counts["optimizer"], 5) << rank;
    EXPECT_GE(counts["collective"], 15) << rank;
  }
}

TEST(BenchTrain, RefusesWhatHasNoMeaning) {
  for (const char* arguments : {"--nope", "--models rnn", "--ranks 1", "--steps 0", "--batch 1x",
                                "--json", "--device gpu", "--device cuda:x", "--device cpu,cpu",
                                "--device cpu,cuda:0", "--device cuda:0,cuda:1,cuda:2",
                                "--dtype f16", "--tokens 0", "--models gpt2 --tokens 1025"}) {
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.status, 2) << arguments << ": " << ended.text;
  }
}

TEST(BenchTrain, SaysThatThereIsNoSuchDevice) {
  const Ended ended = run("--device cuda:999 --models tiny --peers");
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.text, HasSubstr("want device cuda:999"));
  EXPECT_THAT(ended.text, HasSubstr("use device cpu"));
}

TEST(BenchTrain, SaysThatAFileCannotBeWritten) {
  const Ended ended =
      run("--steps 1 --repetitions 1 --turns 1 --no-costs --json /nowhere/at/all --models mlp "
          "--batch 1");
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.text, HasSubstr("/nowhere/at/all"));
}

}  // namespace
