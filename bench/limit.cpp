#include "limit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "lockstep/comm/host_memory.h"
#include "lockstep/comm/socket.h"
#include "lockstep/kernels/error.h"
#include "lockstep/kernels/fold.h"
#include "lockstep/kernels/launch.h"
#include "lockstep/kernels/memory.h"
#include "lockstep/kernels/stream.h"

namespace bench {
namespace {

using lockstep::Device;
using lockstep::comm::Communicator;
using lockstep::comm::Fd;

class MemoryLimit final : public Limit {
 public:
  MemoryLimit(int64_t count, lockstep::DType dtype, lockstep::comm::ReduceOp op, int ranks,
              Device device)
      : spec_{dtype, op, ranks}, count_((count + ranks - 1) / ranks), device_(device) {
    const auto bytes = static_cast<size_t>(count_) * lockstep::size_of(dtype);
    for (int i = 0; i < ranks; ++i) {
      memory_.push_back(device.is_cpu() ? lockstep::comm::allocate_pages(bytes)
                                        : lockstep::allocate(bytes, device));
      sources_.push_back(memory_.back().get());
      outputs_.push_back(memory_.back().get());
    }
    run();
  }

  void run() override {
    lockstep::launch<lockstep::kernels::Fold>(device_, spec_, sources_.data(), outputs_.data(),
                                              spec_.ranks, count_);
    if (device_.is_cuda()) lockstep::current_stream(device_).synchronize();
  }

 private:
  lockstep::kernels::FoldSpec spec_;
  int64_t count_;
  Device device_;
  std::vector<std::shared_ptr<void>> memory_;
  std::vector<const void*> sources_;
  std::vector<void*> outputs_;
};

class SocketLimit final : public Limit {
 public:
  SocketLimit(Communicator& comm, int64_t bytes)
      : bytes_(static_cast<size_t>(bytes / comm.size() * 2 * (comm.size() - 1))),
        out_(std::max<size_t>(bytes_, 1)),
        in_(out_.size()) {
    // Plain loopback sockets: the ranks of a limit are on one machine.
    const Fd listener = lockstep::comm::listen_tcp("127.0.0.1", 0, "limit");
    std::vector<int32_t> ports(comm.size());
    const int32_t own = lockstep::comm::local_port(listener);
    comm.all_gather(&own, ports.data(), 1, lockstep::DType::kI32).wait();
    const auto deadline = lockstep::comm::deadline_after(std::chrono::seconds(30));
    to_next_ = lockstep::comm::connect_tcp({"127.0.0.1", ports[(comm.rank() + 1) % comm.size()]},
                                           deadline, "limit");
    from_before_ = lockstep::comm::accept_tcp(listener, deadline, "limit");
  }

  void run() override {
    size_t sent = 0;
    size_t received = 0;
    while (sent < bytes_ || received < bytes_) {
      const size_t before = sent + received;
      if (sent < bytes_) {
        sent += moved(
            send(to_next_.get(), out_.data() + sent, bytes_ - sent, MSG_DONTWAIT | MSG_NOSIGNAL));
      }
      if (received < bytes_) {
        received +=
            moved(recv(from_before_.get(), in_.data() + received, bytes_ - received, MSG_DONTWAIT));
      }
      if (sent + received != before) continue;
      pollfd fds[2] = {{to_next_.get(), static_cast<short>(sent < bytes_ ? POLLOUT : 0), 0},
                       {from_before_.get(), static_cast<short>(received < bytes_ ? POLLIN : 0), 0}};
      poll(fds, 2, 1000);
    }
  }

 private:
  static size_t moved(ssize_t bytes) {
    if (bytes > 0) return static_cast<size_t>(bytes);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    throw lockstep::Error(lockstep::ErrorCode::kPeerLost, "limit", "a rank closed its socket");
  }

  size_t bytes_;
  std::vector<char> out_;
  std::vector<char> in_;
  Fd to_next_;
  Fd from_before_;
};

}  // namespace

std::unique_ptr<Limit> memory_limit(int64_t count, lockstep::DType dtype,
                                    lockstep::comm::ReduceOp op, int ranks, Device device) {
  return std::make_unique<MemoryLimit>(count, dtype, op, ranks, device);
}

std::unique_ptr<Limit> socket_limit(Communicator& comm, int64_t bytes) {
  return std::make_unique<SocketLimit>(comm, bytes);
}

}  // namespace bench
