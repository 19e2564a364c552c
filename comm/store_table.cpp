#include "lockstep/comm/store_table.h"

#include <utility>
#include <vector>

#include "lockstep/comm/socket.h"
#include "lockstep/comm/text.h"

namespace lockstep::comm {

using std::chrono::milliseconds;

namespace {

// More than any job has, and few enough to list those that are missing.
constexpr int64_t kMaxRanks = int64_t{1} << 20;

bool is_group(std::string_view name) { return name.ends_with('/'); }

// What others are told of a rank's failure: what is about a third rank, or about all, stays so.
ErrorCode told(int64_t code) {
  for (const ErrorCode kept : {ErrorCode::kTimeout, ErrorCode::kMismatch}) {
    if (code == static_cast<int64_t>(kept)) return kept;
  }
  return ErrorCode::kPeerLost;
}

}  // namespace

void StoreTable::handle(int64_t connection, std::string_view request) {
  FrameReader frame(request);
  const auto op = static_cast<StoreOp>(frame.byte());
  const bool waits = waiting_.contains(connection);
  if (op == StoreOp::kGiveUp) {
    if (waits) give_up(connection, milliseconds(frame.number()));
    return;
  }
  if (waits) throw Error(ErrorCode::kCorrupt, "store", "a request while another waits");
  const std::string key(frame.text());
  if (key.size() > kMaxKeyBytes) throw Error(ErrorCode::kCorrupt, "store", "a key is too long");
  switch (op) {
    case StoreOp::kSet:
      return set(connection, key, std::string(frame.text()));
    case StoreOp::kGet:
      return get(connection, key);
    case StoreOp::kTryGet: {
      // One byte tells an empty value from none.
      const auto found = values_.find(key);
      return answer(connection, found == values_.end() ? "" : concat("=", found->second));
    }
    case StoreOp::kAdd:
      return add(connection, key, frame.number());
    case StoreOp::kErase:
      return answer(connection, values_.erase(key) > 0 ? "1" : "0");
    case StoreOp::kBarrier: {
      const int64_t rank = frame.number();
      const int64_t size = frame.number();
      if (size < 1 || size > kMaxRanks || rank < 0 || rank >= size) {
        return refuse(connection, ErrorCode::kInvalidArgument,
                      concat("want a rank of a group of 1 to ", kMaxRanks, " ranks, got rank ",
                             rank, " of ", size));
      }
      return enter_barrier(connection, key, static_cast<int>(rank), static_cast<int>(size));
    }
    case StoreOp::kGather: {
      const int64_t rank = frame.number();
      if (!is_group(key) || rank < 0 || rank >= kMaxRanks) {
        return refuse(connection, ErrorCode::kInvalidArgument,
                      concat("want a group's name that ends in / and a rank from 0 to ",
                             kMaxRanks - 1, ", got \"", key, "\" and ", rank));
      }
      return gather(connection, key, static_cast<int>(rank));
    }
    case StoreOp::kFail: {
      const ErrorCode code = told(frame.number());
      if (!is_group(key)) {
        return refuse(connection, ErrorCode::kInvalidArgument, "want a group's name, ending in /");
      }
      fail_group(key, code, std::string(frame.text()));
      return answer(connection, "");
    }
    case StoreOp::kGiveUp:
      break;
  }
  throw Error(ErrorCode::kCorrupt, "store", "an unknown request");
}

void StoreTable::leave(int64_t connection) {
  const auto found = waiting_.find(connection);
  if (found == waiting_.end()) return;
  const Waiting was = std::move(found->second);
  waiting_.erase(found);
  if (was.op == StoreOp::kGet) return forget_getter(was.name, connection);
  if (was.op == StoreOp::kGather) {
    groups_[was.name].members.erase(connection);
    return fail_group(was.name, ErrorCode::kPeerLost, concat("rank ", was.rank, " died"));
  }
  Barrier& barrier = barriers_[was.name];
  barrier.arrived.erase(was.rank);
  fail_barrier(
      barrier, ErrorCode::kPeerLost,
      concat("rank ", was.rank, " died, or left, while it waited in barrier \"", was.name, "\""));
}

void StoreTable::answer(int64_t connection, std::string_view value) {
  waiting_.erase(connection);
  send_(connection, FrameWriter(kStatusOk).rest(value).take());
}

void StoreTable::refuse(int64_t connection, ErrorCode code, std::string_view message) {
  waiting_.erase(connection);
  const auto status = static_cast<uint8_t>(1 + static_cast<int>(code));
  send_(connection, FrameWriter(status).rest(message).take());
}

void StoreTable::set(int64_t connection, const std::string& key, std::string value,
                     std::string_view reply) {
  const std::string& kept = values_[key] = std::move(value);
  answer(connection, reply);
  const auto found = getters_.find(key);
  if (found == getters_.end()) return;
  const std::set<int64_t> getters = std::move(found->second);
  getters_.erase(found);
  for (const int64_t getter : getters) answer(getter, kept);
}

void StoreTable::get(int64_t connection, const std::string& key) {
  const auto found = values_.find(key);
  if (found != values_.end()) return answer(connection, found->second);
  if (const Group* group = failed_group(key)) {
    return refuse(connection, group->code, group->failure);
  }
  waiting_[connection] = {StoreOp::kGet, key};
  getters_[key].insert(connection);
}

void StoreTable::add(int64_t connection, const std::string& key, int64_t delta) {
  const auto found = values_.find(key);
  int64_t value = 0;
  if (found != values_.end() && !parse_number(found->second, value)) {
    return refuse(connection, ErrorCode::kInvalidArgument,
                  concat("key \"", key, "\" holds no number, so nothing can be added to it"));
  }
  int64_t sum = 0;
  if (__builtin_add_overflow(value, delta, &sum)) {
    return refuse(
        connection, ErrorCode::kInvalidArgument,
        concat("counter \"", key, "\" is ", value, "; adding ", delta, " does not fit 64 bits"));
  }
  const std::string text = std::to_string(sum);
  set(connection, key, text, text);
}

void StoreTable::enter_barrier(int64_t connection, const std::string& name, int rank, int size) {
  if (const Group* group = failed_group(name)) {
    return refuse(connection, group->code, group->failure);
  }
  Barrier& barrier = barriers_[name];
  if (!barrier.failure.empty()) return refuse(connection, barrier.code, barrier.failure);
  if (barrier.size == 0) barrier.size = size;
  if (barrier.size != size || barrier.arrived.contains(rank)) {
    const int other = barrier.arrived.begin()->first;
    const std::string message =
        barrier.size != size ? concat("rank ", rank, " came to barrier \"", name, "\" of ", size,
                                      " ranks, but rank ", other, " to one of ", barrier.size)
                             : concat("rank ", rank, " came to barrier \"", name,
                                      "\" twice: have two processes the same rank?");
    fail_barrier(barrier, ErrorCode::kMismatch, message);
    return refuse(connection, ErrorCode::kMismatch, message);
  }
  waiting_[connection] = {StoreOp::kBarrier, name, rank};
  barrier.arrived[rank] = connection;
  if (static_cast<int>(barrier.arrived.size()) < size) return;
  const std::map<int, int64_t> everyone = std::move(barrier.arrived);
  barriers_.erase(name);
  for (const auto& [member, waiter] : everyone) answer(waiter, "");
}

void StoreTable::fail_barrier(Barrier& barrier, ErrorCode code, const std::string& message) {
  if (!barrier.failure.empty()) return;
  barrier.code = code;
  barrier.failure = message;
  const std::map<int, int64_t> everyone = std::exchange(barrier.arrived, {});
  for (const auto& [member, waiter] : everyone) refuse(waiter, code, message);
}

void StoreTable::gather(int64_t connection, const std::string& name, int rank) {
  if (const Group* group = failed_group(name)) {
    return refuse(connection, group->code, group->failure);
  }
  waiting_[connection] = {StoreOp::kGather, name, rank};
  groups_[name].members.insert(connection);
}

void StoreTable::fail_group(const std::string& name, ErrorCode code, const std::string& why) {
  Group& group = groups_[name];
  if (!group.failure.empty()) return;
  group.code = code;
  group.failure = why.empty() ? "a rank failed" : why;
  const std::set<int64_t> members = std::exchange(group.members, {});
  for (const int64_t member : members) refuse(member, code, group.failure);
  std::vector<int64_t> waiting;
  for (auto at = getters_.lower_bound(name); at != getters_.end() && at->first.starts_with(name);) {
    waiting.insert(waiting.end(), at->second.begin(), at->second.end());
    at = getters_.erase(at);
  }
  for (const int64_t getter : waiting) refuse(getter, code, group.failure);
  for (auto at = barriers_.lower_bound(name); at != barriers_.end() && at->first.starts_with(name);
       ++at) {
    fail_barrier(at->second, code, group.failure);
  }
}

const StoreTable::Group* StoreTable::failed_group(const std::string& key) const {
  for (size_t at = key.find('/'); at != key.npos; at = key.find('/', at + 1)) {
    const auto found = groups_.find(key.substr(0, at + 1));
    if (found != groups_.end() && !found->second.failure.empty()) return &found->second;
  }
  return nullptr;
}

void StoreTable::give_up(int64_t connection, milliseconds waited) {
  const Waiting& was = waiting_.at(connection);
  if (was.op == StoreOp::kGet) {
    const std::string message = concat("waited ", seconds_text(waited), " for key \"", was.name,
                                       "\", and no rank has set it");
    forget_getter(was.name, connection);
    return refuse(connection, ErrorCode::kTimeout, message);
  }
  if (was.op == StoreOp::kGather) {
    const auto group = groups_.find(was.name);
    group->second.members.erase(connection);
    if (group->second.members.empty()) groups_.erase(group);
    return answer(connection, "");
  }
  Barrier& barrier = barriers_[was.name];
  std::vector<int> missing;
  for (int rank = 0; rank < barrier.size; ++rank) {
    if (!barrier.arrived.contains(rank)) missing.push_back(rank);
  }
  const std::string message =
      concat("rank ", was.rank, " waited ", seconds_text(waited), " in barrier \"", was.name,
             "\", and of ", barrier.size, " ranks ", rank_list(missing),
             missing.size() == 1 ? " has" : " have", " not come");
  fail_barrier(barrier, ErrorCode::kTimeout, message);
}

void StoreTable::forget_getter(const std::string& key, int64_t connection) {
  const auto found = getters_.find(key);
  if (found == getters_.end()) return;
  found->second.erase(connection);
  if (found->second.empty()) getters_.erase(found);
}

}  // namespace lockstep::comm
