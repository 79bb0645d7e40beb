// Collectives and messages as nodes of the graph; a collective plugin runs them. `group` is an index into the program's
// groups, `ranks` how many it has. Parts are along the outermost axis, in the order of the ranks. All ranks of a group
// must build its collectives in the same order. In a graph with messages, collectives and messages run in the order in
// which they were built, one after the other: two ranks that both send first may wait for each other.
#pragma once

#include <optional>

#include "core/abi/collective.h"
#include "core/abi/ops.h"
#include "core/graph/graph.h"

namespace switchyard {

enum class Exchange { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kAllToAll, kSend, kReceive };
// What a node exchanges with other ranks; none where its op is no collective.
std::optional<Exchange> ExchangeOf(const Node& node);
// A send or a receive: between two ranks, and not of the whole group.
bool IsMessage(const Node& node);

}  // namespace switchyard

namespace switchyard::ops {

// x reduced over the ranks of a group, times `scale`; in place where the planner can.
Value AllReduce(const Value& x, int reduction, float scale, int group = 0, const std::string& name = "",
                std::source_location where = std::source_location::current());
// (ranks · n, …) → (n, …): this rank's part of the sum (or maximum, …).
Value ReduceScatter(const Value& x, int reduction, int ranks, int group = 0, const std::string& name = "",
                    std::source_location where = std::source_location::current());
// (n, …) → (ranks · n, …)
Value AllGather(const Value& x, int ranks, int group = 0, const std::string& name = "",
                std::source_location where = std::source_location::current());
// What rank `root` of the group holds.
Value Broadcast(const Value& x, int root, int group = 0, const std::string& name = "",
                std::source_location where = std::source_location::current());
// (ranks · n, …): part r goes to rank r; part r of the result comes from rank r.
Value AllToAll(const Value& x, int ranks, int group = 0, const std::string& name = "",
               std::source_location where = std::source_location::current());
// A message to rank `peer` of the group, which receives it by a node of its own. Between two ranks messages arrive in
// the order in which they are sent.
void Send(const Value& x, int peer, int group = 0, const std::string& name = "",
          std::source_location where = std::source_location::current());
Value Receive(Graph& graph, const TensorType& type, int peer, int group = 0, const std::string& name = "",
              std::source_location where = std::source_location::current());

}  // namespace switchyard::ops
