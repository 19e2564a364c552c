// A rank for the launcher's tests: finds its world, meets the others in the store, and prints what
// it found.

#include <chrono>
#include <cstdio>
#include <string>

#include "lockstep/comm/store.h"
#include "lockstep/comm/world.h"
#include "lockstep/kernels/error.h"

int main() {
  using namespace lockstep;
  try {
    const comm::World world = comm::world_from_environment();
    const auto store = comm::Store::connect(world, std::chrono::seconds(60));
    store->set("rank" + std::to_string(world.rank), std::to_string(world.rank * 10 + 1));
    if (world.rank == 0) return 0;  // the store outlives rank 0
    long sum = 0;
    for (int rank = 0; rank < world.size; ++rank) {
      sum += std::stol(store->get("rank" + std::to_string(rank), std::chrono::seconds(60)));
    }
    std::printf("rank %d of %d (%d of %d here) sum %ld token %zu job %s\n", world.rank, world.size,
                world.local_rank, world.local_size, sum, world.token.size(), world.job.c_str());
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
