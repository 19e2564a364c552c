#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace bench {

// The options of bench_allreduce, which mean what they mean in nccl-tests' all_reduce_perf, but for
// -n and -t.
struct AllReduceOptions {
  int ranks = 2;  // -n; of a job that the program starts itself
  int64_t begin_bytes = 8;
  int64_t end_bytes = int64_t{256} << 20;
  int64_t step_bytes = 0;   // -i; instead of a factor where not 0
  int64_t step_factor = 2;  // -f
  int64_t iterations = 0;   // --iters; 0: as many as the size allows, up to 2000
  int64_t warmup = 5;       // -w
  bool check = true;        // -c
  bool registered = true;   // -R; memory of Communicator::allocate() in place, else plain memory
  std::vector<lockstep::DType> dtypes = {lockstep::DType::kF32};                 // -d or -t
  std::vector<lockstep::comm::ReduceOp> ops = {lockstep::comm::ReduceOp::kSum};  // -o
  // --device; one for all ranks, or one for each
  std::vector<lockstep::Device> devices = {lockstep::kCpu};
  std::string transport;  // --transport
  std::string algorithm;  // --algo
  std::string json;       // --json: a file
  std::string tune;       // --tune: a file
  bool help = false;
};

// Throws lockstep::Error that names the option and what it wants.
AllReduceOptions parse_options(int argc, char** argv);

std::string usage();

// "8", "64K", "1M", "2G": powers of 1024.
int64_t parse_bytes(const std::string& text, const std::string& option);

}  // namespace bench
