#include "lockstep/kernels/parallel.h"

#include <sched.h>

#include <atomic>
#include <cstdlib>

namespace lockstep {
namespace {

std::atomic<int> override_threads{0};
std::atomic<int> ranks_here{1};

int cores_of_this_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, omp_get_num_procs());
}

}  // namespace

int num_threads() {
  if (const int wanted = override_threads.load(std::memory_order_relaxed); wanted > 0) {
    return wanted;
  }
  static const bool from_environment = std::getenv("OMP_NUM_THREADS") != nullptr;
  if (from_environment) return omp_get_max_threads();
  static const int cores = cores_of_this_process();
  return std::max(1, cores / ranks_here.load(std::memory_order_relaxed));
}

void set_num_threads(int threads) {
  override_threads.store(std::max(0, threads), std::memory_order_relaxed);
}

int set_local_ranks(int ranks) {
  return ranks_here.exchange(std::max(1, ranks), std::memory_order_relaxed);
}

}  // namespace lockstep
