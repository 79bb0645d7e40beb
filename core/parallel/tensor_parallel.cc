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
#include <algorithm>
#include <map>
#include <set>

#include "core/graph/op.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/parallel/passes.h"
#include "core/parallel/pipeline_cut.h"
#include "core/parallel/sharding.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

// The nodes apart from what is added to their results.
void TakeAddendsOut(NamedGraph& plan, const std::set<int>& nodes) {
  const Graph& source = plan.graph;
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
  if (o.sequence && o.mesh.tensor == 1) {
    return InvalidArgument(
        "sequence parallelism without tensor parallelism: the ranks that share a model divide what lies between its "
        "divided layers; give --tp=2 or more, or leave --sp out");
  }
  return OkStatus();
}

// Of weights that all ranks have whole, where no node reads them.
std::set<Ref> GradientsOfWholeWeights(const Graph& graph, const std::vector<GradientOf>& pairs) {
  const auto users = graph.Users();
  std::set<Ref> gradients;
  for (const auto& [parameter, gradient] : pairs) {
    if (gradient.node < 0 || graph.node(parameter.node).input->divisible) continue;
    const auto& readers = users[static_cast<size_t>(gradient.node)];
    const bool read = std::any_of(readers.begin(), readers.end(), [&](int reader) {
      const auto& inputs = graph.node(reader).inputs;
      return std::find(inputs.begin(), inputs.end(), gradient) != inputs.end();
    });
    if (!read) gradients.insert(gradient);
  }
  return gradients;
}

void SumTogether(NamedGraph& plan, const std::vector<Ref*>& gradients) {
  std::vector<Value> flat;
  for (const Ref* gradient : gradients) {
    const Value addend = plan.graph.value(*gradient);
    flat.push_back(ops::Reshape(ops::Cast(addend, DType::kF32), {addend.type().elements()}));
  }
  const Value sums = ops::AllReduce(flat.size() > 1 ? ops::Concat(flat, 0) : flat[0], SY_SUM, 1, kTensorGroup,
                                    "gradients_of_whole_weights/sum");
  int64_t start = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Value sum = ops::Slice(sums, 0, start, flat[i].dim(0));
    *gradients[i] = ops::Reshape(sum, plan.graph.type(*gradients[i]).shape).ref();
    start += flat[i].dim(0);
  }
}

// Gradients of which ranks have addends (those of norms and biases over samples that the ranks divide) are many and
// small: one sum over the group for all of a part of the model.
void SumAddends(NamedGraph& plan, const std::vector<GradientOf>& before, const Sharding& sharding,
                const StageCut& stages) {
  std::vector<size_t> addends;
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i].gradient.node >= 0 && sharding.IsAddend(before[i].gradient)) addends.push_back(i);
  }
  if (addends.empty()) return;
  const CutGraph cut = Cut(plan, stages);
  std::map<int, std::vector<Ref*>> by_part;
  for (const size_t i : addends)
    by_part[cut.PartOf(plan.gradients[i].parameter.node)].push_back(&plan.gradients[i].gradient);
  for (const auto& [part, gradients] : by_part) SumTogether(plan, gradients);
}

void ApplyTensorParallel(Program& program, const ProgramOptions& o) {
  if (o.mesh.tensor == 1) return;
  const Divider divider(o.mesh.tensor, program.rank % o.mesh.tensor, kTensorGroup);
  for (const Node& node : program.plans[0].graph.nodes()) {
    if (node.input && node.input->role == Role::kParameter && node.input->divisible &&
        node.input->divisible->extent < o.mesh.tensor)
      ++program.too_few_parts[node.input->divisible->extent];
  }
  for (NamedGraph& plan : program.plans) {
    // An addend that stands apart may be divided itself, and so what follows it.
    for (;;) {
      const Sharding tried(plan.graph, divider, o.sequence, {});
      if (tried.with_addends().empty()) break;
      TakeAddendsOut(plan, tried.with_addends());
    }
    const std::vector<GradientOf> before = plan.gradients;
    std::vector<Node> makers;  // of the gradients, as they were
    for (const GradientOf& pair : before)
      makers.push_back(pair.gradient.node < 0 ? Node() : plan.graph.node(pair.gradient.node));
    Sharding sharding(plan.graph, divider, o.sequence, GradientsOfWholeWeights(plan.graph, before));
    RewritePlan(
        plan, "tensor_parallel", [&](Rewriting& r, int id) { return sharding.Replace(r, id); },
        [&](const Node& input, TensorType* type, InputInfo* info) {
          sharding.DivideInput(input, type, info);
          return true;
        });
    if (!sharding.divides()) throw BuildError("it marks no weight that tensor-parallel ranks could divide; use --tp=1");
    plan.graph.SetPhase(Phase::kBackward);
    for (size_t i = 0; i < before.size(); ++i) {
      Ref& gradient = plan.gradients[i].gradient;
      if (gradient.node < 0) continue;
      const auto& [parameter, old] = before[i];
      gradient = divider
                     .Convert(plan.graph.value(gradient), makers[i].outputs[static_cast<size_t>(old.output)].shape,
                              sharding.DivisionOf(old), sharding.DivisionOf(parameter), makers[i].name)
                     .ref();
    }
    SumAddends(plan, before, sharding, program.stages);
    plan.graph.SetPhase(Phase::kForward);
    for (const auto& [op, nodes] : sharding.gathered()) program.gathered[op] += nodes;
  }
}

}  // namespace

Pass TensorParallelPass() { return {"tensor_parallel", TensorParallelLegal, ApplyTensorParallel}; }

}  // namespace switchyard
