#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/store.h"

namespace lockstep::cli {

// This host's place in a job on several hosts.
struct Place {
  int node = 0;  // in [0, nodes)
  int nodes = 1;
  comm::Endpoint rendezvous;  // of node 0's launcher
  std::string token;          // the same on every host
};

// What the launchers agree on before they start their ranks.
struct JobStart {
  int first_rank = 0;  // the world's number of this host's local rank 0
  int world_size = 0;
  comm::Endpoint store;  // of the ranks; node 0's launcher serves it
  std::string token;     // of that store
  std::string job;
  int master_port = 0;  // a free one on node 0, for programs that serve a store of their own
};

// Why the job failed on another host.
struct NodeFailure {
  int status = 1;       // for this launcher to end with
  bool is_last = true;  // the job is not to be started again
  std::string text;
};

// The launcher of one host among those of a job: they meet in a store which the first serves at
// the rendezvous, start their ranks together, and stop them together. Not thread-safe.
class Nodes {
 public:
  // Throws kIo where the rendezvous' port is in use, kTimeout where nobody serves it, kMismatch
  // where another job does.
  Nodes(Place place, std::chrono::milliseconds timeout);

  int node() const { return place_.node; }

  // Meets the other launchers for the job's next start (the first, or a restart). `proposal` is
  // node 0's store, token, job and port. Throws kTimeout naming the nodes that did not come.
  JobStart begin(int local_ranks, const JobStart& proposal);

  // Readable once failure() has something to say.
  int fd() const { return gathering_->fd().get(); }
  std::optional<NodeFailure> failure();
  // Tells the others that this start of the job has failed here.
  void fail(const NodeFailure& why);
  // This host's ranks have ended well; true once those of all hosts have.
  bool all_done();

 private:
  std::string key(std::string_view what) const;

  const Place place_;
  const std::chrono::milliseconds timeout_;
  std::unique_ptr<comm::StoreServer> server_;
  std::shared_ptr<comm::Store> store_;
  std::unique_ptr<comm::Gathering> gathering_;
  int starts_ = 0;
  bool done_ = false;  // told of this start
};

}  // namespace lockstep::cli
