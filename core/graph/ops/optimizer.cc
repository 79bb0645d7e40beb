// optimizer_update: SGD, Adam (Kingma and Ba 2015), AdamW (Loshchilov and Hutter 2019), LAMB (You et al. 2020), LARS
// (You et al. 2017).
#include "core/graph/ops/optimizer.h"

#include "core/graph/factor_lines.h"
#include "core/graph/ops/families.h"
#include "core/graph/ops/pointwise.h"
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
               [&] { return fmt::format("unknown kind of optimizer {}", attributes.kind); });
  const int moments = OptimizerMoments(attributes);
  const size_t each = 2 + static_cast<size_t>(moments);
  call.Require(call.inputs.size() > 4 && (call.inputs.size() - 4) % each == 0, [&] {
    return fmt::format("expected lr, update, gradient_scale, finite, then {} inputs a tensor, found {} inputs", each,
                       call.inputs.size());
  });
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

// Half copies alone are the update without them and a conversion, so that a backend's own update is
// used where it makes none.
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
  std::vector<OptimizerTensor> tensors;
  for (size_t i = 4; i < inputs.size(); i += 2 + moments) {
    tensors.push_back({inputs[i], inputs[i + 1], {}, {}, {}});
    if (moments > 0) tensors.back().moment1 = inputs[i + 2];
    if (moments > 1) tensors.back().moment2 = inputs[i + 3];
  }
  std::vector<Value> results;
  for (const OptimizerTensor& next :
       OptimizerUpdateByFormulas(inputs[0], inputs[1], inputs[2], inputs[3], tensors, a, nullptr)) {
    for (const Value& value : {next.parameter, next.moment1, next.moment2}) {
      if (value) results.push_back(value);
    }
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
