// How passes are written: Rewrite copies a graph node by node and asks a rule what to put in each place. Inputs come
// first, phases, blocks, source lines, control edges, forward/backward pairs and second
// computations are kept.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "core/graph/graph.h"

namespace switchyard {

// Can a backend run this node as it is? What a device-dependent pass is told of the device.
using CanPrepare = std::function<bool(const Graph&, const Node&)>;
// Would it run this op on inputs of these types, and on these values of a graph? False too where the op itself refuses
// them.
bool Preparable(const CanPrepare& can_prepare, const std::string& op, const std::vector<TensorType>& inputs,
                const Attributes& attributes, const Wanted& wanted);
bool Preparable(const CanPrepare& can_prepare, const std::string& op, const Graph& graph,
                const std::vector<Ref>& inputs, const Attributes& attributes, const Wanted& wanted);

class Rewriting {
 public:
  Rewriting(const Graph& source, Graph& result) : source(source), result(result) {}
  const Graph& source;
  Graph& result;
  // The new value of an old output; none if it was skipped or has not been reached.
  Value Map(Ref old) const;
  std::vector<Value> Map(const std::vector<Ref>& old) const;
  bool HasAll(const std::vector<Ref>& old) const;  // have they all been reached?
  std::vector<std::vector<Value>> mapped;          // by old node id
  std::set<int> unpaired;  // old backward nodes that are no longer those of their forward nodes; for rules to add to
};
// Who reads a node's results, where a node and its second computation (Node::repeats) count as one: what goes by
// readers then treats both alike, and as it would if there was no second one, so that results keep their bits.
class Readers {
 public:
  explicit Readers(const Graph& graph);
  // Ids in ascending order, those of first computations.
  std::span<const int> Of(int id) const { return readers_[first_[id]]; }
  bool OnlyOf(int id, int reader) const;          // is this the one reader?
  int First(int id) const { return first_[id]; }  // the node itself, or the first computation of what it repeats

 private:
  std::vector<int> first_;  // of each node: itself, or what it repeats
  IdLists readers_;
};

// Returns the values that replace the node's outputs (an empty vector: nothing uses them any more), or nullopt: copy
// the node.
using Rule = std::function<std::optional<std::vector<Value>>(Rewriting&, int old_id)>;

// What an input becomes: its type and what is known about it. False: it goes, and the rule leaves nothing that reads
// it.
using InputRule = std::function<bool(const Node& input, TensorType* type, InputInfo* info)>;

// The result is verified (core/graph/verify.h); `pass` is the name that an error gives. inputs: none: they stay as they
// are. done: is told at the end what every old value has become.
Graph Rewrite(const std::string& pass, const Graph& source, const Rule& rule, const InputRule& inputs = nullptr,
              const std::function<void(const Rewriting&)>& done = nullptr);

// Without the nodes that no output, assignment or collective needs. Inputs of role kBatch that nothing reads go too.
Graph RemoveDeadNodes(Graph graph);

}  // namespace switchyard
