#include "lockstep/nn/checkpoint/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "checkpoint_files.h"
#include "lockstep/kernels/error.h"
#include "lockstep/nn/checkpoint/checksum.h"
#include "lockstep/nn/checkpoint/layout.h"

namespace lockstep::nn {
namespace {

using ::testing::HasSubstr;
using testing::read_file;
using testing::TemporaryDirectory;
using testing::write_byte;
using testing::write_file;

// Bytes that differ by tensor and index; 0 and 1 alone for bool.
std::string pattern(size_t bytes, size_t seed, DType dtype = DType::kU8) {
  std::string data(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) {
    const size_t value = i * 131 + seed * 17 + i / 251;
    data[i] = static_cast<char>(dtype == DType::kBool ? value % 2 : value % 256);
  }
  return data;
}

struct Source {
  std::string name;
  DType dtype;
  Shape shape;
  std::string data;
};

Source source(std::string name, DType dtype, Shape shape, size_t seed) {
  const auto bytes = static_cast<size_t>(numel(shape)) * size_of(dtype);
  return {std::move(name), dtype, std::move(shape), pattern(bytes, seed, dtype)};
}

FileSummary write(const std::filesystem::path& path, const std::vector<Source>& sources,
                  const std::vector<NamedValue>& values = {}) {
  std::vector<TensorBytes> tensors;
  for (const Source& s : sources)
    tensors.push_back(whole_tensor(s.name, s.dtype, s.shape, s.data.data()));
  Disk disk;
  return write_data_file(disk, path, tensors, values);
}

// Opens the file and reads every tensor, as a load does.
std::vector<Source> read_all(const std::filesystem::path& path) {
  const DataFile file(path);
  std::vector<Source> result;
  for (const StoredTensor& t : file.index().tensors) {
    Source s{t.name, t.dtype, t.shape, std::string(t.bytes, '\0')};
    file.read(t, s.data.data());
    result.push_back(std::move(s));
  }
  return result;
}

std::vector<Source> small_model() {
  return {source("fc.weight", DType::kF32, {3, 5}, 1), source("mask", DType::kBool, {7}, 2),
          source("none", DType::kF32, {0, 4}, 3), source("count", DType::kI64, {}, 4)};
}

std::vector<NamedValue> small_values() {
  return {{"epoch", int64_t{3}}, {"lr", 0.1}, {"seed", ~uint64_t{0}}, {"note", "zwölf"}};
}

ErrorCode code_of(const std::function<void()>& call, std::string* message = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.code();
  }
  ADD_FAILURE() << "no error came";
  return ErrorCode::kInternal;
}

TEST(CheckpointFormat, EveryDtypeAndOddShapesComeBackAsTheyWere) {
  const TemporaryDirectory dir;
  std::vector<Source> sources;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string prefix(name(dtype));
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{3, 5, 7}, Shape{0}, Shape{4, 0, 3},
                               Shape{1, 1, 2, 1, 3, 1, 1, 2}, Shape{70001}}) {
      sources.push_back(source(prefix + to_string(shape), dtype, shape, sources.size()));
    }
  }
  write(dir / "data", sources);
  const std::vector<Source> back = read_all(dir / "data");
  ASSERT_EQ(back.size(), sources.size());
  for (size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(back[i].name, sources[i].name);
    EXPECT_EQ(back[i].dtype, sources[i].dtype);
    EXPECT_EQ(back[i].shape, sources[i].shape);
    EXPECT_EQ(back[i].data, sources[i].data) << sources[i].name;
  }
}

TEST(CheckpointFormat, EachPieceOfFourMebibytesHasItsOwnChecksum) {
  const TemporaryDirectory dir;
  const auto elements = static_cast<int64_t>(2 * kChunkBytes + 13);
  const std::vector<Source> sources = {source("big", DType::kU8, {elements}, 5),
                                       source("exact", DType::kU8, {int64_t{kChunkBytes}}, 6)};
  write(dir / "data", sources);
  {
    const DataFile file(dir / "data");
    EXPECT_EQ(file.index().tensors[0].checksums.size(), 3u);
    EXPECT_EQ(file.index().tensors[0].checksums[2],
              xxh3(sources[0].data.data() + 2 * kChunkBytes, 13));
    EXPECT_EQ(file.index().tensors[1].checksums.size(), 1u);
    EXPECT_EQ(file.index().tensors[0].offset % 4096, 0u);
  }
  EXPECT_EQ(read_all(dir / "data")[0].data, sources[0].data);
  std::string bytes = read_file(dir / "data");
  bytes[4096 + kChunkBytes + 1] ^= 0x10;
  write_file(dir / "data", bytes);
  std::string message;
  EXPECT_EQ(code_of([&] { read_all(dir / "data"); }, &message), ErrorCode::kCorrupt);
  EXPECT_THAT(message, HasSubstr("tensor 'big': its bytes 4194304 to 8388608"));
}

TEST(CheckpointFormat, ValuesComeBackBitForBit) {
  const TemporaryDirectory dir;
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<NamedValue> values = {{"i64 least", std::numeric_limits<int64_t>::min()},
                                          {"i64 most", std::numeric_limits<int64_t>::max()},
                                          {"u64", ~uint64_t{0}},
                                          {"0", int64_t{0}},
                                          {"tenth", 0.1},
                                          {"whole", 3.0},
                                          {"minus zero", -0.0},
                                          {"denormal", 5e-324},
                                          {"most", std::numeric_limits<double>::max()},
                                          {"inf", inf},
                                          {"-inf", -inf},
                                          {"nan", std::nan("")},
                                          {"text", "a\n\"quoted\"\\ \xf0\x9f\x9a\x80"},
                                          {"empty", ""}};
  write(dir / "data", {}, values);
  const DataFile file(dir / "data");
  ASSERT_EQ(file.index().values.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const NamedValue& back = file.index().values[i];
    EXPECT_EQ(back.name, values[i].name);
    ASSERT_EQ(back.value.index(), values[i].value.index()) << back.name;
    if (const auto* number = std::get_if<double>(&values[i].value)) {
      const auto got = std::get<double>(back.value);
      EXPECT_TRUE(std::isnan(*number) ? std::isnan(got) : std::memcmp(number, &got, 8) == 0)
          << back.name << " " << got;
    } else {
      EXPECT_EQ(back.value, values[i].value) << back.name;
    }
  }
}

TEST(CheckpointFormat, AFileCutAtAnyByteIsCorrupt) {
  const TemporaryDirectory dir;
  write(dir / "whole", small_model(), small_values());
  const std::string bytes = read_file(dir / "whole");
  write_file(dir / "cut", bytes + '\0');
  EXPECT_EQ(code_of([&] { read_all(dir / "cut"); }), ErrorCode::kCorrupt);
  write_file(dir / "cut", bytes);
  for (size_t length = bytes.size(); length-- > 0;) {
    std::filesystem::resize_file(dir / "cut", length);
    EXPECT_EQ(code_of([&] { read_all(dir / "cut"); }), ErrorCode::kCorrupt) << length;
  }
}

TEST(CheckpointFormat, AnyFlippedBitIsCorrupt) {
  const TemporaryDirectory dir;
  write(dir / "file", small_model(), small_values());
  const std::string bytes = read_file(dir / "file");
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      write_byte(dir / "file", at, static_cast<char>(bytes[at] ^ (1 << bit)));
      EXPECT_EQ(code_of([&] { read_all(dir / "file"); }), ErrorCode::kCorrupt)
          << "byte " << at << " bit " << bit;
    }
    write_byte(dir / "file", at, bytes[at]);
  }
  EXPECT_EQ(read_all(dir / "file").size(), small_model().size());
}

// A file whose checksums are all right and whose index says `index`, with `data` before it.
std::string forged(const std::string& index, const std::string& data = std::string(256, '\0'),
                   uint32_t version = kCheckpointVersion, uint32_t features = 0) {
  FileHeader header;
  header.version = version;
  header.features = features;
  header.checksum = xxh3(&header, offsetof(FileHeader, checksum));
  FileFooter footer;
  std::string file(reinterpret_cast<const char*>(&header), sizeof header);
  file += data.substr(sizeof header);
  footer.index_offset = file.size();
  footer.index_bytes = index.size();
  footer.index_checksum = xxh3(index);
  file += index;
  footer.file_bytes = file.size() + sizeof footer;
  footer.checksum = xxh3(&footer, offsetof(FileFooter, checksum));
  return file.append(reinterpret_cast<const char*>(&footer), sizeof footer);
}

std::string tensor_json(const std::string& name, const std::string& rest) {
  return R"({"name":")" + name + R"(",)" + rest + "}";
}

std::string index_json(const std::string& tensors, const std::string& values = "") {
  return R"({"tensors":[)" + tensors + R"(],"values":[)" + values + "]}";
}

// What the reader says to a forged index; the checksums in it may be anything of the right length.
std::string verdict(const std::string& index, size_t data_end = 512, uint32_t features = 0) {
  const TemporaryDirectory dir;
  write_file(dir / "forged",
             forged(index, std::string(data_end, '\0'), kCheckpointVersion, features));
  std::string message;
  EXPECT_EQ(code_of([&] { read_all(dir / "forged"); }, &message), ErrorCode::kCorrupt) << index;
  return message;
}

TEST(CheckpointFormat, AForgedIndexIsRefusedWithItsReason) {
  const std::string sum = R"("xxh3":["0000000000000000"])";
  const std::string good = R"("dtype":"u8","shape":[4],"offset":256,"bytes":4,)" + sum;
  const auto one = [&](const std::string& rest) { return index_json(tensor_json("a", rest)); };

  // A forgery that is right but for the data's checksum: the others fail for their own reason.
  EXPECT_THAT(verdict(one(good)), HasSubstr("do not match their checksum"));

  EXPECT_THAT(verdict(index_json(tensor_json("a", good) + "," + tensor_json("b", good))),
              HasSubstr("overlaps"));
  EXPECT_THAT(verdict(one(R"("dtype":"u8","shape":[4],"offset":260,"bytes":4,)" + sum)),
              HasSubstr("want 256 (a hole or a wrong alignment)"));
  EXPECT_THAT(verdict(one(good), 1024), HasSubstr("want 512"));
  EXPECT_THAT(verdict(one(R"("dtype":"u8","shape":[4],"offset":511,"bytes":4,)" + sum)),
              HasSubstr("outside"));
  EXPECT_THAT(
      verdict(one(R"("dtype":"u8","shape":[4],"offset":18446744073709551615,"bytes":4,)" + sum)),
      HasSubstr("outside"));
  EXPECT_THAT(verdict(one(R"("dtype":"u8","shape":[4],"offset":256,"bytes":5,)" + sum)),
              HasSubstr("that is 4 bytes"));
  EXPECT_THAT(verdict(one(R"("dtype":"f8","shape":[4],"offset":256,"bytes":4,)" + sum)),
              HasSubstr("a dtype that is not known: 'f8'"));
  EXPECT_THAT(verdict(one(R"("dtype":"u8","shape":[-4],"offset":256,"bytes":4,)" + sum)),
              HasSubstr("not a whole number of 0 and more: -4"));
  EXPECT_THAT(verdict(one(R"("dtype":"u8","shape":[4.0],"offset":256,"bytes":4,)" + sum)),
              HasSubstr("not a whole number of 0 and more: 4.0"));
  EXPECT_THAT(
      verdict(one(R"("dtype":"u8","shape":[4294967296,4294967296],"offset":256,"bytes":0,)" + sum)),
      HasSubstr("product overflows"));
  EXPECT_THAT(
      verdict(
          one(R"("dtype":"u8","shape":[0,9223372036854775807],"offset":256,"bytes":0,"xxh3":[])")),
      HasSubstr("product overflows"));
  EXPECT_THAT(
      verdict(
          one(R"("dtype":"u8","shape":[1099511627776],"offset":256,"bytes":1099511627776,)" + sum)),
      HasSubstr("outside"));
  std::string dims = "1";
  for (int i = 0; i < 64; ++i) dims += ",1";
  EXPECT_THAT(
      verdict(one(R"("dtype":"u8","offset":256,"bytes":1,)" + sum + R"(,"shape":[)" + dims + "]")),
      HasSubstr("65 dimensions"));
  EXPECT_THAT(verdict(one(R"("dtype":"u8","shape":[4],"offset":256,"bytes":4,"xxh3":[])")),
              HasSubstr("0 checksums"));
  EXPECT_THAT(verdict(one(R"("dtype":"u8","shape":[4],"offset":256,"bytes":4,"xxh3":["00"])")),
              HasSubstr("16 lower-case hexadecimal"));
  EXPECT_THAT(verdict(one(good + R"(,"dtype":"u8")")), HasSubstr("'dtype' is there twice"));
  EXPECT_THAT(verdict(one(R"("dtype":"u8","shape":[4],"offset":256,)" + sum)),
              HasSubstr("'bytes' is missing"));
  EXPECT_THAT(verdict(index_json(tensor_json("", good))), HasSubstr("an empty name"));
  EXPECT_THAT(verdict(index_json(tensor_json("a\\u0000", good))), HasSubstr("control"));
  EXPECT_THAT(verdict(index_json(tensor_json("\xff", good))), HasSubstr("UTF-8"));
  EXPECT_THAT(verdict(index_json(tensor_json(std::string(2000, 'x'), good))), HasSubstr("1024"));
  const std::string value = R"({"name":"v","type":"i64","value":1})";
  EXPECT_THAT(verdict(index_json("", value + "," + value), 256), HasSubstr("'v' is there twice"));
  for (const std::string wrong :
       {R"("i64","value":9223372036854775808)", R"("i64","value":1.5)", R"("u64","value":-1)",
        R"("f64","value":"NaN")", R"("string","value":1)", R"("bool","value":true)"}) {
    EXPECT_THAT(verdict(index_json("", R"({"name":"v","type":)" + wrong + "}"), 256),
                HasSubstr("has not the type"));
  }
  for (const std::string text : {"", "[", "[]", "7", R"({"tensors":[],"values":[]}x)",
                                 R"({"tensors":[],"values":{}})", R"({"values":[]})"}) {
    verdict(text, 256);
  }
  EXPECT_THAT(verdict(std::string(100000, '['), 256), HasSubstr("more than 8 levels"));
}

TEST(CheckpointFormat, ARangeOrAViewThatHasNoMeaningIsRefusedWithItsReason) {
  const auto ranged = [](const std::string& range, int bytes) {
    return index_json(tensor_json("a", R"("dtype":"u8","shape":[4],"offset":256,"range":)" + range +
                                           R"(,"bytes":)" + std::to_string(bytes) +
                                           R"(,"xxh3":["0000000000000000"])"));
  };
  EXPECT_THAT(verdict(ranged("[1,3]", 3), 512, kFeatureRanges),
              HasSubstr("do not match their checksum"));
  EXPECT_THAT(verdict(ranged("[1,3]", 3)), HasSubstr("the header says features 0000000000000000"));
  EXPECT_THAT(verdict(ranged("[0,4]", 4), 512, kFeatureRanges), HasSubstr("its index uses"));
  EXPECT_THAT(verdict(ranged("[1,3]", 4)), HasSubstr("has 3 elements of u8, that is 3 bytes"));
  EXPECT_THAT(verdict(ranged("[2,3]", 3)), HasSubstr("3 elements from 2, but 4 in all"));
  EXPECT_THAT(verdict(ranged("[5,1]", 1)), HasSubstr("1 elements from 5, but 4 in all"));
  EXPECT_THAT(verdict(ranged("[1,18446744073709551615]", 1)), HasSubstr("but 4 in all"));
  EXPECT_THAT(verdict(ranged("[1,0]", 0)), HasSubstr("0 elements from 1"));
  for (const char* range : {"[1]", "[1,2,3]", "[-1,2]", R"(["0",2])", "[1.0,2]"}) {
    EXPECT_THAT(verdict(ranged(range, 2)), HasSubstr("a range that is not two numbers")) << range;
  }
  const auto viewed = [](const std::string& rest) {
    return R"({"tensors":[],"values":[],"views":[{"name":"v","of":"a",)" + rest + "}]}";
  };
  EXPECT_THAT(verdict(viewed(R"("shape":[2,2],"strides":[1],"start":0)"), 256),
              HasSubstr("view 'v' has 2 sizes and 1 strides"));
  EXPECT_THAT(verdict(viewed(R"("shape":[2],"strides":[1],"start":-1)"), 256),
              HasSubstr("no number up to 2^59"));
  EXPECT_THAT(verdict(viewed(R"("shape":[2],"strides":[576460752303423489],"start":0)"), 256),
              HasSubstr("no number up to 2^59"));
  EXPECT_THAT(verdict(viewed(R"("shape":[2],"strides":[1],"start":0)"), 256),
              HasSubstr("the header says features"));
}

TEST(CheckpointFormat, AnIndexOfAbsurdSizeIsRefusedBeforeItIsRead) {
  const TemporaryDirectory dir;
  const std::string file = forged(index_json(""));
  write_file(dir / "data", file.substr(0, file.size() - sizeof(FileFooter)));
  FileFooter footer;
  footer.index_offset = 256;
  footer.index_bytes = kMaxIndexBytes + 1;
  footer.file_bytes = footer.index_offset + footer.index_bytes + sizeof footer;
  footer.checksum = xxh3(&footer, offsetof(FileFooter, checksum));
  std::filesystem::resize_file(dir / "data", footer.file_bytes);
  const auto* bytes = reinterpret_cast<const char*>(&footer);
  for (size_t i = 0; i < sizeof footer; ++i) {
    write_byte(dir / "data", footer.file_bytes - sizeof footer + i, bytes[i]);
  }
  std::string message;
  EXPECT_EQ(code_of([&] { read_all(dir / "data"); }, &message), ErrorCode::kCorrupt);
  EXPECT_THAT(message, HasSubstr("an index of 67108865 bytes, at most 67108864 are allowed"));
}

TEST(CheckpointFormat, AByteThatIsNoBoolIsRefused) {
  const TemporaryDirectory dir;
  std::string data(512, '\0');
  data[256] = 1;
  data[257] = 2;
  write_file(dir / "forged",
             forged(index_json(tensor_json(
                        "flags", R"("dtype":"bool","shape":[2],"offset":256,"bytes":2,"xxh3":[")" +
                                     to_hex(xxh3(data.data() + 256, 2)) + "\"]")),
                    data));
  std::string message;
  EXPECT_EQ(code_of([&] { read_all(dir / "forged"); }, &message), ErrorCode::kCorrupt);
  EXPECT_THAT(message, HasSubstr("'flags' of bool"));
}

TEST(CheckpointFormat, ALaterVersionOrAnUnknownFeatureIsNotTakenForDamage) {
  const TemporaryDirectory dir;
  const std::string empty(256, '\0');
  write_file(dir / "later", forged(index_json(""), empty, kCheckpointVersion + 1));
  write_file(dir / "feature", forged(index_json(""), empty, kCheckpointVersion, 4));
  write_file(dir / "known", forged(index_json(""), empty));
  EXPECT_EQ(code_of([&] { read_all(dir / "later"); }), ErrorCode::kMismatch);
  EXPECT_EQ(code_of([&] { read_all(dir / "feature"); }), ErrorCode::kMismatch);
  EXPECT_TRUE(read_all(dir / "known").empty());
}

TEST(CheckpointFormat, WhatIsNoRegularFileIsAnErrorAndNoWait) {
  const TemporaryDirectory dir;
  EXPECT_EQ(code_of([&] { read_all(dir / "missing"); }), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of([&] { read_all(dir.path()); }), ErrorCode::kCorrupt);
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(code_of([&] { read_all(dir / "pipe"); }), ErrorCode::kCorrupt);
}

TEST(CheckpointFormat, NamesAndStringsThatCannotBeWrittenAreRefusedBeforeAFileIsMade) {
  const TemporaryDirectory dir;
  const Source a = source("a", DType::kF32, {2}, 1);
  const auto refused = [&](const std::vector<Source>& sources, const std::vector<NamedValue>& v) {
    const ErrorCode code = code_of([&] { write(dir / "data", sources, v); });
    return code == ErrorCode::kInvalidArgument && !std::filesystem::exists(dir / "data");
  };
  EXPECT_TRUE(refused({a, a}, {}));
  EXPECT_TRUE(refused({a}, {{"a", 1.0}}));
  EXPECT_TRUE(refused({}, {{"", 1.0}}));
  EXPECT_TRUE(refused({}, {{"tab\t", 1.0}}));
  EXPECT_TRUE(refused({}, {{"\xc0\xaf", 1.0}}));
  EXPECT_TRUE(refused({}, {{"\xed\xa0\x80", 1.0}}));
  EXPECT_TRUE(refused({}, {{"text", "\xf5"}}));
  EXPECT_TRUE(refused({}, {{std::string(1025, 'n'), 1.0}}));
  write(dir / "data", {a}, {});
  EXPECT_EQ(read_all(dir / "data").size(), 1u);
}

// Bytes of a good file are changed at random and all checksums made right again, so that the
// mutations reach the index's own checks: whatever comes, it is a load or an Error.
TEST(CheckpointFormat, MutatedIndexesNeverCrashTheReader) {
  const TemporaryDirectory dir;
  write(dir / "whole", small_model(), small_values());
  const std::string whole = read_file(dir / "whole");
  const DataFile file(dir / "whole");
  const std::string text(file.index_text());
  const std::string data = whole.substr(0, file.data_end());
  const std::string pieces[] = {"\"",  "[",   "]",    "{",    "}",
                                ",",   ":",   "-",    "0",    "9",
                                "1e9", "\\u", "\xff", "null", "18446744073709551615"};
  uint64_t state = 12345;
  const auto random = [&](size_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>((state >> 33) % n);
  };
  for (int round = 0; round < 3000; ++round) {
    std::string mutated = text;
    for (size_t changes = random(3) + 1; changes > 0; --changes) {
      const std::string& piece = pieces[random(std::size(pieces))];
      mutated.replace(random(mutated.size()), random(4), piece);
    }
    write_file(dir / "mutated", forged(mutated, data));
    try {
      read_all(dir / "mutated");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
    }
  }
}

}  // namespace
}  // namespace lockstep::nn
