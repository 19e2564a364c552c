// bench_allreduce from outside, on emulated CUDA devices. Its times mean nothing there; that every
// element is right, and what it says, does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../bench/program.h"

namespace {

using ::testing::HasSubstr;

Ended run(const std::string& arguments) {
  return run_program(std::string(PROGRAM) + " --iters 2 -w 1 " + arguments);
}

struct Way {
  const char* transport;
  const char* devices;
};

TEST(BenchAllreduceOnCuda, FindsNothingWrongOnAnyWay) {
  for (const Way way : {Way{"cuda", "cuda:0"}, Way{"cuda", "cuda:1,cuda:0"},
                        Way{"nccl", "cuda:0,cuda:1"}, Way{"shm", "cuda:0,cuda:1"}}) {
    for (const char* registered : {"0", "1"}) {
      const std::string json = json_path("simt-bench-allreduce");
      const Ended ended =
          run(std::string("-b 4 -e 4K -f 32 -d f32,bf16 --transport ") + way.transport +
              " --device " + way.devices + " -R " + registered + " --json " + json);
      ASSERT_EQ(ended.status, 0) << ended.text;
      EXPECT_THAT(ended.text, HasSubstr("Out of bounds values : 0 OK"));
      const nlohmann::json written = take_json(json);
      EXPECT_EQ(written["transport"], way.transport);
      EXPECT_EQ(written["device"], std::string(way.devices).substr(0, 6));
      ASSERT_EQ(written["rows"].size(), 6u);
      for (const nlohmann::json& row : written["rows"]) {
        EXPECT_EQ(row["out_of_place"]["wrong"], 0);
        EXPECT_EQ(row["in_place"]["wrong"], 0);
        EXPECT_GT(row["limit_us"], 0);
      }
    }
  }
}

// By which each size goes the way that is cheaper.
TEST(BenchAllreduceOnCuda, TunesATableOfBothWays) {
  const std::string table = json_path("simt-bench-allreduce-table");
  for (const char* transport : {"cuda", "nccl"}) {
    const Ended ended = run(std::string("-b 4 -e 4 --device cuda:0,cuda:1 --transport ") +
                            transport + " --tune " + table);
    ASSERT_EQ(ended.status, 0) << ended.text;
  }
  std::ifstream file(table);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::filesystem::remove(table);
  EXPECT_THAT(text, HasSubstr("cuda"));
  EXPECT_THAT(text, HasSubstr("nccl"));
}

TEST(BenchAllreduceOnCuda, RefusesWhatHasNoMeaning) {
  for (const char* arguments : {"--device cuda:0,cuda:1,cuda:0", "--device cpu,cuda:0",
                                "--device all", "--transport cuda"}) {
    const Ended ended = run(std::string("-b 4 -e 4 ") + arguments);
    EXPECT_NE(ended.status, 0) << arguments;
    EXPECT_THAT(ended.text, HasSubstr("want")) << arguments;
  }
  EXPECT_THAT(run("-b 4 -e 4 --device cuda:999").text, HasSubstr("cuda:999"));
}

}  // namespace
