// What a pipeline stage holds of the model's state is said as parts of whole tensors (graph/part.h): of its own
// parameters, their moments and averages all, of those of other stages nothing. So every rank knows every tensor by
// name and shape, and who saves, loads or compares them need not know of stages. Of what it has nothing a rank keeps
// one element.
#include <memory>

#include "core/parallel/passes.h"

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

// The parameters of a stage by name, with their shapes.
std::map<std::string, Shape> ParametersOf(const Program& program) {
  std::map<std::string, Shape> parameters;
  for (const NamedGraph& plan : program.plans) {
    for (const int id : plan.graph.Inputs(Role::kParameter)) {
      const Node& node = plan.graph.node(id);
      parameters[node.name] = WholeOf(node);
    }
  }
  return parameters;
}

void AddNothingOf(Graph& graph, const std::string& name, const Shape& whole, DType dtype, InputInfo info) {
  info.part = AllOrNothing(whole, false);
  graph.Input(name, {dtype, {1}}, info);
}

void ApplyStageParts(Program& program, const ProgramOptions& o) {
  if (o.mesh.pipeline <= 1) return;
  const std::map<std::string, Shape> parameters = ParametersOf(program);
  std::map<std::string, std::pair<DType, InputInfo>> followers;  // "moment1/": what parameters have such state
  for (NamedGraph& plan : program.plans) {
    for (int id = 0; id < plan.graph.size(); ++id) {
      Node& node = plan.graph.mutable_node(id);
      if (!node.input || (!IsWeight(*node.input) && node.input->role != Role::kState)) continue;
      Shape whole = WholeOf(node);
      if (!IsWeight(*node.input)) {
        const size_t slash = node.name.find('/');
        const auto followed =
            slash == std::string::npos ? parameters.end() : parameters.find(node.name.substr(slash + 1));
        if (followed == parameters.end()) continue;
        whole = followed->second;
        followers[node.name.substr(0, slash + 1)] = {node.outputs[0].dtype, *node.input};
      }
      const Part all = AllOrNothing(whole, true);
      node.input->part = node.input->part ? WithStage(*node.input->part, all) : all;
    }
  }
  Graph& graph = program.plans[0].graph;
  for (const Node& weight : program.elsewhere) {
    const Shape& whole = WholeOf(weight);
    AddNothingOf(graph, weight.name, whole, weight.outputs[0].dtype, *weight.input);
    for (const auto& [prefix, state] : followers) {
      if (weight.input->role == Role::kParameter)
        AddNothingOf(graph, prefix + weight.name, whole, state.first, state.second);
    }
  }
}

}  // namespace

Pass StagePartsPass() { return {"stage_parts", StagePartsLegal, ApplyStageParts}; }

}  // namespace switchyard
