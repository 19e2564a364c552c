#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#ifdef __SANITIZE_THREAD__
#include <thread>
#include <vector>
#endif

namespace lockstep {

// Threads that one call may use: OMP_NUM_THREADS if set, else this process's cores divided by the
// ranks on this host (set_local_ranks), at least one. Thread-safe.
int num_threads();

// Overrides num_threads() for the whole process; 0 goes back to the rule above.
void set_num_threads(int threads);

// Told by the communicator when a world is joined: how many ranks share this machine's cores.
// Returns what it was.
int set_local_ranks(int ranks);

namespace detail {

// Runs piece(i, count) for each i of [0, count), each on a thread of its own. `count` may come out
// lower than asked. Within a piece in_team() holds.
#ifdef __SANITIZE_THREAD__
// ThreadSanitizer does not see how GCC's OpenMP starts and joins its threads, and these it sees.
inline thread_local bool in_some_team = false;
inline bool in_team() { return in_some_team; }
template <class F>
void run_team(int count, const F& piece) {
  std::vector<std::jthread> team;
  for (int i = 1; i < count; ++i) {
    team.emplace_back([&piece, i, count] {
      in_some_team = true;
      piece(i, count);
    });
  }
  in_some_team = true;
  piece(0, count);
  in_some_team = false;
}
#else
inline bool in_team() { return omp_in_parallel() != 0; }
template <class F>
void run_team(int count, const F& piece) {
#pragma omp parallel num_threads(count)
  piece(omp_get_thread_num(), omp_get_num_threads());
}
#endif

}  // namespace detail

// Runs f(begin, end) over disjoint pieces that cover [0, n), on several threads when there are at
// least `grain` items for each. Pieces depend on n, grain and num_threads() alone. f must not
// throw.
template <class F>
void parallel_for(int64_t n, int64_t grain, const F& f) {
  const int64_t pieces = std::min<int64_t>(num_threads(), grain > 0 ? n / grain : n);
  if (pieces <= 1 || detail::in_team()) {
    if (n > 0) f(int64_t{0}, n);
    return;
  }
  detail::run_team(static_cast<int>(pieces), [n, &f](int64_t i, int64_t count) {
    const int64_t begin = n / count * i + std::min(i, n % count);
    const int64_t end = begin + n / count + (i < n % count ? 1 : 0);
    if (begin < end) f(begin, end);
  });
}

}  // namespace lockstep
