#include "lockstep/comm/world.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "lockstep/comm/socket.h"
#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kOp = "world_from_environment";

// The value of a variable; nullopt where it is not set or empty.
std::optional<std::string> text(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

// One of the names a launcher uses for the four places of a rank.
struct Names {
  const char* source;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

constexpr Names kLockstep{"Lockstep's launcher", "LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE",
                          "LOCKSTEP_LOCAL_RANK", "LOCKSTEP_LOCAL_WORLD_SIZE"};
constexpr Names kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                         "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kPmi{"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

// A whole number in [low, high], or nullopt where the variable is not set.
std::optional<int> number(const char* name, int low, int high) {
  const std::optional<std::string> value = text(name);
  if (!value) return std::nullopt;
  int parsed = 0;
  const bool digits = value->find_first_not_of("0123456789") == std::string::npos;
  check(digits && parse_number(*value, parsed) && parsed >= low && parsed <= high, kOp, [&] {
    return concat(name, " wants a whole number from ", low, " to ", high, ", got \"", *value, "\"");
  });
  return parsed;
}

constexpr int kMaxWorld = 1 << 20;

int required(const char* name, int low, int high, const char* source, const char* because) {
  const std::optional<int> value = number(name, low, high);
  check(value.has_value(), kOp, [&] {
    return concat(name, " is not set although ", because, " is: ", source,
                  " sets both; set it, or unset ", because);
  });
  return *value;
}

// Whether the source is there at all, by either of its two main names; fills in rank and size.
bool read_global(const Names& names, World& world) {
  if (!text(names.rank) && !text(names.size)) return false;
  world.size = required(names.size, 1, kMaxWorld, names.source, names.rank);
  world.rank = required(names.rank, 0, world.size - 1, names.source, names.size);
  return true;
}

// The local places; false where neither is told.
bool read_local(const Names& names, World& world) {
  if (!text(names.local_rank) && !text(names.local_size)) return false;
  world.local_size = required(names.local_size, 1, world.size, names.source, names.local_rank);
  world.local_rank =
      required(names.local_rank, 0, world.local_size - 1, names.source, names.local_size);
  return true;
}

// "node[03-07,9],other" -> "node03": the first host of a Slurm list.
std::string first_host(std::string_view list) {
  const size_t end = list.find_first_of(",[");
  if (end == list.npos) return std::string(list);
  if (list[end] == ',') return std::string(list.substr(0, end));
  const std::string_view inside = list.substr(end + 1);
  const size_t close = inside.find(']');
  const std::string_view number = inside.substr(0, inside.find_first_of("-,]"));
  if (close == inside.npos || number.empty()) return {};
  const std::string_view rest = inside.substr(close + 1);  // a suffix, as in node[1-2]-ib
  return concat(list.substr(0, end), number, rest.substr(0, rest.find_first_of(",[")));
}

// "2(x3),1" -> how many tasks the node with this index has; nullopt where the text is not such.
std::optional<int> tasks_on_node(std::string_view list, int node) {
  while (!list.empty()) {
    const std::string_view part = list.substr(0, list.find(','));
    list.remove_prefix(std::min(part.size() + 1, list.size()));
    int tasks = 0;
    int times = 1;
    const size_t open = part.find("(x");
    if (!parse_number(part.substr(0, open), tasks)) return std::nullopt;
    if (open != part.npos) {
      if (part.back() != ')') return std::nullopt;
      if (!parse_number(part.substr(open + 2, part.size() - open - 3), times)) {
        return std::nullopt;
      }
    }
    if (node < times) return tasks;
    node -= times;
  }
  return std::nullopt;
}

// Slurm counts in its own way. False outside a Slurm task: SLURM_NTASKS alone is the allocation a
// shell sits in.
bool read_slurm(World& world, bool& has_local) {
  if (!text("SLURM_PROCID")) return false;
  const char* size = text("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  world.size = required(size, 1, kMaxWorld, "Slurm", "SLURM_PROCID");
  world.rank = required("SLURM_PROCID", 0, world.size - 1, "Slurm", size);
  const std::optional<int> local = number("SLURM_LOCALID", 0, world.size - 1);
  const char* per_node =
      text("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  const std::optional<std::string> tasks = text(per_node);
  has_local = local.has_value() && tasks.has_value();
  if (!has_local) return true;
  const int node = number("SLURM_NODEID", 0, kMaxWorld).value_or(0);
  const std::optional<int> count = tasks_on_node(*tasks, node);
  check(count.has_value() && *count > *local && *count <= world.size, kOp, [&] {
    return concat(per_node, " wants task counts such as 2(x3),1 that cover node ", node,
                  " and local rank ", *local, " in a world of ", world.size, ", got \"", *tasks,
                  "\"");
  });
  world.local_rank = *local;
  world.local_size = *count;
  return true;
}

// A port that all ranks of a job find by themselves, below the range the system gives out.
int port_of_job(std::string_view job) {
  uint64_t hash = 14695981039346656037ull;  // FNV-1a: any process must get the same
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return static_cast<int>(20000 + hash % 10000);
}

std::string job_from_environment() {
  for (const char* name : {"LOCKSTEP_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"}) {
    if (const std::optional<std::string> job = text(name)) return *job;
  }
  // "1234.1", where what follows the last dot counts the jobs of one mpirun.
  return text("PMIX_NAMESPACE").value_or("");
}

void set_store(World& world, const std::string& value, const char* name) {
  const Endpoint endpoint = parse_endpoint(value, name);
  check(endpoint.port > 0 || world.size == 1, kOp, [&] {
    return concat(name, " wants a port from 1 to 65535 that every rank knows, got \"", value, "\"");
  });
  world.store_host = endpoint.host;
  world.store_port = endpoint.port;
}

// MASTER_ADDR and MASTER_PORT; false where neither is set.
bool read_master(World& world) {
  const std::optional<std::string> host = text("MASTER_ADDR");
  const int port = number("MASTER_PORT", 1, 65535).value_or(0);
  if (!host && port == 0) return false;
  check(host.has_value(), kOp,
        "MASTER_ADDR is not set although MASTER_PORT is: set it to the "
        "address of rank 0's host");
  check(port != 0, kOp,
        "MASTER_PORT is not set although MASTER_ADDR is: set it to a free port of "
        "rank 0's host");
  // torchrun's agent may hold the port for a store of its own, which is not ours to join.
  const bool taken = text("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  check(port + (taken ? 1 : 0) <= 65535, kOp,
        "MASTER_PORT 65535 is torchrun's own, and there is none above it for Lockstep's store: "
        "choose a lower one, or set LOCKSTEP_STORE=host:port");
  world.store_host = *host;
  world.store_port = port + (taken ? 1 : 0);
  return true;
}

[[noreturn]] void throw_no_store(const char* source) {
  throw Error(ErrorCode::kInvalidArgument, kOp,
              concat(source,
                     " does not say where the ranks meet: set LOCKSTEP_STORE to the "
                     "address of rank 0's host and a free port there, such as "
                     "LOCKSTEP_STORE=10.0.0.1:29500, for every rank"));
}

}  // namespace

World world_from_environment() {
  World world;
  world.token = text("LOCKSTEP_TOKEN").value_or("");
  world.job = job_from_environment();

  const char* source = nullptr;
  bool has_local = false;
  for (const Names& names : {kLockstep, kTorchrun, kOpenMpi, kPmi}) {
    if (!read_global(names, world)) continue;
    source = names.source;
    has_local = read_local(names, world);
    break;
  }
  const bool own = source == kLockstep.source;
  const bool mpi = source == kOpenMpi.source || source == kPmi.source;
  const bool slurm = source == nullptr && read_slurm(world, has_local);
  if (slurm) source = "Slurm";
  if (source == nullptr) return world;

  const bool one_host = has_local && world.local_size == world.size;
  if (const std::optional<std::string> store = text("LOCKSTEP_STORE")) {
    set_store(world, *store, "LOCKSTEP_STORE");
    if (own) world.store_hosted = number("LOCKSTEP_STORE_HOSTED", 0, 1).value_or(0) == 1;
  } else if (own) {
    if (world.size > 1) throw_no_store(source);
  } else if (!read_master(world) && world.size > 1) {
    if (world.job.empty() || !(one_host || slurm) || !(mpi || slurm)) throw_no_store(source);
    if (!one_host) {
      const char* name = text("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
      world.store_host = first_host(text(name).value_or(""));
      if (world.store_host.empty()) throw_no_store(source);
    }
    world.store_port = port_of_job(world.job);
  }

  if (!has_local && is_loopback(world.store_host)) {
    world.local_rank = world.rank;
    world.local_size = world.size;
  }
  return world;
}

std::chrono::milliseconds default_timeout() {
  constexpr const char* kName = "LOCKSTEP_TIMEOUT";
  const std::optional<std::string> value = text(kName);
  if (!value) return std::chrono::seconds(600);
  double seconds = 0;
  check(parse_number(*value, seconds) && seconds > 0 && seconds <= 1e7, "default_timeout", [&] {
    return concat(kName, " wants seconds, over 0 and at most 10000000, got \"", *value, "\"");
  });
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
}

}  // namespace lockstep::comm
