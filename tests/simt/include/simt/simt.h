#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

// What a test may ask of the emulator beyond CUDA's own API.
namespace simt {

// Chooses the order of lanes, warps, blocks and streams from here on. SIMT_SEED is the first.
void seed(uint64_t value);

// Devices that this process sees: 2, or SIMT_DEVICES, at first. REQUIRES: at most 8.
int device_count();
// Where SIMT_DEVICES does not say how many there are.
void set_device_count(int count);

// The memory of each device; 1 GiB at first.
void set_device_bytes(size_t bytes);

// For how long nothing need be able to run before what streams wait for is taken never to come,
// which is an error that sticks; 300 s at first.
void set_patience(int seconds);

// What the last faulty kernel or launch did wrong, with its source lines; empty if there was none
// since the last call. Clears errors that stick, as a new process would.
std::string take_report();

// Kernels that this process has put on streams.
unsigned long long launches();

// Nanoseconds of the emulated clock of the calling thread's device.
long long clock();

}  // namespace simt
