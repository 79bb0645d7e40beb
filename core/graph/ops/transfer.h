// Values go from the memory of the device to that of the host and back. What reads a value of the host runs there
// (Node::host); nothing reads values of both.
#pragma once

#include <source_location>

#include "core/graph/graph.h"

namespace switchyard {

bool IsStore(const Node& node);  // from the device to the host
bool IsFetch(const Node& node);  // from the host to the device
inline bool IsTransfer(const Node& node) { return IsStore(node) || IsFetch(node); }
// Where the node runs that is no input, by what it reads.
bool RunsOnHost(const Graph& graph, const Node& node);

}  // namespace switchyard

namespace switchyard::ops {

// x, on the host.
Value Store(const Value& x, std::source_location where = std::source_location::current());
// x, on the device.
Value Fetch(const Value& x, std::source_location where = std::source_location::current());

}  // namespace switchyard::ops
