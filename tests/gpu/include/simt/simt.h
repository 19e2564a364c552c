#pragma once

#include <cstdint>
#include <string>

#include "lockstep/kernels/cuda/runtime.h"

// What the tests of tests/simt/ ask of the emulator, for a device: its schedules are its own, and
// what goes wrong on it is an error of some call.
namespace simt {

inline void seed(uint64_t) {}
inline std::string take_report() { return ""; }
// A machine has the devices and the memory that it has: tests that need less memory, or more
// devices, are left out of this build's list, or skipped.
inline int device_count() { return lockstep::cuda::device_count(); }
inline void set_device_bytes(size_t) {}
inline void set_device_count(int) {}
// So are those that count.
inline unsigned long long launches() { return 0; }

}  // namespace simt
