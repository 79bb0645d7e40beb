// A compiled plan as data: steps in the order in which they are submitted, each on a stream, over symbolic places; and
// every wait of one stream for another as an edge between two steps. An Instance binds the places to memory and does
// what stands here; nothing else says what may run beside what.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/graph/op.h"
#include "core/plan/memory.h"

namespace switchyard {

// Streams of the device, and what stands in order on the host: its kernels, which run on a thread of their own.
enum : int { kComputeStream, kStoreStream, kFetchStream, kHostStream, kFirstCommunicationStream };
constexpr int CommunicationStream(int group) { return kFirstCommunicationStream + group; }
std::string StreamName(int stream);  // "compute", "group 0"

struct PlanPlace {
  int arena = kActivationsArena;
  uint64_t offset = 0, bytes = 0;
};

struct Step {
  enum Kind {
    kLaunch,     // kernel
    kFallback,   // kernel of the reference plugin, through host memory
    kHost,       // kernel of the host's backend
    kCopy,       // inputs[0] → outputs[0]; to the host, from it and within it too
    kCollective  // works in place where inputs[0] and outputs[0] are one place
  } kind = kLaunch;
  int node = -1;
  int stream = kComputeStream;
  // Steps of other streams that must have finished before this one begins, kRunStart among them. None that follows
  // from the order on the streams and from the other edges.
  std::vector<int> waits;
  Kernel* kernel = nullptr;
  std::vector<PlanPlace> inputs, outputs;
  PlanPlace residual, persistent, constants;  // no bytes: there is none
  Cost cost;  // of a run: a kernel's as its op says, else the bytes that are read and written
};

// In Step::waits: what stood on the compute stream when the run began.
constexpr int kRunStart = -1;

struct StepSchedule {
  std::vector<Step> steps;
  std::vector<int> at_end;  // what the compute stream waits for before the run counts as finished

  int streams() const;
  int edges() const;
  // A line for each step: its number, its stream, what it does and what it waits for.
  std::string ToText(const Graph& graph) const;
};

// Fills in the edges: a step waits for whoever wrote last what it reads or writes, for whoever read last what it
// writes, and for the nodes that its node's control edges name; the run's end waits for all. The steps stand in an
// order in which each is behind what it needs. in_turn: nothing that was submitted for computing before a collective
// runs beside it.
void AddEdges(StepSchedule& schedule, const Graph& graph, bool in_turn);

}  // namespace switchyard
