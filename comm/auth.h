#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "lockstep/comm/socket.h"

namespace lockstep::comm {

// How two processes of a job prove to each other that they know its token, without sending it:
//
//   connector -> listener   magic, nonce c
//   listener -> connector   magic, nonce s, HMAC-SHA256(token, "listener" | c | s | context)
//   connector -> listener   HMAC-SHA256(token, "connector" | c | s | context)
//   listener -> connector   one byte: kAccepted
//
// Nonces are 32 fresh random bytes per connection, so nothing recorded can be used again; the
// labels differ, so nothing can be sent back. `context` (the job's name and what the connection is
// for) is covered, so a proof holds for nothing else. HMAC is RFC 2104. What follows on the
// connection is neither encrypted nor signed. An empty token proves nothing but the context.

using Nonce = std::array<uint8_t, 32>;
using Mac = std::array<uint8_t, 32>;

inline constexpr std::string_view kMagic = "LKSTEP01";
inline constexpr char kAccepted = 'A';

// The sizes of the first three messages.
inline constexpr size_t kHelloBytes = kMagic.size() + std::tuple_size_v<Nonce>;
inline constexpr size_t kChallengeBytes = kHelloBytes + std::tuple_size_v<Mac>;
inline constexpr size_t kProofBytes = std::tuple_size_v<Mac>;

// 256 random bits from the system, as 64 hexadecimal digits.
std::string random_token();

// The listener's half, step by step, for a server that must not wait: the challenge that answers
// `hello` (kHelloBytes), and the proof (kProofBytes) that will be right for it.
struct Challenge {
  std::string message;  // kChallengeBytes to send
  std::string want;     // the connector's right answer
};
// False where `hello`, so far as it has come, is not the beginning of one.
bool is_hello(std::string_view hello);
Challenge challenge(std::string_view hello, std::string_view token, std::string_view context);
// In time that does not depend on where they differ.
bool equal_secret(std::string_view a, std::string_view b);

// The two halves on a connection where waiting is all right. Each returns once both sides have
// proved themselves. Throws kMismatch where the other side has another token or context or does
// not speak this protocol, kPeerLost where it hangs up, kTimeout at the deadline. `who` names it.
void authenticate_as_connector(const Fd& fd, std::string_view token, std::string_view context,
                               Deadline deadline, std::string_view op, std::string_view who);
void authenticate_as_listener(const Fd& fd, std::string_view token, std::string_view context,
                              Deadline deadline, std::string_view op, std::string_view who);

}  // namespace lockstep::comm
