#include "ranks.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "devices.h"
#include "lockstep/comm/auth.h"
#include "lockstep/comm/store.h"
#include "lockstep/comm/world.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/parallel.h"

namespace bench {
namespace {

using lockstep::Device;
using lockstep::comm::Communicator;
using lockstep::comm::Options;
using lockstep::comm::World;

constexpr std::chrono::seconds kTimeout{60};

// The end of fn on one rank, with what it threw as a line that names the rank.
int status_of(int rank, const std::function<int()>& run) {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

// Keeps each rank on a core of its own where there are enough, as MPI's launchers do.
void bind_to_core(int rank, int ranks) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0 || CPU_COUNT(&cores) < ranks) return;
  int left = rank;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &cores) || left-- > 0) continue;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    sched_setaffinity(0, sizeof cores, &cores);
    return;
  }
}

int run_rank(const World& world, const std::vector<Device>& devices, Options options,
             const std::function<int(Communicator&)>& fn) {
  return status_of(world.rank, [&] {
    lockstep::set_local_ranks(world.local_size);
    options.device = devices[static_cast<size_t>(world.rank)];
    const auto store = lockstep::comm::Store::connect(world, kTimeout);
    const auto comm = lockstep::comm::connect(world, store, options);
    const int status = fn(*comm);
    comm->barrier().wait();  // nobody leaves while another still needs it
    return status;
  });
}

int run_processes(const std::vector<Device>& devices, const Options& options,
                  const std::function<int(Communicator&)>& fn) {
  const int n = static_cast<int>(devices.size());
  World world;
  world.size = n;
  world.local_size = n;
  world.token = lockstep::comm::random_token();
  world.store_hosted = true;
  // The store's thread must not be there when this process forks; the port follows in a pipe.
  std::vector<int> pipes;
  std::vector<pid_t> children;
  const pid_t parent = getpid();
  for (int rank = 1; rank < n; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) return 1;
    const pid_t child = fork();
    if (child < 0) {
      std::perror("fork");
      return 1;
    }
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) std::_Exit(1);
      close(ends[1]);
      for (const int other : pipes) close(other);
      if (read(ends[0], &world.store_port, sizeof world.store_port) != sizeof world.store_port) {
        std::_Exit(1);
      }
      world.rank = world.local_rank = rank;
      bind_to_core(rank, n);
      const int status = run_rank(world, devices, options, fn);
      std::fflush(stdout);
      std::_Exit(status);
    }
    close(ends[0]);
    pipes.push_back(ends[1]);
    children.push_back(child);
  }
  int status = 1;
  {
    lockstep::comm::StoreServer server({"127.0.0.1", 0, world.token, ""});
    world.store_port = server.port();
    for (const int end : pipes) {
      if (write(end, &world.store_port, sizeof world.store_port) < 0) std::perror("pipe");
      close(end);
    }
    bind_to_core(0, n);
    status = run_rank(world, devices, options, fn);
    for (const pid_t child : children) {
      int ended = 0;
      if (waitpid(child, &ended, 0) != child || ended != 0) status = 1;
    }
  }
  return status;
}

}  // namespace

int run_as_ranks(int n, const std::vector<Device>& devices, const Options& options,
                 const std::function<int(Communicator&)>& fn) {
  if (const World world = lockstep::comm::world_from_environment(); world.size > 1) {
    return status_of(world.rank, [&] {
      Options own = options;
      own.device = devices_of(devices, world.size)[static_cast<size_t>(world.rank)];
      const auto comm = lockstep::comm::init(own);
      const int status = fn(*comm);
      comm->barrier().wait();
      return status;
    });
  }
  const char* from_environment = std::getenv("LOCKSTEP_TRANSPORT");
  const std::string transport = !options.transport.empty()    ? options.transport
                                : from_environment != nullptr ? from_environment
                                                              : "shm";
  const std::vector<Device> of_ranks = devices_of(devices, n);
  if (transport != "thread" && n > 1) return run_processes(of_ranks, options, fn);
  std::atomic<int> status{0};
  const int failed = status_of(0, [&] {
    lockstep::comm::run_ranks(
        of_ranks,
        [&](Communicator& comm) {
          if (const int own = fn(comm); own != 0) status.store(own);
          comm.barrier().wait();
        },
        options);
    return 0;
  });
  return failed != 0 ? failed : status.load();
}

}  // namespace bench
