// What read_checkpoint.py, which knows the format's document alone, reads from our checkpoints.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "../nn/checkpoint_files.h"
#include "../nn/checkpoint_model.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/nn/checkpoint.h"

namespace lockstep::nn {
namespace {

using nlohmann::json;
using testing::bytes_of;
using testing::read_file;
using testing::TemporaryDirectory;
using testing::write_byte;

struct Read {
  int status = 0;
  std::map<std::string, json> lines;  // by name
};

Read read_by_the_document(const std::filesystem::path& checkpoint) {
  const std::string command = std::string(READ_CHECKPOINT) + " " + checkpoint.string() + " 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  char buffer[4096];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
  Read read;
  read.status = WEXITSTATUS(::pclose(pipe));
  if (read.status != 0) return read;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    const json row = json::parse(line);
    read.lines[row[0]] = row;
  }
  return read;
}

std::string hex(const std::string& bytes) {
  std::string text;
  char digits[3];
  for (char byte : bytes) {
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
    text += digits;
  }
  return text;
}

// What a run holds, of every dtype and size class: below and above 64 KiB, over 4 MiB, empty.
struct SavedRun {
  testing::Net net{3};
  NamedTensors tensors;
  int64_t epoch = -5;
  uint64_t seed = std::numeric_limits<uint64_t>::max();
  double rate = 0.1;
  double nothing = std::numeric_limits<double>::quiet_NaN();
  std::string note = "zwölf \"Zeichen\"";
  TrainingState state;

  SavedRun() {
    for (int i = 0; i < kDTypeCount; ++i) {
      const auto dtype = static_cast<DType>(i);
      add(std::string(name(dtype)), testing::pattern_tensor({3, 5}, i).to(dtype));
    }
    add("page", testing::pattern_tensor({16385}, 20));
    add("pieces", testing::pattern_tensor({(3 << 20) + 7}, 21).to(DType::kF16));
    add("empty", Tensor::zeros({4, 0, 3}));
    add("view", testing::pattern_tensor({5, 9}, 22).transpose(0, 1).narrow(0, 2, 5));
    const Tensor base = testing::pattern_tensor({6, 7}, 23);  // shared, and stored once
    add("base", base);
    add("part", base.transpose(0, 1).narrow(1, 1, 3));
    for (auto& [name, tensor] : tensors) state.add(name, tensor);
    state.add("model", net);
    state.add("epoch", epoch);
    state.add("seed", seed);
    state.add("rate", rate);
    state.add("nothing", nothing);
    state.add("note", note);
  }

 private:
  void add(const std::string& name, const Tensor& tensor) { tensors.emplace_back(name, tensor); }
};

void expect_read(const Read& read, const SavedRun& run, size_t ranks) {
  ASSERT_EQ(read.status, 0);
  NamedTensors want = run.tensors;
  for (const auto& [name, tensor] : state_dict(run.net)) want.emplace_back("model/" + name, tensor);
  for (const auto& [name, tensor] : want) {
    ASSERT_TRUE(read.lines.contains(name)) << name;
    const json& row = read.lines.at(name);
    EXPECT_EQ(row[1], std::string(lockstep::name(tensor.dtype()))) << name;
    EXPECT_EQ(row[2], json(std::vector<int64_t>(tensor.shape().begin(), tensor.shape().end())));
    EXPECT_EQ(row[3].get<std::string>() == hex(bytes_of(tensor)), true) << name;
  }
  EXPECT_EQ(read.lines.at("epoch"), json({"epoch", "i64", -5}));
  EXPECT_EQ(read.lines.at("seed"), json({"seed", "u64", run.seed}));
  EXPECT_EQ(read.lines.at("rate"), json({"rate", "f64", 0.1}));
  EXPECT_EQ(read.lines.at("nothing"), json({"nothing", "f64", "nan"}));
  EXPECT_EQ(read.lines.at("note"), json({"note", "string", run.note}));
  EXPECT_TRUE(read.lines.contains("generator/rank0.seed"));
  EXPECT_EQ(read.lines.size(), want.size() + 5 + 2 * ranks);
}

TEST(CheckpointReader, TheDocumentSufficesToReadACheckpoint) {
  const TemporaryDirectory dir;
  const SavedRun run;
  save_checkpoint(dir.path(), 12, run.state);
  expect_read(read_by_the_document(dir / "step-00000012"), run, 1);
}

TEST(CheckpointReader, TheDocumentSufficesToReadWhatSeveralRanksSaved) {
  const TemporaryDirectory dir;
  comm::run_ranks(3, [&](comm::Communicator& group) {
    const SavedRun run;
    save_checkpoint(dir.path(), 12, run.state, {.group = &group, .sharded = true});
  });
  EXPECT_TRUE(std::filesystem::exists(dir / "step-00000012" / "data-00002.lsck"));
  expect_read(read_by_the_document(dir / "step-00000012"), SavedRun(), 3);
}

TEST(CheckpointReader, WhatTheDocumentVerifiesCoversEveryPartOfACheckpoint) {
  const TemporaryDirectory dir;
  testing::Net net(3);
  TrainingState state;
  state.add("model", net);
  save_checkpoint(dir.path(), 1, state);
  const std::filesystem::path checkpoint = dir / "step-00000001";
  ASSERT_EQ(read_by_the_document(checkpoint).status, 0);
  for (const char* name : {"manifest.json", "data-00000.lsck"}) {
    const std::string whole = read_file(checkpoint / name);
    for (size_t i = 0; i < 8; ++i) {
      const size_t at = whole.size() * i / 8 + i % 7;
      write_byte(checkpoint / name, at, static_cast<char>(whole[at] ^ 4));
      EXPECT_NE(read_by_the_document(checkpoint).status, 0) << name << ", byte " << at;
      write_byte(checkpoint / name, at, whole[at]);
    }
  }
  EXPECT_EQ(read_by_the_document(checkpoint).status, 0);
}

}  // namespace
}  // namespace lockstep::nn
