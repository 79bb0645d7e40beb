#include "core/parallel/half_weights.h"

#include <map>

#include "core/graph/op.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/parallel/program.h"

namespace switchyard {
namespace {

constexpr char kHalfPrefix[] = "half/";

struct Copied {
  TensorType type;
  InputInfo parameter;
  DType half;
};

// What lies behind views of a value, and the views' shapes from there on.
Ref BehindViews(const Graph& graph, Ref ref, std::vector<Shape>* shapes) {
  for (; TraitsOf(graph.node(ref.node).op).view; ref = graph.node(ref.node).inputs[0])
    shapes->insert(shapes->begin(), graph.type(ref).shape);
  return ref;
}

Value CopyOf(Graph& graph, const std::string& parameter, const Copied& copied) {
  const Graph::Scope root(graph);
  const Value existing = graph.FindInput(kHalfPrefix + parameter);
  return existing ? existing
                  : graph.Input(kHalfPrefix + parameter, {copied.half, copied.type.shape}, {Role::kCopy, {}, false});
}

void ReadCopies(NamedGraph& plan, std::map<std::string, Copied>* copies) {
  const Graph source = plan.graph;
  RewritePlan(plan, "half_weights", [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
    const Node& node = source.node(id);
    if (node.phase != Phase::kForward || !ops::IsCast(source, node)) return std::nullopt;
    std::vector<Shape> shapes;
    const Ref origin = BehindViews(source, node.inputs[0], &shapes);
    const Node& parameter = source.node(origin.node);
    const DType half = node.outputs[0].dtype;
    if (!parameter.input || parameter.input->role != Role::kParameter || SizeOf(half) != 2) return std::nullopt;
    const Copied copied = {source.type(origin), *parameter.input, half};
    copies->emplace(parameter.name, copied);
    Value value = CopyOf(r.result, parameter.name, copied);
    for (const Shape& shape : shapes) value = ops::Reshape(value, shape, node.where);
    return std::vector<Value>{value};
  });
}

Status HalfWeightsLegal(const ProgramOptions&) { return OkStatus(); }

void ApplyHalfWeights(Program& program, const ProgramOptions& options) {
  if (options.precision == DType::kF32) return;
  std::map<std::string, Copied> copies;  // of all plans
  for (NamedGraph& plan : program.plans) ReadCopies(plan, &copies);
  if (copies.empty()) return;
  NamedGraph& fresh = program.plans.emplace_back(NamedGraph{"halves", {}, {}, false, {}, {}, {}, {}});
  for (const auto& [name, copied] : copies) {
    const Value parameter = fresh.graph.Input(name, copied.type, copied.parameter);
    fresh.graph.Assign(CopyOf(fresh.graph, name, copied), ops::Cast(parameter, copied.half));
  }
  // The update writes what any plan reads.
  for (NamedGraph& plan : program.plans) {
    for (const auto& [name, copied] : copies) {
      if (plan.trains && plan.buckets.reduces) CopyOf(plan.graph, name, copied);
    }
  }
}

}  // namespace

Pass HalfWeightsPass() { return {"half_weights", HalfWeightsLegal, ApplyHalfWeights}; }

Value HalfWeightOf(Graph& graph, const Ref& parameter) {
  return graph.FindInput(kHalfPrefix + graph.node(parameter.node).name);
}

}  // namespace switchyard
