#include "lockstep/nn/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "../errors.h"
#include "checkpoint_files.h"
#include "foreign_files.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/sequential.h"

namespace lockstep::nn {
namespace {

using ::testing::ElementsAre;
using testing::expect_same;
using testing::golden_array;
using testing::golden_arrays;
using testing::golden_file;
using ::testing::HasSubstr;
using ::testing::Pair;
using testing::read_file;
using testing::TemporaryDirectory;
using testing::write_file;

// A file with this header and so many bytes of data.
std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t bytes = header.size();
  std::string file(sizeof bytes, '\0');
  std::memcpy(file.data(), &bytes, sizeof bytes);
  return file + header + std::string(data_bytes, '\1');
}

class SafetensorsRefused : public ::testing::Test {
 protected:
  std::string message(ErrorCode code, const std::string& file) {
    write_file(dir_ / "x.safetensors", file);
    const std::string text = message_of(code, [&] { load_safetensors(dir_ / "x.safetensors"); });
    EXPECT_THAT(text, HasSubstr("[load_safetensors] "));
    EXPECT_THAT(text, HasSubstr("x.safetensors"));
    return text;
  }
  std::string message(const std::string& header, size_t data_bytes) {
    return message(ErrorCode::kCorrupt, file_of(header, data_bytes));
  }

  TemporaryDirectory dir_;
};

TEST(Safetensors, ReadsWhatTheReferenceImplementationWrote) {
  Metadata metadata;
  expect_same(load_safetensors(golden_file("arrays.safetensors"), &metadata), golden_arrays());
  EXPECT_THAT(metadata, ElementsAre(Pair("format", "np")));
}

TEST(Safetensors, WritesTheBytesThatTheReferenceImplementationWrites) {
  const TemporaryDirectory dir;
  save_safetensors(dir / "ours.safetensors", golden_arrays(), {{"format", "np"}});
  EXPECT_EQ(read_file(dir / "ours.safetensors"), read_file(golden_file("arrays.safetensors")));
  EXPECT_THAT(testing::names_in(dir.path()), ElementsAre("ours.safetensors"));
}

TEST(Safetensors, AStateDictOfDistributedDataParallelLoadsStrictly) {
  auto net = std::make_shared<Sequential>(std::make_shared<Linear>(5, 3),
                                          std::make_shared<BatchNorm1d>(3));
  const LoadReport report = load_state_dict(*net, load_safetensors(golden_file("ddp.safetensors")));
  EXPECT_EQ(report.loaded, 7);
  EXPECT_TRUE(report.prefix_changed);
  expect_same(state_dict(*net), {{"0.weight", golden_array(1, DType::kF32, {3, 5})},
                                 {"0.bias", golden_array(2, DType::kF32, {3})},
                                 {"1.weight", golden_array(3, DType::kF32, {3})},
                                 {"1.bias", golden_array(4, DType::kF32, {3})},
                                 {"1.running_mean", golden_array(5, DType::kF32, {3})},
                                 {"1.running_var", golden_array(6, DType::kF32, {3})},
                                 {"1.num_batches_tracked", golden_array(7, DType::kI64, {})}});
}

TEST(Safetensors, EveryDtypeAndViewComesBack) {
  const TemporaryDirectory dir;
  NamedTensors tensors;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    tensors.emplace_back(std::string(name(dtype)), golden_array(i, dtype, {3, 7}));
  }
  tensors.emplace_back("a view ü", golden_array(20, DType::kF32, {5, 9}).t().narrow(0, 2, 3));
  save_safetensors(dir / "x", tensors);
  expect_same(load_safetensors(dir / "x"), tensors);
  save_safetensors(dir / "x", {});
  EXPECT_TRUE(load_safetensors(dir / "x").empty());
}

TEST(Safetensors, TensorsOutliveTheFileAndTheirChangesStayHere) {
  const TemporaryDirectory dir;
  const Tensor values = golden_array(1, DType::kF32, {1001});
  save_safetensors(dir / "x", {{"a", values}});
  Tensor loaded = load_safetensors(dir / "x")[0].second;
  loaded.fill_(7);
  expect_same(load_safetensors(dir / "x")[0].second, values, "a");
  save_safetensors(dir / "x", {{"a", golden_array(2, DType::kF32, {3})}});
  std::filesystem::remove(dir / "x");
  expect_same(loaded, Tensor::full({1001}, 7), "a");
}

TEST(Safetensors, DataThatIsNotAlignedIsRead) {
  const TemporaryDirectory dir;
  std::string file = file_of(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("a":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})",
                             1);
  const float values[] = {1.5f, -2.25f};
  file.append(reinterpret_cast<const char*>(values), sizeof values);
  write_file(dir / "x", file);
  const NamedTensors loaded = load_safetensors(dir / "x");
  ASSERT_EQ(loaded.size(), 2u);
  EXPECT_EQ(loaded[0].first, "b");
  EXPECT_THAT(loaded[1].second.to_vector<float>(), ElementsAre(1.5f, -2.25f));
}

TEST(Safetensors, WhatCannotBeSavedLeavesTheOldFile) {
  const TemporaryDirectory dir;
  const Tensor a = Tensor::ones({3});
  save_safetensors(dir / "x", {{"a", a}});
  const std::string before = read_file(dir / "x");
  const auto refused = [&](const NamedTensors& tensors, const Metadata& metadata = {}) {
    return message_of(ErrorCode::kInvalidArgument,
                      [&] { save_safetensors(dir / "x", tensors, metadata); });
  };
  EXPECT_THAT(refused({{"a", a}, {"a", a}}), HasSubstr("the name 'a' came twice"));
  EXPECT_THAT(refused({{"\xff", a}}), HasSubstr("UTF-8"));
  EXPECT_THAT(refused({{"a", a}}, {{"k", "\xc0"}}), HasSubstr("UTF-8"));
  EXPECT_THAT(refused({{"__metadata__", a}}), HasSubstr("keeps for itself"));
  EXPECT_THAT(refused({{"a", Tensor()}}), HasSubstr("undefined"));
  EXPECT_THAT(message_of(ErrorCode::kIo, [&] { save_safetensors(dir / "no" / "x", {}); }),
              HasSubstr("[save_safetensors] cannot create"));
  EXPECT_EQ(read_file(dir / "x"), before);
  EXPECT_THAT(testing::names_in(dir.path()), ElementsAre("x"));
}

TEST_F(SafetensorsRefused, WhatIsNoFile) {
  EXPECT_THAT(message_of(ErrorCode::kIo, [&] { load_safetensors(dir_ / "none"); }),
              HasSubstr("there is no file"));
  EXPECT_THAT(message_of(ErrorCode::kIo, [&] { load_safetensors(dir_.path()); }),
              HasSubstr("not a regular file"));
}

TEST_F(SafetensorsRefused, AHeaderThatCannotBe) {
  EXPECT_THAT(message(ErrorCode::kCorrupt, ""), HasSubstr("has 0 bytes"));
  EXPECT_THAT(message(ErrorCode::kCorrupt, "1234567"), HasSubstr("has 7 bytes"));
  const auto with_length = [](uint64_t bytes) {
    std::string file(sizeof bytes, '\0');
    std::memcpy(file.data(), &bytes, sizeof bytes);
    return file + "{}";
  };
  EXPECT_THAT(message(ErrorCode::kCorrupt, with_length(100'000'001)),
              HasSubstr("more than the 100000000 that the format allows"));
  EXPECT_THAT(message(ErrorCode::kCorrupt, with_length(std::numeric_limits<uint64_t>::max())),
              HasSubstr("18446744073709551615"));
  EXPECT_THAT(message(ErrorCode::kCorrupt, with_length(3)), HasSubstr("cut short"));
  EXPECT_THAT(message("", 0), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(message(" {}", 0), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(message("{", 0), HasSubstr("no valid JSON"));
  EXPECT_THAT(message("{}x", 0), HasSubstr("no valid JSON"));
  EXPECT_THAT(message("{\"\xff\":1}", 0), HasSubstr("no valid JSON"));
  EXPECT_THAT(message(R"({"__metadata__":{"a":1}})", 0), HasSubstr("value is not a string"));
  EXPECT_THAT(message(R"({"__metadata__":[]})", 0), HasSubstr("not an object"));
  EXPECT_THAT(message("{\"a\":" + std::string(100'000, '[') + "}", 0), HasSubstr("8 levels"));
}

// An entry 'a' of a header.
std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"("a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}";
}

TEST_F(SafetensorsRefused, EntriesThatCannotBe) {
  const auto one = [&](const std::string& dtype, const std::string& shape,
                       const std::string& offsets, size_t bytes) {
    const std::string text = message("{" + entry(dtype, shape, offsets) + "}", bytes);
    EXPECT_THAT(text, HasSubstr("tensor 'a'"));
    return text;
  };
  EXPECT_THAT(one("4", "[]", "[0,4]", 4), HasSubstr("dtype that is not a string"));
  EXPECT_THAT(one("\"F32\"", "4", "[0,4]", 4), HasSubstr("not an array"));
  EXPECT_THAT(one("\"F32\"", "[-1]", "[0,4]", 4), HasSubstr("not a whole number"));
  EXPECT_THAT(one("\"F32\"", "[1.0]", "[0,4]", 4), HasSubstr("not a whole number"));
  EXPECT_THAT(one("\"F32\"", "[4294967296,4294967296]", "[0,4]", 4), HasSubstr("in bounds"));
  EXPECT_THAT(one("\"F32\"", "[4294967296,0,4294967296]", "[0,0]", 0), HasSubstr("in bounds"));
  EXPECT_THAT(one("\"F64\"", "[2305843009213693953]", "[0,8]", 8), HasSubstr("in bounds"));
  EXPECT_THAT(one("\"F32\"", "[" + std::string(30, '1') + "]", "[0,4]", 4),
              HasSubstr("not a whole number"));
  EXPECT_THAT(one("\"F32\"", "[2]", "[0,4]", 4),
              HasSubstr("2 elements, which are not the 4 bytes"));
  EXPECT_THAT(one("\"F4\"", "[3]", "[0,1]", 1), HasSubstr("3 elements"));
  EXPECT_THAT(one("\"F32\"", "[1]", "[4,0]", 4), HasSubstr("from byte 4 to 0"));
  EXPECT_THAT(one("\"F32\"", "[1]", "[4,8]", 4), HasSubstr("from byte 4 to 8"));
  EXPECT_THAT(one("\"F32\"", "[1]", "[0]", 4), HasSubstr("not two whole numbers"));
  EXPECT_THAT(one("\"F32\"", "[1]", "[0,-4]", 4), HasSubstr("not two whole numbers"));
  EXPECT_THAT(message(R"({"a":{"dtype":"F32","shape":[1]}})", 4),
              HasSubstr("tensor 'a' has no 'data_offsets'"));
  EXPECT_THAT(message(R"({"a":3})", 0), HasSubstr("not described by an object"));
}

TEST_F(SafetensorsRefused, HolesOverlapsDuplicatesAndAppendedBytes) {
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)" + first +
           R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":)" + second + "}}";
  };
  EXPECT_THAT(message(two("[0,4]", "[2,6]"), 6),
              HasSubstr("tensor 'b' begins at byte 2 and overl"));
  EXPECT_THAT(message(two("[0,4]", "[0,4]"), 4), HasSubstr("overlaps"));
  EXPECT_THAT(message(two("[8,12]", "[0,4]"), 12), HasSubstr("tensor 'a' begins at byte 8, after"));
  EXPECT_THAT(message(two("[4,8]", "[8,12]"), 12), HasSubstr("a hole from 0"));
  EXPECT_THAT(message(two("[4,8]", "[0,4]"), 11), HasSubstr("3 bytes after its last tensor"));
  EXPECT_THAT(message(two("[4,8]", "[0,4]"), 7), HasSubstr("of the file's 7 bytes"));
  EXPECT_THAT(message("{}", 1), HasSubstr("1 bytes after"));
  const std::string a = entry("\"F32\"", "[1]", "[0,4]");
  EXPECT_THAT(message("{" + a + "," + a + "}", 4), HasSubstr("'a' is there twice"));
}

TEST_F(SafetensorsRefused, DtypesThatLockstepHasNotByTensor) {
  EXPECT_THAT(
      message_of(ErrorCode::kMismatch, [&] { load_safetensors(golden_file("u16.safetensors")); }),
      HasSubstr("tensor 'x' has the dtype U16, which Lockstep has not"));
  EXPECT_THAT(
      message(ErrorCode::kMismatch, file_of("{" + entry("\"Q7\"", "[1]", "[0,1]") + "}", 1)),
      HasSubstr("tensor 'a' has the dtype 'Q7'"));
}

TEST_F(SafetensorsRefused, ABoolThatIsNeitherTrueNorFalse) {
  std::string file = file_of("{" + entry("\"BOOL\"", "[2]", "[0,2]") + "}", 2);
  file.back() = '\2';
  EXPECT_THAT(message(ErrorCode::kCorrupt, file), HasSubstr("tensor 'a' of bool"));
}

TEST_F(SafetensorsRefused, EveryFileThatWasCut) {
  const std::string whole = read_file(golden_file("arrays.safetensors"));
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    SCOPED_TRACE(bytes);
    message(ErrorCode::kCorrupt, whole.substr(0, bytes));
  }
}

}  // namespace
}  // namespace lockstep::nn
