#include "run_options.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <set>
#include <string_view>

#include "commands.h"
#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::cli {
namespace {

using comm::concat;

constexpr int kMaxRanks = 1024;
constexpr int kMaxNodes = 4096;
constexpr int kMaxRestarts = 1'000'000;
constexpr int kRendezvousPort = 29400;  // torchrun's

int whole_number(const std::string& option, const std::string& text, int low, int high) {
  int value = 0;
  if (!comm::parse_number(text, value) || value < low || value > high) {
    throw UsageError(
        concat(option, " wants a number from ", low, " to ", high, ", got \"", text, "\""));
  }
  return value;
}

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> out;
  while (true) {
    const size_t end = list.find(',');
    out.emplace_back(list.substr(0, end));
    if (end == list.npos) return out;
    list.remove_prefix(end + 1);
  }
}

// The names and addresses by which a list may mean this host.
std::set<std::string> own_names() {
  std::array<char, 256> text{};
  ::gethostname(text.data(), text.size() - 1);
  const std::string name = text.data();
  std::set<std::string> names{name, name.substr(0, name.find('.'))};
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return names;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, ::freeifaddrs);
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    std::array<char, NI_MAXHOST> address{};
    const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (::getnameinfo(one->ifa_addr, bytes, address.data(), address.size(), nullptr, 0,
                      NI_NUMERICHOST) == 0) {
      names.insert(address.data());
    }
  }
  return names;
}

// Which of the hosts this is; -1 for none.
int find_self(const std::vector<std::string>& hosts) {
  const std::set<std::string> names = own_names();
  for (size_t i = 0; i < hosts.size(); ++i) {
    if (names.contains(hosts[i]) || names.contains(hosts[i].substr(0, hosts[i].find('.')))) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

// What was said about several hosts.
struct Hosts {
  int nodes = -1;
  int node = -1;
  std::string rendezvous;
  std::vector<std::string> list;
};

void place(const Hosts& said, RunOptions& options) {
  options.nodes = said.list.empty() ? std::max(said.nodes, 1) : static_cast<int>(said.list.size());
  if (said.nodes > 0 && said.nodes != options.nodes) {
    throw UsageError(concat("--nnodes says ", said.nodes, " hosts, --hosts lists ", options.nodes));
  }
  if (options.nodes == 1) {
    if (said.node > 0) throw UsageError("--node-rank 1 and more wants --nnodes or --hosts");
    return;
  }
  options.node = said.node;
  if (options.node < 0 && !said.list.empty()) {
    options.node = find_self(said.list);
    if (options.node < 0) {
      throw UsageError(
          "--hosts does not list this host by its name or an address of it: say which "
          "one it is with --node-rank");
    }
  }
  if (options.node < 0) throw UsageError("say which host this is: --node-rank 0 and so on");
  if (options.node >= options.nodes) {
    throw UsageError(concat("--node-rank wants a number below the ", options.nodes, " hosts, got ",
                            options.node));
  }
  if (said.rendezvous.empty()) {
    if (said.list.empty()) throw UsageError("say where the hosts meet: --rendezvous HOST:PORT");
    options.rendezvous = {said.list[0], kRendezvousPort};
  } else {
    try {
      options.rendezvous = comm::parse_endpoint(said.rendezvous, "--rendezvous");
    } catch (const Error& error) {
      throw UsageError(error.what());
    }
    if (options.rendezvous.port == 0) {
      throw UsageError("--rendezvous wants a port that every host knows, not 0");
    }
  }
  const char* token = std::getenv("LOCKSTEP_TOKEN");
  if (token == nullptr || *token == '\0') {
    throw UsageError(
        "several hosts need a secret that only this job knows: set LOCKSTEP_TOKEN to "
        "the same on every host, such as what `openssl rand -hex 32` prints");
  }
}

}  // namespace

RunOptions parse_run_options(const std::vector<std::string>& arguments) {
  RunOptions options;
  Hosts hosts;
  size_t i = 0;
  const auto value = [&](const std::string& option) -> const std::string& {
    if (i + 1 >= arguments.size()) throw UsageError(concat(option, " wants a value"));
    return arguments[++i];
  };
  for (; i < arguments.size(); ++i) {
    const std::string& option = arguments[i];
    if (option == "--") {
      ++i;
      break;
    }
    if (!option.starts_with("-")) break;
    if (option == "--help" || option == "-h") return {};
    if (option == "-n") {
      options.ranks = whole_number(option, value(option), 1, kMaxRanks);
    } else if (option == "--log-dir") {
      options.log_dir = value(option);
    } else if (option == "--grace") {
      const std::string& text = value(option);
      if (!comm::parse_number(text, options.grace_seconds) || !(options.grace_seconds >= 0) ||
          options.grace_seconds > 1e6) {
        throw UsageError(concat("--grace wants seconds, 0 to 1000000, got \"", text, "\""));
      }
    } else if (option == "--max-restarts") {
      options.max_restarts = whole_number(option, value(option), 0, kMaxRestarts);
    } else if (option == "--nnodes") {
      hosts.nodes = whole_number(option, value(option), 1, kMaxNodes);
    } else if (option == "--node-rank") {
      hosts.node = whole_number(option, value(option), 0, kMaxNodes - 1);
    } else if (option == "--rendezvous") {
      hosts.rendezvous = value(option);
    } else if (option == "--hosts") {
      hosts.list = split(value(option));
    } else {
      throw UsageError(concat("there is no option \"", option, "\""));
    }
  }
  options.program.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  if (options.ranks == 0) throw UsageError("say how many ranks to start: -n 2");
  if (options.program.empty()) throw UsageError("say which program to start");
  place(hosts, options);
  return options;
}

}  // namespace lockstep::cli
