// The parts of train_fashion_mnist that can be tested without training.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>

#include "chart.h"
#include "lockstep/kernels/error.h"
#include "metrics.h"
#include "options.h"
#include "progress.h"

namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Options parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "train_fashion_mnist");
  return parse_options(static_cast<int>(arguments.size()), arguments.data());
}

std::string usage_error(const std::vector<const char*>& arguments) {
  try {
    parse(arguments);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Options, HaveDefaults) {
  const Options options = parse({});
  EXPECT_EQ(options.epochs, 3);
  EXPECT_EQ(options.batch_size, 256);
  EXPECT_EQ(options.model, "cnn");
  EXPECT_FALSE(options.resume);
  EXPECT_TRUE(options.sync_batch_norm);
  EXPECT_FALSE(options.lr.has_value());
}

TEST(Options, AreReadInBothSpellings) {
  const Options options =
      parse({"--epochs", "7", "--batch-size=64", "--lr=0.5", "--optimizer", "sgd", "--model=mlp",
             "--seed", "18446744073709551615", "--out=a=b", "--resume", "--no-sync-batch-norm"});
  EXPECT_EQ(options.epochs, 7);
  EXPECT_EQ(options.batch_size, 64);
  EXPECT_EQ(options.lr, 0.5);
  EXPECT_EQ(options.optimizer, "sgd");
  EXPECT_EQ(options.model, "mlp");
  EXPECT_EQ(options.seed, UINT64_MAX);
  EXPECT_EQ(options.out, "a=b");
  EXPECT_TRUE(options.resume);
  EXPECT_FALSE(options.sync_batch_norm);
}

TEST(Options, SayWhatIsWrong) {
  EXPECT_THAT(usage_error({"--epoch", "3"}), HasSubstr("no option '--epoch'"));
  EXPECT_THAT(usage_error({"extra"}), HasSubstr("no option 'extra'"));
  EXPECT_THAT(usage_error({"--epochs"}), HasSubstr("wants a value"));
  EXPECT_THAT(usage_error({"--epochs", "0"}), HasSubstr("at least 1, got '0'"));
  EXPECT_THAT(usage_error({"--epochs", "3x"}), HasSubstr("got '3x'"));
  EXPECT_THAT(usage_error({"--batch-size", "99999999999999999999"}), HasSubstr("got '99999"));
  EXPECT_THAT(usage_error({"--lr", "nan"}), HasSubstr("got 'nan'"));
  EXPECT_THAT(usage_error({"--lr", "inf"}), HasSubstr("got 'inf'"));
  EXPECT_THAT(usage_error({"--model", "rnn"}), HasSubstr("cnn or mlp, got 'rnn'"));
  EXPECT_THAT(usage_error({"--resume=1"}), HasSubstr("takes no value"));
  EXPECT_THAT(usage_error({"--out="}), HasSubstr("wants a directory"));
}

TEST(Options, AreAllInTheUsage) {
  const std::string text = usage("train");
  for (const char* option :
       {"--model", "--epochs", "--batch-size", "--optimizer", "--lr", "--seed", "--limit",
        "--no-sync-batch-norm", "--data", "--workers", "--out", "--checkpoint-every", "--resume"}) {
    EXPECT_THAT(text, HasSubstr(option));
  }
}

TEST(Chart, TicksAreRoundAndCoverTheRange) {
  EXPECT_THAT(round_ticks(0, 3, 6), ElementsAre(0, 0.5, 1, 1.5, 2, 2.5, 3));
  for (const double high : {1e-6, 0.31, 1.0, 7.3, 12345.0}) {
    for (const double low : {-high, 0.0, high / 2}) {
      const std::vector<double> ticks = round_ticks(low, high, 6);
      ASSERT_GE(ticks.size(), 2u);
      EXPECT_LE(ticks.size(), 14u);
      EXPECT_LE(ticks.front(), low + 1e-9 * high);
      EXPECT_GE(ticks.back(), high - 1e-9 * high);
    }
  }
  EXPECT_GE(round_ticks(2, 2, 6).size(), 2u);
}

TEST(Chart, LeavesOutWhatIsNotFinite) {
  Series line{"loss", {{0, 1}, {1, NAN}, {2, INFINITY}, {3, 2}}, true};
  const std::string svg = chart_svg("A & <B>", {{"Loss", "epoch", false, {line}}});
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  EXPECT_THAT(svg, HasSubstr("A &amp; &lt;B>"));
  EXPECT_THAT(svg, HasSubstr("</svg>"));
}

TEST(Chart, HasAxesWithoutData) {
  const std::string svg = chart_svg("t", {{"Loss", "epoch", false, {}}, {"", "", true, {}}});
  EXPECT_THAT(svg, HasSubstr("100 %"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(Progress, ReadsLikeAClock) {
  EXPECT_EQ(clock_text(0), "0:00");
  EXPECT_EQ(clock_text(6.2), "0:07");
  EXPECT_EQ(clock_text(750), "12:30");
  EXPECT_EQ(clock_text(3723), "1:02:03");
  EXPECT_EQ(clock_text(NAN), "-:--");
  EXPECT_EQ(clock_text(INFINITY), "-:--");
  EXPECT_EQ(clock_text(-1), "-:--");
}

class MetricsTest : public ::testing::Test {
 protected:
  MetricsTest() {
    std::string name = fs::temp_directory_path() / "lockstep-metrics-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory");
    directory_ = name;
  }
  ~MetricsTest() override { fs::remove_all(directory_); }

  std::string csv() const {
    std::ifstream file(directory_ / "metrics.csv");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  fs::path directory_;
};

constexpr const char* kHeader =
    "step,epoch,train_loss,train_accuracy,test_loss,test_accuracy,learning_rate\n";

TEST_F(MetricsTest, GrowByALineForEachMeasurement) {
  Metrics metrics(directory_, 0);
  EXPECT_EQ(csv(), kHeader);
  metrics.add({.step = 4, .epoch = 0.5, .train_loss = 2, .train_accuracy = 0.25, .lr = 0.1});
  metrics.add({.step = 8, .epoch = 1, .train_loss = 1, .test_loss = 3, .test_accuracy = 0.5});
  EXPECT_EQ(csv(), std::string(kHeader) + "4,0.5,2,0.25,,,0.1\n8,1,1,,3,0.5,\n");
}

TEST_F(MetricsTest, GoOnAfterAStepAndForgetWhatCameLater) {
  {
    Metrics metrics(directory_, 0);
    for (const int64_t step : {2, 4, 6}) metrics.add({.step = step, .train_loss = 0.5});
  }
  std::ofstream(directory_ / "metrics.csv", std::ios::app) << "7,0.9,1.";  // a line cut off
  Metrics metrics(directory_, 4);
  EXPECT_EQ(csv(), std::string(kHeader) + "2,0,0.5,,,,\n4,0,0.5,,,,\n");
  metrics.draw();
  EXPECT_TRUE(fs::exists(directory_ / "curves.svg"));
}

TEST_F(MetricsTest, BeginAnewForANewRun) {
  Metrics(directory_, 0).add({.step = 2});
  const Metrics metrics(directory_, 0);
  EXPECT_EQ(csv(), kHeader);
}

TEST_F(MetricsTest, SayThatTheyCannotBeWritten) {
  EXPECT_THROW(Metrics(directory_ / "absent", 0), lockstep::Error);
}

}  // namespace
