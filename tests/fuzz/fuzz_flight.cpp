// The files that ranks write of their last collectives: any text is read as what it says, and
// written and read again as the same, or is an Error.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "lockstep/comm/flight_file.h"
#include "lockstep/kernels/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace lockstep::comm;
  Flight flight;
  try {
    flight = read_flight({reinterpret_cast<const char*>(data), bytes}, "input");
  } catch (const lockstep::Error&) {
    return 0;
  }
  if (read_flight(write_flight(flight), "written") != flight) std::abort();
  return 0;
}
