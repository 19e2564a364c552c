#include "lockstep/nn/numpy/zip.h"

#include <zlib.h>

#include <algorithm>
#include <unordered_set>

#include "lockstep/kernels/error.h"
#include "lockstep/kernels/text.h"
#include "lockstep/nn/checkpoint/utf8.h"
#include "lockstep/nn/inflate.h"

namespace lockstep::nn {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kCentralSignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr uint64_t kLocalBytes = 30;
constexpr uint64_t kCentralBytes = 46;
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kEnd64Bytes = 56;
constexpr uint64_t kLocator64Bytes = 20;
constexpr uint64_t kMaxComment = 0xffff;

constexpr uint16_t kStored = 0;
constexpr uint16_t kDeflated = 8;
constexpr uint16_t kEncrypted = 1 << 0;   // flags
constexpr uint16_t kDescriptor = 1 << 3;  // sizes and CRC come after the data
constexpr uint16_t kUtf8 = 1 << 11;
constexpr uint16_t kZip64Extra = 1;
// Where a field of 16 or 32 bits is full, ZIP64 has the value.
constexpr uint64_t kFull16 = 0xffff;
constexpr uint64_t kFull32 = 0xffffffff;

constexpr uint16_t kVersion = 45;  // ZIP64
constexpr uint16_t kUnix = 3 << 8;
constexpr uint32_t kOwnerMayReadAndWrite = 0600 << 16;
constexpr uint16_t kFirstOfJanuary1980 = 1 << 5 | 1;  // so that equal arrays make equal files

class Reader {
 public:
  Reader(std::string_view file, std::string_view what, std::string_view op)
      : file_(file), what_(what), op_(op) {}

  std::vector<ZipMember> members() const;

 private:
  [[noreturn]] void fail(ErrorCode code, std::string_view message) const {
    throw Error(code, op_, str_cat(what_, ": ", message));
  }
  [[noreturn]] void corrupt(std::string_view message) const { fail(ErrorCode::kCorrupt, message); }
  void want(bool ok, std::string_view message) const {
    if (!ok) corrupt(message);
  }

  // An unsigned number, little endian. Every read of the file goes through here.
  template <class T>
  T get(uint64_t offset) const {
    want(offset <= file_.size() && sizeof(T) <= file_.size() - offset,
         "is a zip archive that points outside of itself");
    T value = 0;
    for (size_t i = sizeof(T); i-- > 0;) {
      value = static_cast<T>(value << 8 | static_cast<uint8_t>(file_[offset + i]));
    }
    return value;
  }
  std::string_view bytes(uint64_t offset, uint64_t count) const {
    want(offset <= file_.size() && count <= file_.size() - offset,
         "is a zip archive that points outside of itself");
    return file_.substr(offset, count);
  }

  struct Directory {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t members = 0;
  };
  uint64_t find_end() const;
  Directory find_directory() const;
  void read_extra64(std::string_view extra, ZipMember& member) const;
  void read_local(ZipMember& member, uint16_t flags, uint16_t method, uint64_t data_end) const;

  std::string_view file_;
  std::string_view what_;
  std::string_view op_;
};

// The end record stands last, but for a comment whose length it says.
uint64_t Reader::find_end() const {
  want(file_.size() >= kEndBytes, "is no zip archive, or was cut short");
  const uint64_t last = file_.size() - kEndBytes;
  for (uint64_t comment = 0; comment <= std::min(last, kMaxComment); ++comment) {
    const uint64_t at = last - comment;
    if (get<uint32_t>(at) == kEndSignature && get<uint16_t>(at + 20) == comment) return at;
  }
  corrupt("is no zip archive, or was cut short: its directory's end is missing");
}

Reader::Directory Reader::find_directory() const {
  const uint64_t end = find_end();
  const uint64_t here = get<uint16_t>(end + 8);
  Directory directory;
  directory.end = end;
  directory.members = get<uint16_t>(end + 10);
  uint64_t bytes = get<uint32_t>(end + 12);
  directory.begin = get<uint32_t>(end + 16);
  if (get<uint16_t>(end + 4) != 0 || get<uint16_t>(end + 6) != 0 || here != directory.members) {
    fail(ErrorCode::kMismatch, "is a zip archive of several parts: join them first");
  }
  const bool full = directory.members == kFull16 || bytes == kFull32 || directory.begin == kFull32;
  if (full && end >= kLocator64Bytes &&
      get<uint32_t>(end - kLocator64Bytes) == kLocator64Signature) {
    const auto end64 = get<uint64_t>(end - kLocator64Bytes + 8);
    want(get<uint32_t>(end64) == kEnd64Signature, "has a ZIP64 locator that points to nothing");
    directory.end = end64;
    directory.members = get<uint64_t>(end64 + 32);
    bytes = get<uint64_t>(end64 + 40);
    directory.begin = get<uint64_t>(end64 + 48);
  }
  want(directory.begin <= directory.end && bytes == directory.end - directory.begin,
       "has a zip directory that is not where its end says");
  want(directory.members <= bytes / kCentralBytes, "has a zip directory too short for its members");
  return directory;
}

// Takes the values for which the fields before had no room.
void Reader::read_extra64(std::string_view extra, ZipMember& member) const {
  const Reader reader(extra, what_, op_);
  for (uint64_t at = 0; at + 4 <= extra.size();) {
    const auto id = reader.get<uint16_t>(at);
    const uint64_t end = at + 4 + reader.get<uint16_t>(at + 2);
    want(end <= extra.size(),
         str_cat("has a member '", member.name, "' with a broken extra field"));
    at += 4;
    if (id == kZip64Extra) {
      for (uint64_t* value : {&member.bytes, &member.data_bytes, &member.offset}) {
        if (*value != kFull32) continue;
        want(at + 8 <= end, str_cat("has a member '", member.name, "' without its ZIP64 sizes"));
        *value = reader.get<uint64_t>(at);
        at += 8;
      }
    }
    at = end;
  }
}

void Reader::read_local(ZipMember& member, uint16_t flags, uint16_t method,
                        uint64_t data_end) const {
  const uint64_t at = member.offset;
  const auto name_bytes = get<uint16_t>(at + 26);
  want(get<uint32_t>(at) == kLocalSignature && get<uint16_t>(at + 8) == method &&
           bytes(at + kLocalBytes, name_bytes) == member.name &&
           ((flags & kDescriptor) != 0 || get<uint32_t>(at + 14) == member.crc),
       str_cat("has a member '", member.name, "' that differs from what the directory says"));
  member.data_begin = at + kLocalBytes + name_bytes + get<uint16_t>(at + 28);
  want(member.data_begin <= data_end && member.data_bytes <= data_end - member.data_begin,
       str_cat("has a member '", member.name, "' that does not end before the directory"));
  const bool possible = member.deflated ? member.bytes / kMaxExpansion <= member.data_bytes
                                        : member.bytes == member.data_bytes;
  want(possible,
       str_cat("has a member '", member.name, "' of ", member.data_bytes,
               " bytes, which cannot hold the ", member.bytes, " that it is said to hold"));
}

std::vector<ZipMember> Reader::members() const {
  const Directory directory = find_directory();
  std::vector<ZipMember> members;
  std::unordered_set<std::string> seen;
  uint64_t at = directory.begin;
  for (uint64_t i = 0; i < directory.members; ++i) {
    want(at <= directory.end && kCentralBytes <= directory.end - at &&
             get<uint32_t>(at) == kCentralSignature,
         "has a zip directory that is damaged");
    const auto flags = get<uint16_t>(at + 8);
    const auto method = get<uint16_t>(at + 10);
    ZipMember member;
    member.deflated = method == kDeflated;
    member.crc = get<uint32_t>(at + 16);
    member.data_bytes = get<uint32_t>(at + 20);
    member.bytes = get<uint32_t>(at + 24);
    const auto name_bytes = get<uint16_t>(at + 28);
    const auto extra_bytes = get<uint16_t>(at + 30);
    member.offset = get<uint32_t>(at + 42);
    member.name = std::string(bytes(at + kCentralBytes, name_bytes));
    want(is_utf8(member.name), "has a member whose name is not UTF-8");
    want(seen.insert(member.name).second, str_cat("has the member '", member.name, "' twice"));
    if ((flags & kEncrypted) != 0 || (method != kStored && method != kDeflated)) {
      fail(ErrorCode::kMismatch,
           str_cat("has a member '", member.name,
                   "' that is encrypted or compressed by another method than deflate"));
    }
    read_extra64(bytes(at + kCentralBytes + name_bytes, extra_bytes), member);
    read_local(member, flags, method, directory.begin);
    members.push_back(std::move(member));
    at += kCentralBytes + name_bytes + extra_bytes + get<uint16_t>(at + 32);
  }
  want(at == directory.end, "has a zip directory that does not end where its end begins");

  std::vector<const ZipMember*> by_place;
  for (const ZipMember& member : members) by_place.push_back(&member);
  std::sort(by_place.begin(), by_place.end(),
            [](const auto* a, const auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < by_place.size(); ++i) {
    const ZipMember& before = *by_place[i - 1];
    want(by_place[i]->offset >= before.data_begin + before.data_bytes,
         str_cat("has a member '", by_place[i]->name, "' that overlaps '", before.name, "'"));
  }
  return members;
}

// Bytes, little endian, of numbers of the types that they come in.
template <class... T>
std::string pack(T... values) {
  std::string out;
  const auto put = [&](auto value) {
    for (size_t i = 0; i < sizeof value; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
  };
  (put(values), ...);
  return out;
}

uint32_t crc_of(uint32_t crc, std::string_view data) {
  if (data.empty()) return crc;  // zlib takes a null pointer for a request to start anew
  return static_cast<uint32_t>(
      crc32_z(crc, reinterpret_cast<const Bytef*>(data.data()), data.size()));
}

std::string deflate_all(std::initializer_list<std::string_view> pieces) {
  z_stream stream{};
  // Bare deflate, with the settings that Python's zipfile has.
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) !=
      Z_OK) {
    throw Error(ErrorCode::kOutOfMemory, "save_npz", "zlib did not start");
  }
  constexpr size_t kMost = size_t{1} << 30;  // zlib counts in 32 bits
  std::string out;
  std::string buffer(size_t{1} << 16, '\0');
  const auto run = [&](int flush) {
    do {
      stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
      stream.avail_out = static_cast<uInt>(buffer.size());
      deflate(&stream, flush);
      out.append(buffer, 0, buffer.size() - stream.avail_out);
    } while (stream.avail_out == 0);
  };
  for (std::string_view piece : pieces) {
    while (!piece.empty()) {
      const std::string_view part = piece.substr(0, kMost);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(part.data()));
      stream.avail_in = static_cast<uInt>(part.size());
      run(Z_NO_FLUSH);
      piece.remove_prefix(part.size());
    }
  }
  run(Z_FINISH);
  deflateEnd(&stream);
  return out;
}

uint16_t flags_of(const std::string& name) {
  const bool ascii = std::all_of(name.begin(), name.end(),
                                 [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  return ascii ? uint16_t{0} : kUtf8;
}

}  // namespace

std::vector<ZipMember> decode_zip(std::string_view file, std::string_view what,
                                  std::string_view op) {
  return Reader(file, what, op).members();
}

void ZipWriter::add(std::string name, std::string_view head, std::string_view body, bool deflated) {
  ZipMember member;
  member.deflated = deflated;
  member.crc = crc_of(crc_of(0, head), body);
  member.offset = file_.size();
  member.bytes = head.size() + body.size();
  const std::string compressed = deflated ? deflate_all({head, body}) : std::string();
  member.data_bytes = deflated ? compressed.size() : member.bytes;
  file_.write(pack(kLocalSignature, kVersion, flags_of(name), deflated ? kDeflated : kStored,
                   uint16_t{0}, kFirstOfJanuary1980, member.crc, static_cast<uint32_t>(kFull32),
                   static_cast<uint32_t>(kFull32), static_cast<uint16_t>(name.size()),
                   uint16_t{20}) +
              name + pack(kZip64Extra, uint16_t{16}, member.bytes, member.data_bytes));
  if (deflated) {
    file_.write(compressed);
  } else {
    file_.write(head);
    file_.write(body);
  }
  member.name = std::move(name);
  members_.push_back(std::move(member));
}

void ZipWriter::finish() {
  const uint64_t begin = file_.size();
  const auto field = [](uint64_t value) { return static_cast<uint32_t>(std::min(value, kFull32)); };
  for (const ZipMember& member : members_) {
    std::string extra;
    for (uint64_t value : {member.bytes, member.data_bytes, member.offset}) {
      if (value >= kFull32) extra += pack(value);
    }
    if (!extra.empty()) extra = pack(kZip64Extra, static_cast<uint16_t>(extra.size())) + extra;
    file_.write(pack(kCentralSignature, static_cast<uint16_t>(kUnix | kVersion), kVersion,
                     flags_of(member.name), member.deflated ? kDeflated : kStored, uint16_t{0},
                     kFirstOfJanuary1980, member.crc, field(member.data_bytes), field(member.bytes),
                     static_cast<uint16_t>(member.name.size()), static_cast<uint16_t>(extra.size()),
                     uint16_t{0}, uint16_t{0}, uint16_t{0}, kOwnerMayReadAndWrite,
                     field(member.offset)) +
                member.name + extra);
  }
  const uint64_t end = file_.size();
  const uint64_t count = members_.size();
  if (count >= kFull16 || begin >= kFull32 || end - begin >= kFull32) {
    file_.write(pack(kEnd64Signature, kEnd64Bytes - 12, kVersion, kVersion, uint32_t{0},
                     uint32_t{0}, count, count, end - begin, begin) +
                pack(kLocator64Signature, uint32_t{0}, end, uint32_t{1}));
  }
  const auto short_count = static_cast<uint16_t>(std::min(count, kFull16));
  file_.write(pack(kEndSignature, uint16_t{0}, uint16_t{0}, short_count, short_count,
                   field(end - begin), field(begin), uint16_t{0}));
}

}  // namespace lockstep::nn
