// The first meeting of all ranks: everybody connects to rank 0, says who and where it is, and learns the same of all
// others. Strangers (wrong token, another program) are turned away; two processes that claim one rank, or that disagree
// on the world's size, end it. Used by Rendezvous alone. Called once per Rendezvous by one thread.
#pragma once

#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/runtime/message_link.h"
#include "core/runtime/process_map.h"

namespace switchyard {

// The open connections, by peer rank: all but its own for rank 0, [0] alone for the others. Fills hosts, host_names,
// pids, nodes and local ranks of `processes`. Errors name the ranks that did not come within timeout_ms, or that died
// on the way.
StatusOr<std::vector<std::unique_ptr<MessageLink>>> Gather(ProcessMap& processes, int timeout_ms);

}  // namespace switchyard
