// `switchyard launch`: starts the ranks of one node as child processes with the env:// variables set (RANK, WORLD_SIZE,
// LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), passes signals on, prefixes
// their output, and ends them all when one fails. On several nodes it runs once on each: the launchers meet first, at
// the address and port where rank 0 listens afterwards, so that nodes may hold different numbers of ranks, and stay
// connected, so that a failure anywhere ends the run everywhere and a node that disappears is named. Main thread only;
// it takes over SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2 and SIGCHLD while ranks run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace switchyard {

struct LaunchOptions {
  int nproc_per_node = 1;                    // of this node; other nodes may have other numbers
  int nnodes = 1, node_rank = 0;             // nnodes: the most that there may be
  std::optional<int> least_nodes;            // with how many of them the run may go on; else with all
  std::string master_address = "127.0.0.1";  // host of node 0; one node alone stays on the loopback
  int master_port = 0;                       // 0: any free port; several nodes must agree on one
  std::optional<std::string> token_file;     // of several nodes: the secret of the run; else as token.h says
  int rendezvous_timeout_s = 300;            // how long the launchers wait for each other
  int max_restarts = 0;                      // how often a run that fails is started again; node 0 counts
  int grace_ms = 3000;                       // what the others get to end by themselves after the first failure
  std::vector<std::string> command;          // program (searched in PATH) and arguments
};

// Runs until every rank of this node has ended. The exit code of the first rank that failed, on this node or another
// (128 + signal where one killed it; 1 where a node disappeared), else 0. Where a rank says before it leaves that
// another one has failed, that one is named. Lines of other ranks than 0 start with "[rank] "; rank 0 writes straight
// to our output, so that its progress bar stays one. After the first failure the others have grace_ms, then they are
// killed; a second SIGINT kills at once. A rank that ends with exit code 0 while others of its node wait to meet it has
// failed. With max_restarts all ranks are started again after a failure, where rank 0 had begun a run
// (TellLauncherOfRun), nobody told us to stop and the exit code is not kEndsForGood: `switchyard train` then goes on
// from its latest checkpoint. Several nodes meet again for that, without those that are gone, where least_nodes are
// left; node 0, which knows the run, decides by its own max_restarts, and cannot be among the gone: the others wait for
// its word after a failure, at most rendezvous_timeout_s. A node whose host is lost counts as gone within half a
// minute. Errors before the start name the nodes that did not come.
StatusOr<int> Launch(const LaunchOptions& options);

}  // namespace switchyard
