#include "core/graph/gradients.h"

#include <map>

#include "core/graph/op.h"
#include "core/graph/ops/pointwise.h"

namespace switchyard {

std::vector<Value> Gradients(const Value& loss, const std::vector<Value>& wanted) {
  Graph& graph = loss.graph();
  const int count = graph.size();
  // Which nodes lie between a wanted value and the loss?
  std::vector<bool> needed(count, false);
  for (const Value& value : wanted) needed[value.ref().node] = true;
  for (int id = 0; id < count; ++id) {
    for (const Ref& input : graph.node(id).inputs) needed[id] = needed[id] || needed[input.node];
  }
  const Phase before = graph.phase();
  graph.SetPhase(Phase::kBackward);
  std::map<Ref, Value> adjoint;
  adjoint[loss.ref()] = ops::Full(graph, loss.shape(), 1, loss.dtype());
  for (int id = loss.ref().node; id >= 0; --id) {
    if (!needed[id] || graph.node(id).input) continue;
    const std::vector<Ref> inputs = graph.node(id).inputs;
    std::vector<Value> dy(graph.node(id).outputs.size());
    bool reached = false;
    for (size_t o = 0; o < dy.size(); ++o) {
      const auto found = adjoint.find({id, static_cast<int>(o)});
      if (found == adjoint.end()) continue;
      dy[o] = found->second;
      reached = true;
    }
    std::vector<bool> want(inputs.size());
    bool any = false;
    for (size_t i = 0; i < inputs.size(); ++i) {
      want[i] = needed[inputs[i].node] && IsFloating(graph.type(inputs[i]).dtype);
      any = any || want[i];
    }
    if (!reached || !any) continue;
    const OpDefinition* op = FindOp(graph.node(id).op);
    if (op == nullptr || !op->gradient) {
      ThrowBuildError(
          graph.node(id).op,
          "no gradient rule for this op, on the path from the loss to a parameter (" + graph.node(id).name + ")", {},
          graph.node(id).where);
    }
    const Graph::Block block(graph, graph.node(id).block);
    const std::vector<Value> gradients = op->gradient(graph, id, dy, want);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!want[i] || !gradients[i]) continue;
      Value& sum = adjoint[inputs[i]];
      sum = sum ? ops::Add(sum, gradients[i]) : gradients[i];
    }
  }
  graph.SetPhase(before);
  std::vector<Value> results;
  for (const Value& value : wanted) {
    const auto found = adjoint.find(value.ref());
    results.push_back(found == adjoint.end() ? Value() : found->second);
  }
  return results;
}

}  // namespace switchyard
