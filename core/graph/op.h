// The table of ops. Each op is defined once, in core/graph/ops/<family>.cc: its builder (with the shape check) is
// declared in the family's header; its gradient rule, decomposition and cost are entered here. Read-only after the
// first use; thread-safe.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/graph/graph.h"

namespace switchyard {

struct Cost {
  double flops = 0;  // multiply and add count as two
  double bytes = 0;  // read and written, each tensor once
};

struct OpDefinition {
  std::string name;
  std::string summary;  // one line for `switchyard ops`
  // Adds nodes for the gradients of `node`'s inputs to `graph`, given those of its outputs (none where an output does
  // not matter). wanted[i] tells whether input i needs one; returns one Value per input, none where not wanted or not
  // differentiable. nullptr: not differentiable.
  std::function<std::vector<Value>(Graph& graph, int node, const std::vector<Value>& dy,
                                   const std::vector<bool>& wanted)>
      gradient;
  // Rebuilds the node from simpler ops: returns a Value per output. nullptr: it is elementary.
  std::function<std::vector<Value>(Graph& graph, const Node& node, const std::vector<Value>& inputs)> decompose;
  // FLOPs of one run; nullptr: one per output element. Bytes are counted from the tensors.
  std::function<double(const Graph& graph, const Node& node)> flops;
};

// nullptr for a name that is no op (and for input, assign, output).
const OpDefinition* FindOp(const std::string& name);
const std::map<std::string, OpDefinition>& AllOps();
Cost CostOf(const Graph& graph, const Node& node);

// True for ops that need no kernel: input, output, assign, reshape.
bool IsStructural(const std::string& op);
// True for all_reduce and the other ops that a collective plugin runs.
bool IsCollective(const std::string& op);

}  // namespace switchyard
