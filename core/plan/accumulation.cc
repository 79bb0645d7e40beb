#include "core/plan/accumulation.h"

#include <algorithm>

#include "core/abi/ops.h"
#include "core/graph/op.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/structure.h"
#include "core/plan/planned_node.h"

namespace switchyard {
namespace {

Ref BehindReshapes(const Graph& graph, Ref ref) {
  while (TraitsOf(graph.node(ref.node).op).view) ref = graph.node(ref.node).inputs[0];
  return ref;
}

}  // namespace

Ref AddedBy(const Graph& graph, int id) { return BehindReshapes(graph, graph.node(id).inputs[1]); }

std::vector<std::vector<uint8_t>> ResultsToAccumulate(const Graph& graph, uint64_t alignment) {
  const auto users = graph.Users();
  // Do only views of the result, and at their end node `reader`, read it?
  const auto read_only_by = [&](Ref ref, int reader) {
    for (Ref at = graph.node(reader).inputs[1];; at = graph.node(at.node).inputs[0]) {
      int readers = 0;
      for (const int user : users[at.node]) {
        const auto& inputs = graph.node(user).inputs;
        readers += std::find(inputs.begin(), inputs.end(), at) != inputs.end();
      }
      if (readers != 1) return false;
      if (at == ref) return true;
    }
  };
  // Has it a kernel that may write where the bucket lies? What may be a place in another value's memory, or be put
  // together in its own, has not (sharing.cc).
  const auto is_written = [&](const Node& node) {
    uint64_t unused = 0;
    return !IsStructural(node.op) && !IsCollective(node.op) && !IsConcat(node) &&
           !ContiguousSlice(graph, node, alignment, &unused);
  };
  std::vector<std::vector<uint8_t>> flags(graph.size());
  for (const Node& concat : graph.nodes()) {
    if (concat.bucket.empty()) continue;
    uint64_t offset = 0;
    for (const Ref& part : concat.inputs) {
      const Ref sum = BehindReshapes(graph, part);
      if (IsAccumulate(graph.node(sum.node)) && offset % alignment == 0) {
        const Ref added = AddedBy(graph, sum.node);
        const Node& producer = graph.node(added.node);
        if (is_written(producer) && read_only_by(added, sum.node)) {
          flags[added.node].resize(producer.outputs.size());
          flags[added.node][static_cast<size_t>(added.output)] = 1;
        }
      }
      offset += static_cast<uint64_t>(graph.type(part).bytes());
    }
  }
  return flags;
}

void BecomeSum(Graph& graph, int id) {
  sy_pointwise_attributes sum{};
  sum.instruction_count = 1;
  sum.output_count = 1;
  sum.outputs[0] = 2;
  sum.instructions[0] = {SY_PW_ADD, 0, 1, 0, 0};
  Node& node = graph.mutable_node(id);
  node.op = "pointwise";
  node.attributes = Attributes(sum);
}

}  // namespace switchyard
