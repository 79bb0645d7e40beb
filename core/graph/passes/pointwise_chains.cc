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

Program ProgramOf(const Node& node) { return {node.attributes.as<sy_pointwise_attributes>(), node.inputs}; }

// One round over a graph. A chain is joined from its beginning, so that a further round finds little to do.
class Round {
 public:
  Round(const Graph& source, const CanPrepare& can_prepare)
      : source_(source), can_prepare_(can_prepare), readers_(source) {}

  bool FindsAny() const {
    for (int id = 0; id < source_.size(); ++id) {
      if (Joined(id, source_, [](Ref ref) { return ref; })) return true;
    }
    return false;
  }

  Graph Run() const {
    return Rewrite("fusion of chains", source_, [this](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
      const auto program = Joined(id, r.result, [&](Ref ref) { return r.Map(ref).ref(); });
      if (!program) return std::nullopt;
      std::vector<Value> inputs;
      for (const Ref& input : program->inputs) inputs.push_back(r.result.value(input));
      const Node& node = source_.node(id);
      return r.result.Add(kPointwise, inputs, Attributes(program->attributes), WantedOf(node), node.where, node.name);
    });
  }

 private:
  // Node `id` with those of its producers in front that it can be joined with, if there are any, as a program over
  // `result`, where `map` finds values of the source.
  template <typename Map>
  std::optional<Program> Joined(int id, const Graph& result, const Map& map) const {
    const Node& node = source_.node(id);
    if (node.op != kPointwise) return std::nullopt;
    std::optional<Program> program;
    for (const Ref& link : node.inputs) {
      const Node& producer = source_.node(link.node);
      if (producer.op != kPointwise || producer.outputs.size() != 1 || producer.phase != node.phase) continue;
      const bool constant = producer.inputs.empty();
      // Read once by this node alone (a constant may be repeated), and as large as the result: nothing is computed
      // twice.
      const bool alone = readers_.OnlyOf(link.node, id);
      if (!constant && (!alone || producer.outputs[0].shape != node.outputs[0].shape)) continue;
      Program reader = program ? *program : ProgramOf(node);
      if (!program) {
        for (Ref& input : reader.inputs) input = map(input);
      }
      const Ref linked = map(link);
      const auto joined = Join(ProgramOf(result.node(linked.node)), reader, linked);
      if (!joined) continue;
      if (Preparable(can_prepare_, kPointwise, result, joined->inputs, Attributes(joined->attributes), WantedOf(node)))
        program = joined;
    }
    return program;
  }

  const Graph& source_;
  const CanPrepare& can_prepare_;
  const Readers readers_;
};

}  // namespace

Graph JoinPointwiseChains(Graph graph, const CanPrepare& can_prepare) {
  for (;;) {
    const Round round(graph, can_prepare);
    if (!round.FindsAny()) return graph;
    graph = RemoveDeadNodes(round.Run());
  }
}

}  // namespace switchyard
