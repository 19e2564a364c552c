// bench_train from outside: what it prints and writes, and how it ends.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace {

using ::testing::HasSubstr;

struct Ended {
  int status = -1;
  std::string text;  // of both its streams
};

Ended run(const std::string& arguments) {
  FILE* pipe = popen((std::string(BENCH_TRAIN) + " " + arguments + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {};
  Ended ended;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    ended.text += static_cast<char>(c);
  }
  const int status = pclose(pipe);
  ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  return ended;
}

TEST(BenchTrain, MeasuresOneRankAndSeveral) {
  const std::string json = std::filesystem::temp_directory_path() /
                           ("lockstep-bench-train-" + std::to_string(getpid()) + ".json");
  const Ended ended = run("--ranks 3 --repetitions 2 --steps 2 --batch 4 --json " + json);
  ASSERT_EQ(ended.status, 0) << ended.text;
  EXPECT_THAT(ended.text, HasSubstr("speed-up"));
  std::ifstream file(json);
  const nlohmann::json written = nlohmann::json::parse(file);
  file.close();
  std::filesystem::remove(json);
  ASSERT_EQ(written["results"].size(), 4u);
  for (const nlohmann::json& result : written["results"]) {
    EXPECT_EQ(result["library"], "Lockstep");
    EXPECT_EQ(result.contains("speed_up"), result["ranks"] == 3);
    for (const char* what : {"step_ms", "images_per_second"}) {
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
