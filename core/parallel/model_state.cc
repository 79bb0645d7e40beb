// State of the model itself, as running statistics (InputInfo::of_model), is moved by every micro-batch, on each rank
// by its own samples. Evaluation and checkpoints read one state, so where an update ends, all ranks take that of the
// first rank of their data group, as PyTorch's DistributedDataParallel with broadcast_buffers does before the
// forward pass that follows: one broadcast of all of it in one tensor.
#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/structure.h"
#include "core/parallel/passes.h"

namespace switchyard {
namespace {

Status ModelStateLegal(const ProgramOptions&) { return OkStatus(); }

bool AssignsModelState(const Graph& graph, const Node& node) {
  return IsAssign(node) && graph.node(node.inputs[0].node).input->of_model;
}

void ApplyModelState(Program& program, const ProgramOptions& o) {
  if (o.mesh.data == 1 || !o.broadcast_buffers) return;
  for (NamedGraph& plan : program.plans) {
    if (!plan.trains || !plan.buckets.reduces) continue;
    struct Assignment {
      Ref state, value;
      std::source_location where;
    };
    std::vector<Assignment> assignments;
    RewritePlan(plan, "state", [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
      const Node& node = r.source.node(id);
      if (!AssignsModelState(r.source, node)) return std::nullopt;
      assignments.push_back({r.Map(node.inputs[0]).ref(), r.Map(node.inputs[1]).ref(), node.where});
      return std::vector<Value>();
    });
    if (assignments.empty()) continue;
    Graph& graph = plan.graph;
    graph.SetPhase(Phase::kUpdate);
    std::vector<Value> parts;
    for (const Assignment& a : assignments)
      parts.push_back(ops::Reshape(graph.value(a.value), {graph.type(a.value).elements()}));
    const Value all = ops::Broadcast(ops::Concat(parts, 0), 0, kDataGroup, "broadcast/model_state");
    int64_t start = 0;
    for (const Assignment& a : assignments) {
      const TensorType type = graph.type(a.value);
      graph.Assign(graph.value(a.state), ops::Reshape(ops::Slice(all, 0, start, type.elements()), type.shape), a.where);
      start += type.elements();
    }
    graph.SetPhase(Phase::kForward);
  }
}

}  // namespace

Pass ModelStatePass() { return {"state", ModelStateLegal, ApplyModelState}; }

}  // namespace switchyard
