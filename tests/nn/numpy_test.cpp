#include "lockstep/nn/numpy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <span>

#include "../errors.h"
#include "checkpoint_files.h"
#include "foreign_files.h"

namespace lockstep::nn {
namespace {

using ::testing::ElementsAre;
using testing::expect_same;
using testing::golden_array;
using testing::golden_arrays;
using testing::golden_file;
using ::testing::HasSubstr;
using testing::read_file;
using testing::TemporaryDirectory;
using testing::write_file;

TEST(Npy, ReadsWhatNumPyWroteInEveryVersion) {
  expect_same(load_npy(golden_file("fc.weight.npy")), golden_array(1, DType::kF32, {3, 5}), "");
  expect_same(load_npy(golden_file("flags.npy")), golden_array(5, DType::kBool, {5}), "");
  expect_same(load_npy(golden_file("count.npy")), golden_array(9, DType::kI64, {}), "");
  expect_same(load_npy(golden_file("none.npy")), golden_array(10, DType::kF32, {0, 4}), "");
  for (const char* name : {"version2.npy", "version3.npy"}) {
    expect_same(load_npy(golden_file(name)), golden_array(4, DType::kF64, {2, 1, 3}), name);
  }
}

TEST(Npy, FortransOrderBecomesRowMajor) {
  const Tensor tensor = load_npy(golden_file("fortran.npy"));
  EXPECT_TRUE(tensor.is_contiguous());
  expect_same(tensor, golden_array(12, DType::kF32, {3, 5, 2}), "fortran");
}

TEST(Npy, WritesTheBytesThatNumPyWrites) {
  const TemporaryDirectory dir;
  const auto arrays = golden_arrays();
  for (const size_t i : {0, 4, 8, 9}) {
    save_npy(dir / "x.npy", arrays[i].second);
    EXPECT_EQ(read_file(dir / "x.npy"), read_file(golden_file(arrays[i].first + ".npy")));
  }
}

TEST(Npy, ViewsOfAnyStridesComeBack) {
  const TemporaryDirectory dir;
  const Tensor view = golden_array(3, DType::kI32, {5, 9, 3}).transpose(0, 2).narrow(1, 2, 5);
  save_npy(dir / "x.npy", view);
  expect_same(load_npy(dir / "x.npy"), view, "view");
}

TEST(Npz, ReadsWhatNumPyWroteStoredAndDeflated) {
  expect_same(load_npz(golden_file("arrays.npz")), golden_arrays());
  NamedTensors all = golden_arrays();
  all.emplace_back("big", golden_array(11, DType::kF32, {300, 7}));
  expect_same(load_npz(golden_file("compressed.npz")), all);
}

TEST(Npz, WritesTheBytesThatNumPyWrites) {
  const TemporaryDirectory dir;
  save_npz(dir / "x.npz", golden_arrays());
  EXPECT_TRUE(read_file(dir / "x.npz") == read_file(golden_file("arrays.npz")));
}

TEST(Npz, DeflatedArraysOfEverySizeComeBack) {
  const TemporaryDirectory dir;
  NamedTensors tensors = golden_arrays();
  // Around the piece that a header is looked for in, and past zlib's window.
  for (const int64_t n : {1, 16351, 16352, 16353, 100003}) {
    tensors.emplace_back("größe " + std::to_string(n), golden_array(4, DType::kF32, {n}));
  }
  save_npz(dir / "x.npz", tensors, /*compressed=*/true);
  EXPECT_LT(std::filesystem::file_size(dir / "x.npz"), 200'000u);
  expect_same(load_npz(dir / "x.npz"), tensors);
  save_npz(dir / "x.npz", {});
  EXPECT_TRUE(load_npz(dir / "x.npz").empty());
}

TEST(Npz, MoreMembersThanSixteenBitsCount) {
  const TemporaryDirectory dir;
  NamedTensors tensors;
  for (int i = 0; i < 65537; ++i) {
    tensors.emplace_back(std::to_string(i), Tensor::full({1}, i % 251, {DType::kU8}));
  }
  save_npz(dir / "x.npz", tensors);
  const NamedTensors loaded = load_npz(dir / "x.npz");
  ASSERT_EQ(loaded.size(), tensors.size());
  EXPECT_EQ(loaded.back().first, "65536");
  EXPECT_EQ(loaded.back().second.item_i64(), 65536 % 251);
}

TEST(Npz, WhatCannotBeSavedLeavesTheOldFile) {
  const TemporaryDirectory dir;
  const Tensor a = Tensor::ones({3});
  save_npz(dir / "x", {{"a", a}});
  const std::string before = read_file(dir / "x");
  const auto refused = [&](const NamedTensors& tensors) {
    return message_of(ErrorCode::kInvalidArgument, [&] { save_npz(dir / "x", tensors); });
  };
  EXPECT_THAT(refused({{"a", a}, {"a", a}}), HasSubstr("the name 'a' came twice"));
  EXPECT_THAT(refused({{"", a}}), HasSubstr("got ''"));
  EXPECT_THAT(refused({{"a", Tensor()}}), HasSubstr("undefined"));
  EXPECT_THAT(refused({{"half", Tensor::ones({3}, {DType::kBF16})}}),
              ::testing::AllOf(HasSubstr("'half'"), HasSubstr("NumPy has no bf16")));
  EXPECT_EQ(read_file(dir / "x"), before);
  EXPECT_THAT(testing::names_in(dir.path()), ElementsAre("x"));
}

class NumPyRefused : public ::testing::Test {
 protected:
  std::string npy(ErrorCode code, const std::string& file) {
    write_file(dir_ / "x.npy", file);
    const std::string text = message_of(code, [&] { load_npy(dir_ / "x.npy"); });
    EXPECT_THAT(text, HasSubstr("[load_npy] "));
    EXPECT_THAT(text, HasSubstr("x.npy"));
    return text;
  }
  // A file of version 1.0 with this dictionary and 4 bytes of data.
  std::string header(const std::string& text, ErrorCode code = ErrorCode::kCorrupt) {
    std::string file("\x93NUMPY\1\0", 8);
    file += static_cast<char>(text.size() & 0xff);
    file += static_cast<char>(text.size() >> 8);
    return npy(code, file + text + "\1\1\1\1");
  }
  std::string shape(const std::string& text) {
    return header("{'descr': '<f4', 'fortran_order': False, 'shape': " + text + "}");
  }
  std::string npz(ErrorCode code, const std::string& file) {
    write_file(dir_ / "x.npz", file);
    const std::string text = message_of(code, [&] { load_npz(dir_ / "x.npz"); });
    EXPECT_THAT(text, HasSubstr("x.npz"));
    return text;
  }

  TemporaryDirectory dir_;
};

TEST_F(NumPyRefused, HeadersThatCannotBe) {
  EXPECT_THAT(npy(ErrorCode::kCorrupt, ""), HasSubstr("does not begin as a .npy file"));
  EXPECT_THAT(npy(ErrorCode::kMismatch, std::string("\x93NUMPY\4\0\0\0", 10)), HasSubstr("4.0"));
  EXPECT_THAT(npy(ErrorCode::kCorrupt, std::string("\x93NUMPY\2\0\xff\xff\xff\xff", 12)),
              HasSubstr("header of 4294967295 bytes"));
  EXPECT_THAT(header(""), HasSubstr("wants a '{'"));
  EXPECT_THAT(header("{"), HasSubstr("wants a string"));
  EXPECT_THAT(header("{}"), HasSubstr("one of which is missing"));
  EXPECT_THAT(header("{'descr': '<f4', 'descr': '<f4'}"), HasSubstr("unknown or there twice"));
  EXPECT_THAT(header("{'x': 1}"), HasSubstr("unknown"));
  EXPECT_THAT(header("{'descr': __import__('os')}"), HasSubstr("wants a string at '__import__("));
  EXPECT_THAT(header("{'fortran_order': 1}"), HasSubstr("True or False"));
  EXPECT_THAT(header("{'descr': '\\x3cf4'}"), HasSubstr("backslash"));
  EXPECT_THAT(header("{'descr': ''}"), HasSubstr("no dtype"));
}

TEST_F(NumPyRefused, ShapesThatCannotBe) {
  EXPECT_THAT(shape("(1)"), HasSubstr("not a tuple"));
  EXPECT_THAT(shape("(-1,)"), HasSubstr("wants a size at '-1"));
  EXPECT_THAT(shape("(1.0,)"), HasSubstr("wants a ')'"));
  EXPECT_THAT(shape("(1,"), HasSubstr("wants a size"));
  EXPECT_THAT(shape("(4294967296, 4294967296)"), HasSubstr("out of bounds"));
  EXPECT_THAT(shape("(4294967296, 0, 4294967296)"), HasSubstr("out of bounds"));
  EXPECT_THAT(shape("(99999999999999999999,)"), HasSubstr("out of bounds"));
  std::string many = "(";
  for (int i = 0; i < 65; ++i) many += "1, ";
  EXPECT_THAT(shape(many + ")"), HasSubstr("at most 64 sizes"));
  EXPECT_THAT(shape("(1,)} x"), HasSubstr("something after its dictionary"));
  EXPECT_THAT(shape("(2,)"), HasSubstr("has 4 bytes of data, its shape (2) of f32 wants 8"));
  EXPECT_THAT(shape("(0,)"), HasSubstr("something was appended"));
}

TEST_F(NumPyRefused, ArraysThatLockstepHasNotWithAdvice) {
  const auto refused = [](const char* name) {
    return message_of(ErrorCode::kMismatch, [&] { load_npy(golden_file(name)); });
  };
  EXPECT_THAT(refused("big_endian.npy"), HasSubstr(".astype('<f4')"));
  EXPECT_THAT(refused("objects.npy"), HasSubstr("Python objects are never read"));
  EXPECT_THAT(refused("records.npy"), HasSubstr("array of records"));
  EXPECT_THAT(
      header("{'descr': '<u2', 'fortran_order': False, 'shape': (2,)}", ErrorCode::kMismatch),
      HasSubstr("'<u2', which Lockstep has not"));
}

TEST_F(NumPyRefused, EveryFileThatWasCut) {
  for (const char* name : {"fc.weight.npy", "version2.npy"}) {
    const std::string whole = read_file(golden_file(name));
    for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
      npy(ErrorCode::kCorrupt, whole.substr(0, bytes));
    }
  }
  for (const char* name : {"arrays.npz", "compressed.npz"}) {
    const std::string whole = read_file(golden_file(name));
    for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
      npz(ErrorCode::kCorrupt, whole.substr(0, bytes));
    }
  }
}

// A flipped bit is an error or leaves the arrays as they were: no other value ever comes out.
TEST_F(NumPyRefused, NoFlippedBitOfAnArchiveGoesUnnoticed) {
  for (const char* name : {"arrays.npz", "compressed.npz"}) {
    const std::string whole = read_file(golden_file(name));
    const NamedTensors want = load_npz(golden_file(name));
    int errors = 0;
    for (size_t at = 0; at < whole.size(); ++at) {
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ 1 << at % 8);
      write_file(dir_ / "x.npz", flipped);
      try {
        expect_same(load_npz(dir_ / "x.npz"), want);
      } catch (const Error& error) {
        EXPECT_TRUE(error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kMismatch);
        ++errors;
      }
    }
    EXPECT_GT(errors, static_cast<int>(whole.size()) / 2);
  }
}

// Finds `what` in a file and puts `with` in its place.
std::string replaced(std::string file, const std::string& what, const std::string& with) {
  const size_t at = file.rfind(what);
  EXPECT_NE(at, file.npos);
  return file.replace(at, with.size(), with);
}

TEST_F(NumPyRefused, ArchivesThatCannotBe) {
  save_npz(dir_ / "two.npz", {{"aa", Tensor::ones({3})}, {"bb", Tensor::ones({3})}});
  const std::string whole = read_file(dir_ / "two.npz");
  const size_t second = whole.find("PK\3\4", 4);
  const std::string central = "PK\1\2";
  EXPECT_THAT(npz(ErrorCode::kCorrupt, whole + "x"), HasSubstr("directory's end is missing"));
  EXPECT_THAT(npz(ErrorCode::kCorrupt, "x" + whole), HasSubstr("not where its end says"));
  // Both members named aa: in the directory, then in front of the data too.
  std::string twice = replaced(whole, "bb.npy", "aa.npy");
  EXPECT_THAT(npz(ErrorCode::kCorrupt, twice), HasSubstr("has the member 'aa.npy' twice"));
  EXPECT_THAT(npz(ErrorCode::kCorrupt, replaced(whole, "bb.npy", "\xff")), HasSubstr("UTF-8"));
  EXPECT_THAT(npz(ErrorCode::kCorrupt, replaced(whole, "bb.npy", "cc")),
              HasSubstr("'cc.npy' that differs from what the directory says"));

  const size_t entry = whole.rfind(central);
  const auto with_field = [&](size_t at, uint64_t value, size_t bytes) {
    std::string file = whole;
    std::memcpy(file.data() + entry + at, &value, bytes);
    return file;
  };
  EXPECT_THAT(npz(ErrorCode::kMismatch, with_field(8, 1, 2)), HasSubstr("encrypted"));
  EXPECT_THAT(npz(ErrorCode::kMismatch, with_field(10, 12, 2)), HasSubstr("another method"));
  EXPECT_THAT(npz(ErrorCode::kCorrupt, with_field(20, 1 << 20, 4)),
              HasSubstr("does not end before"));
  EXPECT_THAT(npz(ErrorCode::kCorrupt, with_field(24, 1 << 20, 4)), HasSubstr("cannot hold"));
  EXPECT_THAT(npz(ErrorCode::kCorrupt, with_field(42, 1 << 20, 4)), HasSubstr("outside of itself"));
  EXPECT_THAT(npz(ErrorCode::kCorrupt, with_field(42, 0xffffffff, 4)), HasSubstr("outside"));
  // The second member's local header stands inside the first one's data.
  std::string inside = whole.substr(0, second);
  inside.replace(second - 12, 12, 12, 'x');
  EXPECT_THAT(npz(ErrorCode::kCorrupt, inside + whole.substr(second)), HasSubstr("CRC-32"));
}

TEST_F(NumPyRefused, MembersThatOverlap) {
  // One member in the file, twice in the directory under names of their own is caught by the name
  // in front of the data; so the second one lies within the first one's data.
  save_npz(dir_ / "inner.npz", {{"b", Tensor::ones({1}, {DType::kU8})}});
  const std::string inner = read_file(dir_ / "inner.npz");
  const std::string member = inner.substr(0, inner.find("PK\1\2"));
  const Tensor holder =
      Tensor::from(std::span(reinterpret_cast<const uint8_t*>(member.data()), member.size()),
                   {static_cast<int64_t>(member.size())});
  save_npz(dir_ / "outer.npz", {{"a", holder}, {"b", Tensor::ones({1}, {DType::kU8})}});
  std::string outer = read_file(dir_ / "outer.npz");
  const auto offset = static_cast<uint32_t>(outer.find(member));
  ASSERT_LT(offset, outer.rfind(member));
  std::memcpy(outer.data() + outer.rfind("PK\1\2") + 42, &offset, sizeof offset);
  EXPECT_THAT(npz(ErrorCode::kCorrupt, outer), HasSubstr("'b.npy' that overlaps 'a.npy'"));
}

TEST_F(NumPyRefused, ABombThatClaimsMoreThanDeflateCanHold) {
  save_npz(dir_ / "x.npz", {{"a", Tensor::zeros({100'000})}}, /*compressed=*/true);
  std::string file = read_file(dir_ / "x.npz");
  const uint32_t bytes = 0xfffffff0;
  std::memcpy(file.data() + file.rfind("PK\1\2") + 24, &bytes, sizeof bytes);
  EXPECT_THAT(npz(ErrorCode::kCorrupt, file), HasSubstr("cannot hold the 4294967280"));
}

}  // namespace
}  // namespace lockstep::nn
