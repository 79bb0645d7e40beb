// What a pipeline stage holds of the model's state is said as parts of whole tensors (graph/part.h): of its own
// parameters, their moments and averages all, of those of other stages nothing. So every rank knows every tensor by
// name and shape, and who saves, loads or compares them need not know of stages. Of what it has nothing a rank keeps
// one element.
#include <memory>
#include <set>

#include "core/parallel/passes.h"
#include "core/parallel/power_sgd.h"

namespace switchyard {
namespace {

Status StagePartsLegal(const ProgramOptions&) { return OkStatus(); }

Part AllOrNothing(const Shape& whole, bool all) {
  const int64_t elements = Elements(whole);
  return {whole, {DividedAxis::kAllElements, 1, elements, 1}, 0, all ? elements : 0, kPipelineGroup};
}

// The whole tensor that an input is, or is a part of.
const Shape& WholeOf(const Node& input) {
  return input.input->part ? WholeShape(*input.input->part) : input.outputs[0].shape;
}

// The part, of a tensor of which the stage has `all`.
Part WithStage(Part part, const Part& all) {
  part.of = std::make_shared<const Part>(part.of ? WithStage(*part.of, all) : all);
  return part;
}

bool IsWeight(const InputInfo& info) { return info.role == Role::kParameter || info.of_model; }

// The parameters of a stage by name.
std::set<std::string> ParametersOf(const Program& program) {
  std::set<std::string> parameters;
  for (const NamedGraph& plan : program.plans) {
    for (const int id : plan.graph.Inputs(Role::kParameter)) parameters.insert(plan.graph.node(id).name);
  }
  return parameters;
}

void AddNothingOf(Graph& graph, const std::string& name, const Shape& whole, DType dtype, InputInfo info) {
  info.part = AllOrNothing(whole, false);
  graph.Input(name, {dtype, {1}}, info);
}

void ApplyStageParts(Program& program, const ProgramOptions& o) {
  if (o.mesh.pipeline <= 1) return;
  const std::set<std::string> parameters = ParametersOf(program);
  std::map<std::string, std::pair<DType, InputInfo>> followers;  // "moment1/": what parameters have such state
  for (NamedGraph& plan : program.plans) {
    for (int id = 0; id < plan.graph.size(); ++id) {
      Node& node = plan.graph.mutable_node(id);
      if (!node.input || (!IsWeight(*node.input) && node.input->role != Role::kState)) continue;
      if (!IsWeight(*node.input)) {
        const size_t slash = node.name.find('/');
        if (slash == std::string::npos || !parameters.contains(node.name.substr(slash + 1))) continue;
        if (!IsPowerSgdState(node.name))
          followers[node.name.substr(0, slash + 1)] = {node.outputs[0].dtype, *node.input};
      }
      const Part all = AllOrNothing(WholeOf(node), true);
      node.input->part = node.input->part ? WithStage(*node.input->part, all) : all;
    }
  }
  Graph& graph = program.plans[0].graph;
  for (const Node& weight : program.elsewhere) {
    const Shape& whole = WholeOf(weight);
    AddNothingOf(graph, weight.name, whole, weight.outputs[0].dtype, *weight.input);
    if (weight.input->role != Role::kParameter) continue;
    for (const auto& [prefix, state] : followers)
      AddNothingOf(graph, prefix + weight.name, whole, state.first, state.second);
    if (program.Find("compressed_update") == nullptr) continue;
    const TensorPlace place = {o.mesh.tensor, program.rank % o.mesh.tensor};
    for (const LowRankState& state : LowRankStatesOf(weight, o.power_sgd.rank, place))
      AddNothingOf(graph, state.name, state.whole(), state.type.dtype, state.info);
  }
}

}  // namespace

Pass StagePartsPass() { return {"stage_parts", StagePartsLegal, ApplyStageParts}; }

}  // namespace switchyard
