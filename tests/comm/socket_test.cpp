#include "lockstep/comm/socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "../errors.h"
#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

const Deadline kSoon = deadline_after(milliseconds(60'000));

struct Pair {
  Fd a, b;
};

Pair tcp_pair() {
  const Fd listener = listen_tcp("127.0.0.1", 0, "test");
  Fd a = connect_tcp({"127.0.0.1", local_port(listener)}, kSoon, "test");
  Fd b = accept_tcp(listener, kSoon, "test");
  return {std::move(a), std::move(b)};
}

TEST(Endpoint, ReadsNamesAndBothKindsOfAddress) {
  for (const char* text : {"node-7.example:29500", "10.1.2.3:1", "[fe80::1]:65535", "[::1]:0"}) {
    EXPECT_EQ(to_string(parse_endpoint(text, "X")), text);
  }
  EXPECT_EQ(parse_endpoint("[fe80::1]:80", "X").host, "fe80::1");
}

TEST(Endpoint, RefusesWhatIsNoneNamingItsSource) {
  for (const char* text :
       {"", "host", ":80", "host:", "host:x", "host:-1", "host:65536", "::1:80", "[::1:80", "[]:80",
        "[[::1]:80", "a]b:80", "host:99999999999999999999", "host:+5"}) {
    const Error error = error_of([&] { parse_endpoint(text, "LOCKSTEP_STORE"); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << text;
    EXPECT_THAT(error.what(), AllOf(HasSubstr("LOCKSTEP_STORE"), HasSubstr(text)));
  }
}

TEST(Endpoint, KnowsLoopback) {
  EXPECT_TRUE(is_loopback("localhost"));
  EXPECT_TRUE(is_loopback("127.3.4.5"));
  EXPECT_TRUE(is_loopback("::1"));
  EXPECT_FALSE(is_loopback("128.0.0.1"));
  EXPECT_FALSE(is_loopback("127.example"));
}

TEST(Deadline, OfAHugeTimeoutNeverComes) {
  EXPECT_EQ(deadline_after(milliseconds::max()), Deadline::max());
  EXPECT_GT(poll_ms(Deadline::max()), 1 << 30);
  EXPECT_EQ(poll_ms(Clock::now() - milliseconds(1)), 0);
}

TEST(Text, ListsRanksInRuns) {
  EXPECT_EQ(rank_list(std::vector<int>{2}), "rank 2");
  EXPECT_EQ(rank_list(std::vector<int>{0, 1}), "ranks 0, 1");
  EXPECT_EQ(rank_list(std::vector<int>{0, 3, 5, 6, 7, 8, 11}), "ranks 0, 3, 5-8, 11");
}

TEST(Socket, APortInUseIsAnErrorThatNamesItAndTheWayOut) {
  const Fd first = listen_tcp("127.0.0.1", 0, "test");
  const int port = local_port(first);
  ASSERT_GT(port, 0);
  const Error error = error_of([&] { listen_tcp("127.0.0.1", port, "Store::connect"); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("[Store::connect]"), HasSubstr(std::to_string(port)),
                                  HasSubstr("in use"), HasSubstr("another port")));
}

// Whether this machine has IPv6's address of its own.
bool has_ipv6() {
  const Fd probe(::socket(AF_INET6, SOCK_STREAM, 0));
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  return probe &&
         ::bind(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

// Without IPv6 it takes IPv4 all the same.
TEST(Socket, APortOnEveryInterfaceTakesIpv4AndTheIpv6ThatThereIs) {
  const Fd listener = listen_tcp("", 0, "test");
  connect_tcp({"127.0.0.1", local_port(listener)}, kSoon, "test");
  std::string reason;
  const Fd by_ipv6 = try_connect_tcp({"::1", local_port(listener)}, kSoon, "test", reason);
  EXPECT_EQ(static_cast<bool>(by_ipv6), has_ipv6()) << reason;
  EXPECT_EQ(reason.empty(), static_cast<bool>(by_ipv6));
}

TEST(Socket, CarriesMoreThanASocketBuffersInBothDirectionsAtOnce) {
  const Pair pair = tcp_pair();
  std::vector<uint8_t> data((size_t{9} << 20) + 7);
  std::iota(data.begin(), data.end(), uint8_t{3});
  std::vector<uint8_t> got_a(data.size());
  std::vector<uint8_t> got_b(data.size());
  std::vector<std::thread> threads;
  threads.emplace_back([&] { write_full(pair.a, data.data(), data.size(), kSoon, "test", "b"); });
  threads.emplace_back([&] { write_full(pair.b, data.data(), data.size(), kSoon, "test", "a"); });
  threads.emplace_back([&] { read_full(pair.a, got_a.data(), data.size(), kSoon, "test", "b"); });
  threads.emplace_back([&] { read_full(pair.b, got_b.data(), data.size(), kSoon, "test", "a"); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got_a, data);
  EXPECT_EQ(got_b, data);
}

TEST(Socket, ReadingEndsAtTheDeadlineAndSaysHowFarItCame) {
  const Pair pair = tcp_pair();
  write_full(pair.a, "abc", 3, kSoon, "test", "b");
  char data[5];
  const Error error = error_of(
      [&] { read_full(pair.b, data, 5, deadline_after(milliseconds(30)), "test", "rank 3"); });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 3"), HasSubstr("3 of 5")));
}

TEST(Socket, WritingToSomebodyWhoDoesNotReadEndsAtTheDeadline) {
  const Pair pair = tcp_pair();
  const std::vector<char> data(size_t{64} << 20);
  const Error error = error_of([&] {
    write_full(pair.a, data.data(), data.size(), deadline_after(milliseconds(30)), "t", "rank 3");
  });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
}

TEST(Socket, AClosedConnectionIsAPeerLostByName) {
  Pair pair = tcp_pair();
  pair.a.reset();
  char byte = 0;
  const Error error = error_of([&] { read_full(pair.b, &byte, 1, kSoon, "test", "rank 3"); });
  EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
  EXPECT_THAT(error.what(), HasSubstr("rank 3"));
  const std::vector<char> data(size_t{16} << 20);
  EXPECT_EQ(error_of([&] {
              write_full(pair.b, data.data(), data.size(), kSoon, "test", "rank 3");
            }).code(),
            ErrorCode::kPeerLost);
}

TEST(Socket, ConnectingToNobodyEndsAtTheDeadlineAndNamesThePort) {
  Fd listener = listen_tcp("127.0.0.1", 0, "test");
  const int port = local_port(listener);
  listener.reset();
  const Error error = error_of([&] {
    connect_tcp({"127.0.0.1", port}, deadline_after(milliseconds(30)), "test");
  });
  EXPECT_EQ(error.code(), ErrorCode::kTimeout);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("127.0.0.1:" + std::to_string(port)), HasSubstr("refused")));
}

TEST(Socket, ConnectingWaitsForAListenerThatComesLate) {
  Fd first = listen_tcp("127.0.0.1", 0, "test");
  const int port = local_port(first);
  first.reset();
  std::thread connecting([&] { EXPECT_TRUE(connect_tcp({"127.0.0.1", port}, kSoon, "test")); });
  const Fd late = listen_tcp("127.0.0.1", port, "test");
  EXPECT_TRUE(accept_tcp(late, kSoon, "test"));
  connecting.join();
}

TEST(Socket, AcceptingEndsAtTheDeadline) {
  const Fd listener = listen_tcp("127.0.0.1", 0, "test");
  EXPECT_EQ(error_of([&] { accept_tcp(listener, deadline_after(milliseconds(10)), "t"); }).code(),
            ErrorCode::kTimeout);
}

}  // namespace
}  // namespace lockstep::comm
