#include "core/optim/optimizer.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "core/base/names.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/optimizer.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/optim/parameter_rules.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

sy_optimizer_attributes ToAbi(const OptimizerOptions& options, bool decay) {
  sy_optimizer_attributes attributes{};
  attributes.kind = options.kind;
  attributes.momentum = options.momentum;
  attributes.dampening = options.dampening;
  attributes.nesterov = options.nesterov;
  attributes.beta1 = options.beta1;
  attributes.beta2 = options.beta2;
  attributes.eps = options.eps;
  attributes.weight_decay = decay ? options.weight_decay : 0;
  attributes.adam_w_mode = options.adam_w_mode;
  attributes.grad_averaging = options.grad_averaging;
  attributes.use_nvlamb = options.use_nvlamb;
  attributes.trust_coefficient = options.trust_coefficient;
  return attributes;
}

const Node& InputOf(const Value& value) { return value.graph().node(value.ref().node); }

// State of the optimizer that a parameter has: divided as it is, or as its update is.
InputInfo Following(const Value& parameter, const SharedUpdate& shared = {}) {
  InputInfo info = {Role::kState};
  info.part = InputOf(parameter).input->part;
  if (shared.ranks == 1) return info;
  const int64_t elements = parameter.type().elements(), share = (elements + shared.ranks - 1) / shared.ranks;
  info.part = Part{parameter.shape(), {DividedAxis::kAllElements, 1, elements, 1}};
  info.part->begin = std::min(elements, shared.rank * share);
  info.part->end = std::min(elements, info.part->begin + share);
  info.part->group = shared.group;
  return info;
}

void CheckGradients(const std::vector<ParameterGradient>& gradients, Graph::Location where) {
  std::string unused;
  for (const auto& [parameter, gradient, half] : gradients) {
    if (!InputOf(parameter).input || parameter.dtype() != DType::kF32) {
      ThrowBuildError("optimizer", "a parameter must be an f32 input of the graph", {parameter}, where);
    }
    if (half && (!InputOf(half).input || half.shape() != parameter.shape())) {
      ThrowBuildError("optimizer", "a half copy must be an input of its parameter's shape", {parameter, half}, where);
    }
    if (!gradient) unused += (unused.empty() ? "" : ", ") + InputOf(parameter).name;
  }
  if (!unused.empty()) ThrowBuildError("optimizer", "the loss does not depend on: " + unused, {}, where);
  if (gradients.empty()) ThrowBuildError("optimizer", "there is nothing to train", {}, where);
}

// What every update reads, each of one element.
struct Scalars {
  Value lr, update, gradient_scale, finite;
};

// What one update has in common: tensors that differ in it are updated by another node.
struct Group {
  bool decay = true;
  int layer = 0;             // the rate's
  DType half = DType::kF32;  // of the half copies; kF32: there are none
  size_t alone = 0;          // the parameter, where each is updated for itself
  auto operator<=>(const Group& o) const {
    return std::tuple(!decay, layer, half, alone) <=> std::tuple(!o.decay, o.layer, o.half, o.alone);
  }
};

std::map<Group, std::vector<size_t>> GroupsOf(const std::vector<ParameterGradient>& gradients,
                                              const std::vector<int>& layers, const OptimizerOptions& options) {
  std::map<Group, std::vector<size_t>> groups;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const auto& [parameter, gradient, half] = gradients[i];
    const Node& input = InputOf(parameter);
    groups[{.decay = input.input->weight_decay && Decays(input.name, parameter.shape()),
            .layer = layers.empty() ? 0 : layers[i],
            .half = half ? half.dtype() : DType::kF32,
            .alone = options.fused ? 0 : i}]
        .push_back(i);
  }
  return groups;
}

// A rank's share of a tensor of n elements: elements [rank·c, rank·c + c) with c = ⌈n/ranks⌉, zeros behind the last.
int64_t ShareOf(const TensorType& type, int ranks) { return (type.elements() + ranks - 1) / ranks; }

Value Share(const Value& tensor, const SharedUpdate& shared, Graph::Location where) {
  const int64_t elements = tensor.type().elements(), share = ShareOf(tensor.type(), shared.ranks);
  const int64_t begin = std::min(elements, shared.rank * share), held = std::min(elements - begin, share);
  const Value flat = ops::Reshape(tensor, {elements}, where);
  if (held == 0) return ops::Full(tensor.graph(), {share}, 0, tensor.dtype(), where);
  const Value own = ops::Slice(flat, 0, begin, held, 1, where);
  return held == share ? own : ops::Pad(own, {0}, {share - held}, 0, where);
}

// The tensors of which these are the ranks' shares, gathered together.
std::vector<Value> Joined(const std::vector<Value>& shares, const std::vector<TensorType>& types,
                          const SharedUpdate& shared, Graph::Location where) {
  const Value own = ops::Concat(shares, 0, where);
  const int64_t all = own.dim(0);
  const Value rows =
      ops::AllGather(ops::Reshape(own, {1, all}, where), shared.ranks, shared.group, "parameters", where);
  std::vector<Value> tensors;
  int64_t start = 0;
  for (const TensorType& type : types) {
    const int64_t share = ShareOf(type, shared.ranks);
    const Value columns = ops::Reshape(ops::Slice(rows, 1, start, share, 1, where), {shared.ranks * share}, where);
    tensors.push_back(ops::Reshape(ops::Slice(columns, 0, 0, type.elements(), 1, where), type.shape, where));
    start += share;
  }
  return tensors;
}

// The new parameters in place of this rank's shares of them, in as many gathers as it takes.
void GatherParameters(const std::vector<ParameterGradient>& gradients, const std::vector<size_t>& members,
                      const SharedUpdate& shared, std::vector<ops::OptimizerTensor>* updated, Graph::Location where) {
  for (size_t first = 0; first < members.size();) {
    std::vector<Value> shares;
    std::vector<TensorType> types;
    uint64_t bytes = 0;
    for (size_t k = first; k < members.size(); ++k) {
      const TensorType& type = gradients[members[k]].parameter.type();
      if (k > first && bytes + static_cast<uint64_t>(type.bytes()) > shared.gather_bytes) break;
      bytes += static_cast<uint64_t>(type.bytes());
      shares.push_back((*updated)[k].parameter);
      types.push_back(type);
    }
    for (const Value& whole : Joined(shares, types, shared, where)) (*updated)[first++].parameter = whole;
  }
}

// The update of a group's tensors, and the assignments of its results; each new parameter goes to `next`.
void UpdateGroup(Graph& graph, const std::vector<ParameterGradient>& gradients, const Group& group,
                 const std::vector<size_t>& members, const Scalars& scalars, const OptimizerOptions& options,
                 const SharedUpdate& shared, std::vector<Value>* next, Graph::Location where) {
  sy_optimizer_attributes attributes = ToAbi(options, group.decay);
  const bool divided = shared.ranks > 1;
  attributes.half_copies = group.half != DType::kF32 && !divided;
  const int moments = ops::OptimizerMoments(attributes);
  std::vector<ops::OptimizerTensor> tensors;
  for (const size_t i : members) {
    const Value& parameter = gradients[i].parameter;
    const auto moment = [&, name = InputOf(parameter).name](const char* which) {
      TensorType type = parameter.type();
      if (divided) type.shape = {ShareOf(type, shared.ranks)};
      return graph.Input(fmt::format("{}/{}", which, name), type, Following(parameter, shared), where);
    };
    ops::OptimizerTensor tensor = {parameter, gradients[i].gradient, {}, {}, {}};
    if (divided) {
      tensor.parameter = Share(parameter, shared, where);
      tensor.gradient = Share(gradients[i].gradient, shared, where);
    }
    if (moments > 0) tensor.moment1 = moment("moment1");
    if (moments > 1) tensor.moment2 = moment("moment2");
    tensors.push_back(tensor);
  }
  std::vector<ops::OptimizerTensor> updated = ops::OptimizerUpdate(
      scalars.lr, scalars.update, scalars.gradient_scale, scalars.finite, tensors, attributes, group.half, where);
  if (divided) GatherParameters(gradients, members, shared, &updated, where);
  for (size_t k = 0; k < tensors.size(); ++k) {
    const auto& [parameter, gradient, half] = gradients[members[k]];
    graph.Assign(parameter, updated[k].parameter, where);
    if (tensors[k].moment1) graph.Assign(tensors[k].moment1, updated[k].moment1, where);
    if (tensors[k].moment2) graph.Assign(tensors[k].moment2, updated[k].moment2, where);
    if (half) graph.Assign(half, divided ? ops::Cast(updated[k].parameter, group.half, where) : updated[k].half, where);
    (*next)[members[k]] = updated[k].parameter;
  }
}

// The factor on all gradients.
Value ClippingScale(Graph& graph, const Value& norm, const OptimizerOptions& options, Graph::Location where) {
  const Value one = ops::Full(graph, {1}, 1, DType::kF32, where);
  if (options.kind == SY_OPTIMIZER_LAMB) {
    if (options.max_grad_norm <= 0) return one;
    const Value limit = ops::Full(graph, {1}, options.max_grad_norm, DType::kF32, where);
    return ops::Div(one, ops::Binary(SY_PW_MAX, one, ops::Div(norm, limit, where), where), where);
  }
  if (options.clip <= 0) return one;
  const Value limit = ops::Full(graph, {1}, options.clip, DType::kF32, where);
  return ops::Minimum(one, ops::Div(limit, ops::AddScalar(norm, 1e-6f, where), where), where);
}

// The averages move towards the new parameters; by nothing where the step is left out.
void UpdateAverages(Graph& graph, const std::vector<ParameterGradient>& gradients, const std::vector<Value>& next,
                    const Scalars& scalars, float decay, Graph::Location where) {
  const Value t = ops::AddScalar(ops::Cast(scalars.update, DType::kF32, where), 1, where);
  const Value warm = ops::Div(ops::AddScalar(t, 1, where), ops::AddScalar(t, 10, where), where);
  const Value kept = ops::Minimum(ops::Full(graph, {1}, decay, DType::kF32, where), warm, where);
  const Value one = ops::Full(graph, {1}, 1, DType::kF32, where), none = ops::Full(graph, {1}, 0, DType::kF32, where);
  const Value share = ops::Select(scalars.finite, ops::Sub(one, kept, where), none, where);
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Value& parameter = gradients[i].parameter;
    const Value average =
        graph.Input(AverageOf(InputOf(parameter).name), parameter.type(), Following(parameter), where);
    graph.Assign(average, ops::Add(average, ops::Mul(share, ops::Sub(next[i], average, where), where), where), where);
  }
}

}  // namespace

StatusOr<int> ParseOptimizer(const std::string& name) {
  const std::vector<std::string> known = {"sgd", "adam", "adamw", "lamb", "lars"};
  constexpr std::array kKinds = {SY_OPTIMIZER_SGD, SY_OPTIMIZER_ADAM, SY_OPTIMIZER_ADAMW, SY_OPTIMIZER_LAMB,
                                 SY_OPTIMIZER_LARS};
  for (size_t i = 0; i < known.size(); ++i) {
    if (known[i] == name) return static_cast<int>(kKinds[i]);
  }
  return InvalidArgument("unknown optimizer '{}'{}; there are: sgd, adam, adamw, lamb, lars", name,
                         DidYouMean(name, known));
}

std::string AverageOf(const std::string& parameter) { return "ema/" + parameter; }

Value AddOptimizer(Graph& graph, const std::vector<ParameterGradient>& gradients, const Value& squares,
                   const OptimizerOptions& options, int64_t table_length, const Value& inverse_scale,
                   const SharedUpdate& shared, Graph::Location where) {
  CheckGradients(gradients, where);
  const Graph::Scope root(graph);
  const Phase before = graph.phase();
  graph.SetPhase(Phase::kUpdate);
  const Value table = graph.Input("lr_table", {DType::kF32, {table_length}}, {Role::kConstant}, where);
  const Value update = graph.Input("update", {DType::kI32, {1}}, {Role::kState}, where);

  std::vector<Value> measured;
  for (const ParameterGradient& pair : gradients) measured.push_back(pair.gradient);
  Value norm = ops::Unary(SY_PW_SQRT, squares ? squares : ops::SquaredNorm(measured, where), where);
  if (inverse_scale) norm = ops::Mul(norm, inverse_scale, where);
  Scalars scalars;
  scalars.lr = ops::Gather(table, update, where);
  scalars.update = update;
  scalars.finite = ops::Unary(SY_PW_IS_FINITE, norm, where);
  scalars.gradient_scale = ClippingScale(graph, norm, options, where);
  std::vector<int> layers;
  if (options.layer_decay != 1) {
    std::vector<Value> parameters;
    for (const ParameterGradient& pair : gradients) parameters.push_back(pair.parameter);
    layers = LayersOf(parameters);
    if (layers.empty()) {
      ThrowBuildError("optimizer", "a layer_decay goes by the blocks of the model, and this one tells none", {}, where);
    }
  }
  if (inverse_scale) scalars.gradient_scale = ops::Mul(scalars.gradient_scale, inverse_scale, where);
  std::vector<Value> next(gradients.size());
  for (const auto& [group, members] : GroupsOf(gradients, layers, options)) {
    Scalars own = scalars;
    const float factor = layers.empty() ? 1 : LayerRate(options.layer_decay, group.layer, layers);
    if (factor != 1) own.lr = ops::Scale(scalars.lr, factor, where);
    UpdateGroup(graph, gradients, group, members, own, options, shared, &next, where);
  }
  if (options.ema_decay > 0) UpdateAverages(graph, gradients, next, scalars, options.ema_decay, where);
  graph.Assign(update, ops::Add(update, ops::Cast(scalars.finite, DType::kI32, where), where), where);
  graph.Output("lr", scalars.lr, where);
  graph.Output("grad_norm", norm, where);
  graph.SetPhase(before);
  return scalars.finite;
}

}  // namespace switchyard
