// Where a job meets, as people, launchers and ranks write it: "host:port" is read as what it says,
// and written and read again as the same, or is an Error.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "lockstep/comm/socket.h"
#include "lockstep/kernels/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace lockstep::comm;
  Endpoint endpoint;
  try {
    endpoint = parse_endpoint({reinterpret_cast<const char*>(data), bytes}, "input");
  } catch (const lockstep::Error&) {
    return 0;
  }
  is_loopback(endpoint.host);
  if (endpoint.port < 0 || endpoint.port > 65535 || endpoint.host.empty()) std::abort();
  const Endpoint again = parse_endpoint(to_string(endpoint), "written");
  if (again.host != endpoint.host || again.port != endpoint.port) std::abort();
  return 0;
}
