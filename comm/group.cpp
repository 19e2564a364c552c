// How a communicator comes to be: the choice of its transport, and the meeting of its ranks.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/auth.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/communicator_maker.h"
#include "lockstep/comm/costs.h"
#ifdef LOCKSTEP_WITH_CUDA
#include "lockstep/comm/cuda_transport.h"
#endif
#include "lockstep/comm/interface.h"
#include "lockstep/comm/join_timeline.h"
#include "lockstep/comm/log.h"
#ifdef LOCKSTEP_WITH_NCCL
#include "lockstep/comm/nccl_transport.h"
#endif
#include "lockstep/comm/reunion.h"
#include "lockstep/comm/shm_transport.h"
#include "lockstep/comm/tcp_transport.h"
#include "lockstep/comm/text.h"
#include "lockstep/comm/thread_transport.h"
#include "lockstep/kernels/parallel.h"
#include "lockstep/kernels/timeline.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kOp = "connect";
// The reason why a group failed comes behind the end of a rank's connections at most by this.
constexpr std::chrono::milliseconds kWhy{200};
// How often costs are measured for a table.
constexpr int kAtLength = 30;
constexpr int kAtLengthOnDevices = 4;  // where nothing else runs
constexpr std::array<std::string_view, 6> kTransports = {"thread", "shm",  "tcp",
                                                         "mixed",  "cuda", "nccl"};

// An option, or else the environment's; and which of the two it is, for messages.
struct Chosen {
  std::string value;
  std::string_view from;
};

Chosen choose(const std::string& option, std::string_view option_name, const char* variable) {
  if (!option.empty()) return {option, option_name};
  const char* value = std::getenv(variable);
  return {value != nullptr ? value : "", variable};
}

std::string transport_name(const Options& options) {
  const Chosen chosen = choose(options.transport, "Options::transport", "LOCKSTEP_TRANSPORT");
  const bool known = chosen.value.empty() || std::find(kTransports.begin(), kTransports.end(),
                                                       chosen.value) != kTransports.end();
  check(known, kOp, [&] {
    return concat(chosen.from, " wants one of thread shm tcp mixed cuda nccl, got \"", chosen.value,
                  "\"");
  });
  return chosen.value;
}

// The name by which memory of the host goes; "cuda" and "nccl" are none.
std::string host_transport_name(const Options& options) {
  const std::string name = transport_name(options);
  return name == "cuda" || name == "nccl" ? "" : name;
}

// The same for two processes of one machine, and for no others.
std::string machine_name() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (!boot.empty()) return boot;
  std::array<char, 256> text{};
  gethostname(text.data(), text.size() - 1);
  return text.data();
}

// Throws where a group is to go between devices and has none.
void check_has_device(const Options& options) {
  const std::string wanted = transport_name(options);
  if (options.device.is_cuda() || (wanted != "cuda" && wanted != "nccl")) return;
#ifdef LOCKSTEP_WITH_CUDA
  const int count = device_count(DeviceType::kCuda);
  const std::string there = concat("this process sees ", count, " CUDA devices");
#else
  const std::string_view there = "this build of Lockstep is without CUDA";
#endif
  throw Error(
      ErrorCode::kInvalidArgument, kOp,
      concat(options.transport.empty() ? "LOCKSTEP_TRANSPORT" : "Options::transport", " wants \"",
             wanted, "\", which is for memory of CUDA devices, got a group without a device (",
             there,
             "); give each rank its Options::device, or for memory of the host one of "
             "thread shm tcp mixed, or no transport"));
}

std::string costs_file() {
  const char* file = std::getenv("LOCKSTEP_TUNE");
  return file != nullptr ? file : "";
}

#ifdef LOCKSTEP_WITH_CUDA
// Adds what a way between devices costs to the table that was asked for.
void save_device_costs(Transport& transport, const Options& options) {
  const bool between_devices = transport.name() == "cuda" || transport.name() == "nccl";
  if (options.save_costs.empty() || transport.size() == 1 || !between_devices) return;
  const Costs costs = measure_device_costs(transport, kAtLengthOnDevices);
  if (transport.rank() != 0) return;
  save_costs(options.save_costs, std::string(transport.name()), transport.size(), costs);
}
#endif

// Lets a group take memory of the device of its options, if it has one.
std::unique_ptr<Transport> with_device(std::unique_ptr<Transport> transport,
                                       const Options& options) {
  std::string wanted;
  [[maybe_unused]] std::optional<DeviceCosts> costs;
  try {
    check_has_device(options);
    require_device(options.device, kOp);
    wanted = transport_name(options);
    // A way that was asked for by its name is taken, whatever it costs.
    const bool may_choose = options.device.is_cuda() && wanted.empty();
    if (may_choose && transport->rank() == 0 && !costs_file().empty()) {
      costs = load_device_costs(costs_file(), transport->size());
    }
  } catch (...) {
    transport->leave(Failure::current(kOp));  // else the others would wait for this rank
    throw;
  }
#ifdef LOCKSTEP_WITH_CUDA
  if (options.device.is_cpu()) return transport;
  const bool by_nccl = wanted.empty() || wanted == "nccl";
  transport = make_cuda_transport(std::move(transport), options.device, by_nccl || wanted == "cuda",
                                  wanted == "cuda");
#ifdef LOCKSTEP_WITH_NCCL
  if (by_nccl) {
    transport = with_nccl(std::move(transport), machine_name(), wanted == "nccl", costs);
  }
#else
  check(
      wanted != "nccl", kOp,
      "transport \"nccl\" cannot be had: this build of Lockstep is without NCCL, whose nccl.h was "
      "not found; install NCCL's development files, and configure and build again");
#endif
  try {
    save_device_costs(*transport, options);
  } catch (...) {
    transport->leave(Failure::current(kOp));
    throw;
  }
#endif
  return transport;
}

Algorithm algorithm_of(const Options& options) {
  const Chosen chosen = choose(options.algorithm, "Options::algorithm", "LOCKSTEP_ALGO");
  return parse_algorithm(chosen.value, chosen.from);
}

// Throws where a transport has no such algorithm.
void check_algorithm(std::string_view transport, Algorithm algorithm) {
  const bool sockets = transport == "tcp" || transport == "mixed";
  check(!(sockets && algorithm == Algorithm::kTwoShot), kOp, [&] {
    return concat("algorithm \"two_shot\" needs memory that all ranks share; transport \"",
                  transport, "\" has ring and one_shot");
  });
}

std::chrono::milliseconds timeout_of(const Options& options) {
  return options.timeout.count() > 0 ? options.timeout : default_timeout();
}

// The same for two processes that can share memory through a Unix socket, and for no others: one
// boot of one kernel, one network namespace, one user. LOCKSTEP_HOST_ID in its place lets ranks of
// one machine behave as on several.
std::string host_identity(const Options& options) {
  const Chosen chosen = choose(options.host, "Options::host", "LOCKSTEP_HOST_ID");
  if (!chosen.value.empty()) return concat("named ", chosen.value);
  std::array<char, 256> text{};
  [[maybe_unused]] const ssize_t bytes =
      readlink("/proc/self/ns/net", text.data(), text.size() - 1);
  return concat(machine_name(), " ", text.data(), " ", geteuid());
}

// Waits for a key that every rank sets. Throws kTimeout naming all ranks that have not.
std::vector<std::string> get_of_all(const Meeting& meeting, std::string_view what,
                                    Deadline deadline) {
  const auto key = [&](int rank) { return concat(meeting.prefix, what, "/", rank); };
  std::vector<std::string> values(meeting.size);
  for (int rank = 0; rank < meeting.size; ++rank) {
    try {
      values[rank] = meeting.store->get(key(rank), std::chrono::milliseconds(poll_ms(deadline)));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
      std::vector<int> missing;
      for (int late = rank; late < meeting.size; ++late) {
        if (!meeting.store->try_get(key(late))) missing.push_back(late);
      }
      if (missing.empty()) missing.push_back(rank);
      throw Error(ErrorCode::kTimeout, kOp,
                  concat("rank ", meeting.rank, " waited ", seconds_text(meeting.timeout), " for ",
                         rank_list(missing), " to join"));
    }
  }
  return values;
}

void set_own(const Meeting& meeting, std::string_view what, std::string_view value) {
  meeting.store->set(concat(meeting.prefix, what, "/", meeting.rank), value);
}

// Gives the ranks of a new transport the same costs: rank 0's table's, if it has one and the table
// has them, and else what they measure.
void tune(Transport& transport, const Options& options) {
  if (transport.size() == 1) return;
  const std::string name(transport.name());
  const std::string file = costs_file();
  std::optional<Costs> known;
  if (transport.rank() == 0 && options.save_costs.empty() && !file.empty()) {
    known = load_costs(file, name, transport.size());
  }
  agree_on_costs(transport, known, options.save_costs.empty() ? 1 : kAtLength);
  const Costs& costs = transport.costs();
  if (transport.rank() == 0 && !options.save_costs.empty()) {
    save_costs(options.save_costs, name, transport.size(), costs);
  }
  if (!logs_debug()) return;
  for (int peer = 0; peer < transport.size(); ++peer) {
    if (peer == transport.rank()) continue;
    log_line(transport.rank(), concat("to rank ", peer, ": ", transport.pair_text(peer)));
  }
  if (transport.rank() != 0) return;
  log_line(
      0, concat("group \"", options.name, "\": ", transport.size(), " ranks, transport ", name,
                "; costs ", known ? concat("of ", file) : "measured", ": meet ", costs.meet * 1e6,
                " us, copy ", costs.copy * 1e9, " ns/B, fetch ", costs.fetch * 1e9, " ns/B, read ",
                costs.read * 1e9, " ns/B and ", costs.read_call * 1e6, " us a call"));
  constexpr size_t kEnd = size_t{1} << 30;
  for (size_t first = 4, bytes = 4; bytes <= kEnd; bytes *= 2) {
    if (bytes < kEnd && transport.way_text(bytes * 2) == transport.way_text(first)) continue;
    log_line(0, concat("all_reduce of ", first, " to ", bytes, " bytes: ",
                       transport.way_text(first), ", which the costs say is the fastest"));
    first = bytes * 2;
  }
}

// The transport that all ranks use, and their hosts by rank.
struct Agreed {
  std::string transport;
  std::vector<std::string> hosts;
};

// Shared memory where all ranks are on one host; sockets where all are on hosts of their own; both
// where some share one.
std::string transport_for(const std::vector<std::string>& hosts) {
  const std::set<std::string> apart(hosts.begin(), hosts.end());
  if (apart.size() == 1) return "shm";
  return apart.size() == hosts.size() ? "tcp" : "mixed";
}

Agreed agree(const Meeting& meeting, const Options& options, Deadline deadline) {
  const std::string named = host_transport_name(options);
  check_has_device(options);
  const std::string wanted =
      options.device.is_cpu() ? named : concat(transport_name(options), " and a device");
  const Algorithm algorithm = algorithm_of(options);
  check(named != "thread", kOp,
        "transport \"thread\" is for ranks that are threads of one process: see run_ranks()");
  check_algorithm(named, algorithm);
  logs_debug();
  if (meeting.rank == 0 && !costs_file().empty()) load_costs(costs_file(), "", 0);
  set_own(meeting, "host", concat(wanted, "\n", host_identity(options)));
  std::vector<std::string> hosts = get_of_all(meeting, "host", deadline);
  for (int rank = 0; rank < meeting.size; ++rank) {
    const std::string theirs = hosts[rank].substr(0, hosts[rank].find('\n'));
    if (theirs != wanted) {
      const auto shown = [](const std::string& name) {
        return name.empty() || name[0] == ' ' ? concat("any", name) : name;
      };
      throw Error(ErrorCode::kMismatch, kOp,
                  concat("rank ", meeting.rank, " wants transport ", shown(wanted), ", rank ", rank,
                         " ", shown(theirs),
                         ": give all the same LOCKSTEP_TRANSPORT, and all a device or none"));
    }
  }
  const std::string transport = named.empty() ? transport_for(hosts) : named;
  return {transport, std::move(hosts)};
}

// `places` are made where there are none yet.
std::unique_ptr<Transport> meet(const World& world, std::shared_ptr<Store> store,
                                const Options& options, std::shared_ptr<ReunionPlaces>& places) {
  const std::chrono::milliseconds timeout = timeout_of(options);
  const Deadline deadline = deadline_after(timeout);
  check(store != nullptr, kOp, "a world of several ranks needs a store to meet in");
  // A rank's n-th group of this name meets the others' n-th.
  const int64_t made = store->add(concat("comm/", options.name, "/made/", world.rank), 1);
  const std::string prefix = concat("comm/", options.name, "/", made, "/");
  Gathering gathering(store, prefix, world.rank);
  Meeting meeting{world.rank, world.size, store, &gathering, prefix, "", timeout, {}};
  try {
    Agreed agreed = agree(meeting, options, deadline);
    check_algorithm(agreed.transport, algorithm_of(options));
    if (agreed.transport == "mixed") meeting.hosts = std::move(agreed.hosts);
    // Only who holds the job's token can read it in the store.
    const std::string secret_key = concat(prefix, "secret");
    if (world.rank == 0) store->set(secret_key, random_token());
    meeting.secret = store->get(secret_key, std::chrono::milliseconds(poll_ms(deadline)));

    const bool makes_places = places == nullptr;
    if (makes_places) {
      const std::string host = reachable_address(store->endpoint());
      places = std::make_shared<ReunionPlaces>();
      places->secret = meeting.secret;
      places->own =
          std::make_unique<StoreServer>(StoreServer::Options{host, 0, meeting.secret, ""});
      set_own(meeting, "place", to_string(Endpoint{host, places->own->port()}));
    }
    const bool crowded = world.local_size > sysconf(_SC_NPROCESSORS_ONLN);
    std::unique_ptr<Transport> made_transport = agreed.transport == "shm"
                                                    ? make_shm_transport(meeting)
                                                    : make_tcp_transport(meeting, crowded);
    if (makes_places) {
      for (const std::string& place : get_of_all(meeting, "place", deadline)) {
        places->stores.push_back(parse_endpoint(place, kOp));
      }
    }
    tune(*made_transport, options);
    store->barrier(concat(prefix, "ready"), world.rank, world.size,
                   std::chrono::milliseconds(poll_ms(deadline)));
    return made_transport;
  } catch (...) {
    const Failure failure = Failure::current(kOp);
    // Where rank 0 gave up and took the store along, the group's failure came before and says why.
    if (failure.code == ErrorCode::kPeerLost) gathering.wait_readable({}, deadline_after(kWhy));
    gathering.fail(failure.code, concat("rank ", world.rank, " could not join: ", failure.message));
    throw;
  }
}

}  // namespace

std::vector<int> ranks_up_to(int n) {
  std::vector<int> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::shared_ptr<Communicator> CommunicatorMaker::make(std::unique_ptr<Transport> transport,
                                                      Algorithm algorithm, Lineage lineage) {
  transport = with_device(std::move(transport), lineage.options);
  std::string about_ranks;
  if (lineage.world_ranks != ranks_up_to(transport->size())) {
    about_ranks = transport->size() == 1 ? " (rank 0 of this group is rank "
                                         : " (the ranks of this group are, in order, ranks ";
    for (const int rank : lineage.world_ranks) {
      about_ranks += concat(rank == lineage.world_ranks.front() ? "" : ", ", rank);
    }
    about_ranks += " of the world)";
  }
  FlightRecorder::About about{lineage.options.name, std::string(transport->name()),
                              transport->rank(), lineage.world_ranks};
  auto queue = std::make_shared<OperationQueue>(std::move(transport), std::move(about_ranks),
                                                std::move(about));
  return std::shared_ptr<Communicator>(
      new Communicator(std::move(queue), algorithm, std::move(lineage)));
}

std::shared_ptr<Communicator> connect(const World& world, std::shared_ptr<Store> store,
                                      const Options& options) {
  check(world.size >= 1 && world.rank >= 0 && world.rank < world.size, kOp, [&] {
    return concat("want a rank in [0, world size), got rank ", world.rank, " of ", world.size);
  });
  return connect_group(world, std::move(store), options, ranks_up_to(world.size), nullptr);
}

std::shared_ptr<Communicator> connect_group(const World& group, std::shared_ptr<Store> store,
                                            const Options& options, std::vector<int> world_ranks,
                                            std::shared_ptr<ReunionPlaces> places) {
  std::unique_ptr<Transport> transport;
  if (group.size > 1) {
    transport = meet(group, store, options, places);
  } else {
    transport_name(options);
    transport = std::move(make_thread_transports(1, timeout_of(options))[0]);
  }
  const Algorithm algorithm = algorithm_of(options);
  return CommunicatorMaker::make(
      std::move(transport), algorithm,
      {std::move(store), std::move(places), nullptr, options, std::move(world_ranks)});
}

std::shared_ptr<Communicator> init(const Options& options) {
  const World world = world_from_environment();
  set_local_ranks(world.local_size);
  std::shared_ptr<Store> store;
  if (world.size > 1) store = Store::connect(world, timeout_of(options));
  join_timeline(world, store.get(), timeout_of(options));
  return connect(world, std::move(store), options);
}

void run_ranks(int n, const std::function<void(Communicator&)>& fn, const Options& options) {
  check(n >= 1, "run_ranks", [&] { return concat("want at least one rank, got ", n); });
  run_ranks(std::vector<Device>(static_cast<size_t>(n), options.device), fn, options);
}

void run_ranks(const std::vector<Device>& devices, const std::function<void(Communicator&)>& fn,
               const Options& given) {
  check(!devices.empty(), "run_ranks", "want a device for each rank, got none");
  const auto n = static_cast<int>(devices.size());
  const std::string wanted = host_transport_name(given);
  const Algorithm algorithm = algorithm_of(given);
  const bool threads = wanted.empty() || wanted == "thread" || n == 1;

  std::vector<std::unique_ptr<Transport>> transports;
  const auto reunion = std::make_shared<ThreadReunion>(n);
  std::unique_ptr<StoreServer> server;
  const std::string token = random_token();
  if (threads) {
    transports = make_thread_transports(n, timeout_of(given));
  } else {
    server = std::make_unique<StoreServer>(StoreServer::Options{"127.0.0.1", 0, token, ""});
  }

  std::mutex mutex;
  std::exception_ptr first;
  const auto run = [&](int rank) {
    timeline::set_thread(rank, "training");
    Options options = given;
    options.device = devices[static_cast<size_t>(rank)];
    try {
      std::shared_ptr<Communicator> communicator;
      if (threads) {
        tune(*transports[rank], options);
        communicator =
            CommunicatorMaker::make(std::move(transports[rank]), algorithm,
                                    {nullptr, nullptr, reunion, options, ranks_up_to(n)});
      } else {
        World world{rank, n, rank, n, "127.0.0.1", server->port(), true, token, ""};
        communicator = connect(world, Store::connect(world, timeout_of(options)), options);
      }
      fn(*communicator);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (first == nullptr) first = std::current_exception();
    }
  };
  const int ranks_before = set_local_ranks(n);
  std::vector<std::thread> ranks;
  try {
    for (int rank = 0; rank < n; ++rank) ranks.emplace_back(run, rank);
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex);
    first = std::make_exception_ptr(
        Error(ErrorCode::kInternal, "run_ranks",
              concat("no thread for rank ", ranks.size(), " of ", n, ": ", error.what())));
    // The ranks that run learn that the others left: their transports go.
    for (size_t rank = ranks.size(); rank < transports.size(); ++rank) {
      transports[rank]->leave({ErrorCode::kInternal, "run_ranks", "it could not be started"});
    }
  }
  for (std::thread& rank : ranks) rank.join();
  set_local_ranks(ranks_before);
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace lockstep::comm
