// What was chosen for a node of the graph, and what a node does with memory beside running a kernel. Pure functions;
// internal to core/plan.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/kernels.h"

namespace switchyard {

struct PlannedNode {
  Kernel* kernel = nullptr;         // nullptr: structural, collective, or elided
  bool fallback = false;            // the kernel is the reference plugin's
  bool paired = false;              // forward of a pair with residual bytes
  std::vector<uint8_t> accumulate;  // a flag for each result that the kernel adds to its place; empty: none
  bool absorbed = false;            // an accumulate node: the kernel of what it adds does it
  bool sums = false;                // an accumulate node: its own kernel does it
};

// Does node `id` write its results to places of their own, by a kernel or as a transfer?
bool MakesValue(const Graph& graph, const std::vector<PlannedNode>& planned, int id);
// Where a value comes from that is a view or was added to a place by the kernel that made it.
Ref Origin(const Graph& graph, const std::vector<PlannedNode>& planned, Ref ref);
// Of which value is node `id`, which needs no launch, a view?
Ref SourceOf(const Graph& graph, const std::vector<PlannedNode>& planned, int id);
// A collective that works on one place; the others read one and write another.
bool WorksInPlace(const Node& node);

// Is it a slice that is a contiguous part of its input: the axes before the cut one have extent 1, and there is no
// step? offset: bytes from the input's start, a multiple of the alignment.
bool ContiguousSlice(const Graph& graph, const Node& node, uint64_t alignment, uint64_t* offset);
// Is it a concat whose parts lie one behind the other in memory?
bool ContiguousConcat(const Node& node);

}  // namespace switchyard
