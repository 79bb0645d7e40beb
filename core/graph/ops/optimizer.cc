// optimizer_update: SGD, Adam (Kingma and Ba 2015), AdamW (Loshchilov and Hutter 2019), LAMB (You et al. 2020), LARS
// (You et al. 2017).
#include "core/graph/ops/optimizer.h"

#include <cmath>

#include "core/graph/factor_lines.h"
#include "core/graph/ops/families.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace switchyard {
namespace ops {

int OptimizerMoments(const sy_optimizer_attributes& a) {
  if (a.kind == SY_OPTIMIZER_SGD || a.kind == SY_OPTIMIZER_LARS) return a.momentum != 0 ? 1 : 0;
  return 2;
}

std::vector<OptimizerTensor> OptimizerUpdate(const Value& lr, const Value& update, const Value& gradient_scale,
                                             const Value& finite, const std::vector<OptimizerTensor>& tensors,
                                             const sy_optimizer_attributes& attributes, DType half_type,
                                             std::source_location where) {
  std::vector<Value> inputs = {lr, update, gradient_scale, finite};
  for (const OptimizerTensor& t : tensors) {
    for (const Value& value : {t.parameter, t.gradient, t.moment1, t.moment2}) {
      if (value) inputs.push_back(value);
    }
  }
  Wanted wanted;
  for (const OptimizerTensor& t : tensors) {
    wanted.dtypes.push_back(t.parameter.dtype());
    if (t.moment1) wanted.dtypes.push_back(t.moment1.dtype());
    if (t.moment2) wanted.dtypes.push_back(t.moment2.dtype());
    if (attributes.half_copies) wanted.dtypes.push_back(half_type);
  }
  const auto results = lr.graph().Add("optimizer_update", inputs, Attributes(attributes), wanted, where);
  std::vector<OptimizerTensor> next;
  size_t i = 0;
  for (const OptimizerTensor& t : tensors) {
    OptimizerTensor n;
    n.parameter = results[i++];
    if (t.moment1) n.moment1 = results[i++];
    if (t.moment2) n.moment2 = results[i++];
    if (attributes.half_copies) n.half = results[i++];
    next.push_back(n);
  }
  return next;
}

}  // namespace ops

namespace {

using namespace ops;

std::vector<TensorType> OptimizerTypes(const Signature& call) {
  const auto& attributes = call.attributes.as<sy_optimizer_attributes>();
  call.Require(attributes.kind >= SY_OPTIMIZER_SGD && attributes.kind <= SY_OPTIMIZER_LARS,
               fmt::format("unknown kind of optimizer {}", attributes.kind));
  const int moments = OptimizerMoments(attributes);
  const size_t each = 2 + static_cast<size_t>(moments);
  call.Require(call.inputs.size() > 4 && (call.inputs.size() - 4) % each == 0,
               fmt::format("expected lr, update, gradient_scale, finite, then {} inputs a tensor, found {} inputs",
                           each, call.inputs.size()));
  for (size_t i = 0; i < 4; ++i) call.Require(call[i].elements() == 1, "lr, update, gradient_scale and finite are (1)");
  std::vector<TensorType> results;
  for (size_t i = 4; i < call.inputs.size(); i += each) {
    results.push_back(call[i]);
    call.Require(call.shape(i) == call.shape(i + 1), "parameter and gradient differ in shape");
    for (size_t m = i + 2; m < i + each; ++m) {
      call.Require(call[m] == call[i], "parameter and moment differ in type");
      results.push_back(call[m]);
    }
    if (attributes.half_copies) {
      const DType half = call.DTypeOr(DType::kBF16, results.size());
      call.Require(IsFloating(half), "a half copy is of a floating dtype");
      results.push_back({half, call.shape(i)});
    }
  }
  return results;
}

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

// t·factor, without a node where that is t.
Value Times(const Value& t, float factor) { return factor == 1 ? t : Scale(t, factor); }

// x ≠ 0 and y ≠ 0 ? ratio : 1, each of one element.
Value WhereBoth(const Value& x, const Value& y, const Value& ratio) {
  const Value one = Full(x.graph(), {1}, 1);
  return Select(x, Select(y, ratio, one), one);
}

Value Norm(const Value& x) { return Unary(SY_PW_SQRT, SquaredNorm({x})); }

Moved Sgd(const Update& u, const Value& p, Value g, const Value& m) {
  if (u.a.weight_decay != 0) g = Add(g, Scale(p, u.a.weight_decay));
  if (!m) return {Sub(p, Mul(u.lr, g)), {}, {}};
  const Value next = Select(u.later, Add(Scale(m, u.a.momentum), Scale(g, 1 - u.a.dampening)), g);
  g = u.a.nesterov ? Add(g, Scale(next, u.a.momentum)) : next;
  return {Sub(p, Mul(u.lr, g)), next, {}};
}

Moved Lars(const Update& u, const Value& p, const Value& g, const Value& m) {
  const float wd = u.a.weight_decay;
  Value rate = u.lr, decayed = g;
  if (wd != 0) {
    const Value weight = Norm(p), gradient = Norm(g);
    const Value ratio = Div(Scale(weight, u.a.trust_coefficient), AddScalar(Add(gradient, Scale(weight, wd)), u.a.eps));
    rate = Mul(rate, WhereBoth(weight, gradient, ratio));
    decayed = Add(g, Scale(p, wd));
  }
  const Value step = Mul(rate, decayed);
  if (!m) return {Sub(p, step), {}, {}};
  const Value next = Select(u.later, Add(Scale(m, u.a.momentum), step), step);
  return {Sub(p, u.a.nesterov ? Add(step, Scale(next, u.a.momentum)) : next), next, {}};
}

// Adam, AdamW and LAMB.
Moved Adaptive(const Update& u, const Value& p, Value g, const Value& m, const Value& v) {
  const sy_optimizer_attributes& a = u.a;
  const bool lamb = a.kind == SY_OPTIMIZER_LAMB, decays = a.weight_decay != 0;
  const bool coupled = a.kind == SY_OPTIMIZER_ADAM || (lamb && !a.adam_w_mode);
  if (coupled && decays) g = Add(g, Scale(p, a.weight_decay));
  const float beta3 = lamb && !a.grad_averaging ? 1 : 1 - a.beta1;
  const Value m2 = Add(Scale(m, a.beta1), Times(g, beta3)), v2 = Add(Scale(v, a.beta2), Scale(Mul(g, g), 1 - a.beta2));
  const Value denominator = AddScalar(Unary(SY_PW_SQRT, Div(v2, u.correction2)), a.eps);
  Value step = Div(Div(m2, u.correction1), denominator), from = p, rate = u.lr;
  if (a.kind == SY_OPTIMIZER_ADAMW && decays) from = Sub(p, Mul(Scale(rate, a.weight_decay), p));
  if (lamb) {
    if (a.adam_w_mode && decays) step = Add(step, Scale(p, a.weight_decay));
    if (decays || a.use_nvlamb) {
      const Value weight = Norm(p), length = Norm(step);
      rate = Mul(rate, WhereBoth(weight, length, Div(weight, length)));
    }
  }
  return {Sub(from, Mul(rate, step)), m2, v2};
}

// The formulas of core/abi/ops.h, tensor by tensor. Half copies alone are the update without them and a conversion, so
// that a backend's own update is used where it makes none.
std::vector<Value> OptimizerDecompose(Graph&, const Node& node, const std::vector<Value>& inputs) {
  auto a = node.attributes.as<sy_optimizer_attributes>();
  const auto moments = static_cast<size_t>(OptimizerMoments(a));
  if (a.half_copies) {
    a.half_copies = 0;
    const auto plain = inputs[0].graph().Add("optimizer_update", inputs, Attributes(a), {}, node.where);
    std::vector<Value> results;
    for (size_t i = 0; i < plain.size(); i += 1 + moments) {
      results.insert(results.end(), plain.begin() + static_cast<std::ptrdiff_t>(i),
                     plain.begin() + static_cast<std::ptrdiff_t>(i + 1 + moments));
      results.push_back(Cast(plain[i], node.outputs[results.size()].dtype));
    }
    return results;
  }
  const Value &scale = inputs[2], &finite = inputs[3];
  Update u{a, inputs[0], inputs[1], {}, {}};
  if (moments == 2) {
    const Value t = AddScalar(Cast(inputs[1], DType::kF32), 1);
    // 1 − e⁻ᶻ as 2·tanh(z/2)/(1 + tanh(z/2)): nothing cancels where β is near 1.
    const auto correction = [&](float beta) {
      const Value half = Unary(SY_PW_TANH, Scale(t, static_cast<float>(-0.5 * std::log(double{beta}))));
      return Div(Scale(half, 2), AddScalar(half, 1));
    };
    u.correction1 = correction(a.beta1);
    u.correction2 = correction(a.beta2);
  }
  std::vector<Value> results;
  for (size_t i = 4; i < inputs.size(); i += 2 + moments) {
    const Value &p = inputs[i], g = Mul(Cast(inputs[i + 1], DType::kF32), scale);
    const Value m = moments > 0 ? inputs[i + 2] : Value(), v = moments > 1 ? inputs[i + 3] : Value();
    const Moved next = a.kind == SY_OPTIMIZER_SGD    ? Sgd(u, p, g, m)
                       : a.kind == SY_OPTIMIZER_LARS ? Lars(u, p, g, m)
                                                     : Adaptive(u, p, g, m, v);
    results.push_back(Select(finite, next.p, p));
    if (m) results.push_back(Select(finite, next.m, m));
    if (v) results.push_back(Select(finite, next.v, v));
  }
  return results;
}

// Each tensor by itself, with its gradient and moments; whole where its norm is part of the formula.
std::string OptimizerFactors(const Graph& graph, const Node& node) {
  const auto& a = node.attributes.as<sy_optimizer_attributes>();
  const auto moments = static_cast<size_t>(OptimizerMoments(a));
  const bool by_norm = a.kind == SY_OPTIMIZER_LAMB || a.kind == SY_OPTIMIZER_LARS;
  const size_t results = 1 + moments + (a.half_copies ? 1 : 0);
  std::vector<std::string> inputs(4, "_"), outputs;
  for (size_t i = 4; i < node.inputs.size(); i += 2 + moments) {
    const size_t rank = graph.type(node.inputs[i]).shape.size();
    std::string names = AxisNames(fmt::format("t{}_", i), rank), result = names + " =*";
    if (by_norm) {
      names = fmt::format("{}", fmt::join(std::vector<std::string>(rank, "_"), " "));
      result = names;
    }
    inputs.insert(inputs.end(), 2 + moments, names);
    outputs.insert(outputs.end(), results, result);
  }
  return fmt::format("{} -> {}", fmt::join(inputs, ", "), fmt::join(outputs, ", "));
}

}  // namespace

std::vector<OpDefinition> OptimizerOps() {
  return {{.name = "optimizer_update",
           .summary = "fused SGD, Adam, AdamW, LAMB or LARS over many tensors",
           .infer = OptimizerTypes,
           .decompose = OptimizerDecompose,
           .flops =
               [](const Graph&, const Node& node) {
                 double elements = 0;
                 for (const TensorType& t : node.outputs) elements += static_cast<double>(t.elements());
                 return 4 * elements;
               },
           .factors = {"_, _, _, _, ..., ..., ..., ... -> ..., ..., ...", OptimizerFactors}}};
}

}  // namespace switchyard
