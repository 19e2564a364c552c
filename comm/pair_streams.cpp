#include "lockstep/comm/pair_streams.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/comm/text.h"

namespace lockstep::comm {
namespace {

// Data between two headers: long enough that headers cost nothing, short enough that a post or a
// reason for leaving need not wait long.
constexpr int64_t kFrameBytes = int64_t{1} << 20;

}  // namespace

void PairStreams::choose(std::span<Transfer* const> transfers) {
  for (Stream& stream : streams_) stream.send = stream.recv = nullptr;
  for (Transfer* transfer : transfers) {
    if (transfer->done()) continue;
    Stream& stream = streams_[transfer->peer];
    Transfer*& place = transfer->sends ? stream.send : stream.recv;
    if (place == nullptr) place = transfer;
  }
}

void PairStreams::post(Stream& stream, Transfer& transfer) {
  if (transfer.posted || transfer.agreed) return;
  transfer.posted = true;
  uint64_t& before = transfer.sends ? stream.sends : stream.recvs;
  stream.posts.push_back(
      {Frame::Kind::kPost, 0, before++, transfer.request.code(), transfer.request.count});
}

// A transfer without bytes ends once it is agreed about: its post must have gone out by then.
bool PairStreams::is_posting(const Stream& stream, Kind kind) {
  const auto is_it = [kind](const Frame& frame) {
    return frame.kind == Frame::Kind::kPost &&
           Request::decode(frame.code, frame.count).kind == kind;
  };
  return (stream.out_open && is_it(stream.out)) ||
         std::any_of(stream.posts.begin(), stream.posts.end(), is_it);
}

bool PairStreams::meet(int peer) {
  Stream& stream = streams_[peer];
  const bool sends = stream.send != nullptr && meets(peer, *stream.send, stream.their_recv);
  return (stream.recv != nullptr && meets(peer, *stream.recv, stream.their_send)) || sends;
}

bool PairStreams::meets(int peer, Transfer& transfer, std::optional<Frame>& theirs) {
  if (transfer.agreed || !theirs || is_posting(streams_[peer], transfer.request.kind)) return false;
  const Request request = Request::decode(theirs->code, theirs->count);
  const uint64_t sequence = theirs->sequence;
  theirs.reset();
  if (request.dtype != transfer.request.dtype || request.count != transfer.request.count) {
    throw Error(ErrorCode::kMismatch, transfer.request.name(),
                concat("ranks disagree about message ", sequence + 1, " from rank ",
                       transfer.sends ? rank_ : peer, " to rank ", transfer.sends ? peer : rank_,
                       ": rank ", rank_, " asked for ", transfer.request.text(), "; rank ", peer,
                       " asked for ", request.text()));
  }
  transfer.agreed = true;
  return true;
}

bool PairStreams::progress(std::span<Transfer* const> transfers, PairLink& link) {
  choose(transfers);
  bool moved = false;
  for (int peer = 0; peer < static_cast<int>(streams_.size()); ++peer) {
    Stream& stream = streams_[peer];
    if (stream.send != nullptr) post(stream, *stream.send);
    if (stream.recv != nullptr) post(stream, *stream.recv);
    moved = push(peer, link) || moved;
    moved = meet(peer) || moved;
    moved = pull(peer, link) || moved;
  }
  return moved;
}

bool PairStreams::wants_to_send(const Stream& stream) {
  const bool data =
      stream.send != nullptr && stream.send->agreed && stream.send->moved < stream.send->bytes;
  return stream.out_open || !stream.posts.empty() || data;
}

// Nothing is read that belongs to what comes after these transfers.
bool PairStreams::wants_to_receive(const Stream& stream) {
  const bool answer = stream.send != nullptr && !stream.send->agreed && !stream.their_recv;
  const bool data = stream.recv != nullptr && !stream.recv->done() && !stream.their_send;
  return answer || data;
}

bool PairStreams::push_frame(int peer, PairLink& link) {
  Stream& stream = streams_[peer];
  size_t sent = 0;
  if (stream.out_sent < sizeof(Frame)) {
    const auto* header = reinterpret_cast<const std::byte*>(&stream.out);
    sent = link.try_send(peer, header + stream.out_sent, sizeof(Frame) - stream.out_sent);
    stream.out_sent += sent;
  } else {
    sent = link.try_send(peer, stream.out_data, static_cast<size_t>(stream.out_left));
    stream.out_data += sent;
    stream.out_left -= static_cast<int64_t>(sent);
  }
  stream.out_open = stream.out_sent < sizeof(Frame) || stream.out_left != 0;
  return sent != 0;
}

bool PairStreams::finish_frame(int peer, PairLink& link) {
  while (streams_[peer].out_open) {
    if (!push_frame(peer, link)) return false;
  }
  return true;
}

bool PairStreams::push(int peer, PairLink& link) {
  Stream& stream = streams_[peer];
  bool moved = false;
  while (wants_to_send(stream)) {
    if (!stream.out_open) {
      stream.out_open = true;
      stream.out_sent = 0;
      stream.out_left = 0;
      if (!stream.posts.empty()) {
        stream.out = stream.posts.front();
        stream.posts.pop_front();
      } else {
        const Transfer& transfer = *stream.send;
        stream.out_data = transfer.data + transfer.moved;
        stream.out_left = std::min(kFrameBytes, transfer.bytes - transfer.moved);
        stream.out = {Frame::Kind::kData, 0, 0, 0, stream.out_left};
      }
    }
    const int64_t left = stream.out_left;
    if (!push_frame(peer, link)) return moved;
    moved = true;
    if (left != stream.out_left) stream.send->moved += left - stream.out_left;
  }
  return moved;
}

bool PairStreams::pull(int peer, PairLink& link) {
  Stream& stream = streams_[peer];
  bool moved = false;
  while (wants_to_receive(stream)) {
    if (stream.in_left != 0) {
      Transfer& transfer = *stream.recv;
      const size_t received = link.try_receive(peer, transfer.data + transfer.moved,
                                               static_cast<size_t>(stream.in_left));
      if (received == 0) return moved;
      moved = true;
      stream.in_left -= static_cast<int64_t>(received);
      transfer.moved += static_cast<int64_t>(received);
      continue;
    }
    auto* header = reinterpret_cast<std::byte*>(&stream.in);
    const size_t received =
        link.try_receive(peer, header + stream.in_received, sizeof(Frame) - stream.in_received);
    if (received == 0) return moved;
    moved = true;
    stream.in_received += received;
    if (stream.in_received < sizeof(Frame)) continue;
    stream.in_received = 0;
    const Frame& frame = stream.in;
    const Request asked = stream.recv != nullptr ? stream.recv->request : stream.send->request;
    if (frame.kind == Frame::Kind::kPost) {
      const bool of_send = Request::decode(frame.code, frame.count).kind == Kind::kSend;
      std::optional<Frame>& place = of_send ? stream.their_send : stream.their_recv;
      if (place) throw Error(ErrorCode::kInternal, asked.name(), "a rank posted twice");
      place = frame;
      meet(peer);  // before data come that are right behind it
    } else if (frame.kind == Frame::Kind::kData) {
      const bool expected = stream.recv != nullptr && stream.recv->agreed && frame.count > 0 &&
                            frame.count <= stream.recv->bytes - stream.recv->moved;
      if (!expected) {
        throw Error(ErrorCode::kInternal, asked.name(),
                    concat("rank ", peer, " sent data that nobody asked for"));
      }
      stream.in_left = frame.count;
    } else {
      link.raise_frame(peer, frame, asked);
    }
  }
  return moved;
}

void PairStreams::wait(std::span<Transfer* const> transfers, PairLink& link) {
  choose(transfers);
  std::vector<PairLink::Want> wants;
  for (int peer = 0; peer < static_cast<int>(streams_.size()); ++peer) {
    const Stream& stream = streams_[peer];
    const bool to_send = wants_to_send(stream);
    const bool to_receive = wants_to_receive(stream);
    if (to_send || to_receive) wants.push_back({peer, to_send, to_receive});
  }
  if (!wants.empty()) link.wait(wants);
}

void PairStreams::exchange(const Collective& collective, PairLink& link) {
  const auto ranks = static_cast<int>(streams_.size());
  const int64_t* counts = collective.counts != nullptr ? collective.counts->send.data() : nullptr;
  auto* send = const_cast<std::byte*>(static_cast<const std::byte*>(collective.send));
  auto* recv = static_cast<std::byte*>(collective.recv);
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < ranks; ++peer) {
    const Part sent = collective.sent_part(rank_, peer, counts);
    const Part received = collective.received_part(peer, rank_);
    if (peer == rank_) {
      if (sent.bytes != 0 && send + sent.offset != recv + received.offset) {
        std::memcpy(recv + received.offset, send + sent.offset, sent.bytes);
      }
      continue;
    }
    Transfer part{collective.request, peer, true, send + sent.offset, sent.bytes};
    part.agreed = true;
    if (part.bytes != 0) transfers.push_back(part);
    part.sends = false;
    part.data = recv + received.offset;
    part.bytes = received.bytes;
    if (part.bytes != 0) transfers.push_back(part);
  }
  std::vector<Transfer*> left;
  for (Transfer& transfer : transfers) left.push_back(&transfer);
  while (!left.empty()) {
    if (!progress(left, link)) wait(left, link);
    std::erase_if(left, [](const Transfer* transfer) { return transfer->done(); });
  }
}

}  // namespace lockstep::comm
