#include "lockstep/comm/join_timeline.h"

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/timeline.h"

namespace lockstep::comm {
namespace {

int64_t wall_ns() {
  timespec time = {};
  clock_gettime(CLOCK_REALTIME, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// What processes with one monotonic clock have in common.
std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

int64_t number(std::string_view text) {
  int64_t value = 0;
  check(parse_number(text, value), "LOCKSTEP_TIMELINE",
        [&] { return concat("want a number from another rank, got '", text, "'"); });
  return value;
}

}  // namespace

void join_timeline(const World& world, Store* store, std::chrono::milliseconds timeout) {
  if (!timeline::enabled()) return;
  timeline::set_thread(world.rank, "training");
  if (store == nullptr) return timeline::open({.zero_ns = timeline::now_ns()});
  const char* restart = std::getenv("LOCKSTEP_RESTART");
  const std::string prefix = concat("timeline/", restart == nullptr ? "0" : restart, "/");
  const std::string start = prefix + "start";          // rank 0's wall clock at the beginning
  const std::string host = concat(prefix, boot_id());  // the suffix of its file, and zero
  timeline::Opening opening;
  if (world.local_rank == 0) {
    if (world.rank == 0) {
      opening.zero_ns = timeline::now_ns();
      store->set(start, std::to_string(wall_ns()));
    } else {
      const int64_t passed = wall_ns() - number(store->get(start, timeout));
      opening.zero_ns = timeline::now_ns() - passed;
      opening.suffix = concat(".", world.rank);
    }
    timeline::open(opening);
    store->set(host, concat(opening.suffix, " ", opening.zero_ns));
    return;
  }
  const std::string said = store->get(host, timeout);
  const size_t space = said.find(' ');
  timeline::open({.suffix = said.substr(0, space),
                  .makes = false,
                  .zero_ns = number(space == said.npos ? "" : said.substr(space + 1))});
}

}  // namespace lockstep::comm
