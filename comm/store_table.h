#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "lockstep/comm/store_wire.h"
#include "lockstep/kernels/error.h"

namespace lockstep::comm {

// What the store holds, and who waits for it: requests of connections in, replies out, and no
// socket anywhere. Not thread-safe.
class StoreTable {
 public:
  // Sends a reply, a whole frame, to a connection. May be called for any connection, from handle()
  // and leave(); must not call back.
  using Send = std::function<void(int64_t connection, const std::string& frame)>;
  explicit StoreTable(Send send) : send_(std::move(send)) {}

  // One request: a frame without its length. Throws kCorrupt where it is none, or comes while
  // another of this connection waits; the connection must be dropped then.
  void handle(int64_t connection, std::string_view request);
  // The connection has ended, whatever it waits for.
  void leave(int64_t connection);

 private:
  // A call that waits.
  struct Waiting {
    StoreOp op;        // kGet, kBarrier or kGather
    std::string name;  // of the key, the barrier or the group
    int rank = -1;     // in the barrier or the group
  };
  struct Barrier {
    int size = 0;
    std::map<int, int64_t> arrived;  // rank -> connection
    // Set once the barrier has failed, for those who come later.
    ErrorCode code = ErrorCode::kInternal;
    std::string failure;
  };

  // Ranks that find each other by names that begin with the group's, which ends in '/'.
  struct Group {
    std::set<int64_t> members;  // connections
    ErrorCode code = ErrorCode::kInternal;
    std::string failure;  // not empty once the group has failed
  };

  void answer(int64_t connection, std::string_view value);
  void refuse(int64_t connection, ErrorCode code, std::string_view message);
  // Keeps the value, gives `reply` to who sent it, and the value to those who waited for it.
  void set(int64_t connection, const std::string& key, std::string value,
           std::string_view reply = "");
  void get(int64_t connection, const std::string& key);
  void add(int64_t connection, const std::string& key, int64_t delta);
  void enter_barrier(int64_t connection, const std::string& name, int rank, int size);
  void fail_barrier(Barrier& barrier, ErrorCode code, const std::string& message);
  void gather(int64_t connection, const std::string& name, int rank);
  // The first failure counts. Ends every wait for names that begin with the group's.
  void fail_group(const std::string& name, ErrorCode code, const std::string& why);
  // The group of this key that has failed, if there is one.
  const Group* failed_group(const std::string& key) const;
  void give_up(int64_t connection, std::chrono::milliseconds waited);
  void forget_getter(const std::string& key, int64_t connection);

  const Send send_;
  std::map<std::string, std::string> values_;
  std::map<int64_t, Waiting> waiting_;                // by connection
  std::map<std::string, std::set<int64_t>> getters_;  // key -> connections in get
  std::map<std::string, Barrier> barriers_;
  std::map<std::string, Group> groups_;
};

}  // namespace lockstep::comm
