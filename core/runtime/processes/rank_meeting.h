// The first meeting of all ranks: everybody connects to rank 0, says who and where it is, and learns the same of all
// others; where there are several nodes, through one rank of its node (relay.h). On one node it takes place on the
// loopback. Strangers (no proof of the run's token, another program) are
// turned away; two processes that claim one rank, or that disagree on the world's size, end it. Rank 0's port is closed
// afterwards. Used by Rendezvous alone. Called once per Rendezvous by one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/processes/message_link.h"
#include "core/runtime/processes/process_map.h"

namespace switchyard {

struct RankMeeting {
  // By peer. Of rank 0: one a node, or all but its own where all ranks are on one; of the others [0], or that to the
  // neighbour which relays for this rank; who relays has those to its neighbours as well.
  std::vector<std::unique_ptr<MessageLink>> links;
  std::vector<int> via;  // by rank: whose link to rank 0 it uses; its own number: its own
  std::string key;       // equal on all ranks, and known to nobody else
};

// Fills hosts, host_names, pids, nodes and local ranks of `processes`. Errors name the ranks that did not come within
// timeout_ms, or that died on the way.
StatusOr<RankMeeting> MeetRanks(ProcessMap& processes, int timeout_ms);

// The same of ranks that are threads of this process, for all of them at once: no address, no port, no token. Fills all
// of `processes`, which has an entry for each rank.
StatusOr<std::vector<RankMeeting>> MeetThreads(std::vector<ProcessMap>& processes);

}  // namespace switchyard
