#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/store.h"
#include "lockstep/comm/world.h"
#include "lockstep/kernels/device.h"
#include "lockstep/kernels/dtype.h"
#include "lockstep/kernels/fold.h"

namespace lockstep::comm {

// kSum, kAvg, kMin, kMax, kProduct, kAnd, kOr; what each does to each dtype is said in
// kernels/fold.h.
using ReduceOp = kernels::FoldOp;

class OperationQueue;
struct Collective;
struct Lineage;
struct OnDevice;
struct Operation;
enum class Algorithm : uint8_t;

// A collective that was started. Cheap to copy; all copies stand for the same collective, and may
// outlive their communicator. One that was default-constructed is done.
class Work {
 public:
  Work() = default;

  // Returns once this rank's part is complete and its buffers may be read, written and freed. May
  // run the collective in the calling thread. Throws what went wrong, on every call.
  //
  // Of buffers on a CUDA device: returns once all ranks have come and this rank's part is on its
  // way to the device, and makes the calling thread's current stream there wait for it; what is put
  // on that stream from then on finds the result. The host itself does not wait for the device, so
  // that what goes wrong there from then on is thrown by what is called next: barrier() is there to
  // ask.
  void wait();
  // Finished or failed: wait() will not wait.
  bool done() const;

 private:
  friend class Communicator;
  Work(std::shared_ptr<OperationQueue> queue, std::shared_ptr<Operation> operation);

  std::shared_ptr<OperationQueue> queue_;
  std::shared_ptr<Operation> operation_;
};

struct Options {
  // "thread", "shm", "tcp" or "mixed". Empty: LOCKSTEP_TRANSPORT, or else shm where all ranks are
  // on one host, tcp where each is on its own, and mixed (tcp, and memory between neighbours of one
  // host) where some share one.
  //
  // With a `device`, that is how memory of the host goes. "cuda" names the way of the device's
  // memory, straight from device to device, which is an error where some rank cannot reach
  // another's; "nccl" takes NCCL, which is an error where it cannot be had or two ranks share a
  // device. Empty takes NCCL where each rank has a device of its own, or else "cuda" where all
  // reach each other's. With any other name the device's memory is staged through the host's.
  // Without a device both are errors.
  std::string transport;
  // The CUDA device whose memory buffers may lie in besides the CPU's; each rank has its own, or
  // shares one. kCpu: there is none.
  Device device = kCpu;
  // "ring", "two_shot" or "one_shot". Empty: LOCKSTEP_ALGO, or else the fastest for each size.
  std::string algorithm;
  // Ranks of one name are taken to share a host, and others not. Empty: LOCKSTEP_HOST_ID, or else
  // what the system says of itself.
  std::string host;
  // A file that rank 0 adds this group's costs to, measured at length for this (costs.h).
  std::string save_costs;
  // How long a collective waits for other ranks. Zero: default_timeout().
  std::chrono::milliseconds timeout{0};
  // Tells apart the groups that one store serves. Groups of one name are told apart by the order
  // in which each rank makes them.
  std::string name = "world";
};

// A group of ranks that communicate. All ranks make the same calls in the same order.
//
// Collectives are asynchronous: a call only queues, and one thread per communicator runs the queue
// in call order, unless a caller in Work::wait() is there first. Buffers belong to the caller, and
// must stay as they are until wait() returns. `send` and `recv` are the same address (in place) or
// do not overlap. Counts are elements; zero elements are in sequence and otherwise nothing.
//
// Buffers are host memory, or all those of a call are memory of device(), on every rank alike. Then
// the collective comes after what was put on the calling thread's current stream there before the
// call, and goes on beside what is put there later. all_reduce, reduce_scatter, all_gather,
// broadcast and reduce go straight between the devices where ranks reach each other's (transport
// "cuda"; those that fold for up to 32 ranks); all else, and these elsewhere, is staged through
// pinned memory of the host, which the thread that runs the queue waits for. A rank that dies after
// all had come ends what waits for it on the device, whose result is then undefined, and the next
// call has kPeerLost: where no collective follows, barrier() tells whether the last was whole.
//
// The result is the same bits on every rank, and depends on the inputs, the number of ranks, the
// count, the dtype and the op alone (docs/collectives.md); but for sums, averages and products of
// floats by NCCL, whose order is its own.
//
// LOCKSTEP_ALGO and Options::algorithm are about what is folded, gathered by all and broadcast, and
// straight between devices about all_reduce alone; what goes from single ranks to single ranks has
// one way.
//
// Errors come from Work::wait(): kMismatch where ranks disagree about a collective (it says which
// rank asked for what), kPeerLost where a rank died or left, kTimeout naming the ranks that did
// not come in time, kCancelled after abort(). After any of these all later work fails with the
// first error, and the contents of the buffers are undefined. A call itself throws
// kInvalidArgument where its arguments have no meaning, and leaves the communicator as it was.
// Messages speak of this group's ranks; those of a group whose ranks have other numbers in the
// world say at their end which (world_rank()).
//
// Thread safety: one thread at a time calls collectives; Work and abort() may be used from any.
class Communicator {
 public:
  // Cancels what has not finished, bounded in time. Ranks that need this one afterwards have
  // kPeerLost. With a device it waits until no rank's device uses this rank's memory any more, at
  // most timeout() twice; where one still might then, memory of allocate() is kept and never used
  // again.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const;
  int size() const;
  // The number that `rank` of this group has in the world: the group that init(), connect() or
  // run_ranks() made and this one descends from.
  int world_rank(int rank) const;
  int world_rank() const { return world_rank(rank()); }

  // recv[i] = the fold of every rank's send[i].
  Work all_reduce(const void* send, void* recv, int64_t count, DType dtype, ReduceOp op);
  // recv[i] = the fold of every rank's send[rank * count_per_rank + i]. In place where
  // recv == send + rank * count_per_rank.
  Work reduce_scatter(const void* send, void* recv, int64_t count_per_rank, DType dtype,
                      ReduceOp op);
  // recv[r * count_per_rank + i] = rank r's send[i]. In place where
  // send == recv + rank * count_per_rank.
  Work all_gather(const void* send, void* recv, int64_t count_per_rank, DType dtype);
  // The same where rank r gives counts[r] elements, which follow those of the ranks before it.
  // `counts` is the same on every rank. In place where send is this rank's part of recv.
  Work all_gather_v(const void* send, void* recv, std::span<const int64_t> counts, DType dtype);
  // Every rank's data becomes root's.
  Work broadcast(void* data, int64_t count, DType dtype, int root);
  // recv[i] = the fold of every rank's send[i], on root alone: the bits of all_reduce. recv is not
  // used on the other ranks, and may be null there.
  Work reduce(const void* send, void* recv, int64_t count, DType dtype, ReduceOp op, int root);
  // recv[r * count_per_rank + i] = rank r's send[i], on root alone, as for reduce. In place on root
  // where send == recv + root * count_per_rank.
  Work gather(const void* send, void* recv, int64_t count_per_rank, DType dtype, int root);
  // recv[i] = root's send[rank * count_per_rank + i]. send is not used on the other ranks, and may
  // be null there. In place on root where recv == send + root * count_per_rank.
  Work scatter(const void* send, void* recv, int64_t count_per_rank, DType dtype, int root);
  // recv[r * count_per_rank + i] = rank r's send[rank * count_per_rank + i]. In place where
  // recv == send, which makes a copy.
  Work all_to_all(const void* send, void* recv, int64_t count_per_rank, DType dtype);
  // The same where this rank sends send_counts[r] elements to rank r and has recv_counts[r] from
  // it, all in the order of ranks. Each rank's send_counts[r] must be rank r's recv_counts[rank];
  // where one is not, every rank has kMismatch. Not in place.
  Work all_to_all_v(const void* send, std::span<const int64_t> send_counts, void* recv,
                    std::span<const int64_t> recv_counts, DType dtype);
  // Completes once every rank has called it and, with a device, every rank's device has finished
  // all collectives before it; an error where one of them could not.
  Work barrier();

  // Between this rank and one other. The n-th send from a rank to another meets the n-th recv there
  // from that rank; dtype and count must be the same on both, or both have kMismatch. A send ends
  // once its data are on their way: after the other rank has asked for them. Sends and receives
  // that are queued one after another go on side by side, so that their order does not matter; with
  // collectives they are in order as everything is, and two ranks that wait for each other in
  // different calls have kMismatch or, where a third is between them, kTimeout.
  Work send(const void* data, int64_t count, DType dtype, int to);
  Work recv(void* data, int64_t count, DType dtype, int from);

  // Memory of at least `bytes` bytes, zero at first and aligned to a page, that the transport
  // reduces without copies; other memory works everywhere too, and is slower under shm. Local: the
  // other ranks need not call it, and need not use their own such memory in the same way. Stays
  // valid after the communicator is gone. Throws Error(kOutOfMemory).
  //
  // On device(): memory that other processes' devices reach, zero for the current stream, in pages
  // of 2 MiB of its own: a few large blocks, not many small ones. Other memory of a device is
  // copied to such memory and back, unless all ranks are threads of one process. Throws
  // Error(kInvalidArgument) in Graph::capture(), where such memory that is let go stays as long as
  // the graph.
  std::shared_ptr<void> allocate(size_t bytes, Device device = kCpu);
  // Options::device: kCpu where there is none.
  Device device() const;

  // Parts the group, as MPI_Comm_split does: a new communicator for the ranks of each color, who
  // are numbered in it by key, and by rank where keys are the same. A color is 0 or more; a rank
  // that gives kNoColor takes part in the call and gets a null pointer. The new groups have this
  // one's transport (chosen anew where nothing named it), algorithm and timeout, and are in no way
  // bound to it: each has its own queue, and they may be parted in their turn.
  //
  // Every rank calls it, in order with the collectives; returns when all of it is done, after what
  // this rank has queued before. Where it fails on one rank it fails on all. Throws what
  // Work::wait() and connect() throw. Between processes it needs the job's store.
  std::shared_ptr<Communicator> split(int color, int key = 0);
  static constexpr int kNoColor = -1;
  // The same ranks once more, so that two parts of a program do not disturb each other's order.
  std::shared_ptr<Communicator> duplicate() { return split(0); }

  // A new communicator for the ranks of this one that are still there, in the same order; this one
  // is aborted. Called after an error by every rank that means to go on, however each failed, and
  // wherever the store was: each rank keeps a place for the others to meet. The new group is those
  // who called it. It waits for a rank that has neither called nor died nor destroyed its
  // communicators, `wait` at most (zero: timeout()), and then goes on without it; a rank that comes
  // later has kTimeout. Where a rank dies while the group is made, all have an error, and may call
  // it again. Throws what connect() throws.
  std::shared_ptr<Communicator> shrink(std::chrono::milliseconds wait = {});

  // "nccl" or "cuda" where memory of devices goes by NCCL, or straight between them; else "thread",
  // "shm", "tcp" or "mixed".
  std::string transport() const;
  // For people: how this rank reaches another, "messages by a socket to 10.0.0.2:4711; the ring to
  // rank 1 by shared memory".
  std::string pair_text(int peer) const;
  std::chrono::milliseconds timeout() const;

  // Local and bounded, from any thread: pending and later work of this rank fails with kCancelled
  // and `why`. The other ranks find out when they next need this one: kPeerLost with `why`.
  void abort(std::string why);

 private:
  friend struct CommunicatorMaker;
  Communicator(std::shared_ptr<OperationQueue> queue, Algorithm algorithm, Lineage lineage);
  Work start(Collective&& collective, const void* in_place, const void* must_be);
  // Null where the buffers are the CPU's. Throws kInvalidArgument for those of another device.
  std::shared_ptr<OnDevice> find_device(const Collective& collective, int64_t send_bytes,
                                        int64_t recv_bytes) const;
  // Every rank's `mine`, in order.
  template <class T>
  std::vector<T> tell_all(const T& mine);

  const std::shared_ptr<OperationQueue> queue_;
  const Algorithm algorithm_;
  const std::unique_ptr<const Lineage> lineage_;
  int shrinks_ = 0;  // calls so far
};

// The group of all ranks, from the environment (world.h); of this process alone where there is no
// environment. Tells kernels how many ranks share this machine's cores (set_local_ranks). Every
// rank calls it. Throws what connect() throws.
std::shared_ptr<Communicator> init(const Options& options = {});

// The group of the ranks of `world`, who meet in `store`; every rank calls it, and where it fails
// on one rank it fails on all. `store` may be null for a world of one. Throws kInvalidArgument for
// an unknown transport or algorithm (the message lists the names), kTimeout naming the ranks that
// did not come, kPeerLost, kMismatch, kIo, kOutOfMemory.
std::shared_ptr<Communicator> connect(const World& world, std::shared_ptr<Store> store,
                                      const Options& options = {});

// Runs fn as each rank of a group of n, on n threads of this process, and returns when all have
// ended. The transport is "thread" unless options or LOCKSTEP_TRANSPORT name another; "shm" and
// "tcp" take the same way through segments and sockets as between processes. Where ranks throw, the
// others' work is cancelled, and the error that was thrown first is rethrown.
void run_ranks(int n, const std::function<void(Communicator&)>& fn, const Options& options = {});
// A rank for each of `devices`, whose communicator is for that one; options.device is not used.
void run_ranks(const std::vector<Device>& devices, const std::function<void(Communicator&)>& fn,
               const Options& options = {});

}  // namespace lockstep::comm
