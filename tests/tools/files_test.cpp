// `lockstep inspect`, `convert` and `diff`, from outside.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "../nn/checkpoint_files.h"
#include "../nn/foreign_files.h"
#include "launched.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/numpy.h"
#include "lockstep/nn/safetensors.h"
#include "lockstep/nn/sequential.h"

namespace lockstep {
namespace {

using nlohmann::json;
using nn::testing::expect_same;
using nn::testing::golden_array;
using nn::testing::golden_arrays;
using nn::testing::golden_file;
using nn::testing::read_file;
using nn::testing::TemporaryDirectory;
using nn::testing::write_file;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int status = 0;
  std::string out;
  std::string err;
};

Outcome lockstep(std::vector<std::string> arguments) {
  Launched program(std::move(arguments));
  Outcome outcome;
  outcome.status = program.finish();
  outcome.out = program.out;
  outcome.err = program.err;
  return outcome;
}

// A folder with checkpoints of steps 3 and 7 of a model, and its tensors at step 7.
class Tools : public ::testing::Test {
 protected:
  Tools() {
    auto net = std::make_shared<nn::Sequential>(std::make_shared<nn::Linear>(5, 3),
                                                std::make_shared<nn::BatchNorm1d>(3));
    nn::load_state_dict(*net, nn::load_safetensors(golden_file("ddp.safetensors")));
    nn::TrainingState state;
    double rate = 0.25;
    std::string note = "a\x1b[31mred";
    state.add("model", *net);
    state.add("rate", rate);
    state.add("note", note);
    nn::save_checkpoint(out_, 3, state);
    NoGrad no_grad;
    net->parameters()[0].data<float>()[7] += 0.5f;
    rate = 0.125;
    nn::save_checkpoint(out_, 7, state);
    for (const auto& [name, tensor] : nn::state_dict(*net)) {
      model_.emplace_back(name, tensor.detach().clone());
    }
  }

  std::string step(int n) const { return (out_ / ("step-0000000" + std::to_string(n))).string(); }

  TemporaryDirectory dir_;
  std::filesystem::path out_ = dir_ / "out";
  nn::NamedTensors model_;
};

TEST_F(Tools, InspectShowsACheckpointsTensorsAndValues) {
  const Outcome shown = lockstep({"inspect", step(7)});
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("step-00000007: checkpoint"), HasSubstr("step: 7"),
                               HasSubstr("model/1.num_batches_tracked  i64"),
                               HasSubstr("model/0.weight               f32    (3, 5)     60"),
                               HasSubstr("rate"), HasSubstr("0.125"), HasSubstr("7 tensors")));
  // What a file says never reaches the terminal as a command.
  EXPECT_THAT(shown.out, AllOf(HasSubstr("a\\x1b[31mred"), Not(HasSubstr("\x1b"))));
}

TEST_F(Tools, InspectPrintsJsonWithExactNumbers) {
  const json root = json::parse(lockstep({"inspect", "--json", step(7)}).out);
  EXPECT_EQ(root["format"], "checkpoint");
  const json& weight = root["tensors"][0];
  EXPECT_EQ(weight["name"], "model/0.weight");
  EXPECT_EQ(weight["shape"], json({3, 5}));
  const std::vector<float> values = model_[0].second.to_vector<float>();
  EXPECT_EQ(weight["min"].get<float>(), *std::min_element(values.begin(), values.end()));
  EXPECT_EQ(weight["max"].get<float>(), *std::max_element(values.begin(), values.end()));
  EXPECT_EQ(weight["nan"], 0);
  bool seen = false;
  for (const json& value : root["values"]) {
    if (value["name"] == "rate") seen = value["type"] == "f64" && value["value"] == 0.125;
  }
  EXPECT_TRUE(seen) << root["values"];
}

TEST_F(Tools, InspectCountsWhatIsNoNumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const auto far = int64_t{1} << 60;
  nn::save_npz(dir_ / "x.npz", {{"mixed", Tensor::from({1.5f, nan, -2.5f, nan, nan}, {5})},
                                {"none", Tensor::from({nan, nan}, {2})},
                                {"large", Tensor::from({1.f, inf}, {2})},
                                {"whole", Tensor::from({far + 1, -far - 1}, {2})},
                                {"empty", Tensor::empty({0, 3})}});
  const json rows = json::parse(lockstep({"inspect", "--json", dir_ / "x.npz"}).out)["tensors"];
  EXPECT_EQ(rows[0]["nan"], 3);
  EXPECT_EQ(rows[0]["min"], -2.5);
  EXPECT_EQ(rows[0]["max"], 1.5);
  EXPECT_EQ(rows[0]["mean"], -0.5);
  EXPECT_EQ(rows[1]["nan"], 2);
  EXPECT_FALSE(rows[1].contains("min"));
  EXPECT_EQ(rows[2]["max"], "inf");
  EXPECT_EQ(rows[3]["max"], far + 1);
  EXPECT_EQ(rows[3]["min"], -far - 1);
  EXPECT_FALSE(rows[4].contains("mean"));
  EXPECT_EQ(rows[4]["shape"], json({0, 3}));
}

TEST_F(Tools, InspectReadsForeignFilesAndNamesDtypesThatLockstepHasNot) {
  for (const char* name : {"arrays.safetensors", "arrays.npz", "compressed.npz"}) {
    const Outcome shown = lockstep({"inspect", golden_file(name)});
    EXPECT_EQ(shown.status, 0) << shown.err;
    EXPECT_THAT(shown.out, HasSubstr("fc.weight"));
  }
  const Outcome u16 = lockstep({"inspect", golden_file("u16.safetensors")});
  EXPECT_EQ(u16.status, 0) << u16.err;
  EXPECT_THAT(u16.out, AllOf(HasSubstr("x     U16    (3)        6"), HasSubstr("y     f32")));
}

TEST_F(Tools, InspectListsAFolderAndFindsTheDamagedOne) {
  const Outcome whole = lockstep({"inspect", "--verify", out_});
  EXPECT_EQ(whole.status, 0) << whole.out << whole.err;
  EXPECT_LT(whole.out.find("step-00000007"), whole.out.find("step-00000003"));
  EXPECT_THAT(whole.out, Not(HasSubstr("damaged")));

  // The first value of the first tensor.
  const std::string data = std::filesystem::path(step(3)) / "data-00000.lsck";
  std::string bytes = read_file(data);
  bytes[256] ^= 1;
  write_file(data, bytes);
  EXPECT_EQ(lockstep({"inspect", out_}).status, 0) << "a list alone reads no data";
  const Outcome folder = lockstep({"inspect", "--verify", out_});
  EXPECT_EQ(folder.status, 1);
  EXPECT_THAT(folder.out, AllOf(HasSubstr("damaged: "), HasSubstr("model/0.weight")));
  const json rows = json::parse(lockstep({"inspect", "--verify", "--json", out_}).out);
  EXPECT_TRUE(rows["checkpoints"][0]["damage"].is_null());
  EXPECT_THAT(rows["checkpoints"][1]["damage"].get<std::string>(), HasSubstr("checksum"));

  const Outcome one = lockstep({"inspect", "--verify", step(3)});
  EXPECT_EQ(one.status, 1);
  EXPECT_THAT(one.err, HasSubstr("'model/0.weight'"));
  const Outcome other = lockstep({"inspect", "--verify", step(7)});
  EXPECT_EQ(other.status, 0);
  EXPECT_THAT(other.out, HasSubstr("whole, 7 tensors"));
}

TEST_F(Tools, ErrorsSayWhatToDo) {
  EXPECT_THAT(lockstep({"inspect", dir_ / "no"}).err, HasSubstr("there is no file"));
  EXPECT_THAT(lockstep({"inspect", dir_.path()}).err, HasSubstr("no manifest.json"));
  EXPECT_THAT(lockstep({"inspect", step(7) + "/data-00000.lsck"}).err,
              HasSubstr("a part of a checkpoint: name its folder"));
  write_file(dir_ / "text", "hello, world");
  EXPECT_THAT(lockstep({"inspect", dir_ / "text"}).err, HasSubstr("is neither a checkpoint"));
  EXPECT_EQ(lockstep({"inspect", dir_ / "text"}).status, 1);
  EXPECT_EQ(lockstep({"inspect"}).status, 2);
  EXPECT_EQ(lockstep({"inspect", "a", "b"}).status, 2);
  EXPECT_EQ(lockstep({"inspect", "--what", "a"}).status, 2);
  EXPECT_EQ(lockstep({"diff", "a", "b", "--atol", "x"}).status, 2);
  EXPECT_EQ(lockstep({"diff", "a", "b"}).status, 2);
  EXPECT_EQ(lockstep({"convert", step(7), dir_ / "x.pt"}).status, 2);
  for (const char* command : {"inspect", "convert", "diff"}) {
    const Outcome help = lockstep({command, "--help"});
    EXPECT_EQ(help.status, 0);
    EXPECT_THAT(help.out, HasSubstr("usage: lockstep"));
  }
}

TEST_F(Tools, ConvertTakesTheModelOutOfACheckpointAndBack) {
  const std::string file = dir_ / "model.safetensors";
  const Outcome there = lockstep({"convert", step(7), file});
  EXPECT_EQ(there.status, 0) << there.err;
  // Nothing is left out in silence.
  EXPECT_THAT(there.out, HasSubstr("7 tensors, without generator, note, rate"));
  nn::Metadata metadata;
  expect_same(nn::load_safetensors(file, &metadata), model_);
  EXPECT_EQ(metadata["format"], "pt");
  EXPECT_EQ(metadata["lockstep.step"], "7");
  EXPECT_EQ(lockstep({"diff", step(7), file}).status, 0);

  const std::string back = dir_ / "back" / "step-00000012";
  const Outcome again = lockstep({"convert", file, back});
  EXPECT_EQ(again.status, 0) << again.err;
  expect_same(nn::read_state_dict(back), model_);
  EXPECT_EQ(lockstep({"diff", "--part", "model", step(7), back}).status, 0);
}

TEST_F(Tools, ConvertGoesFromEachFormatToEach) {
  const std::string from = golden_file("arrays.safetensors");
  const std::string npz = dir_ / "a.npz";
  const std::string small = dir_ / "b.npz";
  const std::string half = dir_ / "c.safetensors";
  EXPECT_EQ(lockstep({"convert", from, npz}).status, 0);
  expect_same(nn::load_npz(npz), golden_arrays());
  EXPECT_EQ(lockstep({"convert", npz, small, "--compress"}).status, 0);
  expect_same(nn::load_npz(small), golden_arrays());
  EXPECT_LT(read_file(small).size(), read_file(npz).size());
  EXPECT_EQ(lockstep({"convert", small, half, "--dtype", "bf16"}).status, 0);
  for (const auto& [name, tensor] : nn::load_safetensors(half)) {
    EXPECT_TRUE(tensor.dtype() == DType::kBF16 || !is_floating(tensor.dtype())) << name;
  }
  const Outcome bf16 = lockstep({"convert", half, npz});
  EXPECT_EQ(bf16.status, 1);
  EXPECT_THAT(bf16.err, HasSubstr("NumPy has no bf16"));
  EXPECT_EQ(lockstep({"convert", half, npz, "--dtype", "f32"}).status, 0);

  const std::string one = dir_ / "one.npy";
  EXPECT_THAT(lockstep({"convert", npz, one}).err, HasSubstr("one tensor, not 10"));
  EXPECT_EQ(lockstep({"convert", golden_file("fortran.npy"), one}).status, 0);
  expect_same(nn::load_npy(one), golden_array(12, DType::kF32, {3, 5, 2}), "one");
  EXPECT_THAT(lockstep({"convert", golden_file("u16.safetensors"), npz}).err,
              HasSubstr("'x' has the dtype U16"));
}

TEST_F(Tools, ConvertNamesThePartsOfACheckpoint) {
  const Outcome wrong = lockstep({"convert", step(7), dir_ / "x.npz", "--part", "modle"});
  EXPECT_EQ(wrong.status, 1);
  EXPECT_THAT(wrong.err, HasSubstr("no tensors under 'modle'; it has model: choose with --part"));
  EXPECT_EQ(lockstep({"convert", step(7), dir_ / "x.npz", "--all"}).status, 0);
  EXPECT_EQ(nn::load_npz(dir_ / "x.npz")[0].first, "model/0.weight");
}

TEST_F(Tools, DiffSaysWhatDiffersAndByHowMuch) {
  EXPECT_EQ(lockstep({"diff", step(7), step(7)}).out, "");
  const Outcome found = lockstep({"diff", step(3), step(7)});
  EXPECT_EQ(found.status, 1);
  EXPECT_THAT(found.out, AllOf(HasSubstr("model/0.weight"), HasSubstr("(1, 2)"), HasSubstr("0.5"),
                               Not(HasSubstr("model/0.bias")), HasSubstr("rate   0.25  0.125")));
  const json root = json::parse(lockstep({"diff", "--json", step(3), step(7)}).out);
  ASSERT_EQ(root["changed"].size(), 1u);
  EXPECT_EQ(root["changed"][0]["differing"], 1);
  EXPECT_EQ(root["changed"][0]["max_abs"], 0.5);
  EXPECT_EQ(root["values"].size(), 1u);
  EXPECT_EQ(lockstep({"diff", "--part", "model", "--atol", "0.5", step(3), step(7)}).status, 0);
  EXPECT_EQ(lockstep({"diff", "--part", "model", "--atol", "0.49", step(3), step(7)}).status, 1);
}

TEST_F(Tools, DiffSeesNamesKindsNaNAndSignsOfZero) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  nn::save_safetensors(dir_ / "a", {{"x", Tensor::from({0.f, nan, 1.f}, {3})},
                                    {"shape", Tensor::ones({2, 3})},
                                    {"a", Tensor::ones({1})}});
  nn::save_safetensors(dir_ / "b", {{"x", Tensor::from({-0.f, nan, nan}, {3})},
                                    {"shape", Tensor::ones({3, 2})},
                                    {"b", Tensor::ones({1})}});
  const json root = json::parse(lockstep({"diff", "--json", dir_ / "a", dir_ / "b"}).out);
  EXPECT_EQ(root["only_a"], json::array({"a"}));
  EXPECT_EQ(root["only_b"], json::array({"b"}));
  EXPECT_EQ(root["other_kind"][0]["b"], "f32 (3, 2)");
  EXPECT_EQ(root["changed"][0]["differing"], 2);
  EXPECT_EQ(root["changed"][0]["max_abs"], "nan");
  EXPECT_EQ(root["changed"][0]["at"], "(2)");
}

}  // namespace
}  // namespace lockstep
