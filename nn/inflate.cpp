#include "lockstep/nn/inflate.h"

#include <zlib.h>

#include <algorithm>

#include "lockstep/kernels/error.h"

namespace lockstep::nn {

Inflater::Inflater(std::span<const uint8_t> compressed, Compression compression,
                   std::string_view op)
    : left_(compressed), stream_(std::make_unique<z_stream>()) {
  // The largest window; below 0: no header and checksum, 16 and more: gzip's.
  const int window_bits = compression == Compression::kDeflate ? -MAX_WBITS : 16 + MAX_WBITS;
  if (inflateInit2(stream_.get(), window_bits) != Z_OK) {
    throw Error(ErrorCode::kOutOfMemory, op, "zlib did not start");
  }
}

Inflater::~Inflater() { inflateEnd(stream_.get()); }

size_t Inflater::read(std::span<uint8_t> out) {
  constexpr size_t kMost = size_t{1} << 30;  // zlib counts in 32 bits
  size_t done = 0;
  while (!ended_ && error_ == nullptr && done < out.size()) {
    const size_t input = std::min(left_.size(), kMost);
    const size_t room = std::min(out.size() - done, kMost);
    stream_->next_in = const_cast<Bytef*>(left_.data());
    stream_->avail_in = static_cast<uInt>(input);
    stream_->next_out = out.data() + done;
    stream_->avail_out = static_cast<uInt>(room);
    const int status = inflate(stream_.get(), Z_NO_FLUSH);
    left_ = left_.subspan(input - stream_->avail_in);
    done += room - stream_->avail_out;
    if (status == Z_STREAM_END) {
      ended_ = true;
    } else if (status == Z_BUF_ERROR) {
      break;  // nothing is left to decompress
    } else if (status != Z_OK) {
      error_ = stream_->msg != nullptr ? stream_->msg : zError(status);
    }
  }
  return done;
}

}  // namespace lockstep::nn
