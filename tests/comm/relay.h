#pragma once

// A relay that stands between the ranks of a test and does to their bytes what networks do.

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/comm/socket.h"

namespace lockstep::comm {

// What happens to a connection once so many bytes of one direction have gone through.
enum class Fault {
  kNone,
  kCut,       // both ends see the connection reset or closed
  kHalfOpen,  // nothing goes through any more, and nobody is told
  kTruncate,  // this direction ends; the other goes on
};

struct Weather {
  Fault fault = Fault::kNone;
  int64_t after_bytes = 0;
  std::chrono::microseconds delay{0};  // of each piece
};

// Passes on what comes to its port to another, in threads of its own, until it is destroyed.
class Relay {
 public:
  using Rewrite = std::function<void(std::string& to_target)>;

  Relay(int target_port, Weather weather, Rewrite rewrite = nullptr)
      : target_port_(target_port),
        weather_(weather),
        rewrite_(std::move(rewrite)),
        listener_(listen_tcp("127.0.0.1", 0, "relay")),
        acceptor_([this] { accept(); }) {}

  ~Relay() {
    stop_.store(true);
    acceptor_.join();
    for (std::thread& pump : pumps_) pump.join();
  }

  int port() const { return local_port(listener_); }
  // From now on; before it nothing goes wrong.
  void arm() { armed_.store(true); }

 private:
  struct Pair {
    Fd client, target;
    std::atomic<bool> silent{false};
  };

  void accept() {
    while (!stop_.load()) {
      if (!wait_readable(listener_, deadline_after(kLook))) continue;
      auto pair = std::make_shared<Pair>();
      pair->client = try_accept(listener_, "relay");
      std::string reason;
      if (pair->client) {
        pair->target = try_connect_tcp({"127.0.0.1", target_port_},
                                       deadline_after(std::chrono::seconds(5)), "relay", reason);
      }
      if (!pair->target) continue;
      pumps_.emplace_back([this, pair] { pump(*pair, pair->client, pair->target, true); });
      pumps_.emplace_back([this, pair] { pump(*pair, pair->target, pair->client, false); });
    }
  }

  void pump(Pair& pair, const Fd& from, const Fd& to, bool to_target) {
    std::vector<char> bytes(size_t{16} << 10);
    int64_t passed = 0;
    while (!stop_.load()) {
      if (!wait_readable(from, deadline_after(kLook))) continue;
      const ssize_t got = ::recv(from.get(), bytes.data(), bytes.size(), 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got <= 0) break;
      if (pair.silent.load()) continue;
      std::string piece(bytes.data(), static_cast<size_t>(got));
      const bool faulty = armed_.load() && weather_.fault != Fault::kNone;
      if (faulty && passed + got > weather_.after_bytes) {
        const int64_t left = std::max<int64_t>(0, weather_.after_bytes - passed);
        send_all(to, piece.substr(0, static_cast<size_t>(left)));
        if (weather_.fault == Fault::kHalfOpen) {
          pair.silent.store(true);
          continue;
        }
        if (weather_.fault == Fault::kCut) ::shutdown(from.get(), SHUT_RDWR);
        ::shutdown(to.get(), weather_.fault == Fault::kCut ? SHUT_RDWR : SHUT_WR);
        return;
      }
      if (to_target && rewrite_) rewrite_(piece);
      if (armed_.load()) passed += got;
      std::this_thread::sleep_for(weather_.delay);
      if (!send_all(to, piece)) break;
    }
    ::shutdown(to.get(), SHUT_WR);
  }

  bool send_all(const Fd& to, const std::string& piece) {
    size_t done = 0;
    while (done < piece.size() && !stop_.load()) {
      const ssize_t put = ::send(to.get(), piece.data() + done, piece.size() - done, MSG_NOSIGNAL);
      if (put > 0) {
        done += static_cast<size_t>(put);
      } else if (errno == EAGAIN) {
        pollfd polled{to.get(), POLLOUT, 0};
        ::poll(&polled, 1, static_cast<int>(kLook.count()));
      } else if (errno != EINTR) {
        return false;
      }
    }
    return true;
  }

  static constexpr std::chrono::milliseconds kLook{20};
  const int target_port_;
  const Weather weather_;
  const Rewrite rewrite_;
  const Fd listener_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> armed_{false};
  std::vector<std::thread> pumps_;  // of the acceptor's thread until it has ended
  std::thread acceptor_;
};

// A relay before a job's store, and one before every address that a rank tells the others there:
// ranks that use its port reach each other through relays alone. (What follows the handshake is
// not signed, so the addresses can be exchanged on their way; ports have five digits.)
class Network {
 public:
  Network(int store_port, Weather weather)
      : weather_(weather),
        store_(store_port, {}, [this](std::string& piece) { exchange(piece); }) {}

  int store_port() const { return store_.port(); }

  void arm() {
    const std::lock_guard lock(mutex_);
    armed_ = true;
    for (Relay& relay : relays_) relay.arm();
  }
  size_t relays() {
    const std::lock_guard lock(mutex_);
    return relays_.size();
  }

 private:
  void exchange(std::string& piece) {
    const std::string host = "127.0.0.1:";
    for (size_t at = piece.find(host); at != piece.npos; at = piece.find(host, at + 1)) {
      const size_t digits = at + host.size();
      if (piece.size() < digits + 5) continue;
      const int port = std::atoi(piece.substr(digits, 5).c_str());
      if (port < 10000 || port > 65535) continue;
      const std::lock_guard lock(mutex_);
      Relay& relay = relays_.emplace_back(port, weather_);
      if (armed_) relay.arm();
      piece.replace(digits, 5, std::to_string(relay.port()));
    }
  }

  const Weather weather_;
  std::mutex mutex_;
  bool armed_ = false;
  std::list<Relay> relays_;
  Relay store_;  // last: its threads use the others
};

}  // namespace lockstep::comm
