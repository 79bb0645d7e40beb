#include "core/parallel/loss_scaling.h"

#include <cmath>

#include "core/graph/ops/pointwise.h"
#include "core/parallel/program.h"

namespace switchyard {
namespace {

constexpr char kScaleName[] = "loss_scale", kGrowthName[] = "loss_scale_growth",
               kHysteresisName[] = "loss_scale_hysteresis";
constexpr int64_t kLargestScalerCount = 1 << 24;  // that f32 arithmetic counts to

Status LossScaleLegal(const ProgramOptions& options) {
  const LossScaleOptions& o = options.loss_scale;
  if (!(o.initial > 0) || !std::isfinite(o.initial))
    return InvalidArgument("a loss scale of {:g}: expected a finite number above 0", o.initial);
  if (!o.dynamic) return OkStatus();
  if (!(o.growth_factor > 1) || !(o.backoff_factor > 0 && o.backoff_factor < 1)) {
    return InvalidArgument("growth factor {:g}, backoff factor {:g}: expected above 1, and above 0 and below 1",
                           o.growth_factor, o.backoff_factor);
  }
  if (o.growth_interval < 1 || o.growth_interval > kLargestScalerCount || o.hysteresis < 1 ||
      o.hysteresis > kLargestScalerCount) {
    return InvalidArgument("growth interval {}, hysteresis {}: expected 1 to {} each", o.growth_interval, o.hysteresis,
                           kLargestScalerCount);
  }
  if (!(o.minimum > 0 && o.minimum <= o.initial && o.initial <= o.maximum) || !std::isfinite(o.maximum)) {
    return InvalidArgument("loss scales from {:g} over {:g} to {:g}: expected 0 < minimum <= initial <= maximum",
                           o.minimum, o.initial, o.maximum);
  }
  return OkStatus();
}

void AddScale(Program& program, const ProgramOptions& options) {
  const LossScaleOptions& o = options.loss_scale;
  if (!o.scales()) return;
  for (NamedGraph& plan : program.plans) {
    if (!plan.trains) continue;
    const Initializer initial = {Initializer::kConstant, o.initial};
    const Value scale = o.dynamic ? plan.graph.Input(kScaleName, {DType::kF32, {1}}, {Role::kState, initial, false})
                                  : ops::Full(plan.graph, {1}, o.initial);
    plan.loss_scale = scale.ref();
  }
}

// The rule above, as f32 arithmetic on tensors of one element.
void AddTransition(Graph& graph, const Value& scale, const Value& finite, const LossScaleOptions& o) {
  const auto number = [&](double value) { return ops::Full(graph, {1}, static_cast<float>(value)); };
  const auto counter = [&](const char* name) {
    return graph.Input(name, {DType::kF32, {1}}, {Role::kState, {}, false});
  };
  const Value growth = counter(kGrowthName), hysteresis = counter(kHysteresisName);
  const Value zero = number(0), most = number(static_cast<double>(o.hysteresis));

  const Value grown = ops::Select(finite, ops::AddScalar(growth, 1), zero);
  const Value grows = ops::Binary(SY_PW_LESS_EQUAL, number(static_cast<double>(o.growth_interval)), grown);
  const Value counted = ops::Select(finite, hysteresis, ops::Minimum(ops::AddScalar(hysteresis, 1), most));
  const Value backs_off = ops::Select(finite, zero, ops::Binary(SY_PW_LESS_EQUAL, most, counted));

  const Value lower = ops::Binary(SY_PW_MAX, ops::Scale(scale, o.backoff_factor), number(o.minimum));
  const Value higher = ops::Minimum(ops::Scale(scale, o.growth_factor), number(o.maximum));
  graph.Assign(scale, ops::Select(backs_off, lower, ops::Select(grows, higher, scale)));
  graph.Assign(growth, ops::Select(grows, zero, grown));
  graph.Assign(hysteresis, ops::Select(grows, zero, counted));
  graph.Output("loss_scale_at_floor", ops::Mul(backs_off, ops::Binary(SY_PW_LESS_EQUAL, scale, number(o.minimum))));
}

void AddScaler(Program& program, const ProgramOptions& options) {
  for (NamedGraph& plan : program.plans) {
    if (plan.loss_scale.node < 0 || plan.finite.node < 0) continue;
    Graph& graph = plan.graph;
    const Phase before = graph.phase();
    graph.SetPhase(Phase::kUpdate);
    const Value scale = graph.value(plan.loss_scale);
    if (options.loss_scale.dynamic) AddTransition(graph, scale, graph.value(plan.finite), options.loss_scale);
    graph.Output("loss_scale_of_update", scale);
    graph.SetPhase(before);
  }
}

}  // namespace

bool IsLossScaleState(const std::string& name) {
  return name == kScaleName || name == kGrowthName || name == kHysteresisName;
}

Pass LossScalePass() { return {"loss_scale", LossScaleLegal, AddScale}; }
Pass ScalerPass() {
  return {"scaler", [](const ProgramOptions&) { return OkStatus(); }, AddScaler};
}

}  // namespace switchyard
