// A rank that the interpreter of a mesh plays (mesh_interpreter.h): its graph, how far it is, and what it holds.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/graph/graph.h"
#include "core/runtime/device/device.h"

namespace switchyard {

struct Player {
  const Graph* graph = nullptr;
  int at = 0;                                        // the node that is next
  std::map<std::string, std::vector<char>> named;    // between runs
  std::map<Ref, std::shared_ptr<Buffer>> values;     // of this run
  std::vector<int> reads_left;                       // by node
  std::vector<std::pair<std::string, Ref>> written;  // when the run has ended: assignments and outputs

  const Node& node() const { return graph->node(at); }
  bool ended() const { return at == graph->size(); }
  void Begin(const Graph& of);
  // To the next node. Values that nobody reads any more are let go.
  void Advance();
};

}  // namespace switchyard
