#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/nn/checkpoint/disk.h"

// Zip archives, as far as .npz files need them (PKWARE's APPNOTE.TXT, 4.3): one file on one disk,
// members stored or deflated, ZIP64, no encryption.
namespace lockstep::nn {

struct ZipMember {
  std::string name;
  bool deflated = false;
  uint32_t crc = 0;         // CRC-32 of the contents
  uint64_t offset = 0;      // of its local header, from the file's start
  uint64_t data_begin = 0;  // of its bytes in the file
  uint64_t data_bytes = 0;  // of these, compressed where it is deflated
  uint64_t bytes = 0;       // of the contents
};

// The members of the archive whose bytes are `file`, in the order of its directory. `what` names it
// and `op` the public call, for errors. Throws Error(kCorrupt) unless every member lies within the
// file, overlaps no other, has a name of its own in UTF-8, and could hold what it is said to;
// Error(kMismatch) for what is allowed in archives and not read here. Contents are not checked.
std::vector<ZipMember> decode_zip(std::string_view file, std::string_view what,
                                  std::string_view op);

// Writes an archive from front to back, with what NumPy writes around its members.
class ZipWriter {
 public:
  explicit ZipWriter(OutputFile& file) : file_(file) {}

  // A member whose contents are `head` and then `body`. `name` is UTF-8.
  void add(std::string name, std::string_view head, std::string_view body, bool deflated);
  // No member may follow.
  void finish();

 private:
  OutputFile& file_;
  std::vector<ZipMember> members_;
};

}  // namespace lockstep::nn
