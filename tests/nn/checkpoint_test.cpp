#include "lockstep/nn/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "../errors.h"
#include "checkpoint_files.h"
#include "checkpoint_model.h"
#include "lockstep/core/ops/shape_ops.h"
#include "lockstep/kernels/error.h"
#include "lockstep/nn/schedule.h"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;
using testing::bytes_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Holder;
using ::testing::IsEmpty;
using testing::Net;
using testing::pattern_tensor;
using testing::read_file;
using testing::TemporaryDirectory;
using ::testing::UnorderedElementsAre;
using testing::write_file;

// Everything that a run has.
struct TrainingRun {
  explicit TrainingRun(int seed)
      : net(std::make_shared<Net>(seed)),
        optimizer(net->named_parameters(), {.lr = 0.1}),
        schedule(optimizer, {.t_max = 20}),
        note("run " + std::to_string(seed)),
        extra(pattern_tensor({2, 3}, seed)),
        generator{static_cast<uint64_t>(seed), 4} {
    state.add("model", *net);
    state.add("optimizer", optimizer);
    state.add("schedule", schedule);
    state.add("epoch", epoch);
    state.add("token", token);
    state.add("best", best);
    state.add("note", note);
    state.add("extra", extra);
    state.add("shuffle", generator);
  }

  void train(int steps) {
    for (int i = 0; i < steps; ++i) {
      net->set_gradients(static_cast<int>(schedule.steps()));
      optimizer.step();
      schedule.step();
      generator.take(3);
      default_generator().take(5);
    }
  }

  // Every bit of it.
  std::string bits() const {
    std::string all = bytes_of(state_dict(*net)) + bytes_of(optimizer.named_state());
    for (const auto& [name, number] : optimizer.named_options()) {
      all += name + std::to_string(number);
    }
    all += std::to_string(schedule.steps()) + "," + std::to_string(epoch) + "," +
           std::to_string(token) + "," + std::to_string(best) + "," + note + bytes_of(extra);
    for (const Generator* g : {&generator, static_cast<const Generator*>(&default_generator())}) {
      all += "," + std::to_string(g->seed) + "," + std::to_string(g->offset);
    }
    return all;
  }

  std::shared_ptr<Net> net;
  AdamW optimizer;
  CosineAnnealingLR schedule;
  int64_t epoch = 1;
  uint64_t token = ~uint64_t{0};
  double best = 0.125;
  std::string note;
  Tensor extra;
  Generator generator;
  TrainingState state;
};

TEST(Checkpoint, AResumedRunGoesOnWithTheSameBits) {
  const TemporaryDirectory dir;
  manual_seed(11);
  TrainingRun whole(1);
  whole.train(5);
  save_checkpoint(dir.path(), 5, whole.state);
  const std::string at_five = whole.bits();
  whole.train(4);
  const std::string at_nine = whole.bits();
  ASSERT_NE(at_five, at_nine);

  manual_seed(99);
  TrainingRun resumed(2);
  resumed.epoch = 77;
  resumed.train(1);
  const Tensor weight = resumed.net->parameters()[0];
  const std::optional<LoadReport> report = load_latest(dir.path(), resumed.state);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->step, 5);
  EXPECT_EQ(report->path, dir / "step-00000005");
  EXPECT_THAT(report->missing, IsEmpty());
  EXPECT_THAT(report->unexpected, IsEmpty());
  EXPECT_EQ(resumed.bits(), at_five);
  EXPECT_TRUE(weight.is_same(resumed.net->parameters()[0]));
  EXPECT_TRUE(weight.requires_grad());
  resumed.train(4);
  EXPECT_EQ(resumed.bits(), at_nine);
  // It is the same run now, and may save beside the old one.
  save_checkpoint(dir.path(), 9, resumed.state);
  EXPECT_EQ(load_latest(dir.path(), resumed.state)->step, 9);
}

TEST(Checkpoint, AnOptimiserThatHasNotSteppedIsSavedAndLoadedAsSuch) {
  const TemporaryDirectory dir;
  TrainingRun fresh(1);
  save_checkpoint(dir.path(), 0, fresh.state);
  const std::string before = fresh.bits();
  fresh.train(3);
  ASSERT_NE(fresh.bits(), before);
  load_latest(dir.path(), fresh.state);
  EXPECT_THAT(fresh.optimizer.named_state(), IsEmpty());
  EXPECT_EQ(fresh.bits(), before);
}

TEST(Checkpoint, EveryDtypeAndShapeComesBack) {
  const TemporaryDirectory dir;
  std::vector<Tensor> tensors;
  for (int i = 0; i < kDTypeCount; ++i) {
    for (const Shape& shape : {Shape{}, Shape{7}, Shape{3, 0, 2}, Shape{2, 3, 5, 1}}) {
      const auto dtype = static_cast<DType>(i);
      Tensor tensor = Tensor::empty(shape, {dtype});
      auto* bytes = static_cast<uint8_t*>(tensor.view().data);
      for (int64_t k = 0; k < tensor.nbytes(); ++k) {
        bytes[k] = static_cast<uint8_t>(dtype == DType::kBool ? (k + i) % 2 : k * 37 + i + 1);
      }
      tensors.push_back(tensor);
    }
  }
  TrainingState state;
  std::vector<std::string> saved;
  for (size_t i = 0; i < tensors.size(); ++i) {
    state.add("t" + std::to_string(i), tensors[i]);
    saved.push_back(bytes_of(tensors[i]));
  }
  save_checkpoint(dir.path(), 1, state);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].numel() > 0) {
      std::memset(tensors[i].view().data, 0, static_cast<size_t>(tensors[i].nbytes()));
    }
  }
  load_latest(dir.path(), state);
  for (size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(bytes_of(tensors[i]), saved[i]) << i;
}

TEST(Checkpoint, AViewSavesItsOwnElementsAndLoadsIntoThem) {
  const TemporaryDirectory dir;
  Tensor base = pattern_tensor({400, 300}, 3);
  Tensor view = base.transpose(0, 1).narrow(0, 10, 4).narrow(1, 3, 5);
  ASSERT_FALSE(view.is_contiguous());
  TrainingState state;
  state.add("view", view);
  save_checkpoint(dir.path(), 1, state);
  EXPECT_LT(fs::file_size(dir / "step-00000001/data-00000.lsck"), 2048u);
  const std::string saved = bytes_of(view);
  const float corner = base.data<float>()[0];
  view.fill_(0);
  load_latest(dir.path(), state);
  EXPECT_EQ(bytes_of(view), saved);
  EXPECT_EQ(base.data<float>()[0], corner);
  EXPECT_EQ(base.data<float>()[3 * 300 + 10], view.contiguous().data<float>()[0]);
}

TEST(Checkpoint, AnUndefinedTensorGetsWhatWasSavedAndCannotBeSaved) {
  const TemporaryDirectory dir;
  Tensor average = pattern_tensor({3}, 1);
  TrainingState state;
  state.add("average", average);
  save_checkpoint(dir.path(), 1, state);
  Tensor empty;
  TrainingState other;
  other.add("average", empty);
  EXPECT_THAT(error_of([&] { save_checkpoint(dir / "b", 1, other); }).what(),
              HasSubstr("'average' is undefined"));
  load_latest(dir.path(), other);
  EXPECT_EQ(bytes_of(empty), bytes_of(average));
}

TEST(Checkpoint, StrictLoadingListsEveryDifferenceAndChangesNothing) {
  const TemporaryDirectory dir;
  const auto saved = std::make_shared<Net>(1);
  int64_t epoch = 3;
  double only_saved = 1;
  double kind = 1;
  TrainingState state;
  state.add("model", *saved);
  state.add("epoch", epoch);
  state.add("only_saved", only_saved);
  state.add("kind", kind);
  save_checkpoint(dir.path(), 1, state);

  Net net(2, {3, 6}, DType::kF64);
  int64_t other_epoch = 9;
  int64_t other_kind = 4;
  std::string only_wanted = "here";
  TrainingState other;
  other.add("model", net);
  other.add("epoch", other_epoch);
  other.add("only_wanted", only_wanted);
  other.add("kind", other_kind);
  const std::string before = bytes_of(state_dict(net));
  const Error error = error_of([&] { load_latest(dir.path(), other); });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  for (const char* text :
       {"model/weight: want f32 (3, 6), got f32 (3, 5)", "model/bias: want f64 (7), got f32 (7)",
        "only_wanted", "only_saved", "kind: want a value of i64, got f64", "strict = false"}) {
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
  EXPECT_EQ(bytes_of(state_dict(net)), before);
  EXPECT_EQ(other_epoch, 9);

  const LoadReport report = *load_latest(dir.path(), other, {.strict = false});
  EXPECT_THAT(report.missing, ElementsAre("only_wanted"));
  EXPECT_THAT(report.unexpected, ElementsAre("only_saved"));
  EXPECT_THAT(report.mismatched, UnorderedElementsAre(HasSubstr("model/weight"),
                                                      HasSubstr("model/bias"), HasSubstr("kind")));
  EXPECT_EQ(report.loaded, 3);  // mean, count, epoch
  EXPECT_EQ(other_epoch, 3);
  EXPECT_EQ(only_wanted, "here");
  EXPECT_NE(bytes_of(state_dict(net)), before);
}

// Case 24.
TEST(Checkpoint, NonStrictLoadingThatMatchesNothingIsAnErrorWithBothLists) {
  const TemporaryDirectory dir;
  const Net net(1);
  Holder other("body", std::make_shared<Net>(2));
  const std::string before = bytes_of(state_dict(other));
  const Error direct = error_of([&] { load_state_dict(other, state_dict(net), false); });
  EXPECT_EQ(direct.code(), ErrorCode::kMismatch);
  EXPECT_THAT(direct.what(), HasSubstr("[load_state_dict] the state dict has no name"));
  NamedTensors floating = state_dict(net);
  std::erase_if(floating, [](const auto& entry) { return !is_floating(entry.second.dtype()); });
  Net wide(1);
  wide.to(DType::kF64);
  EXPECT_THAT(error_of([&] { load_state_dict(wide, floating, false); }).what(),
              HasSubstr("the state dict has nothing of the right shape and dtype"));

  Net saved(1);
  int64_t epoch = 1;
  TrainingState state;
  state.add("model", saved);
  state.add("epoch", epoch);
  save_checkpoint(dir.path(), 1, state);
  TrainingState wanted;
  wanted.add("model", other);
  wanted.add("epoch", epoch);
  epoch = 5;
  const Error error = error_of([&] { load_latest(dir.path(), wanted, {.strict = false}); });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  for (const char* name : {"model/weight", "model/mean", "model/body.weight", "model/body.count"}) {
    EXPECT_THAT(error.what(), HasSubstr(name));
  }
  EXPECT_EQ(epoch, 5);
  EXPECT_EQ(bytes_of(state_dict(other)), before);
}

// Case 23.
TEST(Checkpoint, NamesThatAllBeginWithModuleLoadIntoABareModelStrictly) {
  const TemporaryDirectory dir;
  const auto inner = std::make_shared<Net>(1);
  Holder wrapped("module", inner);
  TrainingState state;
  state.add("model", wrapped);
  save_checkpoint(dir.path(), 1, state);

  Net bare(2);
  TrainingState bare_state;
  bare_state.add("model", bare);
  const LoadReport report = *load_latest(dir.path(), bare_state);
  EXPECT_TRUE(report.prefix_changed);
  EXPECT_EQ(bytes_of(state_dict(bare)), bytes_of(state_dict(*inner)));

  // And the other way round.
  Net source(3);
  EXPECT_TRUE(load_state_dict(wrapped, state_dict(source)).prefix_changed);
  EXPECT_EQ(bytes_of(state_dict(*inner)), bytes_of(state_dict(source)));
  // A model whose own part has that name is left alone.
  Holder same("module", std::make_shared<Net>(4));
  EXPECT_FALSE(load_state_dict(same, state_dict(wrapped)).prefix_changed);
  EXPECT_EQ(bytes_of(state_dict(same)), bytes_of(state_dict(wrapped)));
  // Stripping is for all names or none.
  NamedTensors mixed = state_dict(wrapped);
  mixed[0].first = "weight";
  EXPECT_THAT(error_of([&] { load_state_dict(bare, mixed); }).what(), HasSubstr("module.bias"));
}

TEST(Checkpoint, APartIsLoadedByItsPrefixAndTheRestIsLeftAlone) {
  const TemporaryDirectory dir;
  TrainingRun saved(1);
  saved.train(2);
  save_checkpoint(dir.path(), 2, saved.state);
  TrainingRun run(2);
  run.train(1);
  const std::string optimizer = bytes_of(run.optimizer.named_state());
  const Generator generator = default_generator();
  const LoadReport report = *load_latest(dir.path(), run.state, {.only = {"model/", "note"}});
  EXPECT_EQ(report.loaded, 5);
  EXPECT_EQ(bytes_of(state_dict(*run.net)), bytes_of(state_dict(*saved.net)));
  EXPECT_EQ(run.note, "run 1");
  EXPECT_EQ(bytes_of(run.optimizer.named_state()), optimizer);
  EXPECT_EQ(default_generator().offset, generator.offset);
  EXPECT_EQ(run.epoch, 1);
  // It is a run of its own: it does not save among those of the other.
  EXPECT_THAT(error_of([&] { save_checkpoint(dir.path(), 3, run.state); }).what(),
              HasSubstr("another run"));

  // Strict holds within the prefix.
  Net wider(3, {3, 6});
  TrainingState other;
  other.add("model", wider);
  const Error error = error_of([&] {
    load_latest(dir.path(), other, {.only = {"model/weight", "model/b"}});
  });
  EXPECT_THAT(error.what(), HasSubstr("model/weight: want f32 (3, 6), got f32 (3, 5)"));
  EXPECT_THAT(error_of([&] { load_latest(dir.path(), other, {.only = {"modle/"}}); }).what(),
              HasSubstr("nothing in common whose name begins with 'modle/'"));
}

TEST(Checkpoint, NamesAreChangedByRulesBeforeTheyAreMatched) {
  const TemporaryDirectory dir;
  Holder saved("encoder", std::make_shared<Net>(1));
  int64_t epoch = 4;
  TrainingState state;
  state.add("net", saved);
  state.add("epoch", epoch);
  save_checkpoint(dir.path(), 1, state);

  Holder body("body", std::make_shared<Net>(2));
  TrainingState other;
  other.add("model", body);
  other.add("epoch", epoch);
  epoch = 0;
  EXPECT_EQ(error_of([&] { load_latest(dir.path(), other); }).code(), ErrorCode::kMismatch);
  LoadOptions options;
  options.rename = {{"net/encoder.", "model/body."}, {"net/", "unused/"}};
  EXPECT_EQ(load_latest(dir.path(), other, options)->loaded, 5);
  EXPECT_EQ(bytes_of(state_dict(body)).substr(0, 5), "body.");
  EXPECT_EQ(bytes_of(body.named_parameters()[0].second),
            bytes_of(saved.named_parameters()[0].second));
  EXPECT_EQ(epoch, 4);
  options.rename = {{"net/encoder.weight", "model/body.bias"}, {"net/encoder.", "model/body."}};
  EXPECT_THAT(error_of([&] { load_latest(dir.path(), other, options); }).what(),
              HasSubstr("make 'model/body.bias' of two names"));
}

TEST(Checkpoint, StateDictsAreReadByPart) {
  const TemporaryDirectory dir;
  Net generator(1);
  Net critic(2);
  TrainingState state;
  state.add("generator_net", generator);
  state.add("critic", critic);
  save_checkpoint(dir.path(), 1, state);
  const NamedTensors tensors = read_state_dict(dir / "step-00000001", "critic");
  EXPECT_EQ(bytes_of(tensors), bytes_of(state_dict(critic)));
  Net other(3);
  EXPECT_EQ(load_state_dict(other, tensors).loaded, 4);
  EXPECT_EQ(bytes_of(state_dict(other)), bytes_of(state_dict(critic)));
  EXPECT_THAT(error_of([&] { read_state_dict(dir / "step-00000001", "model"); }).what(),
              HasSubstr("'model'"));
}

TEST(Checkpoint, AnOptimiserOfAnotherKindIsAnErrorAndNothingChanges) {
  const TemporaryDirectory dir;
  TrainingRun saved(1);
  saved.train(2);
  save_checkpoint(dir.path(), 2, saved.state);

  Net net(2);
  SGD sgd(net.named_parameters(), {.lr = 0.5, .momentum = 0.9});
  TrainingState state;
  state.add("model", net);
  state.add("optimizer", sgd);
  const std::string before = bytes_of(state_dict(net));
  const Error error = error_of([&] { load_latest(dir.path(), state); });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_THAT(error.what(), HasSubstr("exp_avg.weight"));
  EXPECT_EQ(bytes_of(state_dict(net)), before);
  EXPECT_EQ(sgd.lr(), 0.5);
  EXPECT_THAT(sgd.named_state(), IsEmpty());
}

TEST(Checkpoint, APlaceThatTheLoaderDoesNotHaveIsAMismatch) {
  const TemporaryDirectory dir;
  const auto loader_of = [](int64_t batch_size) {
    auto dataset = std::make_shared<TensorDataset>(pattern_tensor({12, 2}, 1),
                                                   Tensor::zeros({12}, {DType::kI64}));
    return std::make_unique<DataLoader>(dataset, std::make_shared<SequentialSampler>(12),
                                        DataLoaderOptions{.batch_size = batch_size});
  };
  const auto loader = loader_of(2);
  loader->set_epoch(3);
  for (int i = 0; i < 5; ++i) loader->next();
  TrainingState state;
  state.add("loader", *loader);
  save_checkpoint(dir.path(), 1, state);

  const auto same = loader_of(2);
  TrainingState same_state;
  same_state.add("loader", *same);
  load_latest(dir.path(), same_state);
  EXPECT_EQ(same->state(), (DataLoader::State{3, 5}));

  const auto larger = loader_of(4);
  TrainingState larger_state;
  larger_state.add("loader", *larger);
  EXPECT_THAT(error_of([&] { load_latest(dir.path(), larger_state); }).what(),
              HasSubstr("epochs of 3 batches, got batch 5 of epoch 3"));
}

TEST(Checkpoint, NoFolderAndNoCheckpointAreNoError) {
  const TemporaryDirectory dir;
  TrainingRun run(1);
  EXPECT_FALSE(load_latest(dir / "nowhere", run.state).has_value());
  EXPECT_FALSE(load_latest(dir.path(), run.state).has_value());
  fs::create_directory(dir / "step-00000003.tmp");
  EXPECT_FALSE(load_latest(dir.path(), run.state).has_value());
  EXPECT_EQ(error_of([&] { load_checkpoint(dir / "step-00000003", run.state); }).code(),
            ErrorCode::kCorrupt);
}

TEST(Checkpoint, TheNewestThatVerifiesIsLoadedAndTheDamagedOnesAreTold) {
  const TemporaryDirectory dir;
  TrainingRun run(1);
  std::string at_one;
  for (int step = 1; step <= 3; ++step) {
    run.train(1);
    run.epoch = step;
    save_checkpoint(dir.path(), step, run.state);
    if (step == 1) at_one = run.bits();
  }
  const fs::path data = dir / "step-00000003/data-00000.lsck";
  std::string bytes = read_file(data);
  bytes[256] ^= 1;  // in the first tensor
  write_file(data, bytes);
  write_file(dir / "step-00000002/manifest.json", "");

  std::vector<std::string> warnings;
  const LoadOptions options{.warn = [&](const std::string& text) { warnings.push_back(text); }};
  const LoadReport report = *load_latest(dir.path(), run.state, options);
  EXPECT_EQ(report.step, 1);
  EXPECT_EQ(run.bits(), at_one);
  EXPECT_THAT(report.skipped,
              UnorderedElementsAre(HasSubstr("step-00000003"), HasSubstr("step-00000002")));
  EXPECT_THAT(warnings, UnorderedElementsAre(HasSubstr("do not match their checksum"),
                                             HasSubstr("was cut short")));

  fs::remove(dir / "step-00000001/data-00000.lsck");
  run.epoch = 50;
  const Error error = error_of([&] { load_latest(dir.path(), run.state, options); });
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  for (const char* name : {"step-00000001", "step-00000002", "step-00000003"}) {
    EXPECT_THAT(error.what(), HasSubstr(name));
  }
  EXPECT_EQ(run.epoch, 50);
}

TEST(Checkpoint, ADataFileOfAnotherCheckpointIsDamage) {
  const TemporaryDirectory dir;
  TrainingRun run(1);
  run.train(1);
  save_checkpoint(dir.path(), 1, run.state);
  run.train(1);
  save_checkpoint(dir.path(), 2, run.state);
  fs::copy_file(dir / "step-00000001/data-00000.lsck", dir / "step-00000002/data-00000.lsck",
                fs::copy_options::overwrite_existing);
  const Error error = error_of([&] { load_checkpoint(dir / "step-00000002", run.state); });
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
}

TEST(Checkpoint, RunsAreKeptApart) {
  const TemporaryDirectory dir;
  TrainingRun first(1);
  save_checkpoint(dir / "a", 1, first.state);
  TrainingRun second(2);
  EXPECT_THAT(error_of([&] { save_checkpoint(dir / "a", 2, second.state); }).what(),
              HasSubstr("another run"));
  save_checkpoint(dir / "b", 2, second.state);
  fs::rename(dir / "b/step-00000002", dir / "a/step-00000002");
  EXPECT_THAT(error_of([&] { load_latest(dir / "a", first.state); }).what(),
              HasSubstr("several runs"));
  EXPECT_EQ(load_checkpoint(dir / "a/step-00000001", second.state).step, 1);
  EXPECT_THAT(error_of([&] { load_checkpoint(dir / "a", first.state); }).what(),
              HasSubstr("step-0000000"));
  remove_checkpoints(dir / "a");
  EXPECT_TRUE(fs::is_empty(dir / "a"));
  remove_checkpoints(dir / "nowhere");
  TrainingRun third(3);
  save_checkpoint(dir / "a", 1, third.state);
}

TEST(Checkpoint, NamesAndOptionsOutOfRangeAreRefused) {
  const TemporaryDirectory dir;
  Net net(1);
  int64_t value = 0;
  TrainingState state;
  state.add("model", net);
  for (const char* name : {"", "a/b", "model", "generator"}) {
    EXPECT_EQ(error_of([&] { state.add(name, value); }).code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(error_of([&] { save_checkpoint(dir.path(), -1, state); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { save_checkpoint(dir.path(), 1, state, {.keep = -1}); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { save_checkpoint("", 1, state); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(Checkpoint, APartThatIsNotThereIsMissingAndOneTooManyIsUnexpected) {
  const TemporaryDirectory dir;
  TrainingRun run(1);
  run.train(1);
  Net only(1);
  TrainingState small;
  small.add("model", only);
  save_checkpoint(dir.path(), 1, small);
  const Error missing = error_of([&] { load_latest(dir.path(), run.state); });
  for (const char* name : {"optimizer/", "schedule/steps", "epoch", "shuffle/"}) {
    EXPECT_THAT(missing.what(), HasSubstr(name));
  }
  EXPECT_THAT(load_latest(dir.path(), run.state, {.strict = false})->unexpected, IsEmpty());
  EXPECT_EQ(bytes_of(state_dict(*run.net)), bytes_of(state_dict(only)));

  save_checkpoint(dir / "full", 1, run.state);
  const Error unexpected = error_of([&] { load_latest(dir / "full", small); });
  for (const char* name : {"optimizer/exp_avg.weight", "optimizer/group0.lr", "schedule/steps",
                           "shuffle/rank0.seed"}) {
    EXPECT_THAT(unexpected.what(), HasSubstr(name));
  }
}

}  // namespace
}  // namespace lockstep::nn
