// The launchers of a run's nodes: they meet before any rank starts and stay connected until their ranks have ended.
// Node 0 listens; it hands out the numbers of the ranks, which need not be spread evenly, and the token of the run. A
// failure that one reports reaches all; a launcher that disappears without a goodbye is itself a failure, with a name.
// Nobody is let in without the token that the user gave to every node (token.h); the run's own, for its ranks, is made
// of that and of a random word of node 0. On one node there is no connection, nothing to wait for, and the run's token
// is random. One thread.
#pragma once

#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/processes/launcher.h"
#include "core/runtime/processes/meeting.h"

namespace switchyard {

struct NodePlace {
  int first_rank = 0, world = 1;  // of this node's ranks; of the run
  int node = 0, nodes = 1;        // this node's number among those that take part, and how many these are
  int port = 0;                   // where rank 0 will listen
  bool restarts = false;          // whether node 0 may start the ranks again after a failure
  std::string token;              // of the run
};

struct NodeFailure {
  std::string text;
  int code = 0;  // exit code; 0: there is none
};

// The socket at which node 0 listens, for the launchers first and for the ranks afterwards.
StatusOr<int> OpenNodeZero(const LaunchOptions& options);

class NodeMeeting {
 public:
  // Waits for all nodes but the `gone` ones for at most options.rendezvous_timeout_s, and goes on with
  // options.least_nodes of them where others do not come; `listener` on node 0 alone.
  static StatusOr<std::unique_ptr<NodeMeeting>> Join(const LaunchOptions& options, int listener,
                                                     const std::vector<int>& gone);
  ~NodeMeeting();  // a goodbye
  const NodePlace& place() const { return place_; }

  // This node's first failure; later ones are not told.
  void ReportFailure(const std::string& text, int code);
  void AddTo(std::vector<pollfd>* polled) const;
  NodeFailure Serve();  // does not wait; the first failure of another node, once

  // After the ranks have ended by a failure. Node 0 says whether they are started again, and for which run; the others
  // hear its word in Serve: HasVerdict, also once node 0 is gone, which means no. Again: the run, "" for no.
  void SayAgain(bool again, const std::string& run);
  bool HasVerdict() const { return has_verdict_ || !links_[0]->open(); }
  const std::string& Again() const { return again_; }
  std::vector<int> Gone();  // of node 0: whose launcher has left

 private:
  NodeMeeting() = default;
  void Tell(const NodeFailure& failure, int except);
  std::string Describe(int node) const;  // "node 1 (pid 12 on host b, ranks 2, 3)"

  int node_ = 0;
  NodePlace place_;
  MeetingLinks links_;  // by node; node 0 has all, the others only links_[0]
  std::vector<Member> members_;
  std::vector<int> first_ranks_;  // by node, and the world's size at the end
  bool failed_ = false;
  bool has_verdict_ = false;
  std::string again_;  // the run for which the ranks are started again, in node 0's verdict
};

}  // namespace switchyard
