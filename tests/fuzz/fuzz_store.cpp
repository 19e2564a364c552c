// The store's requests, from several connections at once, in pieces of any size: whatever they
// say, each gets at most one reply per request, every reply is a whole frame, and what is no
// request is an Error.
//
// An input is a row of pieces: the connection (1 byte; from 0xf0 on it ends instead), how many
// bytes (1), and these.

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lockstep/comm/store_table.h"

namespace {

using lockstep::Error;
using lockstep::comm::StoreTable;
using lockstep::comm::take_frame;

constexpr size_t kConnections = 5;

void require(bool holds) {
  if (!holds) std::abort();
}

struct Connection {
  std::string in;
  int requests = 0;
  int replies = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  std::array<Connection, kConnections> connections;
  StoreTable table([&](int64_t id, const std::string& frame) {
    std::string in = frame;
    const auto reply = take_frame(in);
    require(reply.has_value() && in.empty() && !reply->empty());
    Connection& connection = connections.at(static_cast<size_t>(id));
    require(++connection.replies <= connection.requests);
  });
  const auto end = [&](size_t id) {
    table.leave(static_cast<int64_t>(id));
    connections[id] = {};
  };
  size_t at = 0;
  while (bytes - at >= 2) {
    const size_t id = data[at] % kConnections;
    const bool ends = data[at] >= 0xf0;
    const size_t piece = std::min<size_t>(data[at + 1], bytes - at - 2);
    at += 2;
    if (ends) {
      end(id);
      continue;
    }
    connections[id].in.append(reinterpret_cast<const char*>(data) + at, piece);
    at += piece;
    try {
      while (const auto request = take_frame(connections[id].in)) {
        ++connections[id].requests;
        table.handle(static_cast<int64_t>(id), *request);
      }
    } catch (const Error&) {
      end(id);
    }
  }
  return 0;
}
