// What `lockstep doctor` says of a machine.

#include "machine.h"

#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/store.h"
#include "lockstep/comm/text.h"
#include "lockstep/comm/world.h"
#include "lockstep/kernels/error.h"

namespace lockstep::cli {
namespace {

using comm::concat;

void say(const char* name, const std::string& text) {
  std::printf("%-12s %s\n", name, text.c_str());
}

std::string first_line(const std::string& file) {
  std::string line;
  std::ifstream stream(file);
  std::getline(stream, line);
  return line;
}

std::string gib(double bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f GiB", bytes / (1 << 30));
  return text.data();
}

// The value of a line such as "MemTotal:  123 kB" or "model name : X" of a file of /proc.
std::string field(const std::string& file, const std::string& name) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (!line.starts_with(name)) continue;
    const size_t value = line.find_first_not_of(" \t:", name.size());
    return value == line.npos ? "" : line.substr(value);
  }
  return "";
}

void describe_processor() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ::sched_getaffinity(0, sizeof allowed, &allowed);
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  std::string text = concat(online, " cores");
  if (CPU_COUNT(&allowed) != online) {
    text += concat(", of which this process may use ", CPU_COUNT(&allowed));
  }
  // "QUOTA PERIOD", or "max PERIOD".
  long long quota = 0;
  long long period = 0;
  const std::string limit = first_line("/sys/fs/cgroup/cpu.max");
  if (std::sscanf(limit.c_str(), "%lld %lld", &quota, &period) == 2 && period > 0) {
    text += concat(", limited to ", static_cast<double>(quota) / static_cast<double>(period),
                   " by its control group");
  }
  const std::string model = field("/proc/cpuinfo", "model name");
  say("cores", concat(text, model.empty() ? "" : ", ", model));
}

void describe_memory() {
  const auto kib = [](const char* name) {
    return 1024.0 * std::atof(field("/proc/meminfo", name).c_str());
  };
  std::string text = concat(gib(kib("MemTotal")), ", ", gib(kib("MemAvailable")), " free");
  const std::string limit = first_line("/sys/fs/cgroup/memory.max");
  if (!limit.empty() && limit != "max") {
    text += concat(", limited to ", gib(std::atof(limit.c_str())), " by its control group");
  }
  say("memory", text);
  const std::string huge = first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  if (!huge.empty()) say("huge pages", concat("of shared memory: ", huge));
}

std::string limit_text(int resource) {
  rlimit limit{};
  ::getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur);
}

void describe_limits() {
  say("limits", concat("open files (ulimit -n) ", limit_text(RLIMIT_NOFILE), ", file size (-f) ",
                       limit_text(RLIMIT_FSIZE), ", memory (-v) ", limit_text(RLIMIT_AS),
                       ", processes (-u) ", limit_text(RLIMIT_NPROC)));
}

void describe_devices() {
  std::vector<std::string> names;
  const std::string folder = "/proc/driver/nvidia/gpus";
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    names.push_back(field(entry.path() / "information", "Model"));
  }
  std::string text = concat(names.size(), " NVIDIA");
  for (const std::string& name : names) text += concat(", ", name);
  say("GPUs", concat(text, "; this version of Lockstep computes on CPUs alone"));
  struct Close {
    void operator()(void* library) const { ::dlclose(library); }
  };
  const std::unique_ptr<void, Close> nccl(::dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL));
  int version = 0;
  if (nccl != nullptr) {
    void* function = ::dlsym(nccl.get(), "ncclGetVersion");
    if (function != nullptr) reinterpret_cast<int (*)(int*)>(function)(&version);
  }
  say("NCCL", nccl == nullptr
                  ? "not found"
                  : concat(version / 10000, ".", version / 100 % 100, ".", version % 100));
}

void describe_network() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, ::freeifaddrs);
  std::map<std::string, std::string> interfaces;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    std::array<char, NI_MAXHOST> address{};
    const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (::getnameinfo(one->ifa_addr, bytes, address.data(), address.size(), nullptr, 0,
                      NI_NUMERICHOST) == 0) {
      interfaces[one->ifa_name] += concat(" ", address.data());
    }
  }
  std::string text;
  for (const auto& [name, addresses] : interfaces) {
    text += concat(text.empty() ? "" : ", ", name, addresses);
  }
  say("network", text);
}

void describe_environment() {
  std::string text;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view variable = *entry;
    const bool ours = variable.starts_with("LOCKSTEP_") || variable.starts_with("OMP_");
    if (!ours) continue;
    // A secret is not for a screen.
    const bool secret = variable.starts_with("LOCKSTEP_TOKEN=");
    text += concat(text.empty() ? "" : " ", secret ? "LOCKSTEP_TOKEN=…" : variable);
  }
  say("environment", text.empty() ? "none of LOCKSTEP_* and OMP_* is set" : text);
}

// Two ranks of this process over a transport; how long the smallest all-reduce takes, or why it
// does not work.
bool try_transport(const char* name) {
  constexpr int kRounds = 2000;
  comm::Options options;
  options.transport = name;
  options.timeout = std::chrono::seconds(20);
  double us = 0;
  try {
    comm::run_ranks(
        2,
        [&](comm::Communicator& group) {
          float value = 1;
          group.barrier().wait();
          const comm::Deadline start = comm::Clock::now();
          for (int i = 0; i < kRounds; ++i) {
            group.all_reduce(&value, &value, 1, DType::kF32, comm::ReduceOp::kMax).wait();
          }
          const std::chrono::duration<double, std::micro> took = comm::Clock::now() - start;
          if (group.rank() == 0) us = took.count() / kRounds;
        },
        options);
  } catch (const Error& error) {
    say(name, concat("does not work: ", error.what()));
    return false;
  }
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(), "works; 4 bytes between 2 threads take %.2f us", us);
  say(name, text.data());
  return true;
}

// "rank 0 (host a) ..." of all ranks, who meet as the ranks of a program would.
int describe_job(const comm::World& world) {
  const std::chrono::milliseconds timeout = comm::default_timeout();
  const auto store = comm::Store::connect(world, timeout);
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  store->set(concat("doctor/", world.rank), host.data());
  const auto group = comm::connect(world, store);
  const auto pair = [](int from, int to) { return concat("doctor/", from, "/", to); };
  for (int peer = 0; peer < world.size; ++peer) {
    if (peer != world.rank) store->set(pair(world.rank, peer), group->pair_text(peer));
  }
  if (world.rank == 0) {
    std::printf("\n");
    std::vector<std::string> hosts;
    for (int rank = 0; rank < world.size; ++rank) {
      hosts.push_back(store->get(concat("doctor/", rank), timeout));
    }
    for (int rank = 0; rank < world.size; ++rank) {
      say(concat("rank ", rank).c_str(), concat("on ", hosts[static_cast<size_t>(rank)]));
    }
    const std::string transport = group->transport();
    if (transport != "mixed") {
      std::printf("every pair of ranks uses %s\n", transport.c_str());
    } else {
      for (int from = 0; from < world.size; ++from) {
        for (int to = 0; to < world.size; ++to) {
          if (from == to) continue;
          std::printf("rank %d to rank %d: %s\n", from, to,
                      store->get(pair(from, to), timeout).c_str());
        }
      }
    }
  }
  group->barrier().wait();
  return 0;
}

}  // namespace

int describe_machine() {
  const comm::World world = comm::world_from_environment();
  bool good = true;
  if (world.rank == 0) {
    utsname system{};
    ::uname(&system);
    say("system", concat(system.sysname, " ", system.release, " on ", system.nodename,
                         ", Lockstep ", LOCKSTEP_VERSION));
    describe_processor();
    describe_memory();
    describe_devices();
    describe_limits();
    describe_network();
    describe_environment();
    for (const char* transport : {"thread", "shm", "tcp"}) good = try_transport(transport) && good;
  }
  if (world.size > 1) describe_job(world);
  return good ? 0 : 1;
}

}  // namespace lockstep::cli
