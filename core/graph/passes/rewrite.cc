#include "core/graph/passes/rewrite.h"

#include <algorithm>

#include "core/graph/op.h"
#include "core/graph/verify.h"

namespace switchyard {

Value Rewriting::Map(Ref old) const {
  const auto& values = mapped[old.node];
  return old.output < static_cast<int>(values.size()) ? values[old.output] : Value();
}

std::vector<Value> Rewriting::Map(const std::vector<Ref>& old) const {
  std::vector<Value> values;
  values.reserve(old.size());
  for (const Ref& ref : old) values.push_back(Map(ref));
  return values;
}

bool Rewriting::HasAll(const std::vector<Ref>& old) const {
  return std::all_of(old.begin(), old.end(), [this](Ref ref) { return static_cast<bool>(Map(ref)); });
}

static bool Preparable(const CanPrepare& can_prepare, const std::string& op, const std::vector<TensorType>& inputs,
                       const Attributes& attributes, const Wanted& wanted, bool host) {
  Graph scratch;
  std::vector<Value> values;
  for (const TensorType& type : inputs)
    values.push_back(scratch.Input(std::to_string(values.size()), type, {.host = host}));
  try {
    scratch.Add(op, values, attributes, wanted);
  } catch (const BuildError&) {
    return false;
  }
  return can_prepare(scratch, scratch.nodes().back());
}

bool Preparable(const CanPrepare& can_prepare, const std::string& op, const std::vector<TensorType>& inputs,
                const Attributes& attributes, const Wanted& wanted) {
  return Preparable(can_prepare, op, inputs, attributes, wanted, false);
}

bool Preparable(const CanPrepare& can_prepare, const std::string& op, const Graph& graph,
                const std::vector<Ref>& inputs, const Attributes& attributes, const Wanted& wanted) {
  std::vector<TensorType> types;
  types.reserve(inputs.size());
  for (const Ref& input : inputs) types.push_back(graph.type(input));
  const bool host =
      std::any_of(inputs.begin(), inputs.end(), [&](const Ref& input) { return graph.node(input.node).host; });
  return Preparable(can_prepare, op, types, attributes, wanted, host);
}

Readers::Readers(const Graph& graph) : first_(graph.size()) {
  std::vector<std::pair<int, int>> reads;  // who is read, who reads
  for (int id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    first_[id] = node.repeats >= 0 ? first_[node.repeats] : id;
    for (const Ref& input : node.inputs) reads.emplace_back(first_[input.node], first_[id]);
  }
  std::sort(reads.begin(), reads.end());
  reads.erase(std::unique(reads.begin(), reads.end()), reads.end());
  readers_ = IdLists(graph.size(), [&](const auto& add) {
    for (const auto& [read, reader] : reads) add(read, reader);
  });
}

bool Readers::OnlyOf(int id, int reader) const { return Of(id).size() == 1 && Of(id)[0] == first_[reader]; }

// Nodes [first, end) of a graph, without its inputs.
static std::vector<int> NodesBetween(const Graph& graph, std::pair<int, int> range) {
  std::vector<int> ids;
  for (int id = range.first; id < range.second; ++id) {
    if (!graph.node(id).input) ids.push_back(id);
  }
  return ids;
}

// What was made for a second computation repeats, node by node, what was made for the first, where both are alike.
static void RepeatOneByOne(Graph& graph, std::pair<int, int> first, std::pair<int, int> second) {
  const std::vector<int> before = NodesBetween(graph, first), again = NodesBetween(graph, second);
  const auto alike = [&](int a, int b) {
    const Node &x = graph.node(a), &y = graph.node(b);
    return x.op == y.op && x.attributes == y.attributes && x.outputs == y.outputs && !IsCollective(x.op);
  };
  if (!std::equal(before.begin(), before.end(), again.begin(), again.end(), alike)) return;
  for (size_t i = 0; i < again.size(); ++i) graph.SetRepeats(again[i], before[i]);
}

Graph Rewrite(const std::string& pass, const Graph& source, const Rule& rule, const InputRule& inputs,
              const std::function<void(const Rewriting&)>& done) {
  Graph result;
  Rewriting state(source, result);
  state.mapped.resize(source.size());
  std::vector<int> copied(source.size(), -1);                // old id → id of the node that stands for it
  std::vector<std::pair<int, int>> made_for(source.size());  // old id → first and behind the last that were made for it
  for (int id = 0; id < source.size(); ++id) {
    const Node& node = source.node(id);
    if (!node.input) continue;
    if (!inputs) {
      state.mapped[id] = {result.Input(node.name, node.outputs[0], *node.input, node.where)};
      continue;
    }
    TensorType type = node.outputs[0];
    InputInfo info = *node.input;
    if (!inputs(node, &type, &info)) continue;
    state.mapped[id] = {result.Input(node.name, type, info, node.where)};
  }
  for (int id = 0; id < source.size(); ++id) {
    const Node& node = source.node(id);
    if (node.input) continue;
    result.SetPhase(node.phase);
    const Graph::Block block(result, node.block);
    const int before = result.size();
    auto replacement = rule(state, id);
    const bool copy = !replacement;
    if (copy) replacement = result.Clone(source, id, state.Map(node.inputs));
    made_for[id] = {before, result.size()};
    if (node.repeats >= 0) RepeatOneByOne(result, made_for[node.repeats], made_for[id]);
    // A copy, and a replacement of the same op, stand for the old node in its forward/backward pair.
    const bool made = !replacement->empty() && (*replacement)[0];
    const int stand_in = made ? (*replacement)[0].ref().node : copy ? result.size() - 1 : -1;
    if (stand_in >= 0 && result.node(stand_in).op == node.op) {
      copied[id] = stand_in;
      if (node.forward >= 0 && !state.unpaired.contains(id)) result.SetForward(stand_in, copied[node.forward]);
      if (node.repeats >= 0 && copied[node.repeats] != stand_in) result.SetRepeats(stand_in, copied[node.repeats]);
    }
    for (const int earlier : node.control) {
      if (result.size() == before) continue;
      if (state.mapped[earlier].empty() && copied[earlier] >= 0)
        result.AddControl(before, copied[earlier]);  // an assignment
      for (const Value& value : state.mapped[earlier]) {
        if (value) result.AddControl(before, value.ref().node);
      }
    }
    state.mapped[id] = std::move(*replacement);
  }
  result.SetPhase(Phase::kForward);
  Verify(result, pass);
  if (done) done(state);
  return result;
}

// Stays where nobody reads it.
static bool IsKeptUnread(const Node& node) {
  if (node.input) return node.input->role != Role::kBatch;
  const OpTraits& traits = TraitsOf(node.op);
  return (traits.structural && node.outputs.empty()) || traits.collective;
}

Graph RemoveDeadNodes(Graph graph) {
  std::vector<bool> live(graph.size(), false);
  for (int id = graph.size() - 1; id >= 0; --id) {
    const Node& node = graph.node(id);
    if (!live[id] && !IsKeptUnread(node)) continue;
    live[id] = true;
    for (const Ref& input : node.inputs) live[input.node] = true;
    for (const int earlier : node.control) live[earlier] = true;
  }
  if (std::find(live.begin(), live.end(), false) == live.end()) return graph;
  graph.Keep(live);
  Verify(graph, "removal of dead nodes");
  return graph;
}

}  // namespace switchyard
