#include "lockstep/comm/ring.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace lockstep::comm {
namespace {

// Long enough that a chunk's overheads vanish, short enough to stay in the second-level cache.
constexpr int64_t kChunkBytes = int64_t{128} << 10;

struct Piece {
  std::byte* data;
  size_t bytes;
};

// Two streams of pieces at once, cut into the same steps of `lag` pieces. Piece t of what is sent
// is what became of received piece t - lag; the first `lag` are this rank's own.
//
//   Piece outgoing(t)   what to send, called once when its turn comes
//   Piece incoming(t)   where to receive
//   void arrived(t)     piece t was received and must be dealt with
//   bool ready(t, sent) whether that may happen now, with `sent` pieces sent so far
template <class Plan>
void run_streams(Plan& plan, int64_t send_count, int64_t receive_count, int64_t lag,
                 RingLink& link) {
  int64_t sent = 0;      // pieces
  int64_t received = 0;  // pieces, dealt with
  Piece out{nullptr, 0};
  Piece in{nullptr, 0};
  bool out_open = false;  // the piece `sent` was begun
  bool in_open = false;   // likewise `received`
  while (sent < send_count || received < receive_count) {
    bool moved = false;
    bool may_send = sent < send_count && (sent < lag || received > sent - lag);
    if (may_send) {
      if (!out_open) out = plan.outgoing(sent);
      out_open = true;
      const size_t bytes = out.bytes != 0 ? link.try_send(out.data, out.bytes) : 0;
      out.data += bytes;
      out.bytes -= bytes;
      moved = bytes != 0;
      if (out.bytes == 0) {
        ++sent;
        out_open = false;
        moved = true;
        may_send = false;
      }
    }
    bool may_receive = received < receive_count;
    if (may_receive) {
      if (!in_open) in = plan.incoming(received);
      in_open = true;
      const size_t bytes = in.bytes != 0 ? link.try_receive(in.data, in.bytes) : 0;
      in.data += bytes;
      in.bytes -= bytes;
      moved = moved || bytes != 0;
      may_receive = in.bytes != 0;
      if (in.bytes == 0 && plan.ready(received, sent)) {
        plan.arrived(received);
        ++received;
        in_open = false;
        moved = true;
      }
    }
    if (!moved) link.wait(may_send, may_receive);
  }
}

// Reduce-scatter, all-gather, or one after the other. In step s of the first, rank r sends its
// partial of block r - 1 - s; what it gets is the rank before's partial of block r - 2 - s. Block b
// so begins at rank b + 1 and is finished at rank b. A partial of one rank, in step 0, travels as
// that rank's input, and who gets it begins the fold: partials may be wider. In step s of the
// second, r sends block r - s.
//
// A reduce ends with a gather instead, in the same steps: finished blocks go on around the ring,
// and no further than the root. The d-th rank after the root sends its own block and the d - 1 that
// come to it.
class ReducePlan {
 public:
  ReducePlan(const Collective& collective, int rank, int size)
      : collective_(collective),
        rank_(rank),
        size_(size),
        blocks_(collective.blocks(size)),
        spec_(collective.fold(size)),
        element_(collective.element_size()),
        scatters_(collective.folds()),
        gathers_(collective.request.kind != Kind::kReduceScatter),
        forwards_(!collective.takes(rank)),
        scatter_steps_(scatters_ ? size - 1 : 0) {
    partial_ = scatters_ ? static_cast<int64_t>(kernels::partial_size(spec_.dtype, spec_.op)) : 0;
    slot_ = std::max(partial_, element_);
    chunk_ = kChunkBytes / slot_;
    pieces_ = (blocks_.size + chunk_ - 1) / chunk_;
    send_steps_ = receive_steps_ = scatter_steps_ + (gathers_ ? size - 1 : 0);
    if (!scatters_) return;
    if (collective.request.kind == Kind::kReduce) {
      const int d = (rank - collective.request.root + size - 1) % size + 1;  // n for the root
      send_steps_ = scatter_steps_ + d % size;
      receive_steps_ = scatter_steps_ + d - 1;
    }
    in_result_ = gathers_ && partial_ == element_ && !forwards_;
    input_as_partial_ = kernels::partial_is_input(spec_.dtype, spec_.op);
    incoming_.resize(chunk_ * slot_);
    if ((!in_result_ && size > 2) || forwards_) partials_.resize(pieces_ * chunk_ * slot_);
  }

  int64_t pieces() const { return pieces_; }
  int64_t to_send() const { return pieces_ * send_steps_; }
  int64_t to_receive() const { return pieces_ * receive_steps_; }

  Piece outgoing(int64_t t) {
    const int step = static_cast<int>(t / pieces_);
    if (step >= scatter_steps_) {
      const Span span = piece(block(rank_ - (step - scatter_steps_)), t);
      if (forwards_) return {slot(t), span.bytes(element_)};
      const bool own_input = !scatters_ && step == 0;
      const std::byte* from = own_input ? send() + (span.first - blocks_.begin(rank_)) * element_
                                        : recv() + span.first * element_;
      return {const_cast<std::byte*>(from), span.bytes(element_)};
    }
    const Span span = piece(block(rank_ - 1 - step), t);
    if (step > 0) return {partial(span, t), span.bytes(partial_)};
    return {const_cast<std::byte*>(send()) + span.first * element_, span.bytes(element_)};
  }

  Piece incoming(int64_t t) {
    const int step = static_cast<int>(t / pieces_);
    if (step < scatter_steps_) {
      const int64_t each = step == 0 ? element_ : partial_;
      return {incoming_.data(), piece(block(rank_ - 2 - step), t).bytes(each)};
    }
    const Span span = piece(block(rank_ - 1 - (step - scatter_steps_)), t);
    return {forwards_ ? incoming_.data() : recv() + span.first * element_, span.bytes(element_)};
  }

  // What waits in partials_ must be sent before the next takes its place.
  bool ready(int64_t t, int64_t sent) const {
    const bool takes_a_slot = forwards_ || t / pieces_ < scatter_steps_ - 1;
    return !takes_a_slot || partials_.empty() || sent > t;
  }

  void arrived(int64_t t) {
    const int step = static_cast<int>(t / pieces_);
    if (step >= scatter_steps_) {
      const Span span = piece(block(rank_ - 1 - (step - scatter_steps_)), t);
      if (forwards_) std::memcpy(slot(t), incoming_.data(), span.bytes(element_));
      return;
    }
    const Span span = piece(block(rank_ - 2 - step), t);
    const std::byte* input = send() + span.first * element_;
    if (!last_scatter(t)) {
      std::byte* to = partial(span, t);
      std::byte* begun = incoming_.data();
      if (step == 0 && !input_as_partial_) {
        // Not where `to` may be the input.
        if (partial_ != element_) begun = to;
        kernels::FoldBegin::cpu(spec_, incoming_.data(), begun, span.count);
      }
      kernels::FoldStep::cpu(spec_, begun, input, to, span.count);
      return;
    }
    const int64_t first = gathers_ ? span.first : span.first - blocks_.begin(rank_);
    void* output = forwards_ ? slot(t) : recv() + first * element_;
    if (step == 0) {  // of two ranks
      const void* inputs[] = {incoming_.data(), input};
      return kernels::Fold::cpu(spec_, inputs, &output, 1, span.count);
    }
    kernels::FoldFinish::cpu(spec_, incoming_.data(), input, output, span.count);
  }

 private:
  struct Span {
    int64_t first;
    int64_t count;
    size_t bytes(int64_t element) const { return static_cast<size_t>(count * element); }
  };

  int block(int of) const { return (of % size_ + size_) % size_; }
  const std::byte* send() const { return static_cast<const std::byte*>(collective_.send); }
  std::byte* recv() const { return static_cast<std::byte*>(collective_.recv); }
  bool last_scatter(int64_t t) const { return t / pieces_ == scatter_steps_ - 1; }
  // The elements of piece t, where its step is about `block`; none where a short block has ended.
  Span piece(int block, int64_t t) const {
    const int64_t first = std::min(blocks_.end(block), blocks_.begin(block) + t % pieces_ * chunk_);
    return {first, std::min(chunk_, blocks_.end(block) - first)};
  }
  std::byte* partial(const Span& span, int64_t t) {
    return in_result_ ? recv() + span.first * element_ : slot(t);
  }
  std::byte* slot(int64_t t) { return partials_.data() + t % pieces_ * chunk_ * slot_; }

  const Collective& collective_;
  const int rank_;
  const int size_;
  const Blocks blocks_;
  const kernels::FoldSpec spec_;
  const int64_t element_;
  const bool scatters_;
  const bool gathers_;
  const bool forwards_;  // a reduce to another rank: there is no recv
  const int scatter_steps_;
  int send_steps_ = 0;
  int receive_steps_ = 0;
  int64_t partial_ = 0;  // bytes
  int64_t slot_ = 0;     // bytes of an element, partial or not
  int64_t chunk_ = 0;    // elements
  int64_t pieces_ = 0;   // of a block
  bool in_result_ = false;
  bool input_as_partial_ = false;
  std::vector<std::byte> incoming_;  // a piece, before it is folded
  std::vector<std::byte> partials_;  // a block, where recv has no room for it
};

// A chain from the root, which the rank before it ends.
class BroadcastPlan {
 public:
  explicit BroadcastPlan(const Collective& collective)
      : data_(static_cast<std::byte*>(collective.recv)), bytes_(collective.recv_bytes(1)) {}

  int64_t pieces() const { return (bytes_ + kChunkBytes - 1) / kChunkBytes; }
  Piece outgoing(int64_t t) { return piece(t); }
  Piece incoming(int64_t t) { return piece(t); }
  bool ready(int64_t, int64_t) const { return true; }
  void arrived(int64_t) {}

 private:
  Piece piece(int64_t t) const {
    const int64_t first = t * kChunkBytes;
    return {data_ + first, static_cast<size_t>(std::min(kChunkBytes, bytes_ - first))};
  }

  std::byte* data_;
  int64_t bytes_;
};

}  // namespace

void run_ring(const Collective& collective, int rank, int size, RingLink& link) {
  if (collective.request.count == 0) return;
  switch (collective.request.kind) {
    case Kind::kBarrier:
      return;
    case Kind::kBroadcast: {
      BroadcastPlan plan(collective);
      const int distance = (rank - collective.request.root + size) % size;
      const int64_t pieces = plan.pieces();
      // The root's pieces are all its own; the others send what they received, lag 0.
      run_streams(plan, distance == size - 1 ? 0 : pieces, distance == 0 ? 0 : pieces,
                  distance == 0 ? pieces : 0, link);
      return;
    }
    case Kind::kAllReduce:
    case Kind::kReduceScatter:
    case Kind::kReduce:
    case Kind::kAllGather:
    case Kind::kSplit: {
      ReducePlan plan(collective, rank, size);
      if (collective.gathers()) {
        const auto bytes = static_cast<size_t>(collective.send_bytes(size));
        std::byte* own = static_cast<std::byte*>(collective.recv) + rank * collective.send_bytes(1);
        if (own != collective.send) std::memcpy(own, collective.send, bytes);
      }
      run_streams(plan, plan.to_send(), plan.to_receive(), plan.pieces(), link);
      return;
    }
    default:
      throw Error(ErrorCode::kInternal, collective.request.name(), "it goes around no ring");
  }
}

}  // namespace lockstep::comm
