// A libnccl.so.2 that keeps the books and moves no data, by which comm/nccl_group.cpp is tested:
// what it calls, in which order, and that it never waits for ever.
#include "fake_nccl.h"

#include <nccl.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Clique {
  int size = 0;
  int joined = 0;
  int finalized = 0;
};

// Never destroyed: a group that ends may be left to a thread.
auto& mutex = *new std::mutex;  // guards what follows
auto& cliques = *new std::map<std::string, Clique>;
int ids = 0;

thread_local bool in_group = false;
thread_local ncclResult_t group_error = ncclSuccess;
thread_local ncclComm_t group_comm = nullptr;

}  // namespace

struct ncclComm {
  Clique* clique;
  int rank;
  int looks = 0;
  bool calling = false;  // until a look says that the last call has ended
  bool finalizing = false;
  bool gone = false;
};

// What is gone stays, so that its use is seen.
static auto& comms = *new std::vector<std::unique_ptr<ncclComm>>;

FakeNccl* fake_nccl() {
  static auto* instance = new FakeNccl;
  return instance;
}

namespace {

// REQUIRES: locked.
void check(ncclComm_t comm) {
  if (comm == nullptr || comm->gone || comm->calling) ++fake_nccl()->misused;
}

ncclResult_t call(ncclComm_t comm, const NcclCall& asked) {
  const std::lock_guard lock(mutex);
  check(comm);
  ++fake_nccl()->calls;
  fake_nccl()->calls_of[static_cast<size_t>(comm->rank)].push_back(asked);
  const bool refused = asked.count == 13;
  if (in_group && refused) group_error = ncclInvalidArgument;
  if (refused) return ncclInvalidArgument;
  group_comm = comm;
  if (in_group) return ncclSuccess;
  comm->calling = true;
  return ncclInProgress;
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(mutex);
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "clique %d", ++ids);
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "invalid argument";
}
const char* ncclGetLastError(ncclComm_t) { return "the last of it"; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const std::lock_guard lock(mutex);
  if (config->blocking != 0) ++fake_nccl()->misused;
  Clique& clique = cliques[id.internal];
  clique.size = size;
  ++clique.joined;
  *comm = comms.emplace_back(new ncclComm{&clique, rank}).get();
  (*comm)->calling = true;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const std::lock_guard lock(mutex);
  if (comm->gone) ++fake_nccl()->misused;
  const Clique& clique = *comm->clique;
  bool busy = fake_nccl()->stays_busy || clique.joined < clique.size || ++comm->looks % 3 != 0;
  if (comm->finalizing) busy = clique.finalized < clique.size;
  *result = busy ? ncclInProgress : ncclSuccess;
  if (!busy) comm->calling = false;
  if (fake_nccl()->fails == comm->rank) *result = ncclRemoteError;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  comm->finalizing = true;
  ++comm->clique->finalized;
  ++fake_nccl()->finalized;
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  comm->gone = true;
  ++fake_nccl()->destroyed;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::lock_guard lock(mutex);
    comm->gone = true;
    ++fake_nccl()->aborted;
  }
  while (fake_nccl()->abort_hangs) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  in_group = true;
  group_error = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  in_group = false;
  ++fake_nccl()->groups;
  if (group_error != ncclSuccess) return group_error;
  const std::lock_guard lock(mutex);
  group_comm->calling = true;
  return ncclInProgress;
}

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {"all_reduce", count, type, op, -1, send, recv, stream});
}
ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {"reduce", count, type, op, root, send, recv, stream});
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {"reduce_scatter", count, type, op, -1, send, recv, stream});
}
ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {"all_gather", count, type, -1, -1, send, recv, stream});
}
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, {"broadcast", count, type, -1, root, send, recv, stream});
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int to, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(comm, {"send", count, type, -1, to, send, nullptr, stream});
}
ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int from, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(comm, {"recv", count, type, -1, from, nullptr, recv, stream});
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* memory, size_t, void** handle) {
  const std::lock_guard lock(mutex);
  check(comm);
  ++fake_nccl()->registered;
  *handle = memory;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void*) {
  const std::lock_guard lock(mutex);
  check(comm);
  --fake_nccl()->registered;
  return ncclSuccess;
}
