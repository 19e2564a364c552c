#include "nodes.h"

#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/text.h"
#include "lockstep/kernels/error.h"

namespace lockstep::cli {
namespace {

using comm::concat;
using std::chrono::milliseconds;

// All launchers come to the end within a fraction of a second of each other.
constexpr milliseconds kEndTime{60'000};
// The job's name is not known to all hosts before they have met.
constexpr const char* kJob = "lockstep-run";

// "endpoint token master_port job", as node 0 tells it.
std::string start_text(const JobStart& start) {
  return concat(comm::to_string(start.store), " ", start.token, " ", start.master_port, " ",
                start.job);
}

JobStart parse_start(std::string_view text) {
  const auto word = [&] {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string out(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    return out;
  };
  JobStart start;
  start.store = comm::parse_endpoint(word(), "node 0");
  start.token = word();
  comm::parse_number(word(), start.master_port);
  start.job = text;
  return start;
}

}  // namespace

Nodes::Nodes(Place place, milliseconds timeout) : place_(std::move(place)), timeout_(timeout) {
  comm::Endpoint where = place_.rendezvous;
  if (place_.node == 0) {
    const bool loopback = comm::is_loopback(where.host);
    server_ = std::make_unique<comm::StoreServer>(
        comm::StoreServer::Options{loopback ? where.host : "", where.port, place_.token, kJob});
    if (!loopback) where.host = "127.0.0.1";
  }
  store_ = std::make_shared<comm::Store>(where, place_.token, kJob, timeout_, "node 0's launcher");
}

std::string Nodes::key(std::string_view what) const { return concat("start/", starts_, "/", what); }

JobStart Nodes::begin(int local_ranks, const JobStart& proposal) {
  gathering_.reset();
  ++starts_;
  done_ = false;
  gathering_ = std::make_unique<comm::Gathering>(store_, key(""), place_.node);
  if (place_.node == 0) store_->set(key("start"), start_text(proposal));
  store_->set(key(concat("ranks/", place_.node)), std::to_string(local_ranks));
  const comm::Deadline deadline = comm::deadline_after(timeout_);
  JobStart start;
  try {
    for (int node = 0; node < place_.nodes; ++node) {
      const std::string text =
          store_->get(key(concat("ranks/", node)), milliseconds(comm::poll_ms(deadline)));
      int ranks = 0;
      comm::parse_number(text, ranks);
      if (node == place_.node) start.first_rank = start.world_size;
      start.world_size += ranks;
    }
    const JobStart told =
        parse_start(store_->get(key("start"), milliseconds(comm::poll_ms(deadline))));
    start.store = told.store;
    start.token = told.token;
    start.master_port = told.master_port;
    start.job = told.job;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
    std::vector<int> missing;
    for (int node = 0; node < place_.nodes; ++node) {
      if (!store_->try_get(key(concat("ranks/", node)))) missing.push_back(node);
    }
    const std::string who = comm::rank_list(missing);  // "rank 1", "ranks 0, 2"
    throw Error(
        ErrorCode::kTimeout, "run",
        concat("node ", place_.node, " waited ", comm::seconds_text(timeout_), " for node",
               std::string_view(who).substr(4), " of ", place_.nodes,
               ": is `lockstep run` started on every host, each with its own --node-rank?"));
  }
  return start;
}

std::optional<NodeFailure> Nodes::failure() {
  try {
    gathering_->check();
    return std::nullopt;
  } catch (const Error& error) {
    std::string_view what = error.what();
    what.remove_prefix(std::min(error.op().size() + 3, what.size()));
    // "7 0 rank 3 ended ..." from fail(), else what the store says of a launcher that is gone.
    NodeFailure failure;
    const size_t one = what.find(' ');
    const size_t two = what.find(' ', one + 1);
    int is_last = 0;
    if (one != what.npos && two != what.npos &&
        comm::parse_number(what.substr(0, one), failure.status) &&
        comm::parse_number(what.substr(one + 1, two - one - 1), is_last)) {
      failure.is_last = is_last != 0;
      failure.text = what.substr(two + 1);
    } else if (what.starts_with("rank ")) {
      failure.text = concat("the launcher of node ", what.substr(5));
    } else {
      failure.text = concat("node 0 is lost: ", what);
    }
    return failure;
  }
}

void Nodes::fail(const NodeFailure& why) {
  gathering_->fail(ErrorCode::kPeerLost,
                   concat(why.status, " ", why.is_last ? 1 : 0, " ", why.text));
}

bool Nodes::all_done() {
  const int64_t done = store_->add(key("done"), done_ ? 0 : 1);
  done_ = true;
  if (done < place_.nodes) return false;
  // Nobody asks the store after this: the first host's launcher may end and take it along.
  store_->barrier(key("end"), place_.node, place_.nodes, kEndTime);
  return true;
}

}  // namespace lockstep::cli
