// Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM") as a sharding of the joint forward and backward graph, so
// that models say no more than along which axis a weight may be divided (InputInfo::divisible), and backward
// collectives need no rule of their own. Every value is whole on all ranks of the tensor group or divided along one
// axis. Divided weights are where it starts; from there each op's factors (core/graph/factors.h) say which results are
// divided in turn. What an op leaves as partial sums is summed over the group at once, what it cannot take divided is
// gathered, what it needs divided beside a divided input is cut out of the whole without communication.
//
// Sequence parallelism (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models") is
// one more division: of a sum that has rows of each sample every rank takes those of its samples alone, and what
// follows works on these until a divided weight needs them all. The two sums of a block become a reduce_scatter and an
// all_gather each, and norms, residuals and dropout between them are divided. (Along the samples, not along the tokens
// of each: there are 197 of those.)
#include <set>

#include "core/graph/op.h"
#include "core/parallel/passes.h"
#include "core/parallel/sharding.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

// The nodes apart from what is added to their results.
void TakeAddendsOut(NamedGraph& plan, const std::set<int>& nodes) {
  const Graph source = plan.graph;
  RewritePlan(plan, "tensor_parallel", [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
    const Node& node = source.node(id);
    if (!nodes.contains(id)) return std::nullopt;
    const auto& decompose = FindOp(node.op)->decompose;
    std::vector<Value> parts = decompose ? decompose(r.result, node, r.Map(node.inputs)) : std::vector<Value>();
    if (parts.empty()) throw BuildError(fmt::format("{} ({}) adds to a sum that ranks share", node.name, node.op));
    return parts;
  });
}

Status TensorParallelLegal(const ProgramOptions& o) {
  if (o.mesh.tensor > 1 && !o.evaluation_only &&
      (o.optimizer.kind == SY_OPTIMIZER_LAMB || o.optimizer.kind == SY_OPTIMIZER_LARS)) {
    return Unimplemented(
        "tensor parallelism over {} ranks with lamb or lars: no rank has the norm of a weight that is divided; use "
        "--optimizer=adamw, adam or sgd",
        o.mesh.tensor);
  }
  if (o.sequence && o.mesh.tensor == 1) {
    return InvalidArgument(
        "sequence parallelism without tensor parallelism: the ranks that share a model divide what lies between its "
        "divided layers; give --tp=2 or more, or leave --sp out");
  }
  return OkStatus();
}

void ApplyTensorParallel(Program& program, const ProgramOptions& o) {
  if (o.mesh.tensor == 1) return;
  const Divider divider(o.mesh.tensor, program.rank % o.mesh.tensor, kTensorGroup);
  for (NamedGraph& plan : program.plans) {
    if (const Sharding first(plan.graph, divider, o.sequence); !first.with_addends().empty())
      TakeAddendsOut(plan, first.with_addends());
    const Graph source = plan.graph;
    const std::vector<GradientOf> before = plan.gradients;
    Sharding sharding(source, divider, o.sequence);
    RewritePlan(
        plan, "tensor_parallel", [&](Rewriting& r, int id) { return sharding.Replace(r, id); },
        [&](const Node& input, TensorType* type, InputInfo* info) { sharding.DivideInput(input, type, info); });
    if (!sharding.divides()) throw BuildError("it marks no weight that tensor-parallel ranks could divide; use --tp=1");
    plan.graph.SetPhase(Phase::kBackward);
    for (size_t i = 0; i < before.size(); ++i) {
      Ref& gradient = plan.gradients[i].gradient;
      if (gradient.node < 0) continue;
      const auto& [parameter, old] = before[i];
      gradient = divider
                     .Convert(plan.graph.value(gradient), source.type(old).shape, sharding.DivisionOf(old),
                              sharding.DivisionOf(parameter), source.node(old.node).name)
                     .ref();
    }
    plan.graph.SetPhase(Phase::kForward);
    for (const auto& [op, nodes] : sharding.gathered()) program.gathered[op] += nodes;
  }
}

}  // namespace

Pass TensorParallelPass() { return {"tensor_parallel", TensorParallelLegal, ApplyTensorParallel}; }

}  // namespace switchyard
