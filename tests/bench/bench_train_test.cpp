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

TEST(BenchTrain, RefusesWhatHasNoMeaning) {
  for (const char* arguments :
       {"--nope", "--models rnn", "--ranks 1", "--steps 0", "--batch 1x", "--json"}) {
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.status, 2) << arguments << ": " << ended.text;
  }
}

TEST(BenchTrain, SaysThatAFileCannotBeWritten) {
  const Ended ended =
      run("--steps 1 --repetitions 1 --turns 1 --no-costs --json /nowhere/at/all --models mlp "
          "--batch 1");
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.text, HasSubstr("/nowhere/at/all"));
}

}  // namespace
