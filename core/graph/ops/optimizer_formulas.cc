// The formulas of core/abi/ops.h (optimizer_update) as simple ops.
#include <cmath>

#include "core/graph/ops/layout.h"
#include "core/graph/ops/optimizer.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"

namespace switchyard::ops {
namespace {

// What the formulas of all kinds read.
struct Update {
  sy_optimizer_attributes a;
  Value lr;
  Value later;                     // 0 where t = update + 1 is 1
  Value correction1, correction2;  // 1 − βᵗ, of two moments
};

struct Moved {
  Value p, m, v;
};

// Of a tensor, as its trust ratio reads them; none where it has none.
struct Norms {
  Value parameter, other;
};

// t·factor, without a node where that is t.
Value Times(const Value& t, float factor) { return factor == 1 ? t : Scale(t, factor); }

// x ≠ 0 and y ≠ 0 ? ratio : 1, each of one element.
Value WhereBoth(const Value& x, const Value& y, const Value& ratio) {
  const Value one = Full(x.graph(), {1}, 1);
  return Select(x, Select(y, ratio, one), one);
}

Moved Sgd(const Update& u, const Value& p, Value g, const Value& m) {
  if (u.a.weight_decay != 0) g = Add(g, Scale(p, u.a.weight_decay));
  if (!m) return {Sub(p, Mul(u.lr, g)), {}, {}};
  const Value next = Select(u.later, Add(Scale(m, u.a.momentum), Scale(g, 1 - u.a.dampening)), g);
  g = u.a.nesterov ? Add(g, Scale(next, u.a.momentum)) : next;
  return {Sub(p, Mul(u.lr, g)), next, {}};
}

// norms: of p and g, where the tensor decays.
Moved Lars(const Update& u, const Value& p, const Value& g, const Value& m, const Norms& norms) {
  const float wd = u.a.weight_decay;
  Value rate = u.lr, decayed = g;
  if (wd != 0) {
    const auto& [weight, gradient] = norms;
    const Value ratio = Div(Scale(weight, u.a.trust_coefficient), AddScalar(Add(gradient, Scale(weight, wd)), u.a.eps));
    rate = Mul(rate, WhereBoth(weight, gradient, ratio));
    decayed = Add(g, Scale(p, wd));
  }
  const Value step = Mul(rate, decayed);
  if (!m) return {Sub(p, step), {}, {}};
  const Value next = Select(u.later, Add(Scale(m, u.a.momentum), step), step);
  return {Sub(p, u.a.nesterov ? Add(step, Scale(next, u.a.momentum)) : next), next, {}};
}

// Adam, AdamW and LAMB: the moments and the step, not yet times the rate.
struct AdaptiveStep {
  Value m, v, step;
};
AdaptiveStep AdaptiveStepOf(const Update& u, const Value& p, Value g, const Value& m, const Value& v) {
  const sy_optimizer_attributes& a = u.a;
  const bool lamb = a.kind == SY_OPTIMIZER_LAMB, decays = a.weight_decay != 0;
  const bool coupled = a.kind == SY_OPTIMIZER_ADAM || (lamb && !a.adam_w_mode);
  if (coupled && decays) g = Add(g, Scale(p, a.weight_decay));
  const float beta3 = lamb && !a.grad_averaging ? 1 : 1 - a.beta1;
  const Value m2 = Add(Scale(m, a.beta1), Times(g, beta3)), v2 = Add(Scale(v, a.beta2), Scale(Mul(g, g), 1 - a.beta2));
  const Value denominator = AddScalar(Unary(SY_PW_SQRT, Div(v2, u.correction2)), a.eps);
  Value step = Div(Div(m2, u.correction1), denominator);
  if (lamb && a.adam_w_mode && decays) step = Add(step, Scale(p, a.weight_decay));
  return {m2, v2, step};
}

// norms: of p and the step, where there is a trust ratio.
Moved Adaptive(const Update& u, const Value& p, const AdaptiveStep& next, const Norms& norms) {
  Value from = p, rate = u.lr;
  if (u.a.kind == SY_OPTIMIZER_ADAMW && u.a.weight_decay != 0) from = Sub(p, Mul(Scale(rate, u.a.weight_decay), p));
  if (norms.parameter) rate = Mul(rate, WhereBoth(norms.parameter, norms.other, Div(norms.parameter, norms.other)));
  return {Sub(from, Mul(rate, next.step)), next.m, next.v};
}

Update UpdateBy(const sy_optimizer_attributes& a, const Value& lr, const Value& update) {
  Update u{a, lr, update, {}, {}};
  if (OptimizerMoments(a) < 2) return u;
  const Value t = AddScalar(update, 1);
  // 1 − e⁻ᶻ as 2·tanh(z/2)/(1 + tanh(z/2)): nothing cancels where β is near 1.
  const auto correction = [&](float beta) {
    const Value half = Unary(SY_PW_TANH, Scale(t, static_cast<float>(-0.5 * std::log(double{beta}))));
    return Div(Scale(half, 2), AddScalar(half, 1));
  };
  u.correction1 = correction(a.beta1);
  u.correction2 = correction(a.beta2);
  return u;
}

// sum: of the squares of all tensors together; none: of nobody else.
std::vector<OptimizerTensor> UpdateTogether(const Update& u, const Value& scale, const Value& finite,
                                            const std::vector<OptimizerTensor>& tensors,
                                            const std::function<Value(const Value&)>& sum) {
  const bool adaptive = OptimizerMoments(u.a) == 2, ratio = HasTrustRatio(u.a);
  std::vector<Value> gradients, squares;
  std::vector<AdaptiveStep> steps(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [p, gradient, m, v, half] = tensors[i];
    gradients.push_back(p ? Mul(Cast(gradient, DType::kF32), scale) : Value());
    if (p && adaptive) steps[i] = AdaptiveStepOf(u, p, gradients[i], m, v);
    for (const Value& measured : {p, adaptive ? steps[i].step : gradients[i]}) {
      if (ratio) squares.push_back(measured ? SquaredNorm({measured}) : Full(scale.graph(), {1}, 0));
    }
  }
  if (ratio && sum) {
    const Value sums = sum(Concat(squares, 0));
    for (size_t i = 0; i < squares.size(); ++i) squares[i] = Slice(sums, 0, static_cast<int64_t>(i), 1);
  }
  std::vector<OptimizerTensor> next(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [p, gradient, m, v, half] = tensors[i];
    if (!p) continue;
    Norms norms;
    if (ratio) norms = {Unary(SY_PW_SQRT, squares[2 * i]), Unary(SY_PW_SQRT, squares[2 * i + 1])};
    const Moved moved = u.a.kind == SY_OPTIMIZER_SGD    ? Sgd(u, p, gradients[i], m)
                        : u.a.kind == SY_OPTIMIZER_LARS ? Lars(u, p, gradients[i], m, norms)
                                                        : Adaptive(u, p, steps[i], norms);
    next[i].parameter = Select(finite, moved.p, p);
    if (m) next[i].moment1 = Select(finite, moved.m, m);
    if (v) next[i].moment2 = Select(finite, moved.v, v);
  }
  return next;
}

}  // namespace

bool HasTrustRatio(const sy_optimizer_attributes& a) {
  return (a.kind == SY_OPTIMIZER_LARS && a.weight_decay != 0) ||
         (a.kind == SY_OPTIMIZER_LAMB && (a.weight_decay != 0 || a.use_nvlamb));
}

std::vector<OptimizerTensor> OptimizerUpdateByFormulas(const Value& lr, const Value& update,
                                                       const Value& gradient_scale, const Value& finite,
                                                       const std::vector<OptimizerTensor>& tensors,
                                                       const sy_optimizer_attributes& attributes,
                                                       const std::function<Value(const Value& squares)>& sum) {
  const Update u = UpdateBy(attributes, lr, update);
  if (sum) return UpdateTogether(u, gradient_scale, finite, tensors, sum);
  std::vector<OptimizerTensor> next;
  for (const OptimizerTensor& tensor : tensors)
    next.push_back(UpdateTogether(u, gradient_scale, finite, {tensor}, nullptr)[0]);
  return next;
}

}  // namespace switchyard::ops
