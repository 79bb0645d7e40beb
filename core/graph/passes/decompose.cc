#include "core/graph/passes/decompose.h"

#include <algorithm>

#include "core/graph/op.h"
#include "core/graph/ops/structure.h"

namespace switchyard {
namespace {

bool NeedsKernel(const Node& node) { return !IsStructural(node.op) && !IsCollective(node.op); }

// Copies the body of `piece` (whose inputs stand for `inputs`, in order) into `result`; the values of its outputs, in
// order of their names.
std::vector<Value> Inline(const Graph& piece, Graph& result, const std::vector<Value>& inputs, int outputs) {
  std::vector<std::vector<Value>> mapped(piece.size());
  std::vector<Value> results(outputs);
  size_t next = 0;
  for (int id = 0; id < piece.size(); ++id) {
    const Node& node = piece.node(id);
    if (node.input) {
      mapped[id] = {inputs[next++]};
      continue;
    }
    std::vector<Value> values;
    for (const Ref& ref : node.inputs) values.push_back(mapped[ref.node][ref.output]);
    if (node.outputs.empty()) {  // an output, named by its index
      results[std::stoi(node.name)] = values[0];
    } else {
      mapped[id] = result.Clone(node, values);
    }
  }
  return results;
}

// The node rebuilt from ops that the backend has, as a graph of its own; nullopt if there is no such way.
std::optional<Graph> Rebuild(const Graph& graph, const Node& node, const CanPrepare& can_prepare, int depth) {
  const OpDefinition* op = FindOp(node.op);
  if (op == nullptr || !op->decompose || depth > 8) return std::nullopt;
  Graph piece;
  std::vector<Value> inputs;
  for (size_t i = 0; i < node.inputs.size(); ++i)
    inputs.push_back(piece.Input("in" + std::to_string(i), graph.type(node.inputs[i]), {}, node.where));
  piece.SetPhase(node.phase);
  std::vector<Value> results;
  {
    const Graph::Scope scope(piece, node.name);
    const Graph::Block block(piece, node.block);
    results = op->decompose(piece, node, inputs);
  }
  if (results.empty()) return std::nullopt;
  for (size_t o = 0; o < results.size(); ++o) piece.Output(std::to_string(o), results[o], node.where);
  bool possible = true;
  Graph lowered = Rewrite("decomposition", piece, [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
    const Node& part = piece.node(id);
    if (!NeedsKernel(part) || can_prepare(piece, part)) return std::nullopt;
    const auto deeper = Rebuild(piece, part, can_prepare, depth + 1);
    if (!deeper) {
      possible = false;
      return std::nullopt;
    }
    return Inline(*deeper, r.result, r.Map(part.inputs), static_cast<int>(part.outputs.size()));
  });
  // What the backend lacks of an op from outside runs on the reference plugin, which does not have the op itself.
  if (!possible && !IsFromOutside(node.op)) return std::nullopt;
  return lowered;
}

}  // namespace

Graph Decompose(Graph source, const CanPrepare& can_prepare) {
  const auto runs = [&](const Node& node) { return !NeedsKernel(node) || can_prepare(source, node); };
  const NodeList& nodes = source.nodes();
  const bool inputs_first = std::is_partitioned(nodes.begin(), nodes.end(), IsInput);
  if (inputs_first && std::all_of(nodes.begin(), nodes.end(), runs)) return RemoveDeadNodes(std::move(source));
  return RemoveDeadNodes(
      Rewrite("decomposition", source, [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
        const Node& node = source.node(id);
        if (runs(node)) return std::nullopt;
        const auto piece = Rebuild(source, node, can_prepare, 0);
        if (!piece) return std::nullopt;
        return Inline(*piece, r.result, r.Map(node.inputs), static_cast<int>(node.outputs.size()));
      }));
}

}  // namespace switchyard
