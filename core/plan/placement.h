// Where every value of a graph lies: in which storage (sharing.h says which values have one together), and at which
// offset each storage is put, by liveness over the launch order. Pure function of the graph, the order and what the
// kernels declare; internal to core/plan.
#pragma once

#include <vector>

#include "core/plan/memory.h"
#include "core/plan/sharing.h"

namespace switchyard {

struct Spot {
  int storage = -1;
  uint64_t offset = 0;  // bytes from the start of the storage
};

struct Storage {
  int arena = kActivationsArena;
  uint64_t bytes = 0, offset = 0;  // offset within the arena, once placed
  int first = 0, last = 0;         // positions in the launch order; only for activations
};

struct PlannedCopy {
  Spot source, destination;
  uint64_t bytes = 0;
  int node = -1;  // for messages
};

struct Placement {
  std::vector<Storage> storages;
  std::vector<std::vector<Spot>> spots;          // by node and output
  std::vector<Spot> residuals;                   // by forward node
  std::vector<bool> elided;                      // needs no launch
  std::vector<std::vector<PlannedCopy>> copies;  // by node: done at the node's position
  std::vector<PlannedCopy> final_copies;         // after everything: of what could not be written in place
};

// `order`: ids of all nodes, collectives where they will run. `planned`: by node.
Placement PlaceValues(const Graph& graph, const std::vector<int>& order, const std::vector<PlannedNode>& planned,
                      Layout& layout);

}  // namespace switchyard
