#include "lockstep/comm/auth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <thread>

#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

using testing::HasSubstr;

const Deadline kSoon = deadline_after(std::chrono::milliseconds(60'000));

// What both sides of a handshake end with; an empty text is success.
struct Outcome {
  std::string connector, listener;
};

Outcome shake_hands(const std::string& token_a, const std::string& context_a,
                    const std::string& token_b, const std::string& context_b) {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  Fd a(fds[0]);
  Fd b(fds[1]);
  Outcome out;
  std::thread other([&] {
    try {
      authenticate_as_listener(b, token_b, context_b, kSoon, "test", "the connector");
    } catch (const Error& error) {
      out.listener = error.what();
    }
    b.reset();
  });
  try {
    authenticate_as_connector(a, token_a, context_a, kSoon, "test", "the listener");
  } catch (const Error& error) {
    out.connector = error.what();
  }
  a.reset();
  other.join();
  return out;
}

TEST(Auth, OneTokenAndContextLetBothIn) {
  for (const std::string& token : {std::string(), std::string("s"), std::string(300, 't')}) {
    const Outcome out = shake_hands(token, "job", token, "job");
    EXPECT_EQ(out.connector, "");
    EXPECT_EQ(out.listener, "");
  }
}

TEST(Auth, AnotherTokenOrContextLetsNeitherIn) {
  for (const auto& out : {shake_hands("one", "job", "two", "job"), shake_hands("", "j", "two", "j"),
                          shake_hands("one", "job", "one", "job2")}) {
    EXPECT_THAT(out.connector, HasSubstr("LOCKSTEP_TOKEN"));
    EXPECT_NE(out.listener, "");
  }
}

TEST(Auth, EachChallengeIsFreshAndNeverHoldsTheToken) {
  const std::string token = random_token();
  EXPECT_EQ(token.size(), 64u);
  EXPECT_NE(token, random_token());
  const std::string hello = std::string(kMagic) + std::string(32, 'n');
  const Challenge first = challenge(hello, token, "job");
  const Challenge second = challenge(hello, token, "job");
  EXPECT_EQ(first.message.size(), kChallengeBytes);
  EXPECT_NE(first.message, second.message);
  EXPECT_NE(first.want, second.want);
  EXPECT_EQ(first.message.find(token), std::string::npos);
  // A challenge cannot be sent back as the proof it asks for.
  EXPECT_NE(first.message.substr(kHelloBytes), first.want);
}

TEST(Auth, AHelloIsKnownByItsFirstBytes) {
  EXPECT_TRUE(is_hello(""));
  EXPECT_TRUE(is_hello(kMagic.substr(0, 3)));
  EXPECT_TRUE(is_hello(std::string(kMagic) + "x"));
  EXPECT_FALSE(is_hello("GET / HTTP/1.1"));
}

}  // namespace
}  // namespace lockstep::comm
