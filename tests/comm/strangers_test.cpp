// Strangers at a job's doors: garbage, half messages, huge lengths, thousands of connections, and
// those who say nothing or one byte at a time. They neither hold up the job nor disturb it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/auth.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong{60'000};

// Comes to a port in every bad way, again and again, until it is destroyed.
class Strangers {
 public:
  explicit Strangers(int port) : port_(port) {
    for (const auto visit : {&Strangers::garbage, &Strangers::flood, &Strangers::dribble}) {
      threads_.emplace_back([this, visit] {
        while (!stop_.load()) (this->*visit)();
      });
    }
  }
  ~Strangers() {
    stop_.store(true);
    for (std::thread& thread : threads_) thread.join();
  }

  // Connections made so far.
  int visits() const { return visits_.load(); }

 private:
  Fd visit() {
    std::string reason;
    Fd fd = try_connect_tcp({"127.0.0.1", port_}, deadline_after(milliseconds(200)), "t", reason);
    if (fd) ++visits_;
    return fd;
  }
  static void say(const Fd& fd, std::string_view bytes) {
    if (fd) ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void garbage() {
    static const std::vector<std::string> kWords = {
        "GET / HTTP/1.1\r\n\r\n", std::string(100'000, '\xff'), std::string("\xff\xff\xff\x7f", 4),
        concat(kMagic, std::string(64, '\0')), concat(kMagic, std::string(7, 'n'))};
    for (const std::string& word : kWords) say(visit(), word);
  }

  // Many who connect and stay silent.
  void flood() {
    std::vector<Fd> silent;
    for (int i = 0; i < 300 && !stop_.load(); ++i) silent.push_back(visit());
  }

  // One byte of a good beginning at a time.
  void dribble() {
    const Fd fd = visit();
    for (const char byte : concat(kMagic, std::string(32, 'n'), std::string(32, 'p'))) {
      if (stop_.load()) return;
      say(fd, std::string_view(&byte, 1));
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

  const int port_;
  std::atomic<bool> stop_{false};
  std::atomic<int> visits_{0};
  std::vector<std::thread> threads_;
};

TEST(Strangers, DoNotDisturbAStore) {
  StoreServer::Options options{"127.0.0.1", 0, "t", "j"};
  options.handshake_timeout = milliseconds(1000);
  const StoreServer server(options);
  const Strangers strangers(server.port());
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      Store store({"127.0.0.1", server.port()}, "t", "j", kLong);
      int64_t sum = 0;
      for (int i = 0; i < 200 || strangers.visits() < 2000; ++i) sum = store.add("n", 1);
      EXPECT_GE(sum, 200);
      store.barrier("end", rank, 3, kLong);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(Strangers, DoNotKeepARankFromItsGroupsSockets) {
  const StoreServer server({"127.0.0.1", 0, "t", "j"});
  std::vector<std::thread> ranks;
  const auto rank_of_three = [&](int rank) {
    const World world{rank, 3, rank, 3, "127.0.0.1", server.port(), true, "t", "j"};
    Options options;
    options.transport = "tcp";
    options.timeout = kLong;
    const auto comm = connect(world, Store::connect(world, kLong), options);
    for (int i = 0; i < 50; ++i) {
      float value = static_cast<float>(rank + 1);
      comm->all_reduce(&value, &value, 1, DType::kF32, ReduceOp::kSum).wait();
      EXPECT_EQ(value, 6.0f);
    }
  };
  for (const int rank : {0, 1}) ranks.emplace_back([&, rank] { rank_of_three(rank); });
  // Ranks 0 and 1 have listeners, known from the store, and wait for rank 2; strangers are first.
  Store store({"127.0.0.1", server.port()}, "t", "j", kLong);
  store.set("comm/world/1/host/2", store.get("comm/world/1/host/0", kLong));
  std::vector<std::unique_ptr<Strangers>> strangers;
  for (const int rank : {0, 1}) {
    const Endpoint where =
        parse_endpoint(store.get(concat("comm/world/1/tcp/", rank), kLong), "test");
    strangers.push_back(std::make_unique<Strangers>(where.port));
  }
  while (strangers[0]->visits() < 1000) std::this_thread::sleep_for(milliseconds(1));
  rank_of_three(2);
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace lockstep::comm
