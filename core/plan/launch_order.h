// In which order a graph's nodes are submitted. As built, which is a legal order, but for these:
//
// - Collectives, copies to and from the host, buckets of gradients and what the update phase computes for them alone
//   (casts of gradients, sums into a bucket). With `early` each comes as soon as its own inputs are there, so that
//   communication begins when its last input is written and runs beside what is computed afterwards, and no gradient
//   waits for the others. Without, a collective comes right before the first node that needs it.
// - Fetches: gathers of what is there when the step begins (a parameter's shards) and what is brought from the host,
//   with what is computed for them alone (a cast). Ready all at once, they come with `early` in the order in which they
//   are needed, each as soon as it and those that nobody has read yet take no more than `prefetch_bytes` together, or
//   it is needed.
#pragma once

#include <cstdint>
#include <vector>

#include "core/graph/graph.h"

namespace switchyard {

// For each node the collective that must come before it, or -1. Where ranks run graphs of their own only the order in
// which those were built says that they will meet: those that send each other messages do from the first node on, and
// all may where they update, since a rank that updates nothing of a bucket does not read that. What is computed is the
// same on all ranks elsewhere, and so is the order.
std::vector<int> BuiltOrder(const Graph& graph);

// Ids of all nodes; every node after its inputs and its control edges.
std::vector<int> LaunchOrder(const Graph& graph, bool early, uint64_t prefetch_bytes);

}  // namespace switchyard
