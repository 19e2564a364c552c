// What a SharedGroup's cost model knows, and what it chooses by that.

#include <algorithm>
#include <bit>
#include <cstring>

#include "lockstep/comm/shared_group.h"
#include "lockstep/comm/text.h"

namespace lockstep::comm {
namespace {

// Enough that a copy's start does not count, and in a cache.
constexpr size_t kProbeBytes = size_t{128} << 10;
constexpr int kMeetings = 8;

// The least of several times is what the machine does; the rest is what disturbed it.
template <class F>
void keep_least(double& least, const F& f) {
  const Clock::time_point start = Clock::now();
  f();
  least = std::min(least, std::chrono::duration<double>(Clock::now() - start).count());
}

}  // namespace

bool SharedGroup::all_read() const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return peer.member->reads.load() != 0; });
}

bool SharedGroup::prefers_one_shot(size_t bytes) const {
  const auto b = static_cast<double>(bytes);
  return bytes <= Member::kPayloadBytes &&
         one_shot_seconds(costs(), size(), b) <= direct_seconds(costs(), size(), b);
}

bool SharedGroup::prefers_reading(size_t bytes) const {
  const auto b = static_cast<double>(bytes);
  return all_read() && read_seconds(costs(), size(), b, read_calls(bytes)) <=
                           staged_seconds(costs(), size(), b, staged_meetings(bytes));
}

bool SharedGroup::prefers_eager(size_t bytes) const {
  const auto b = static_cast<double>(bytes);
  const double plain = all_read()
                           ? std::min(staged_seconds(costs(), size(), b, staged_meetings(bytes)),
                                      read_seconds(costs(), size(), b, read_calls(bytes)))
                           : staged_seconds(costs(), size(), b, staged_meetings(bytes));
  return bytes != 0 && bytes <= Member::kPayloadBytes && name() != "thread" &&
         one_shot_seconds(costs(), size(), b) <= plain;
}

std::string SharedGroup::way_text(size_t bytes) const {
  if (prefers_one_shot(bytes)) return "one_shot";
  if (name() == "thread") return "two_shot";
  const bool reads = prefers_reading(bytes);
  return concat("two_shot (memory of allocate() directly, other memory ",
                prefers_eager(bytes) ? "in one_shot"
                : reads              ? "read by process_vm_readv"
                                     : "through staging areas",
                ")");
}

void SharedGroup::barrier() {
  Collective collective;
  collective.request.algorithm = Algorithm::kOneShot;
  run(collective);
}

Costs SharedGroup::measure_costs(int rounds) {
  Costs costs{1, 1, 1, 1, 1};
  const int next = (rank() + 1) % size();
  std::vector<std::byte> from(kProbeBytes, std::byte{1});
  std::vector<std::byte> to(kProbeBytes, std::byte{2});
  barrier();
  for (int i = 0; i < 3 * rounds; ++i) {
    keep_least(costs.meet, [&] {
      for (int k = 0; k < kMeetings; ++k) barrier();
    });
    std::memset(peers_[rank()].staging, i, kProbeBytes);
    // The others learn where `from` is.
    Collective places;
    places.request.kind = Kind::kAllGather;
    places.request.count = kProbeBytes;
    places.send = from.data();
    places.recv = to.data();
    arrive(places, nullptr, 0, places_of(places));
    keep_least(costs.fetch, [&] { std::memcpy(to.data(), peers_[next].staging, kProbeBytes); });
    keep_least(costs.copy, [&] { std::memcpy(to.data(), from.data(), kProbeBytes); });
    if (all_read()) {
      const uint64_t address = arrival(next).send & ~kForeign;
      const auto read = [&](size_t bytes) { read_peer(next, address, to.data(), bytes); };
      keep_least(costs.read_call, [&] { read(64); });
      keep_least(costs.read, [&] { read(kProbeBytes); });
    }
    barrier();
  }
  costs.meet /= kMeetings;
  costs.fetch /= kProbeBytes;
  costs.copy /= kProbeBytes;
  if (!all_read()) costs.read = costs.read_call = 0;
  costs.read = std::max(costs.read - costs.read_call, 0.0) / kProbeBytes;
  return costs;
}

}  // namespace lockstep::comm
