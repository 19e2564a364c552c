// bench_checkpoint from outside: what it prints and writes, and how it ends.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program.h"

namespace {

using ::testing::HasSubstr;

Ended run(const std::string& arguments) {
  return run_program(std::string(BENCH_CHECKPOINT) + " " + arguments);
}

TEST(BenchCheckpoint, MeasuresSavingAndLoadingAndLeavesNothing) {
  const std::string json = json_path("bench-checkpoint");
  const std::string folder = json + ".folder";
  std::filesystem::create_directory(folder);
  const Ended ended =
      run("--tensors 3 --elements 4099 --rounds 2 --folder " + folder + " --json " + json);
  ASSERT_EQ(ended.status, 0) << ended.text;
  EXPECT_THAT(ended.text, HasSubstr("save_checkpoint"));
  const nlohmann::json written = take_json(json);
  for (const char* what : {"write and fsync", "save_checkpoint", "read_state_dict, mmap",
                           "AsyncCheckpointer::save", "memory copy"}) {
    ASSERT_EQ(written["seconds"][what].size(), 2u) << what;
    EXPECT_GT(written["seconds"][what][1], 0) << what;
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove(folder);
}

TEST(BenchCheckpoint, RefusesWhatHasNoMeaning) {
  for (const char* arguments : {"--nope", "--tensors 0", "--elements 1x", "--rounds"}) {
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.status, 2) << arguments << ": " << ended.text;
  }
}

TEST(BenchCheckpoint, SaysThatAFolderCannotBeUsed) {
  const Ended ended = run("--tensors 1 --elements 1 --folder /nowhere/at/all");
  EXPECT_EQ(ended.status, 1);
  EXPECT_THAT(ended.text, HasSubstr("/nowhere/at/all"));
}

}  // namespace
