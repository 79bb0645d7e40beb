#include "core/graph/passes/pointwise_chains.h"

#include <algorithm>

#include "core/abi/ops.h"

namespace switchyard {
namespace {

constexpr size_t kMostInputs = 12;  // of a joined program
constexpr char kPointwise[] = "pointwise";

struct Program {
  sy_pointwise_attributes attributes;
  std::vector<Ref> inputs;
};

// A pointwise producer joined into its only pointwise reader: the reader's program with the producer's in front.
std::optional<Program> Join(const Program& producer, const Program& reader, Ref link) {
  const sy_pointwise_attributes &p = producer.attributes, &q = reader.attributes;
  if (p.instruction_count + q.instruction_count > SY_PW_MAX_INSTRUCTIONS) return std::nullopt;
  std::vector<Ref> inputs;
  const auto input_index = [&](Ref ref) {
    const auto found = std::find(inputs.begin(), inputs.end(), ref);
    if (found != inputs.end()) return static_cast<int>(found - inputs.begin());
    inputs.push_back(ref);
    return static_cast<int>(inputs.size()) - 1;
  };
  std::vector<int> from_producer, from_reader;
  for (const Ref& ref : producer.inputs) from_producer.push_back(input_index(ref));
  for (const Ref& ref : reader.inputs) from_reader.push_back(ref == link ? -1 : input_index(ref));
  if (inputs.size() > kMostInputs) return std::nullopt;
  const int n = static_cast<int>(inputs.size());
  const auto in_p = [&](int operand) {
    const int k = static_cast<int>(producer.inputs.size());
    return operand < k ? from_producer[operand] : n + operand - k;
  };
  const int linked = in_p(p.outputs[link.output]);
  const auto in_q = [&](int operand) {
    const int k = static_cast<int>(reader.inputs.size());
    if (operand >= k) return n + static_cast<int>(p.instruction_count) + operand - k;
    return from_reader[operand] < 0 ? linked : from_reader[operand];
  };
  sy_pointwise_attributes joined{};
  joined.output_count = q.output_count;
  for (uint32_t o = 0; o < q.output_count; ++o) joined.outputs[o] = in_q(q.outputs[o]);
  const auto append = [&](const sy_instruction& i, const auto& map) {
    joined.instructions[joined.instruction_count++] = {i.op, i.op == SY_PW_CONSTANT ? 0 : map(i.a),
                                                       i.op == SY_PW_CONSTANT ? 0 : map(i.b),
                                                       i.op == SY_PW_CONSTANT ? 0 : map(i.c), i.value};
  };
  for (uint32_t j = 0; j < p.instruction_count; ++j) append(p.instructions[j], in_p);
  for (uint32_t j = 0; j < q.instruction_count; ++j) append(q.instructions[j], in_q);
  return Program{joined, inputs};
}

Program ProgramOf(const Node& node) { return {node.attributes.as<sy_pointwise_attributes>(), node.inputs}; }

// One round. A chain is joined from its beginning, so that a further round finds little to do.
Graph JoinLinks(const Graph& source, const CanPrepare& can_prepare, bool& changed) {
  const Readers readers(source);
  return Rewrite("fusion of chains", source, [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
    const Node& node = source.node(id);
    if (node.op != kPointwise) return std::nullopt;
    Program program = ProgramOf(node);
    for (Ref& input : program.inputs) input = r.Map(input).ref();
    bool joins = false;
    for (const Ref& link : node.inputs) {
      const Node &producer = source.node(link.node), &as_joined = r.result.node(r.Map(link).ref().node);
      if (producer.op != kPointwise || producer.outputs.size() != 1 || producer.phase != node.phase) continue;
      const bool constant = producer.inputs.empty();
      // Read once by this node alone (a constant may be repeated), and as large as the result: nothing is computed
      // twice.
      const bool alone = readers.OnlyOf(link.node, id);
      if (!constant && (!alone || producer.outputs[0].shape != node.outputs[0].shape)) continue;
      const auto joined = Join(ProgramOf(as_joined), program, r.Map(link).ref());
      if (!joined) continue;
      if (!Preparable(can_prepare, kPointwise, r.result, joined->inputs, Attributes(joined->attributes),
                      WantedOf(node)))
        continue;
      program = *joined;
      joins = true;
    }
    if (!joins) return std::nullopt;
    changed = true;
    std::vector<Value> inputs;
    for (const Ref& input : program.inputs) inputs.push_back(r.result.value(input));
    return r.result.Add(kPointwise, inputs, Attributes(program.attributes), WantedOf(node), node.where, node.name);
  });
}

}  // namespace

Graph JoinPointwiseChains(const Graph& source, const CanPrepare& can_prepare) {
  bool changed = false;
  Graph graph = JoinLinks(source, can_prepare, changed);
  if (!changed) return graph;
  do {
    changed = false;
    graph = JoinLinks(RemoveDeadNodes(graph), can_prepare, changed);
  } while (changed);
  return graph;
}

}  // namespace switchyard
