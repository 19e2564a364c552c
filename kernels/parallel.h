#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace lockstep {

// Threads that one call may use: OMP_NUM_THREADS if set, else this process's cores divided by the
// ranks on this host (set_local_ranks), at least one. Thread-safe.
int num_threads();

// Overrides num_threads() for the whole process; 0 goes back to the rule above.
void set_num_threads(int threads);

// Told by the communicator when a world is joined: how many ranks share this machine's cores.
// Returns what it was.
int set_local_ranks(int ranks);

// Runs f(begin, end) over disjoint pieces that cover [0, n), on several threads when there are at
// least `grain` items for each. Pieces depend on n, grain and num_threads() alone. f must not
// throw.
template <class F>
void parallel_for(int64_t n, int64_t grain, const F& f) {
  const int64_t pieces = std::min<int64_t>(num_threads(), grain > 0 ? n / grain : n);
  if (pieces <= 1 || omp_in_parallel()) {
    if (n > 0) f(int64_t{0}, n);
    return;
  }
#pragma omp parallel num_threads(static_cast <int>(pieces))
  {
    const int64_t i = omp_get_thread_num();
    const int64_t count = omp_get_num_threads();
    const int64_t begin = n / count * i + std::min(i, n % count);
    const int64_t end = begin + n / count + (i < n % count ? 1 : 0);
    if (begin < end) f(begin, end);
  }
}

}  // namespace lockstep
