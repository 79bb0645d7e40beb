#include "core/graph/op.h"

#include "core/graph/ops/families.h"

namespace switchyard {

const std::map<std::string, OpDefinition>& AllOps() {
  static const std::map<std::string, OpDefinition> table = [] {
    std::map<std::string, OpDefinition> ops;
    for (const auto& family : {MatmulOps, AttentionOps, NormalizationOps, SoftmaxOps, LossOps, PointwiseOps,
                               ReductionOps, LayoutOps, RandomOps, OptimizerOps, ConvolutionOps, CollectiveOps}) {
      for (OpDefinition& op : family()) ops.emplace(op.name, std::move(op));
    }
    return ops;
  }();
  return table;
}

const OpDefinition* FindOp(const std::string& name) {
  const auto found = AllOps().find(name);
  return found == AllOps().end() ? nullptr : &found->second;
}

Cost CostOf(const Graph& graph, const Node& node) {
  Cost cost;
  if (IsStructural(node.op)) return cost;
  for (const Ref& input : node.inputs) cost.bytes += static_cast<double>(graph.type(input).bytes());
  for (const TensorType& output : node.outputs) cost.bytes += static_cast<double>(output.bytes());
  const OpDefinition* op = FindOp(node.op);
  if (op != nullptr && op->flops) {
    cost.flops = op->flops(graph, node);
  } else if (!node.outputs.empty()) {
    cost.flops = static_cast<double>(node.outputs[0].elements());
  }
  return cost;
}

bool IsStructural(const std::string& op) {
  return op == "input" || op == "output" || op == "assign" || op == "reshape";
}
bool IsCollective(const std::string& op) {
  return op == "all_reduce" || op == "reduce_scatter" || op == "all_gather" || op == "broadcast";
}

}  // namespace switchyard
