#include "lockstep/comm/interface.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kOp = "connect";

std::string address_text(const sockaddr* address, socklen_t bytes) {
  char host[NI_MAXHOST];
  if (getnameinfo(address, bytes, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return host;
}

socklen_t length_of(const sockaddr* address) {
  return address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

using Interfaces = std::unique_ptr<ifaddrs, decltype(&freeifaddrs)>;

Interfaces interfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    throw Error(ErrorCode::kIo, kOp, concat("cannot list interfaces: ", std::strerror(errno)));
  }
  return {first, freeifaddrs};
}

// An address by which other hosts may reach this one, or nothing.
std::string outside_address() {
  const Interfaces all = interfaces();
  std::string found;
  for (const ifaddrs* one = all.get(); one != nullptr; one = one->ifa_next) {
    const bool up = (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_LOOPBACK) == 0;
    if (one->ifa_addr == nullptr || !up) continue;
    if (one->ifa_addr->sa_family == AF_INET) {
      return address_text(one->ifa_addr, length_of(one->ifa_addr));
    }
    if (one->ifa_addr->sa_family == AF_INET6 && found.empty()) {
      found = address_text(one->ifa_addr, length_of(one->ifa_addr));
    }
  }
  return found;
}

std::string address_of(const std::string& wanted) {
  const Interfaces all = interfaces();
  std::string found;
  std::set<std::string> names;
  for (const ifaddrs* one = all.get(); one != nullptr; one = one->ifa_next) {
    names.insert(one->ifa_name);
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const std::string address = address_text(one->ifa_addr, length_of(one->ifa_addr));
    if (address == wanted) return address;
    // IPv4 where an interface has both: an IPv6 address may hold for its own link alone.
    if (wanted == one->ifa_name && (found.empty() || family == AF_INET)) found = address;
  }
  check(!found.empty(), kOp, [&] {
    std::string known;
    for (const std::string& name : names) known += concat(known.empty() ? "" : ", ", name);
    return concat("LOCKSTEP_IFNAME names no interface with an address: \"", wanted,
                  "\"; this host has ", known);
  });
  return found;
}

}  // namespace

std::string reachable_address(const Endpoint& store) {
  if (const char* wanted = std::getenv("LOCKSTEP_IFNAME"); wanted != nullptr && *wanted != '\0') {
    return address_of(wanted);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* first = nullptr;
  const std::string port = std::to_string(store.port);
  if (getaddrinfo(store.host.c_str(), port.c_str(), &hints, &first) == 0) {
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(first, freeaddrinfo);
    for (const addrinfo* one = first; one != nullptr; one = one->ai_next) {
      // Connecting a datagram socket sends nothing; it only chooses a route.
      const Fd fd(socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      sockaddr_storage own{};
      socklen_t bytes = sizeof own;
      if (fd && connect(fd.get(), one->ai_addr, one->ai_addrlen) == 0 &&
          getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &bytes) == 0) {
        std::string address = address_text(reinterpret_cast<sockaddr*>(&own), bytes);
        // Many systems give their own name a loopback address, which others cannot use.
        if (is_loopback(address) && !is_loopback(store.host)) {
          const std::string outside = outside_address();
          if (!outside.empty()) address = outside;
        }
        return address;
      }
    }
  }
  throw Error(ErrorCode::kIo, kOp,
              concat("no interface routes to the store at ", to_string(store),
                     "; name one with LOCKSTEP_IFNAME"));
}

}  // namespace lockstep::comm
