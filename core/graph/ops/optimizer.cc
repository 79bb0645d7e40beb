// optimizer_update: SGD, Adam (Kingma and Ba 2015), AdamW (Loshchilov and Hutter 2019).
#include "core/graph/ops/optimizer.h"

#include <cmath>

#include "core/graph/factor_lines.h"
#include "core/graph/ops/families.h"
#include "core/graph/ops/pointwise.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace switchyard {
namespace ops {

std::vector<OptimizerTensor> OptimizerUpdate(const Value& lr, const Value& update, const Value& gradient_scale,
                                             const Value& finite, const std::vector<OptimizerTensor>& tensors,
                                             const sy_optimizer_attributes& attributes, std::source_location where) {
  std::vector<Value> inputs = {lr, update, gradient_scale, finite};
  for (const OptimizerTensor& t : tensors) {
    for (const Value& value : {t.parameter, t.gradient, t.moment1, t.moment2}) {
      if (value) inputs.push_back(value);
    }
  }
  const auto results = lr.graph().Add("optimizer_update", inputs, Attributes(attributes), {}, where);
  std::vector<OptimizerTensor> next;
  size_t i = 0;
  for (const OptimizerTensor& t : tensors) {
    OptimizerTensor n;
    n.parameter = results[i++];
    if (t.moment1) n.moment1 = results[i++];
    if (t.moment2) n.moment2 = results[i++];
    next.push_back(n);
  }
  return next;
}

}  // namespace ops

namespace {

using namespace ops;

int Moments(const sy_optimizer_attributes& a) {
  if (a.kind != SY_OPTIMIZER_SGD) return 2;
  return a.momentum != 0 ? 1 : 0;
}

std::vector<TensorType> OptimizerTypes(const Signature& call) {
  const int moments = Moments(call.attributes.as<sy_optimizer_attributes>());
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
  }
  return results;
}

// The formulas of core/abi/ops.h, tensor by tensor, with β^t as exp(t·log β).
std::vector<Value> OptimizerDecompose(Graph&, const Node& node, const std::vector<Value>& inputs) {
  const auto a = node.attributes.as<sy_optimizer_attributes>();
  const Value &lr = inputs[0], &scale = inputs[2], &finite = inputs[3];
  const Value t = AddScalar(Cast(inputs[1], DType::kF32), 1);
  const auto correction = [&](float beta) {
    return Unary(SY_PW_NEG, AddScalar(Unary(SY_PW_EXP, Scale(t, std::log(beta))), -1));
  };
  std::vector<Value> results;
  const auto keep = [&](const Value& next, const Value& old) { results.push_back(Select(finite, next, old)); };
  const bool sgd = a.kind == SY_OPTIMIZER_SGD, momentum = Moments(a) == 1;
  for (size_t i = 4; i < inputs.size();) {
    const Value p = inputs[i++];
    Value g = Mul(Cast(inputs[i++], DType::kF32), scale);
    if (sgd) {
      if (a.weight_decay != 0) g = Add(g, Scale(p, a.weight_decay));
      Value m;
      if (momentum) {
        const Value old = inputs[i++];
        const Value later = Add(Scale(old, a.momentum), Scale(g, 1 - a.dampening));
        m = Select(inputs[1], later, g);
        g = a.nesterov ? Add(g, Scale(m, a.momentum)) : m;
        keep(Sub(p, Mul(lr, g)), p);
        keep(m, old);
      } else {
        keep(Sub(p, Mul(lr, g)), p);
      }
      continue;
    }
    const Value m = inputs[i++], v = inputs[i++];
    Value decayed = p;
    if (a.kind == SY_OPTIMIZER_ADAM && a.weight_decay != 0) g = Add(g, Scale(p, a.weight_decay));
    if (a.kind == SY_OPTIMIZER_ADAMW && a.weight_decay != 0) decayed = Sub(p, Mul(Scale(lr, a.weight_decay), p));
    const Value m2 = Add(Scale(m, a.beta1), Scale(g, 1 - a.beta1)),
                v2 = Add(Scale(v, a.beta2), Scale(Mul(g, g), 1 - a.beta2));
    const Value denominator = AddScalar(Unary(SY_PW_SQRT, Div(v2, correction(a.beta2))), a.eps);
    keep(Sub(decayed, Mul(lr, Div(Div(m2, correction(a.beta1)), denominator))), p);
    keep(m2, m);
    keep(v2, v);
  }
  return results;
}

// Each tensor by itself, with its gradient and moments.
std::string OptimizerFactors(const Graph& graph, const Node& node) {
  const auto moments = static_cast<size_t>(Moments(node.attributes.as<sy_optimizer_attributes>()));
  std::vector<std::string> inputs(4, "_"), outputs;
  for (size_t i = 4; i < node.inputs.size(); i += 2 + moments) {
    const std::string names = AxisNames(fmt::format("t{}_", i), graph.type(node.inputs[i]).shape.size());
    inputs.insert(inputs.end(), 2 + moments, names);
    outputs.insert(outputs.end(), 1 + moments, names + " =*");
  }
  return fmt::format("{} -> {}", fmt::join(inputs, ", "), fmt::join(outputs, ", "));
}

}  // namespace

std::vector<OpDefinition> OptimizerOps() {
  return {{.name = "optimizer_update",
           .summary = "fused SGD, Adam or AdamW over many tensors",
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
