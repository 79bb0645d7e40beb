#include "core/optim/optimizer.h"

#include <array>

#include "core/base/names.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/optimizer.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
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
  return attributes;
}

const Node& InputOf(const Value& value) { return value.graph().node(value.ref().node); }

void CheckGradients(const std::vector<ParameterGradient>& gradients, Graph::Location where) {
  std::string unused;
  for (const auto& [parameter, gradient] : gradients) {
    if (!InputOf(parameter).input || parameter.dtype() != DType::kF32) {
      ThrowBuildError("optimizer", "a parameter must be an f32 input of the graph", {parameter}, where);
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

// One fused update over the parameters with (or without) weight decay, and the assignments of its results.
void UpdateGroup(Graph& graph, const std::vector<ParameterGradient>& gradients, const Scalars& scalars,
                 const OptimizerOptions& options, bool decay, Graph::Location where) {
  const bool adaptive = options.kind != SY_OPTIMIZER_SGD;
  std::vector<ops::OptimizerTensor> tensors;
  for (const auto& [parameter, gradient] : gradients) {
    const Node& input = InputOf(parameter);
    if (input.input->weight_decay != decay) continue;
    const auto moment = [&, name = input.name](const char* which) {
      return graph.Input(fmt::format("{}/{}", which, name), parameter.type(), {Role::kState}, where);
    };
    ops::OptimizerTensor tensor = {parameter, gradient, {}, {}};
    if (adaptive || options.momentum != 0) tensor.moment1 = moment("moment1");
    if (adaptive) tensor.moment2 = moment("moment2");
    tensors.push_back(tensor);
  }
  if (tensors.empty()) return;
  const std::vector<ops::OptimizerTensor> updated = ops::OptimizerUpdate(
      scalars.lr, scalars.update, scalars.gradient_scale, scalars.finite, tensors, ToAbi(options, decay), where);
  for (size_t i = 0; i < tensors.size(); ++i) {
    graph.Assign(tensors[i].parameter, updated[i].parameter, where);
    if (tensors[i].moment1) graph.Assign(tensors[i].moment1, updated[i].moment1, where);
    if (tensors[i].moment2) graph.Assign(tensors[i].moment2, updated[i].moment2, where);
  }
}

}  // namespace

StatusOr<int> ParseOptimizer(const std::string& name) {
  const std::vector<std::string> known = {"sgd", "adam", "adamw"};
  constexpr std::array kKinds = {SY_OPTIMIZER_SGD, SY_OPTIMIZER_ADAM, SY_OPTIMIZER_ADAMW};
  for (size_t i = 0; i < known.size(); ++i) {
    if (known[i] == name) return static_cast<int>(kKinds[i]);
  }
  return InvalidArgument("unknown optimizer '{}'{}; there are: sgd, adam, adamw", name, DidYouMean(name, known));
}

Value AddOptimizer(Graph& graph, const std::vector<ParameterGradient>& gradients, const std::vector<Value>& norm_inputs,
                   const OptimizerOptions& options, int64_t table_length, const Value& inverse_scale,
                   Graph::Location where) {
  CheckGradients(gradients, where);
  const Graph::Scope root(graph);
  const Phase before = graph.phase();
  graph.SetPhase(Phase::kUpdate);
  const Value table = graph.Input("lr_table", {DType::kF32, {table_length}}, {Role::kConstant}, where);
  const Value update = graph.Input("update", {DType::kI32, {1}}, {Role::kState}, where);

  std::vector<Value> measured = norm_inputs;
  if (measured.empty()) {
    for (const ParameterGradient& pair : gradients) measured.push_back(pair.gradient);
  }
  Value norm = ops::Unary(SY_PW_SQRT, ops::SquaredNorm(measured, where), where);
  if (inverse_scale) norm = ops::Mul(norm, inverse_scale, where);
  Scalars scalars;
  scalars.lr = ops::Gather(table, update, where);
  scalars.update = update;
  scalars.finite = ops::Unary(SY_PW_IS_FINITE, norm, where);
  const Value one = ops::Full(graph, {1}, 1, DType::kF32, where);
  scalars.gradient_scale = one;
  if (options.clip > 0) {
    const Value limit = ops::Full(graph, {1}, options.clip, DType::kF32, where);
    scalars.gradient_scale = ops::Minimum(one, ops::Div(limit, ops::AddScalar(norm, 1e-6f, where), where), where);
  }
  if (inverse_scale) scalars.gradient_scale = ops::Mul(scalars.gradient_scale, inverse_scale, where);
  UpdateGroup(graph, gradients, scalars, options, true, where);
  UpdateGroup(graph, gradients, scalars, options, false, where);
  graph.Assign(update, ops::Add(update, ops::Cast(scalars.finite, DType::kI32, where), where), where);
  graph.Output("lr", scalars.lr, where);
  graph.Output("grad_norm", norm, where);
  graph.SetPhase(before);
  return scalars.finite;
}

}  // namespace switchyard
