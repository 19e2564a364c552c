// Whole runs of train_fashion_mnist through `lockstep run`, on small data made here.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "../tools/launched.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string big_endian(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

// Pictures that can be told apart: class c has a bright bar in rows 2 c + 4 and 2 c + 5, over
// noise.
void write_pictures(const fs::path& directory, const std::string& part, uint32_t count) {
  std::string images =
      std::string("\0\0\x08\x03", 4) + big_endian(count) + big_endian(28) + big_endian(28);
  std::string labels = std::string("\0\0\x08\x01", 4) + big_endian(count);
  uint32_t noise = count;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t label = i * 7 % 10;
    labels += static_cast<char>(label);
    for (uint32_t pixel = 0; pixel < 28 * 28; ++pixel) {
      noise = noise * 1664525 + 1013904223;
      const bool bar = (pixel / 28 - 4) / 2 == label && pixel / 28 >= 4;
      images += static_cast<char>((noise >> 26) + (bar ? 150 : 0));
    }
  }
  std::ofstream(directory / (part + "-images-idx3-ubyte"), std::ios::binary) << images;
  std::ofstream(directory / (part + "-labels-idx1-ubyte"), std::ios::binary) << labels;
}

// What one line of metrics.csv says of a step; NaN where it says nothing.
struct Line {
  double train_loss = NAN;
  double test_accuracy = NAN;
};

class TrainFashionMnist : public testing::Test {
 protected:
  TrainFashionMnist() {
    std::string name = fs::temp_directory_path() / "lockstep-train-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory");
    folder_ = name;
    fs::create_directory(folder_ / "data");
    write_pictures(folder_ / "data", "train", 203);
    write_pictures(folder_ / "data", "t10k", 51);
  }
  ~TrainFashionMnist() override { fs::remove_all(folder_); }

  fs::path out(const std::string& name) const { return folder_ / name; }

  // A job of so many ranks that trains into out(name): 10 steps in an epoch.
  std::unique_ptr<Launched> start(int ranks, const std::string& name,
                                  const std::vector<std::string>& options = {}) const {
    std::vector<std::string> arguments = {"run", "-n", std::to_string(ranks), TRAIN};
    for (const std::string& argument :
         {std::string("--data"), (folder_ / "data").string(), std::string("--out"),
          out(name).string(), std::string("--batch-size"), std::string("20")}) {
      arguments.push_back(argument);
    }
    arguments.insert(arguments.end(), options.begin(), options.end());
    Launched::Setting setting;
    setting.environment = {{"OMP_NUM_THREADS", "1"}};
    return std::make_unique<Launched>(arguments, setting);
  }

  // Runs to a good end and returns what was printed.
  std::string train(int ranks, const std::string& name,
                    const std::vector<std::string>& options = {}) const {
    const auto job = start(ranks, name, options);
    EXPECT_EQ(job->finish(), 0) << job->out << job->err;
    return job->out;
  }

  std::map<int64_t, Line> metrics(const std::string& name) const {
    std::ifstream file(out(name) / "metrics.csv");
    std::map<int64_t, Line> lines;
    std::string text;
    std::getline(file, text);
    EXPECT_EQ(text, "step,epoch,train_loss,train_accuracy,test_loss,test_accuracy,learning_rate");
    while (std::getline(file, text)) {
      std::vector<std::string> fields;
      std::stringstream stream(text);
      for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
      EXPECT_EQ(fields.size(), 7u) << text;
      if (fields.size() != 7) continue;
      Line& line = lines[std::stoll(fields[0])];
      if (!fields[2].empty()) line.train_loss = std::stod(fields[2]);
      if (!fields[5].empty()) line.test_accuracy = std::stod(fields[5]);
    }
    return lines;
  }

  fs::path folder_;
};

// What follows `before` in its line, up to a blank or comma.
std::string word_after(const std::string& text, const std::string& before) {
  const size_t at = text.find(before);
  if (at == text.npos) {
    ADD_FAILURE() << "no \"" << before << "\" in:\n" << text;
    return "";
  }
  const size_t begin = at + before.size();
  return text.substr(begin, text.find_first_of(" ,\n", begin) - begin);
}

std::string fingerprint(const std::string& text) { return word_after(text, "] parameters "); }

// The process that is a rank of the only job that trains into `out`.
std::optional<pid_t> find_rank(int rank, const fs::path& out) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const auto read = [&](const char* name) {
      std::ifstream file(entry.path() / name, std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    const std::string variable = std::string("LOCKSTEP_RANK=") + std::to_string(rank) + '\0';
    if (read("cmdline").find(out.string() + '\0') != std::string::npos &&
        read("environ").find(variable) != std::string::npos) {
      return std::stoi(entry.path().filename());
    }
  }
  return std::nullopt;
}

TEST_F(TrainFashionMnist, LearnsOnOneRankAndWritesItsFiles) {
  const std::string text = train(1, "run", {"--epochs", "4"});
  EXPECT_THAT(text, HasSubstr("model     cnn, 50,282 parameters\n"));
  EXPECT_THAT(text, HasSubstr("ranks     1, 1 thread each"));
  EXPECT_THAT(text, HasSubstr("epoch 4/4  train loss "));
  EXPECT_GT(std::stod(word_after(text, "test accuracy ")), 10.0);
  const auto lines = metrics("run");
  EXPECT_EQ(lines.rbegin()->first, 40);
  EXPECT_GT(lines.at(40).test_accuracy, 0.9);
  EXPECT_LT(lines.at(40).train_loss, 0.5 * lines.at(1).train_loss);
  EXPECT_TRUE(fs::exists(out("run") / "curves.svg"));
  EXPECT_TRUE(fs::exists(out("run") / "step-00000040"));
}

TEST_F(TrainFashionMnist, TrainsOnTwoRanksToTheSameBitsOnBothAndTheSameLossesAsOnOne) {
  const std::string two = train(2, "two", {"--epochs", "2"});
  EXPECT_THAT(two, HasSubstr("SyncBatchNorm"));
  EXPECT_THAT(two, HasSubstr("the same bits on all 2 ranks"));
  train(1, "one", {"--epochs", "2"});
  const auto lines = metrics("two");
  EXPECT_EQ(lines.size(), 20u);
  for (const auto& [step, line] : metrics("one")) {
    // Sums in another order, and through some steps of a nonlinear system.
    EXPECT_NEAR(lines.at(step).train_loss, line.train_loss, 0.02) << "step " << step;
  }
}

TEST_F(TrainFashionMnist, GivesTheSameBitsEachTimeWhateverTheWorkers) {
  const std::string first = fingerprint(train(2, "first", {"--epochs", "1"}));
  EXPECT_EQ(first.size(), 16u);
  EXPECT_EQ(fingerprint(train(2, "second", {"--epochs", "1", "--workers", "3"})), first);
  EXPECT_EQ(fingerprint(train(2, "third", {"--epochs", "1", "--workers", "0"})), first);
  EXPECT_NE(fingerprint(train(2, "fourth", {"--epochs", "1", "--seed", "1"})), first);
}

TEST_F(TrainFashionMnist, NamesTheRankThatWasKilledAndGoesOnFromItsCheckpointToTheSameBits) {
  const std::vector<std::string> options = {"--epochs", "30", "--checkpoint-every", "3"};
  const std::string whole = train(2, "whole", options);

  const auto job = start(2, "killed", options);
  job->wait_for("epoch 2/30   40%");
  const std::optional<pid_t> rank = find_rank(1, out("killed"));
  ASSERT_TRUE(rank.has_value());
  ASSERT_EQ(kill(*rank, SIGKILL), 0);
  EXPECT_EQ(job->finish(), 128 + SIGKILL);
  EXPECT_THAT(job->err, HasSubstr("rank 1"));
  // Rank 0's own words, and not the launcher's alone.
  EXPECT_TRUE(std::regex_search(job->err, std::regex(R"(\[0\] train_fashion_mnist: .*rank 1)")))
      << job->err;
  EXPECT_EQ(job->left_over(), 0);

  std::vector<std::string> resuming = options;
  resuming.push_back("--resume");
  const std::string resumed = train(2, "killed", resuming);
  EXPECT_EQ(fingerprint(resumed), fingerprint(whole));
  const int64_t step = std::stoll(word_after(resumed, ": step "));
  EXPECT_GE(step, 12);  // the last checkpoint before the 14th step, at which it was killed
  EXPECT_LT(step, 300);
  const auto lines = metrics("killed");
  EXPECT_NEAR(std::stod(word_after(resumed, "of 300, loss ")), lines.at(step).train_loss, 1e-4);
  // Every measurement is there once, from before the kill as from after it.
  const auto whole_lines = metrics("whole");
  ASSERT_EQ(lines.size(), whole_lines.size());
  for (const auto& [at, line] : whole_lines) {
    EXPECT_EQ(lines.at(at).train_loss, line.train_loss) << "step " << at;
  }
}

TEST_F(TrainFashionMnist, SavesAndEndsWellOnSigtermAndGoesOnToTheSameBits) {
  const std::vector<std::string> options = {"--epochs", "30", "--save-on-sigterm"};
  const std::string whole = train(2, "whole", options);

  const auto job = start(2, "stopped", options);
  job->wait_for("epoch 2/30   40%");
  // One rank alone is told; all stop after the same step.
  const std::optional<pid_t> rank = find_rank(1, out("stopped"));
  ASSERT_TRUE(rank.has_value());
  ASSERT_EQ(kill(*rank, SIGTERM), 0);
  EXPECT_EQ(job->finish(), 0) << job->out << job->err;
  const std::string step = word_after(job->out, "stopped by SIGTERM after step ");
  EXPECT_LT(std::stoll(step), 300);

  std::vector<std::string> resuming = options;
  resuming.push_back("--resume");
  const std::string resumed = train(2, "stopped", resuming);
  EXPECT_THAT(resumed, HasSubstr(": step " + step + " of 300"));
  EXPECT_EQ(fingerprint(resumed), fingerprint(whole));
}

TEST_F(TrainFashionMnist, GoesOnWithMoreRanksAtTheSameLosses) {
  const std::vector<std::string> options = {"--epochs", "2", "--checkpoint-every", "4"};
  train(1, "run", options);
  const auto want = metrics("run");
  fs::remove_all(out("run") / "step-00000010");
  fs::remove_all(out("run") / "step-00000014");
  fs::remove_all(out("run") / "step-00000018");
  fs::remove_all(out("run") / "step-00000020");
  std::vector<std::string> resuming = options;
  resuming.push_back("--resume");
  EXPECT_THAT(train(2, "run", resuming), HasSubstr("step 16 of 20"));
  const auto got = metrics("run");
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [step, line] : want) {
    EXPECT_NEAR(got.at(step).train_loss, line.train_loss, 1e-3) << "step " << step;
  }
}

TEST_F(TrainFashionMnist, ResumesAFinishedRunByReportingIt) {
  const std::string text = train(1, "run", {"--epochs", "1"});
  const std::string again = train(1, "run", {"--epochs", "1", "--resume"});
  EXPECT_EQ(fingerprint(again), fingerprint(text));
  EXPECT_EQ(word_after(again, "] test accuracy "), word_after(text, "] test accuracy "));
}

TEST_F(TrainFashionMnist, ResumesFromTheStartWhereThereIsNothingYet) {
  EXPECT_THAT(train(1, "run", {"--epochs", "1", "--resume"}), HasSubstr("from the start"));
}

TEST_F(TrainFashionMnist, RefusesToGoOnWithOtherSettings) {
  train(1, "run", {"--epochs", "1"});
  const auto job = start(1, "run", {"--epochs", "2", "--resume", "--seed", "9"});
  EXPECT_EQ(job->finish(), 2);
  EXPECT_THAT(job->err, AllOf(HasSubstr("seed=0"), HasSubstr("seed=9")));
}

TEST_F(TrainFashionMnist, KeepsTheFilesOfTheRunBefore) {
  const std::string first = train(1, "run", {"--epochs", "1"});
  std::ofstream(out("run") / "notes.txt") << "mine";
  EXPECT_THAT(train(1, "run", {"--epochs", "1", "--seed", "5"}), HasSubstr("earlier-1"));
  EXPECT_TRUE(fs::exists(out("run") / "earlier-1" / "step-00000010"));
  EXPECT_TRUE(fs::exists(out("run") / "earlier-1" / "metrics.csv"));
  EXPECT_TRUE(fs::exists(out("run") / "step-00000010"));
  EXPECT_TRUE(fs::exists(out("run") / "notes.txt"));
  EXPECT_EQ(fingerprint(train(1, "run/earlier-1", {"--epochs", "1", "--resume"})),
            fingerprint(first));
}

TEST_F(TrainFashionMnist, TrainsThePerceptronAndBySgdAndWithoutSynchronisedBatchNorm) {
  EXPECT_THAT(train(2, "mlp", {"--epochs", "1", "--model", "mlp"}), Not(HasSubstr("SyncBatch")));
  train(2, "sgd", {"--epochs", "2", "--optimizer", "sgd", "--no-sync-batch-norm"});
  const auto lines = metrics("sgd");
  EXPECT_LT(lines.at(20).train_loss, lines.at(1).train_loss);
}

TEST_F(TrainFashionMnist, ShowsABarOnATerminal) {
  const std::vector<std::string> arguments = {
      "run",      "-n",           "2",  TRAIN,      "--data", folder_ / "data", "--out",
      out("run"), "--batch-size", "20", "--epochs", "1"};
  Launched::Setting setting;
  setting.terminal = true;
  Launched job(arguments, setting);
  EXPECT_EQ(job.finish(), 0) << job.out << job.err;
  EXPECT_THAT(job.out, HasSubstr("images/s  loss"));
  EXPECT_THAT(job.out, HasSubstr(" epoch 1/1 [##"));
}

TEST_F(TrainFashionMnist, RefusesWhatHasNoMeaning) {
  const auto unknown = start(2, "run", {"--turbo"});
  EXPECT_EQ(unknown->finish(), 2);
  EXPECT_THAT(unknown->err, HasSubstr("no option '--turbo'"));

  const auto uneven = start(3, "run");
  EXPECT_EQ(uneven->finish(), 2);
  EXPECT_THAT(uneven->err, HasSubstr("--batch-size 20"));

  const auto small = start(1, "run", {"--limit", "19"});
  EXPECT_EQ(small->finish(), 2);
  EXPECT_THAT(small->err, HasSubstr("19 training images"));
}

TEST_F(TrainFashionMnist, SaysWhereToGetDataThatIsMissing) {
  const auto job = start(2, "run", {"--data", (folder_ / "absent").string()});
  EXPECT_EQ(job->finish(), 1);
  EXPECT_THAT(job->err, AllOf(HasSubstr("absent/t10k-images"), HasSubstr("dataset-fashion-mnist")));
}

}  // namespace
}  // namespace lockstep
