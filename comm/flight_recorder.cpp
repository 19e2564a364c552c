#include "lockstep/comm/flight_recorder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "lockstep/comm/socket.h"
#include "lockstep/comm/text.h"
#include "lockstep/comm/world.h"

namespace lockstep::comm {
namespace {

// All recorders of this process.
struct Registry {
  std::mutex mutex;
  std::vector<const FlightRecorder*> recorders;  // in the order in which they were made
};

Registry& registry() {
  static Registry& one = *new Registry;  // communicators may outlive static objects
  return one;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// The folder to write to, made if need be; "" for none. One that lies in a place where everybody
// writes must be this user's own.
std::string folder() {
  std::string named = variable("LOCKSTEP_RECORD");
  if (named == "off") return "";
  const bool own = !named.empty();
  if (!own) {
    const std::string temporary = variable("TMPDIR");
    named = concat(temporary.empty() ? "/tmp" : temporary, "/lockstep-", ::geteuid());
  }
  if (::mkdir(named.c_str(), own ? 0777 : 0700) != 0 && errno != EEXIST) return "";
  struct stat status {};
  if (own) return ::stat(named.c_str(), &status) == 0 && S_ISDIR(status.st_mode) ? named : "";
  const bool good = ::lstat(named.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
                    status.st_uid == ::geteuid();
  return good ? named : "";
}

// In place of an earlier file in one step, so that nobody reads half of one.
bool replace_file(const std::string& name, const std::string& text) {
  const std::string part = concat(name, ".part");
  ::unlink(part.c_str());
  Fd file(::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return false;
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t put = ::write(file.get(), text.data() + done, text.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) break;
    done += static_cast<size_t>(put);
  }
  if (done == text.size() && ::rename(part.c_str(), name.c_str()) == 0) return true;
  ::unlink(part.c_str());
  return false;
}

std::string host_name() {
  std::array<char, 256> text{};
  ::gethostname(text.data(), text.size() - 1);
  return text.data();
}

std::string job_name() {
  try {
    return world_from_environment().job;
  } catch (const Error&) {
    return "";
  }
}

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

// Turns ticks into microseconds since 1970.
class FlightRecorder::Wall {
 public:
  Wall(int64_t first_ticks, std::chrono::steady_clock::time_point first_time) {
    using Seconds = std::chrono::duration<double>;
    // So long that what a look at a clock takes does not count.
    constexpr Seconds kLeast{0.002};
    std::chrono::steady_clock::time_point now;
    do {
      now = std::chrono::steady_clock::now();
    } while (now - first_time < kLeast);
    now_ticks_ = ticks();
    now_us_ = now_us();
    us_per_tick_ =
        Seconds(now - first_time).count() * 1e6 / static_cast<double>(now_ticks_ - first_ticks);
  }
  int64_t us(int64_t ticks) const {
    if (ticks == 0) return 0;
    const double ago = static_cast<double>(now_ticks_ - ticks) * us_per_tick_;
    return now_us_ - static_cast<int64_t>(std::max(ago, 0.0));
  }

 private:
  int64_t now_ticks_ = 0;
  int64_t now_us_ = 0;
  double us_per_tick_ = 0;
};

FlightRecorder::FlightRecorder(About about)
    : about_(std::move(about)),
      first_ticks_(ticks()),
      first_time_(std::chrono::steady_clock::now()),
      entries_(kEntries) {
  const std::lock_guard lock(registry().mutex);
  registry().recorders.push_back(this);
}

FlightRecorder::~FlightRecorder() {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().recorders, this);
}

FlightGroup FlightRecorder::group(const Wall& wall) const {
  constexpr std::array<const char*, 4> kNames = {"queued", "started", "done", "failed"};
  FlightGroup out{about_.group,       about_.transport, about_.rank,
                  about_.world_ranks, asked_.load(),    {}};
  for (const Entry& entry : entries_) {
    FlightEntry copy;
    copy.sequence = entry.sequence.load();
    const uint64_t state = entry.state.load();
    copy.queued_us = wall.us(entry.queued.load());
    copy.started_us = wall.us(entry.started.load());
    copy.finished_us = wall.us(entry.finished.load());
    copy.request = Request::decode(entry.code.load(), entry.count.load()).text();
    // Empty, or being written at this moment by a collective that has just begun.
    if (copy.sequence == 0 || copy.sequence != entry.sequence.load() || state > kFailed) continue;
    copy.state = kNames[state];
    out.entries.push_back(std::move(copy));
  }
  std::sort(out.entries.begin(), out.entries.end(),
            [](const FlightEntry& a, const FlightEntry& b) { return a.sequence < b.sequence; });
  return out;
}

std::string FlightRecorder::dump(std::string_view error) const noexcept {
  try {
    const std::string where = folder();
    if (where.empty()) return "";
    const int rank = about_.world_ranks[static_cast<size_t>(about_.rank)];
    Flight flight{job_name(), host_name(), ::getpid(), rank, now_us(), std::string(error), {}};
    std::map<std::string, int> seen;
    const std::lock_guard lock(registry().mutex);
    for (const FlightRecorder* one : registry().recorders) {
      // Ranks may be threads of one process.
      const About& about = one->about_;
      if (about.world_ranks[static_cast<size_t>(about.rank)] != rank) continue;
      FlightGroup group = one->group(Wall(one->first_ticks_, one->first_time_));
      // Groups of one name are told apart by their order, which is the same on all ranks.
      if (const int before = seen[group.name]++; before > 0) {
        group.name += concat(" (", before + 1, ")");
      }
      flight.groups.push_back(std::move(group));
    }
    const std::string name = concat(where, "/rank-", rank, ".flight");
    return replace_file(name, write_flight(flight)) ? name : "";
  } catch (...) {
    return "";  // the error that it is about matters more
  }
}

}  // namespace lockstep::comm
