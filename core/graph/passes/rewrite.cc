#include "core/graph/passes/rewrite.h"

#include "core/graph/op.h"

namespace switchyard {

Value Rewriting::Map(Ref old) const {
  const auto& values = mapped[old.node];
  return old.output < static_cast<int>(values.size()) ? values[old.output] : Value();
}

std::vector<Value> Rewriting::Map(const std::vector<Ref>& old) const {
  std::vector<Value> values;
  for (const Ref& ref : old) values.push_back(Map(ref));
  return values;
}

namespace {

// Rewrite without the inputs that `keep` marks false.
Graph RewriteKeeping(const Graph& source, const std::vector<bool>& keep, const Rule& rule) {
  Graph result;
  Rewriting state(source, result);
  state.mapped.resize(source.size());
  std::vector<int> copied(source.size(), -1);  // old id → id of the node that stands for it
  for (int id = 0; id < source.size(); ++id) {
    const Node& node = source.node(id);
    if (node.op == "input" && keep[id])
      state.mapped[id] = {result.Input(node.name, node.outputs[0], *node.input, node.where)};
  }
  for (int id = 0; id < source.size(); ++id) {
    const Node& node = source.node(id);
    if (node.op == "input") continue;
    result.SetPhase(node.phase);
    const int before = result.size();
    auto replacement = rule(state, id);
    const bool copy = !replacement;
    if (copy) replacement = result.Clone(node, state.Map(node.inputs));
    // A copy, and a replacement of the same op, stand for the old node in its forward/backward pair.
    const bool made = !replacement->empty() && (*replacement)[0];
    const int stand_in = made ? (*replacement)[0].ref().node : copy ? result.size() - 1 : -1;
    if (stand_in >= 0 && result.node(stand_in).op == node.op) {
      copied[id] = stand_in;
      if (node.forward >= 0) result.mutable_node(stand_in).forward = copied[node.forward];
    }
    for (const int earlier : node.control) {
      if (result.size() == before) continue;
      for (const Value& value : state.mapped[earlier]) {
        if (value) result.mutable_node(before).control.push_back(value.ref().node);
      }
    }
    state.mapped[id] = std::move(*replacement);
  }
  result.SetPhase(Phase::kForward);
  return result;
}

}  // namespace

Graph Rewrite(const Graph& source, const Rule& rule) {
  return RewriteKeeping(source, std::vector<bool>(source.size(), true), rule);
}

Graph RemoveDeadNodes(const Graph& source) {
  std::vector<bool> live(source.size(), false);
  for (int id = source.size() - 1; id >= 0; --id) {
    const Node& node = source.node(id);
    if (node.input && node.input->role != Role::kBatch) live[id] = true;
    if (node.op == "output" || node.op == "assign" || IsCollective(node.op)) live[id] = true;
    if (!live[id]) continue;
    for (const Ref& input : node.inputs) live[input.node] = true;
    for (const int earlier : node.control) live[earlier] = true;
  }
  return RewriteKeeping(source, live, [&](Rewriting&, int id) -> std::optional<std::vector<Value>> {
    if (live[id]) return std::nullopt;
    return std::vector<Value>();
  });
}

}  // namespace switchyard
