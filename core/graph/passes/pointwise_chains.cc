#include "core/graph/passes/pointwise_chains.h"

#include <algorithm>
#include <utility>

#include "core/abi/ops.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/verify.h"

namespace switchyard {
namespace {

constexpr size_t kMostInputs = 12;  // of a joined program
constexpr char kPointwise[] = "pointwise";

struct Program {
  sy_pointwise_attributes attributes;
  std::vector<Ref> inputs;
};

// A pointwise producer joined into its only pointwise reader: the reader's program with the producer's in front. Its
// inputs stand where the reader has the link, so that the first one stays that in whose place the result may lie.
std::optional<Program> Join(const Program& producer, const Program& reader, Ref link) {
  const sy_pointwise_attributes &p = producer.attributes, &q = reader.attributes;
  if (p.instruction_count + q.instruction_count > SY_PW_MAX_INSTRUCTIONS) return std::nullopt;
  if (std::find(reader.inputs.begin(), reader.inputs.end(), link) == reader.inputs.end()) return std::nullopt;  // twice
  std::vector<Ref> inputs;
  const auto input_index = [&](Ref ref) {
    const auto found = std::find(inputs.begin(), inputs.end(), ref);
    if (found != inputs.end()) return static_cast<int>(found - inputs.begin());
    inputs.push_back(ref);
    return static_cast<int>(inputs.size()) - 1;
  };
  std::vector<int> from_producer, from_reader;
  for (const Ref& ref : reader.inputs) {
    from_reader.push_back(ref == link ? -1 : input_index(ref));
    if (ref != link || !from_producer.empty()) continue;
    for (const Ref& own : producer.inputs) from_producer.push_back(input_index(own));
  }
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

// A joined program goes on with what the producer has before it is rounded to the dtype of its result. That is wanted
// of halves, but not where rounding is what the producer is for: integers lose their fractions, and a value that is
// made half and wide again has the digits of a half.
bool IsMeantToRound(const Graph& graph, const Node& producer, const Node& reader) {
  const DType dtype = producer.outputs[0].dtype;
  if (!IsFloating(dtype)) return true;
  return ops::IsCast(graph, producer) && ops::IsCast(graph, reader) &&
         Widest(graph.type(producer.inputs[0]).dtype, dtype) != dtype;
}

Program ProgramOf(const Node& node) { return {node.attributes.as<sy_pointwise_attributes>(), node.inputs}; }

// Node `id` with those of its producers in front that it can be joined with, if there are any.
std::optional<Program> Joined(const Graph& graph, const Readers& readers, int id, const CanPrepare& can_prepare) {
  const Node& node = graph.node(id);
  if (node.op != kPointwise) return std::nullopt;
  std::optional<Program> program;
  for (const Ref& link : node.inputs) {
    const Node& producer = graph.node(link.node);
    if (producer.op != kPointwise || producer.outputs.size() != 1 || producer.phase != node.phase) continue;
    if (IsMeantToRound(graph, producer, node)) continue;
    const bool constant = producer.inputs.empty();
    // Read once by this node alone (a constant may be repeated), and as large as the result: nothing is computed twice.
    const bool alone = readers.OnlyOf(link.node, id);
    if (!constant && (!alone || producer.outputs[0].shape != node.outputs[0].shape)) continue;
    const auto joined = Join(ProgramOf(producer), program ? *program : ProgramOf(node), link);
    if (!joined) continue;
    if (Preparable(can_prepare, kPointwise, graph, joined->inputs, Attributes(joined->attributes), WantedOf(node)))
      program = joined;
  }
  return program;
}

// One round over a graph: false where it found nothing. A chain is joined from its beginning, so that a further round
// finds little to do.
bool JoinOnce(Graph& graph, const CanPrepare& can_prepare) {
  const Readers readers(graph);
  bool found = false;
  for (int id = 0; id < graph.size(); ++id) {
    auto program = Joined(graph, readers, id, can_prepare);
    if (!program) continue;
    Node& node = graph.mutable_node(id);
    node.inputs = std::move(program->inputs);
    node.attributes = Attributes(program->attributes);
    found = true;
  }
  return found;
}

}  // namespace

Graph JoinPointwiseChains(Graph graph, const CanPrepare& can_prepare) {
  while (JoinOnce(graph, can_prepare)) {
    Verify(graph, "fusion of chains");
    graph = RemoveDeadNodes(std::move(graph));
  }
  return graph;
}

}  // namespace switchyard
