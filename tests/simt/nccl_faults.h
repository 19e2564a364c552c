#pragma once

#include <map>
#include <string>

// What a test may ask of the emulator's NCCL (nccl.cpp), and tell it to do wrong.
namespace simt {

// Collectives that ranks of this process have put on their streams by it.
int nccl_calls();

struct NcclFaults {
  std::string missing = {};                    // why there is no library
  std::map<int, std::string> connecting = {};  // by rank: its error when it connects
  std::map<int, std::string> later = {};  // by rank: an error that it notices by itself from now on
};
void set_nccl_faults(const NcclFaults& faults);

// Memory of this process that is registered now, ever was, and was freed while it was registered or
// let go while collectives were on their way.
struct NcclMemory {
  int now = 0;
  int ever = 0;
  int let_go_too_soon = 0;
};
NcclMemory nccl_memory();

}  // namespace simt
