#include "core/optim/optimizer.h"

#include <array>
#include <numeric>

#include "core/base/names.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/optim/parameter_rules.h"
#include "core/optim/updates.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

void CheckGradients(const std::vector<ParameterGradient>& gradients, bool shared, Graph::Location where) {
  std::string unused;
  for (const auto& [parameter, gradient, half, read_in_half] : gradients) {
    if (!InputOf(parameter).input || parameter.dtype() != DType::kF32) {
      ThrowBuildError("optimizer", "a parameter must be an f32 input of the graph", {parameter}, where);
    }
    if (half && (!InputOf(half).input || half.shape() != UpdatedShape(parameter))) {
      ThrowBuildError("optimizer", "a half copy must be an input of its parameter's shape", {parameter, half}, where);
    }
    if (!gradient && !shared) unused += (unused.empty() ? "" : ", ") + InputOf(parameter).name;
  }
  if (!unused.empty()) ThrowBuildError("optimizer", "the loss does not depend on: " + unused, {}, where);
  if (gradients.empty()) ThrowBuildError("optimizer", "there is nothing to train", {}, where);
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

// table[min(update, T−1)], to the bit, in f32 alone: devices that know nothing else would leave a gather by i32 to the
// host.
Value RateOf(const Value& table, const Value& update, Graph::Location where) {
  const int64_t length = table.type().elements();
  if (length == 1) return table;
  std::vector<float> places(static_cast<size_t>(length));
  std::iota(places.begin(), places.end(), 0.0f);
  Graph& graph = table.graph();
  const Value last = ops::Full(graph, {1}, places.back(), DType::kF32, where);
  const Value here = ops::Binary(SY_PW_EQUAL, graph.Constant("lr_places", table.type(), places, where),
                                 ops::Minimum(update, last, where), where);
  return ops::Sum(ops::Select(here, table, ops::Full(graph, {1}, 0, DType::kF32, where), where), where);
}

// How far averages move towards the new parameters: nowhere where the step is left out.
Value StepOfAverages(Graph& graph, const UpdateScalars& scalars, float decay, Graph::Location where) {
  const Value t = ops::AddScalar(scalars.update, 1, where);
  const Value warm = ops::Div(ops::AddScalar(t, 1, where), ops::AddScalar(t, 10, where), where);
  const Value kept = ops::Minimum(ops::Full(graph, {1}, decay, DType::kF32, where), warm, where);
  const Value one = ops::Full(graph, {1}, 1, DType::kF32, where), none = ops::Full(graph, {1}, 0, DType::kF32, where);
  return ops::Select(scalars.finite, ops::Sub(one, kept, where), none, where);
}

// A tensor's new value, whole or a piece, becomes what it is and moves what follows it; the half copy of a piece is not
// of this rank alone. step: of averages, where there are some.
void Assign(const ParameterGradient& tensor, const Value& value, Value half, const Value& step, Graph::Location where) {
  Graph& graph = value.graph();
  graph.Assign(tensor.parameter, value, where);
  if (tensor.half && !IsPiece(*InputOf(tensor.parameter).input)) {
    if (!half) half = ops::Cast(value, tensor.half.dtype(), where);
    graph.Assign(tensor.half, half, where);
  }
  if (!step) return;
  const Value average = graph.Input(AverageOf(InputOf(tensor.parameter).name), tensor.parameter.type(),
                                    Following(tensor.parameter), where);
  graph.Assign(average, ops::Add(average, ops::Mul(step, ops::Sub(value, average, where), where), where), where);
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
  CheckGradients(gradients, shared.ranks > 1, where);
  const Graph::Scope root(graph);
  const Phase before = graph.phase();
  graph.SetPhase(Phase::kUpdate);
  const Value table = graph.Input("lr_table", {DType::kF32, {table_length}}, {Role::kConstant}, where);
  const Value update = graph.Input("update", {DType::kF32, {1}}, {Role::kState}, where);

  std::vector<Value> measured;
  for (const ParameterGradient& pair : gradients) measured.push_back(pair.gradient);
  Value norm = ops::Unary(SY_PW_SQRT, squares ? squares : ops::SquaredNorm(measured, where), where);
  if (inverse_scale) norm = ops::Mul(norm, inverse_scale, where);
  UpdateScalars scalars;
  scalars.lr = RateOf(table, update, where);
  scalars.update = update;
  scalars.finite = ops::Unary(SY_PW_IS_FINITE, norm, where);
  scalars.gradient_scale = ClippingScale(graph, norm, options, where);
  for (const ParameterGradient& pair : gradients) {
    if (options.layer_decay != 1 && InputOf(pair.parameter).input->layers_above < 0)
      ThrowBuildError("optimizer", "a layer_decay goes by the blocks of the model, and this one tells none", {}, where);
  }
  if (inverse_scale) scalars.gradient_scale = ops::Mul(scalars.gradient_scale, inverse_scale, where);
  const Value step = options.ema_decay > 0 ? StepOfAverages(graph, scalars, options.ema_decay, where) : Value();
  const auto is_piece = [&](size_t tensor) { return IsPiece(*InputOf(gradients[tensor].parameter).input); };
  ParameterGathers gathers(
      graph, gradients, shared,
      [&](size_t i, const Value& whole) {
        if (is_piece(i)) return graph.Assign(gradients[i].half, whole, where);
        Assign(gradients[i], whole, {}, step, where);
      },
      where);
  const auto gather = [&](size_t bucket, const Updates& updates) {
    std::vector<std::pair<int64_t, Value>> updated;
    for (size_t k = 0; k < updates.pieces.size(); ++k) {
      const Piece& piece = updates.pieces[k];
      if (piece.bucket != bucket || piece.elements == 0) continue;
      const Value& value = updates.results[k].parameter;
      if (is_piece(piece.tensor)) Assign(gradients[piece.tensor], value, {}, step, where);
      updated.push_back({piece.at, value});
    }
    gathers.Gather(bucket, updated, updates.last);
  };
  const Updates updates = AddUpdates(graph, gradients, scalars, options, shared, gather, where);
  gathers.Finish();
  for (size_t i = 0; i < gradients.size() && shared.ranks == 1; ++i)
    Assign(gradients[i], updates.results[i].parameter, updates.results[i].half, step, where);
  graph.Assign(update, ops::Add(update, scalars.finite, where), where);
  graph.Output("lr", scalars.lr, where);
  graph.Output("grad_norm", norm, where);
  graph.SetPhase(before);
  return scalars.finite;
}

}  // namespace switchyard
