#include "lockstep/comm/cuda_transport.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/cuda_direct.h"
#include "lockstep/comm/cuda_peers.h"
#include "lockstep/comm/cuda_watch.h"
#include "lockstep/comm/text.h"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/transfer.h"

namespace lockstep::comm {
namespace {

// How often a host that waits for its device looks.
constexpr std::chrono::microseconds kLook{100};

class CudaTransport final : public Transport {
 public:
  // Has no device's memory before connect().
  CudaTransport(std::unique_ptr<Transport> host, Device device)
      : Transport(host->rank(), host->size(), host->timeout()),
        host_(std::move(host)),
        group_(dynamic_cast<SharedGroup*>(host_.get())),
        device_(device),
        stream_(device) {
    set_costs(host_->costs());
  }

  void connect(bool direct, bool must_reach) {
    stream_ = Stream::create(device_, StreamPriority::kHigh);
    std::string why_not = "the ranks are not all on one host";
    if (direct && group_ != nullptr) {
      peers_ = std::make_unique<CudaPeers>(*group_, device_);
      peers_->connect();
      why_not = peers_->why_not();
      if (!why_not.empty()) peers_ = nullptr;
    }
    if (peers_ != nullptr) {
      direct_ = std::make_unique<CudaDirect>(*group_, *peers_, device_, stream_);
    }
    check(!must_reach || peers_ != nullptr, "connect", [&] {
      return concat("transport \"cuda\" wants ranks that reach each other's devices, but ",
                    why_not);
    });
    if (peers_ != nullptr && peers_->apart()) {
      watch_ = std::make_unique<CudaWatch>(
          rank(), timeout(), [this] { return find_loss(); }, [this] { peers_->let_go(); });
    }
  }

  std::string_view name() const override { return peers_ != nullptr ? "cuda" : host_->name(); }
  Device device() const override { return device_; }

  std::shared_ptr<void> allocate(size_t bytes) override { return host_->allocate(bytes); }
  std::shared_ptr<void> allocate_on_device(size_t bytes) override {
    if (peers_ != nullptr) return peers_->allocate(bytes);
    std::shared_ptr<void> memory = lockstep::allocate(bytes, device_);
    if (bytes != 0) cuda::set_zero(memory.get(), bytes, current_stream(device_));
    return memory;
  }

  Costs measure_costs(int rounds) override { return host_->measure_costs(rounds); }
  std::string pair_text(int peer) const override {
    return concat(peers_ != nullptr ? "memory of devices straight between them"
                                    : "memory of devices through pinned memory of the host",
                  "; memory of the host: ", host_->pair_text(peer));
  }
  std::string way_text(size_t bytes) const override { return host_->way_text(bytes); }

  void run(const Collective& collective) override {
    if (watch_ != nullptr) watch_->raise_failure();
    if (collective.on_device == nullptr) {
      if (collective.request.kind == Kind::kBarrier) await_device(collective);
      return host_->run(collective);
    }
    const StreamGuard guard(stream_);
    collective.on_device->begin(stream_);
    if (peers_ != nullptr && has_direct_way(collective, size())) {
      try {
        direct_->run(collective);
      } catch (...) {
        failed_ = true;
        throw;
      }
      collective.on_device->complete(stream_);
      if (watch_ != nullptr) {
        watch_->add(collective.request.name(), collective.on_device->completed);
      }
    } else {
      staged(collective);
      collective.on_device->complete(stream_);
    }
  }

  void run(std::span<Transfer* const> transfers) override {
    for (Transfer* transfer : transfers) stage(*transfer);
    host_->run(transfers);
    for (Transfer* transfer : transfers) unstage(*transfer);
  }
  void meet(const Collective& collective, const void* mine, size_t bytes, void* all) override {
    host_->meet(collective, mine, bytes, all);
  }
  int find_dead() override { return host_->find_dead(); }
  void nudge() noexcept override { host_->nudge(); }

  void leave(const Failure& why) noexcept override {
    // Who ends in order waits for its own stream, and so for all that others do with its buffers.
    if (watch_ != nullptr && !failed_) watch_->drain();
    const Deadline deadline = deadline_after(timeout());
    const bool ended = end_own_work(deadline);
    if (peers_ != nullptr && ended) peers_->end();
    host_->leave(why);
    if (peers_ == nullptr) return;
    // However much is queued on the others' streams before what uses this rank's memory.
    if (!ended || !peers_->await_passed(deadline)) peers_->keep(!ended);
  }
  void cancel() noexcept override {
    cancelled_.store(true);
    host_->cancel();
  }

 private:
  // Waits until nothing of this rank is on its way any more, which it ends where it waits for
  // others; false where something still is at the deadline.
  bool end_own_work(Deadline deadline) noexcept {
    try {
      while (!stream_.done()) {
        if (Clock::now() >= deadline) return false;
        if (peers_ != nullptr) peers_->let_go();
        std::this_thread::sleep_for(kLook);
      }
    } catch (...) {
      // The device has failed: nothing is on its way any more, and its next user will be told.
    }
    return true;
  }

  // Waits until this rank's stream has come past all collectives, for the barrier: a rank that does
  // not get there takes no part in it, so that where it passes all have.
  void await_device(const Collective& barrier) {
    const std::string_view op = barrier.request.name();
    const Deadline deadline = deadline_after(timeout());
    while (!stream_.done()) {
      if (watch_ != nullptr) watch_->raise_failure();
      if (cancelled_.load()) throw Error(ErrorCode::kCancelled, op, "the communicator was aborted");
      if (Clock::now() >= deadline) {
        throw Error(
            ErrorCode::kTimeout, op,
            concat("rank ", rank(), " waited ", seconds_text(timeout()), " for ", device_.name(),
                   " to finish earlier collectives; Options::timeout or "
                   "LOCKSTEP_TIMEOUT makes it wait longer"));
      }
      std::this_thread::sleep_for(kLook);
    }
    if (watch_ != nullptr) watch_->raise_failure();
  }

  std::string find_loss() {
    const int dead = group_->find_dead();
    if (dead < 0) return "";
    return concat("rank ", dead, " died: its process ended without leaving the group");
  }

  // ---- Through the host ----

  void staged(const Collective& collective) {
    const auto send_bytes = static_cast<size_t>(collective.send_bytes(size()));
    const auto recv_bytes = static_cast<size_t>(collective.recv_bytes(size()));
    const bool gives = collective.gives(rank()) && send_bytes != 0;
    const bool takes = collective.takes(rank()) && recv_bytes != 0;
    Collective on_host = collective;
    on_host.on_device = nullptr;
    auto& [send, recv] = staged_;
    if (gives) {
      send = allocate_pinned(send_bytes);
      copy_async(send.get(), collective.send, send_bytes, stream_);
      stream_.synchronize();
      on_host.send = send.get();
    }
    if (takes) {
      const bool in_place = gives && collective.send == collective.recv &&
                            send_bytes == recv_bytes && collective.request.kind != Kind::kAllToAll;
      recv = in_place ? send : allocate_pinned(recv_bytes);
      on_host.recv = recv.get();
    }
    host_->run(on_host);
    if (takes) copy_async(collective.recv, recv.get(), recv_bytes, stream_);
    staged_ = {};
  }

  void stage(Transfer& transfer) {
    OnDevice* on_device = transfer.on_device.get();
    if (on_device == nullptr || on_device->pinned != nullptr || transfer.bytes == 0) return;
    const auto bytes = static_cast<size_t>(transfer.bytes);
    on_device->pinned = allocate_pinned(bytes);
    on_device->data =
        std::exchange(transfer.data, static_cast<std::byte*>(on_device->pinned.get()));
    stream_.wait(on_device->ready);
    if (!transfer.sends) return;
    copy_async(transfer.data, on_device->data, bytes, stream_);
    stream_.synchronize();
  }

  void unstage(Transfer& transfer) {
    OnDevice* on_device = transfer.on_device.get();
    if (on_device == nullptr || on_device->pinned == nullptr || !transfer.done()) return;
    if (!transfer.sends) {
      copy_async(on_device->data, transfer.data, static_cast<size_t>(transfer.bytes), stream_);
    }
    on_device->completed = stream_.record();
    on_device->pinned = nullptr;
    transfer.on_device = nullptr;  // it is not to be staged again
  }

  // In this order they go: the watch asks the peers, the peers the host's group.
  const std::unique_ptr<Transport> host_;
  SharedGroup* const group_;  // the same; null where ranks share no memory
  const Device device_;
  Stream stream_;
  std::unique_ptr<CudaPeers> peers_;    // null: all is staged through the host
  std::unique_ptr<CudaDirect> direct_;  // where there are peers_
  // Of staged(): send, recv. After a failure others may still read and write them.
  std::array<std::shared_ptr<void>, 2> staged_;
  std::unique_ptr<CudaWatch> watch_;  // where ranks are of several processes
  bool failed_ = false;               // in direct_
  std::atomic<bool> cancelled_{false};
};

}  // namespace

bool has_direct_way(const Collective& collective, int size) {
  if (collective.folds()) return size <= kernels::kMostCudaFolds;
  return collective.request.kind == Kind::kAllGather || collective.request.kind == Kind::kBroadcast;
}

std::unique_ptr<Transport> make_cuda_transport(std::unique_ptr<Transport> host, Device device,
                                               bool direct, bool must_reach) {
  auto transport = std::make_unique<CudaTransport>(std::move(host), device);
  try {
    transport->connect(direct, must_reach);
  } catch (...) {
    // The others are told, and leave this rank's memory alone, before it goes.
    transport->leave(Failure::current("connect"));
    throw;
  }
  return transport;
}

}  // namespace lockstep::comm
