#include "lockstep/comm/nccl_transport.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/cuda_transport.h"
#include "lockstep/comm/cuda_watch.h"
#include "lockstep/comm/log.h"
#include "lockstep/comm/nccl_group.h"
#include "lockstep/comm/text.h"
#include "lockstep/kernels/cuda/runtime.h"
#include "lockstep/kernels/memory.h"

namespace lockstep::comm {
namespace {

constexpr std::string_view kOp = "connect";
// Between looks at the other ranks while NCCL connects or begins, and at a stream that ends.
constexpr std::chrono::milliseconds kLook{20};
constexpr std::chrono::microseconds kLookAtStream{200};
// What was aborted, or is to be, ends within this.
constexpr std::chrono::seconds kSoon{2};
// A stream has room for about a thousand kernels, and a call that waits for room there while a
// device does not go on could not be ended.
constexpr size_t kMostOnTheWay = 256;

template <size_t kBytes>
using Text = std::array<char, kBytes>;

template <size_t kBytes>
void put_text(std::string_view text, Text<kBytes>& out) {
  text.copy(out.data(), kBytes - 1);
}

// Every rank's `mine`, by rank.
template <class T>
std::vector<T> tell_all(Transport& transport, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<size_t>(transport.size()));
  transport.meet(Collective{{Kind::kSplit, DType::kU8, kernels::FoldOp::kSum, Algorithm::kAuto, 0,
                             static_cast<int64_t>(sizeof mine)}},
                 &mine, sizeof mine, all.data());
  return all;
}

std::string death_of(int rank) {
  return concat("rank ", rank, " died: its process ended without leaving the group");
}

// Whether NCCL has this fold and gives what Lockstep promises: it knows no bools and no bits, an
// integer's average is not said to be truncated, and min and max say nothing of NaN.
bool has_fold(const Request& request) {
  if (request.dtype == DType::kBool) return false;
  switch (request.op) {
    case kernels::FoldOp::kSum:
    case kernels::FoldOp::kProduct:
      return true;
    case kernels::FoldOp::kAvg:
      return is_floating(request.dtype);
    case kernels::FoldOp::kMin:
    case kernels::FoldOp::kMax:
      return !is_floating(request.dtype);
    default:
      return false;
  }
}

class NcclTransport final : public Transport {
 public:
  // Does nothing before connect().
  explicit NcclTransport(std::unique_ptr<Transport> others)
      : Transport(others->rank(), others->size(), others->timeout()),
        others_(std::move(others)),
        stream_(others_->device()) {
    set_costs(others_->costs());
  }

  // What keeps the ranks from using NCCL; the same on every rank.
  struct Outcome {
    ErrorCode code = ErrorCode::kInvalidArgument;
    std::string why_not;  // empty: nothing
  };
  Outcome connect(std::string_view machine);
  // After it: rank 0's count.
  void choose_by(const std::optional<DeviceCosts>& costs);
  std::unique_ptr<Transport> give_back() { return std::move(others_); }

  std::string_view name() const override { return "nccl"; }
  Device device() const override { return others_->device(); }
  std::shared_ptr<void> allocate(size_t bytes) override { return others_->allocate(bytes); }
  std::shared_ptr<void> allocate_on_device(size_t bytes) override;
  Costs measure_costs(int rounds) override { return others_->measure_costs(rounds); }
  std::string pair_text(int peer) const override {
    return concat("memory of devices by NCCL; what that has not: ", others_->pair_text(peer));
  }
  std::string way_text(size_t bytes) const override { return others_->way_text(bytes); }

  void meet(const Collective& collective, const void* mine, size_t bytes, void* all) override {
    others_->meet(collective, mine, bytes, all);
  }
  int find_dead() override { return others_->find_dead(); }

  void run(const Collective& collective) override;
  void run(std::span<Transfer* const> transfers) override {
    raise_failure();
    others_->run(transfers);
  }
  void nudge() noexcept override { others_->nudge(); }

  void leave(const Failure& why) noexcept override {
    // The others' kernels need this rank's to end, and NCCL uses its buffers until then. After a
    // failure they may never end.
    const bool in_order = why.code == ErrorCode::kCancelled && !cancelled_.load() && !failed_;
    end_on_stream(in_order ? Deadline::max() : deadline_after(kSoon));
    others_->leave(why);
  }
  void cancel() noexcept override {
    cancelled_.store(true);
    others_->cancel();
  }

 private:
  // Throws what the watch has found.
  void raise_failure() const { watch_->raise_failure(); }
  bool has_failed() const noexcept;
  Outcome find_shared_device(std::string_view machine);
  std::string find_loss();
  void raise_dead();
  void look();
  bool is_cheaper_without(const Collective& collective) const;
  void put(const Collective& collective);
  void exchange(const Collective& collective);
  void run_with_counts(const Collective& collective);
  void await_room();
  void await_stream(const Collective& barrier);
  void end_on_stream(Deadline deadline) noexcept;

  std::unique_ptr<Transport> others_;
  std::optional<DeviceCosts> choice_;
  Stream stream_;
  std::atomic<bool> cancelled_{false};
  // Of the call of NCCL that is made.
  std::string_view op_ = kOp;
  Deadline deadline_;
  Clock::time_point next_look_{};
  std::deque<Event> on_the_way_;
  bool failed_ = false;  // in a call of NCCL, whose group was aborted
  // In this order they go: the watch asks the group.
  std::shared_ptr<NcclGroup> nccl_;
  std::unique_ptr<CudaWatch> watch_;
};

// ---- Connecting ----

// What a rank tells of a step: why it could not take it, if it could not.
struct Told {
  int32_t code;
  Text<508> why_not;
};

template <class Step>
Told attempt(const Step& step) {
  Told told = {};
  try {
    step();
  } catch (...) {
    const Failure failure = Failure::current(kOp);
    told.code = static_cast<int32_t>(failure.code);
    put_text(failure.message.empty() ? "it does not say why" : failure.message, told.why_not);
  }
  return told;
}

// The first rank that could not; of those that waited for another in vain only where all did.
NcclTransport::Outcome outcome_of(std::span<const Told> all) {
  NcclTransport::Outcome out;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].why_not[0] == '\0') continue;
    const auto code = static_cast<ErrorCode>(all[rank].code);
    if (!out.why_not.empty() && (out.code != ErrorCode::kTimeout || code == out.code)) continue;
    out = {code, concat("rank ", rank, ": ", all[rank].why_not.data())};
  }
  return out;
}

// In the order of what it costs to find out: NCCL's library is large.
NcclTransport::Outcome NcclTransport::connect(std::string_view machine) {
  Outcome outcome = find_shared_device(machine);
  if (!outcome.why_not.empty()) return outcome;

  outcome = outcome_of(tell_all(*others_, attempt([&] {
    const std::string why_not = NcclGroup::why_not();
    check(why_not.empty(), kOp, why_not);
  })));
  if (!outcome.why_not.empty()) return outcome;

  NcclGroup::Id id = {};
  outcome = outcome_of(tell_all(*others_, attempt([&] {
    if (rank() == 0) id = NcclGroup::make_id();
  })));
  if (!outcome.why_not.empty()) return outcome;
  id = tell_all(*others_, id)[0];

  outcome = outcome_of(tell_all(*others_, attempt([&] {
    deadline_ = deadline_after(timeout());
    stream_ = Stream::create(device(), StreamPriority::kHigh);
    nccl_ = std::make_shared<NcclGroup>(id, rank(), size(), stream_, [this] { look(); });
  })));
  if (!outcome.why_not.empty()) {
    if (nccl_ != nullptr) nccl_->abort();
    return outcome;
  }
  watch_ = std::make_unique<CudaWatch>(
      rank(), timeout(), [this] { return find_loss(); }, [this] { nccl_->abort(); });
  return outcome;
}

NcclTransport::Outcome NcclTransport::find_shared_device(std::string_view machine) {
  struct Card {
    Told told;
    int32_t index;
    Text<252> name;
  };
  Card mine = {};
  mine.index = device().index;
  mine.told =
      attempt([&] { put_text(concat(NcclGroup::device_name(device()), " ", machine), mine.name); });
  std::vector<Told> told;
  std::map<std::string, size_t> owners;
  Outcome shared;
  for (const Card& card : tell_all(*others_, mine)) {
    const size_t rank = told.size();
    told.push_back(card.told);
    const auto [owner, is_new] = owners.try_emplace(card.name.data(), rank);
    if (is_new || !shared.why_not.empty()) continue;
    shared.why_not = concat("rank ", rank, " shares its device, cuda:", card.index, ", with rank ",
                            owner->second,
                            ", and NCCL wants one for each rank; give each rank its own, or take "
                            "transport \"cuda\", by which ranks may share");
  }
  Outcome out = outcome_of(told);
  return out.why_not.empty() ? shared : out;
}

std::string NcclTransport::find_loss() {
  const int dead = others_->find_dead();
  return dead < 0 ? nccl_->error() : death_of(dead);
}

void NcclTransport::raise_dead() {
  const int dead = others_->find_dead();
  if (dead >= 0) throw Error(ErrorCode::kPeerLost, op_, death_of(dead));
}

// While a call waits for NCCL, and so for the others.
void NcclTransport::look() {
  if (cancelled_.load()) throw Error(ErrorCode::kCancelled, op_, "the communicator was aborted");
  const Clock::time_point now = Clock::now();
  if (now >= deadline_) {
    throw Error(ErrorCode::kTimeout, op_,
                concat("rank ", rank(), " waited ", seconds_text(timeout()),
                       " for NCCL to reach the other ranks; Options::timeout or LOCKSTEP_TIMEOUT "
                       "makes it wait longer"));
  }
  if (now < next_look_) return;
  next_look_ = now + kLook;
  raise_dead();
}

void NcclTransport::choose_by(const std::optional<DeviceCosts>& costs) {
  struct Known {
    bool is_known;
    DeviceCosts costs;
  };
  const Known known =
      tell_all(*others_, Known{costs.has_value(), costs.value_or(DeviceCosts{})})[0];
  if (others_->name() != "cuda" || !known.is_known) return;
  choice_ = known.costs;
  if (rank() != 0 || !logs_debug()) return;
  const auto text = [](const Costs& c) {
    return concat(c.meet * 1e6, " us and ", c.fetch * 1e9, " ns/B");
  };
  log_line(0,
           concat("of devices' memory each size goes the cheaper way by the table of costs: cuda ",
                  text(choice_->cuda), ", nccl ", text(choice_->nccl)));
}

// ---- Memory ----

std::shared_ptr<void> NcclTransport::allocate_on_device(size_t bytes) {
  std::shared_ptr<void> memory = others_->allocate_on_device(bytes);
  if (memory == nullptr) return memory;
  void* data = memory.get();
  void* handle = nccl_->register_memory(data, bytes);
  if (handle == nullptr) return memory;
  return {data, [memory = std::move(memory), handle, stream = stream_,
                 group = std::weak_ptr<NcclGroup>(nccl_)](void*) mutable {
            if (const std::shared_ptr<NcclGroup> alive = group.lock()) {
              try {
                stream.synchronize();  // what uses it may still be on its way
              } catch (...) {
                // The device has failed, and nothing uses it any more.
              }
              alive->deregister(handle);
            }
            memory.reset();
          }};
}

// ---- Collectives ----

void NcclTransport::run(const Collective& collective) {
  raise_failure();
  if (collective.counts != nullptr) return run_with_counts(collective);
  if (collective.request.kind == Kind::kBarrier) await_stream(collective);
  const bool by_nccl = collective.on_device != nullptr &&
                       (!collective.folds() || has_fold(collective.request)) &&
                       !is_cheaper_without(collective);
  if (!by_nccl) return others_->run(collective);
  Collective asked = collective;
  asked.request.on_device = true;
  others_->meet(asked, nullptr, 0, nullptr);
  put(collective);
}

bool NcclTransport::is_cheaper_without(const Collective& collective) const {
  if (!choice_ || !has_direct_way(collective, size())) return false;
  const auto bytes =
      static_cast<double>(std::max(collective.send_bytes(size()), collective.recv_bytes(size())));
  return device_seconds(choice_->cuda, size(), bytes) <
         device_seconds(choice_->nccl, size(), bytes);
}

// Where each rank has its own counts, one that gives and takes nothing has no buffers, and does not
// know whether the others' are a device's memory: all tell first.
void NcclTransport::run_with_counts(const Collective& collective) {
  enum Memory : int64_t { kNone, kHost, kDevice };
  const bool empty = collective.send_bytes(size()) == 0 && collective.recv_bytes(size()) == 0;
  std::vector<int64_t> mine = collective.counts->table();
  mine.push_back(empty ? kNone : collective.on_device == nullptr ? kHost : kDevice);
  std::vector<int64_t> all(static_cast<size_t>(size()) * mine.size());
  others_->meet(collective, mine.data(), mine.size() * sizeof(int64_t), all.data());

  std::vector<const int64_t*> tables;
  std::array<int, 3> first = {-1, -1, -1};  // a rank with each kind of memory
  for (int peer = size() - 1; peer >= 0; --peer) {
    const int64_t* table = all.data() + static_cast<size_t>(peer) * mine.size();
    tables.insert(tables.begin(), table);
    first[static_cast<size_t>(table[mine.size() - 1])] = peer;
  }
  check_tables(collective, tables);
  if (first[kDevice] < 0) return others_->run(collective);
  if (first[kHost] >= 0) {
    throw Error(ErrorCode::kMismatch, collective.request.name(),
                concat("ranks disagree about collective ", collective.sequence,
                       " of this communicator: rank ", first[kHost],
                       " gives memory of the host, rank ", first[kDevice], " of its device"));
  }
  if (!empty) put(collective);
}

// Puts a collective about which the ranks agree on the stream. From here on others wait for it.
void NcclTransport::put(const Collective& collective) {
  op_ = collective.request.name();
  deadline_ = deadline_after(timeout());
  try {
    await_room();
    const StreamGuard guard(stream_);
    collective.on_device->begin(stream_);
    used_on(collective.send, stream_);
    used_on(collective.recv, stream_);
    if (collective.exchanges()) {
      exchange(collective);
    } else {
      nccl_->put(collective);
    }
    collective.on_device->complete(stream_);
  } catch (...) {
    failed_ = true;
    nccl_->abort();
    raise_failure();  // either may be why this failed
    raise_dead();
    throw;
  }
  on_the_way_.push_back(collective.on_device->completed);
  watch_->add(op_, collective.on_device->completed);
}

void NcclTransport::exchange(const Collective& collective) {
  const auto* send = static_cast<const std::byte*>(collective.send);
  auto* recv = static_cast<std::byte*>(collective.recv);
  std::shared_ptr<void> copy;
  if (collective.request.kind == Kind::kAllToAll && send == recv) {
    // What comes from a rank would take the place of what must still go to it.
    const auto bytes = static_cast<size_t>(collective.send_bytes(size()));
    copy = lockstep::allocate(bytes, device());
    cuda::copy_async(copy.get(), send, bytes, stream_);
    send = static_cast<const std::byte*>(copy.get());
  }
  const std::vector<int64_t> own =
      collective.counts != nullptr ? collective.counts->table() : std::vector<int64_t>();
  std::vector<NcclGroup::Part> parts;
  for (int i = 1; i <= size(); ++i) {  // itself last
    const int to = (rank() + i) % size();
    const int from = (rank() + size() - i) % size();
    const Part out = collective.sent_part(rank(), to, own.data());
    const Part in = collective.received_part(from, rank());
    if (to == rank()) {
      if (out.bytes != 0 && recv + in.offset != send + out.offset) {
        cuda::copy_async(recv + in.offset, send + out.offset, static_cast<size_t>(out.bytes),
                         stream_);
      }
      continue;
    }
    if (out.bytes != 0) {
      parts.push_back({to, true, const_cast<std::byte*>(send) + out.offset, out.bytes});
    }
    if (in.bytes != 0) parts.push_back({from, false, recv + in.offset, in.bytes});
  }
  if (!parts.empty()) nccl_->exchange(op_, parts);
}

void NcclTransport::await_room() {
  while (!on_the_way_.empty()) {
    if (on_the_way_.front().done()) {
      on_the_way_.pop_front();
    } else if (on_the_way_.size() < kMostOnTheWay) {
      return;
    } else {
      raise_failure();
      look();
      std::this_thread::sleep_for(kLookAtStream);
    }
  }
}

// For the barrier: it passes where all ranks' devices have finished what came before it.
void NcclTransport::await_stream(const Collective& barrier) {
  op_ = barrier.request.name();
  deadline_ = deadline_after(timeout());
  while (!stream_.done()) {
    raise_failure();
    look();
    std::this_thread::sleep_for(kLookAtStream);
  }
  raise_failure();
}

bool NcclTransport::has_failed() const noexcept {
  try {
    raise_failure();
    return false;
  } catch (...) {
    return true;
  }
}

// Waits for what is on its way, and aborts it at the deadline, or where the watch has.
void NcclTransport::end_on_stream(Deadline deadline) noexcept {
  if (watch_ == nullptr) return;  // nothing was put there
  bool aborted = failed_;
  try {
    while (!stream_.done()) {
      if ((!aborted && has_failed()) || Clock::now() >= deadline) {
        if (aborted) return;  // the device itself does not go on
        aborted = true;
        deadline = deadline_after(kSoon);
        nccl_->abort();
      }
      std::this_thread::sleep_for(kLookAtStream);
    }
  } catch (...) {
    // The device has failed: nothing is on its way any more, and its next user will be told.
  }
}

}  // namespace

std::unique_ptr<Transport> with_nccl(std::unique_ptr<Transport> others, std::string_view machine,
                                     bool must, const std::optional<DeviceCosts>& costs) {
  if (others->size() == 1 && !must) return others;
  auto transport = std::make_unique<NcclTransport>(std::move(others));
  try {
    const NcclTransport::Outcome outcome = transport->connect(machine);
    if (outcome.why_not.empty()) {
      transport->choose_by(costs);
      return transport;
    }
    if (must) {
      throw Error(outcome.code, kOp, concat("transport \"nccl\" cannot be had: ", outcome.why_not));
    }
    // Ranks that share a device, or have no NCCL, are as they should be; a failure is worth a line.
    const bool failed = outcome.code != ErrorCode::kInvalidArgument;
    if (transport->rank() == 0 && (failed || logs_debug())) {
      log_line(0, concat("goes on without NCCL: ", outcome.why_not));
    }
    return transport->give_back();
  } catch (...) {
    transport->leave(Failure::current(kOp));  // else the others would wait for this rank
    throw;
  }
}

}  // namespace lockstep::comm
