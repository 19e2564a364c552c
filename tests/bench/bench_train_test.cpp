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
      run("--ranks 3 --repetitions 2 --rounds 2 --steps 2 --batch 4 --json " + json);
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
    for (const char* what : {"step_ms", "images_per_second", "speed_up"}) {
      if (!result.contains(what)) continue;
      EXPECT_GT(result[what]["low"], 0);
      EXPECT_LE(result[what]["low"], result[what]["median"]);
      EXPECT_LE(result[what]["median"], result[what]["high"]);
    }
  }
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
      run("--steps 1 --repetitions 1 --json /nowhere/at/all --models mlp --batch 1");
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.text, HasSubstr("/nowhere/at/all"));
}

}  // namespace
