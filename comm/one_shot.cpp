#include "lockstep/comm/one_shot.h"

#include <algorithm>
#include <cstring>

#include "absl/container/fixed_array.h"

namespace lockstep::comm {

void finish_one_shot(const Collective& collective, int rank, int size, int64_t first, int64_t last,
                     const std::byte* const* payloads) {
  if (first == last) return;
  const Request& request = collective.request;
  if (!collective.takes(rank)) return;
  const int64_t element = collective.element_size();
  auto* recv = static_cast<std::byte*>(collective.recv);
  if (collective.exchanges()) {
    for (int peer = 0; peer < size; ++peer) {
      const Part part = collective.received_part(peer, rank);
      if (part.bytes == 0) continue;
      const std::byte* from = payloads[peer] + collective.sent_part(peer, rank, nullptr).offset;
      if (recv + part.offset != from) std::memcpy(recv + part.offset, from, part.bytes);
    }
    return;
  }
  if (!collective.folds()) {
    const bool gather = collective.gathers();
    for (int peer = 0; peer < size; ++peer) {
      if (!gather && peer != request.root) continue;
      std::byte* to = recv + (gather ? peer * request.count + first : first) * element;
      if (to != payloads[peer]) std::memcpy(to, payloads[peer], (last - first) * element);
    }
    return;
  }
  const Blocks blocks = collective.blocks(size);
  const bool scatter = request.kind == Kind::kReduceScatter;
  absl::FixedArray<const void*, 8> sources(static_cast<size_t>(size));
  for (int block = 0; block < size; ++block) {
    if (scatter && block != rank) continue;
    const int64_t begin = std::max(first, blocks.begin(block));
    if (begin >= last) break;  // what follows is of later pieces, or empty
    const int64_t end = std::min(last, blocks.end(block));
    if (begin >= end) continue;
    for (int i = 0; i < size; ++i) {
      sources[i] = payloads[blocks.order(block, i)] + (begin - first) * element;
    }
    void* output = recv + (scatter ? begin - blocks.begin(block) : begin) * element;
    kernels::Fold::cpu(collective.fold(size), sources.data(), &output, 1, end - begin);
  }
}

}  // namespace lockstep::comm
