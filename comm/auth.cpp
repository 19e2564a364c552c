#include "lockstep/comm/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <tuple>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {
namespace {

std::string random_bytes(size_t bytes) {
  std::string out(bytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(bytes)) != 1) {
    throw Error(ErrorCode::kInternal, "store", "the system gave no random numbers for a nonce");
  }
  return out;
}

// `hello` and `nonce` have fixed lengths and the context comes last, so that no two different
// inputs make the same message.
std::string prove(std::string_view label, std::string_view token, std::string_view hello,
                  std::string_view nonce, std::string_view context) {
  const std::string message = concat(label, "|", hello, nonce, context);
  std::string mac(std::tuple_size_v<Mac>, '\0');
  unsigned int bytes = 0;
  const unsigned char* done =
      HMAC(EVP_sha256(), token.empty() ? "" : token.data(), static_cast<int>(token.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(mac.data()), &bytes);
  if (done == nullptr || bytes != mac.size()) {
    throw Error(ErrorCode::kInternal, "store", "HMAC-SHA256 failed in OpenSSL");
  }
  return mac;
}

[[noreturn]] void throw_stranger(std::string_view op, std::string_view who) {
  throw Error(ErrorCode::kMismatch, op,
              concat(who,
                     " answers, but not as a process of a Lockstep job: another program "
                     "has that port; choose another port"));
}

[[noreturn]] void throw_refused(std::string_view op, std::string_view who) {
  throw Error(ErrorCode::kMismatch, op,
              concat(who,
                     " belongs to another job, or has another token: give every rank "
                     "the same LOCKSTEP_TOKEN and LOCKSTEP_JOB, or choose another port"));
}

}  // namespace

std::string random_token() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string token;
  for (const char c : random_bytes(32)) {
    const auto byte = static_cast<unsigned char>(c);
    token += kDigits[byte >> 4];
    token += kDigits[byte & 15];
  }
  return token;
}

bool is_hello(std::string_view hello) {
  const size_t bytes = std::min(hello.size(), kMagic.size());
  return hello.substr(0, bytes) == kMagic.substr(0, bytes);
}

bool equal_secret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Challenge challenge(std::string_view hello, std::string_view token, std::string_view context) {
  const std::string nonce = random_bytes(std::tuple_size_v<Nonce>);
  return {concat(kMagic, nonce, prove("listener", token, hello, nonce, context)),
          prove("connector", token, hello, nonce, context)};
}

void authenticate_as_connector(const Fd& fd, std::string_view token, std::string_view context,
                               Deadline deadline, std::string_view op, std::string_view who) {
  const std::string hello = concat(kMagic, random_bytes(std::tuple_size_v<Nonce>));
  write_full(fd, hello.data(), hello.size(), deadline, op, who);
  std::string answer(kChallengeBytes, '\0');
  // The magic alone first: a program that speaks something else may never send a whole challenge.
  read_full(fd, answer.data(), kMagic.size(), deadline, op, who);
  if (!is_hello(answer)) throw_stranger(op, who);
  read_full(fd, answer.data() + kMagic.size(), answer.size() - kMagic.size(), deadline, op, who);
  const std::string_view nonce =
      std::string_view(answer).substr(kMagic.size(), std::tuple_size_v<Nonce>);
  const std::string_view mac = std::string_view(answer).substr(kHelloBytes);
  if (!equal_secret(mac, prove("listener", token, hello, nonce, context))) throw_refused(op, who);
  const std::string proof = prove("connector", token, hello, nonce, context);
  write_full(fd, proof.data(), proof.size(), deadline, op, who);
  char accepted = 0;
  read_full(fd, &accepted, 1, deadline, op, who);
  if (accepted != kAccepted) throw_stranger(op, who);
}

void authenticate_as_listener(const Fd& fd, std::string_view token, std::string_view context,
                              Deadline deadline, std::string_view op, std::string_view who) {
  std::string hello(kHelloBytes, '\0');
  read_full(fd, hello.data(), kMagic.size(), deadline, op, who);
  if (!is_hello(hello)) throw_stranger(op, who);
  read_full(fd, hello.data() + kMagic.size(), hello.size() - kMagic.size(), deadline, op, who);
  const Challenge sent = challenge(hello, token, context);
  write_full(fd, sent.message.data(), sent.message.size(), deadline, op, who);
  std::string proof(kProofBytes, '\0');
  read_full(fd, proof.data(), proof.size(), deadline, op, who);
  if (!equal_secret(proof, sent.want)) throw_refused(op, who);
  write_full(fd, &kAccepted, 1, deadline, op, who);
}

}  // namespace lockstep::comm
