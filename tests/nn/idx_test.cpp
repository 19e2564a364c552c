#include "lockstep/nn/data/idx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/memory.h"

namespace lockstep::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kHint = "install the package of pictures";

std::string bytes_of(std::initializer_list<int> values) {
  std::string bytes;
  for (const int value : values) bytes += static_cast<char>(value);
  return bytes;
}

std::string gzip(const std::string& bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::runtime_error("zlib did not start");
  }
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  std::string input = bytes;
  stream.next_in = reinterpret_cast<Bytef*>(input.data());
  stream.avail_in = static_cast<uInt>(input.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  if (deflate(&stream, Z_FINISH) != Z_STREAM_END) throw std::runtime_error("zlib did not finish");
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// A u8 file of shape (2, 3) with elements 10, 11, … 15.
std::string small_file() {
  return bytes_of({0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 10, 11, 12, 13, 14, 15});
}

class IdxTest : public ::testing::Test {
 protected:
  IdxTest() {
    std::string name = std::filesystem::temp_directory_path() / "lockstep-idx-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory");
    directory_ = name;
  }
  ~IdxTest() override { std::filesystem::remove_all(directory_); }

  std::string write(const std::string& bytes) const {
    const std::string path = directory_ / "file";
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  // The message of the error, which must have this code and name the file and the hint.
  std::string failure(const std::string& path, ErrorCode code) const {
    try {
      read_idx(path, kHint);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(path));
      EXPECT_THAT(error.what(), HasSubstr(kHint));
      return error.what();
    }
    return "no error";
  }

  std::filesystem::path directory_;
};

TEST_F(IdxTest, ReadsPlainAndCompressedFilesAlike) {
  for (const std::string& bytes : {small_file(), gzip(small_file())}) {
    const Tensor tensor = read_idx(write(bytes));
    EXPECT_EQ(tensor.dtype(), DType::kU8);
    EXPECT_THAT(tensor.shape(), ElementsAre(2, 3));
    EXPECT_THAT(tensor.to_vector<uint8_t>(), ElementsAre(10, 11, 12, 13, 14, 15));
  }
}

TEST_F(IdxTest, TurnsBigEndianElementsRound) {
  EXPECT_THAT(read_idx(write(bytes_of({0, 0, 0x0c, 1, 0, 0, 0, 2, 0, 0, 1, 2, 255, 255, 255, 254})))
                  .to_vector<int32_t>(),
              ElementsAre(258, -2));
  EXPECT_THAT(
      read_idx(write(bytes_of({0, 0, 0x0d, 1, 0, 0, 0, 1, 0x3f, 0xc0, 0, 0}))).to_vector<float>(),
      ElementsAre(1.5f));
  EXPECT_THAT(read_idx(write(bytes_of({0, 0, 0x0e, 1, 0, 0, 0, 1, 0xc0, 4, 0, 0, 0, 0, 0, 0})))
                  .to_vector<double>(),
              ElementsAre(-2.5));
  EXPECT_THAT(read_idx(write(bytes_of({0, 0, 0x09, 1, 0, 0, 0, 2, 255, 3}))).to_vector<int8_t>(),
              ElementsAre(-1, 3));
}

TEST_F(IdxTest, ReadsNoElements) {
  EXPECT_THAT(read_idx(write(bytes_of({0, 0, 8, 2, 0, 0, 0, 0, 0, 0, 0, 3}))).shape(),
              ElementsAre(0, 3));
}

TEST_F(IdxTest, SaysThatAFileIsMissingOrNotAFile) {
  EXPECT_THAT(failure(directory_ / "absent", ErrorCode::kIo), HasSubstr("does not exist"));
  EXPECT_THAT(failure(directory_, ErrorCode::kIo), HasSubstr("not a file"));
}

TEST_F(IdxTest, RefusesAWrongMagic) {
  for (const auto& start : {bytes_of({0, 0, 7, 2}), bytes_of({0, 0, 0x0b, 2}),
                            bytes_of({1, 0, 8, 2}), bytes_of({0, 9, 8, 2}), bytes_of({0, 0, 8, 0}),
                            bytes_of({0, 0, 8, 9}), std::string("<!DO")}) {
    const std::string bytes = start + small_file().substr(4);
    EXPECT_THAT(failure(write(bytes), ErrorCode::kCorrupt), HasSubstr("not an IDX file"));
    EXPECT_THAT(failure(write(gzip(bytes)), ErrorCode::kCorrupt), HasSubstr("not an IDX file"));
  }
}

TEST_F(IdxTest, RefusesEveryTruncation) {
  const std::string plain = small_file();
  for (size_t length = 0; length < plain.size(); ++length) {
    EXPECT_NE(failure(write(plain.substr(0, length)), ErrorCode::kCorrupt), "no error") << length;
    // A whole gzip stream around a file that is cut off.
    EXPECT_NE(failure(write(gzip(plain.substr(0, length))), ErrorCode::kCorrupt), "no error")
        << length;
  }
  const std::string compressed = gzip(plain);
  for (size_t length = 0; length < compressed.size(); ++length) {
    EXPECT_NE(failure(write(compressed.substr(0, length)), ErrorCode::kCorrupt), "no error")
        << length;
  }
}

TEST_F(IdxTest, RefusesTrailingBytes) {
  EXPECT_THAT(failure(write(small_file() + "x"), ErrorCode::kCorrupt), HasSubstr("bytes after"));
  EXPECT_THAT(failure(write(gzip(small_file() + "x")), ErrorCode::kCorrupt),
              HasSubstr("bytes after"));
  EXPECT_THAT(failure(write(gzip(small_file()) + "x"), ErrorCode::kCorrupt),
              HasSubstr("1 bytes after"));
}

TEST_F(IdxTest, ReturnsNothingWrongFromACompressedFileWithAFlippedBit) {
  const std::string good = gzip(small_file());
  const std::vector<uint8_t> want = {10, 11, 12, 13, 14, 15};
  int unnoticed = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      const std::string path = write(bad);
      try {
        EXPECT_EQ(read_idx(path).to_vector<uint8_t>(), want) << i << " " << bit;
        ++unnoticed;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << i << " " << bit << ": " << error.what();
      }
    }
  }
  // A time and an operating system in the header (6 bytes), flags, and the bits that fill up the
  // last byte of the data: no checksum covers these, and they mean nothing.
  EXPECT_LT(unnoticed, 8 * 7 + 8);
}

TEST_F(IdxTest, TakesNoMemoryForSizesThatTheFileCannotHold) {
  const std::string huge =
      bytes_of({0, 0, 0x0e, 3, 127, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 2});
  const std::string large = bytes_of({0, 0, 8, 1, 255, 255, 255, 255, 1, 2, 3});
  const std::string empty = bytes_of(
      {0, 0, 8, 4, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255});
  const int64_t before = memory_stats().allocations;
  for (const std::string& bytes : {huge, large, gzip(huge), gzip(large)}) {
    EXPECT_THAT(failure(write(bytes), ErrorCode::kCorrupt), HasSubstr("more than there can be"));
  }
  EXPECT_EQ(read_idx(write(empty)).numel(), 0);
  EXPECT_EQ(memory_stats().allocations, before);
}

}  // namespace
}  // namespace lockstep::nn
