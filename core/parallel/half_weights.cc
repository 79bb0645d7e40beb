#include "core/parallel/half_weights.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/graph/op.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/optim/optimizer.h"
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

// Parameters and averages that a plan reads in a half type.
class Reading {
 public:
  explicit Reading(const Graph& source) : source_(source), users_(source.Users()) {}

  static bool IsWeight(const Node& node) {
    return node.input && (node.input->role == Role::kParameter || node.input->average);
  }
  // A parameter or an average that the node casts to a half type, behind views; nullptr where it does not.
  const Node* CastWeight(const Node& node, Ref* origin, std::vector<Shape>* shapes) const {
    if (!IsHalfCast(node)) return nullptr;
    *origin = BehindViews(source_, node.inputs[0], shapes);
    const Node& weight = source_.node(origin->node);
    return IsWeight(weight) ? &weight : nullptr;
  }
  // Is the node a view of a weight, which only such casts read?
  bool IsPassedBy(int id) const {
    std::vector<Shape> shapes;
    return TraitsOf(source_.node(id).op).view && IsWeight(source_.node(BehindViews(source_, {id, 0}, &shapes).node)) &&
           OnlyHalfCastsRead(id);
  }
  // Does no other node than such casts read the weight?
  bool OnlyHalfCastsRead(int id) const {
    return std::all_of(users_[id].begin(), users_[id].end(), [&](int user) {
      const Node& reader = source_.node(user);
      return IsHalfCast(reader) || (TraitsOf(reader.op).view && OnlyHalfCastsRead(user));
    });
  }

 private:
  bool IsHalfCast(const Node& node) const {
    return node.phase == Phase::kForward && ops::IsCast(source_, node) && SizeOf(node.outputs[0].dtype) == 2;
  }

  const Graph& source_;
  const IdLists users_;
};

// in_f32: gets the parameters that the plan reads otherwise too, themselves or their averages.
void ReadCopies(NamedGraph& plan, std::map<std::string, Copied>* copies, std::set<std::string>* in_f32) {
  const Graph& source = plan.graph;
  const Reading reading(source);
  for (int id = 0; id < source.size(); ++id) {
    const Node& node = source.node(id);
    if (Reading::IsWeight(node) && !reading.OnlyHalfCastsRead(id))
      in_f32->insert(node.input->average ? node.name.substr(AverageOf("").size()) : node.name);
  }
  std::map<Ref, Value> averages;  // cast
  RewritePlan(plan, "half_weights", [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
    if (reading.IsPassedBy(id)) return std::vector<Value>();
    const Node& node = source.node(id);
    std::vector<Shape> shapes;
    Ref origin;
    const Node* const weight = reading.CastWeight(node, &origin, &shapes);
    if (weight == nullptr) return std::nullopt;
    const DType half = node.outputs[0].dtype;
    Value value;
    if (weight->input->average) {
      Value& cast = averages[origin];
      if (!cast) cast = ops::Cast(r.Map(origin), half, node.where);
      value = cast;
    } else {
      const Copied copied = {source.type(origin), *weight->input, half};
      copies->emplace(weight->name, copied);
      value = CopyOf(r.result, weight->name, copied);
    }
    for (const Shape& shape : shapes) value = ops::Reshape(value, shape, node.where);
    return std::vector<Value>{value};
  });
}

Status HalfWeightsLegal(const ProgramOptions&) { return OkStatus(); }

void ApplyHalfWeights(Program& program, const ProgramOptions& options) {
  if (options.precision == DType::kF32) return;
  std::map<std::string, Copied> copies;  // of all plans
  std::set<std::string> in_f32;
  for (NamedGraph& plan : program.plans) ReadCopies(plan, &copies, &in_f32);
  if (copies.empty()) return;
  for (const auto& [name, copied] : copies) {
    if (!in_f32.contains(name)) program.read_in_half.insert(name);
  }
  // The update writes what any plan reads.
  for (NamedGraph& plan : program.plans) {
    for (const auto& [name, copied] : copies) {
      if (plan.trains && plan.buckets.reduces) CopyOf(plan.graph, name, copied);
    }
  }
  AddHalves(program);
}

}  // namespace

Pass HalfWeightsPass() { return {"half_weights", HalfWeightsLegal, ApplyHalfWeights}; }

std::string HalfWeightName(const std::string& parameter) { return kHalfPrefix + parameter; }

Value HalfWeightOf(Graph& graph, const Ref& parameter) {
  return graph.FindInput(HalfWeightName(graph.node(parameter.node).name));
}

std::string CopiedBy(const Node& input) {
  const bool copy = input.input && input.input->role == Role::kCopy;
  return copy ? input.name.substr(sizeof(kHalfPrefix) - 1) : "";
}

std::vector<std::pair<int, int>> HalfWeightsOf(const Graph& graph) {
  std::map<std::string, int> parameters;
  for (const int id : graph.Inputs(Role::kParameter)) parameters[kHalfPrefix + graph.node(id).name] = id;
  std::vector<std::pair<int, int>> copies;
  for (const int id : graph.Inputs(Role::kCopy)) copies.push_back({id, parameters.at(graph.node(id).name)});
  return copies;
}

void AddHalves(Program& program) {
  NamedGraph halves{"halves", {}, {}, false, {}, {}, {}, {}};
  for (const NamedGraph& plan : program.plans) {
    for (const auto& [copy, of] : HalfWeightsOf(plan.graph)) {
      const Node& parameter = plan.graph.node(of);
      if (halves.graph.FindInput(parameter.name)) continue;
      const Copied copied = {parameter.outputs[0], *parameter.input, plan.graph.type({copy, 0}).dtype};
      const Value value = halves.graph.Input(parameter.name, copied.type, copied.parameter);
      halves.graph.Assign(CopyOf(halves.graph, parameter.name, copied), ops::Cast(value, copied.half));
    }
  }
  if (halves.graph.size() > 0) program.plans.push_back(std::move(halves));
}

}  // namespace switchyard
