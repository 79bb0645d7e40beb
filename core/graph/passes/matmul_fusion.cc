// Products with what is done to their result: bias, activation, the activation's derivative, a residual sum, the bias'
// gradient.
#include <utility>

#include "core/graph/ops/layout.h"
#include "core/graph/ops/matmul.h"
#include "core/graph/passes/kernel_fusion.h"

namespace switchyard {
namespace {

constexpr int ActivationOf(int opcode) {
  switch (opcode) {
    case SY_PW_GELU:
      return SY_ACTIVATION_GELU;
    case SY_PW_GELU_TANH:
      return SY_ACTIVATION_GELU_TANH;
    case SY_PW_RELU:
      return SY_ACTIVATION_RELU;
    case SY_PW_SILU:
      return SY_ACTIVATION_SILU;
    case SY_PW_GELU_GRAD:
      return -SY_ACTIVATION_GELU;
    case SY_PW_GELU_TANH_GRAD:
      return -SY_ACTIVATION_GELU_TANH;
    case SY_PW_RELU_GRAD:
      return -SY_ACTIVATION_RELU;
    case SY_PW_SILU_GRAD:
      return -SY_ACTIVATION_SILU;
    default:
      return 0;
  }
}

}  // namespace

// Mul(reshape*(matmul), act'(pre)) with a matmul that nothing else reads: the matmul waits for the Mul. So it does for
// the Add of a residual.
void KernelFusion::HoldBackProduct(int id) {
  const Node& node = source_.node(id);
  if (pattern_.Combines(node, SY_PW_ADD)) {
    for (int side = 1; side >= 0 && product_of_[id] < 0; --side) HoldBackForResidual(id, side);
  }
  if (!pattern_.Combines(node, SY_PW_MUL)) return;
  for (int side = 0; side < 2; ++side) {
    const Ref product = pattern_.Behind(node.inputs[side]), factor = node.inputs[1 - side];
    const Node& matmul = source_.node(product.node);
    if (matmul.op != "matmul" || ActivationOf(pattern_.Opcode(source_.node(factor.node))) >= 0) continue;
    if (!pattern_.ReadOnlyBy(product.node, id)) continue;
    if (matmul.inputs.size() != 2 || matmul.outputs.size() != 1) continue;
    if (source_.type(factor).shape != node.outputs[0].shape) continue;
    if (matmul.outputs[0].elements() != node.outputs[0].elements()) continue;  // the product is broadcast
    product_of_[id] = product.node;
    held_[product.node] = true;
    return;
  }
}

// A product of the forward pass whose only reader adds it to another value in its dtype: a residual branch's last
// product. (Gradients that are added up are left to those who place them.)
void KernelFusion::HoldBackForResidual(int id, int side) {
  const Node& node = source_.node(id);
  const Ref product = pattern_.Behind(node.inputs[side]), residual = node.inputs[1 - side];
  const Node& matmul = source_.node(product.node);
  const Node& first = node.repeats >= 0 ? source_.node(node.repeats) : node;
  if (first.phase != Phase::kForward || matmul.op != "matmul" || matmul.outputs.size() != 1) return;
  if (!pattern_.ReadOnlyBy(product.node, id)) return;
  auto a = matmul.attributes.as<sy_matmul_attributes>();
  if (a.activation != SY_ACTIVATION_NONE || a.residual || a.bias_gradient) return;
  const TensorType sum = {node.outputs[0].dtype, matmul.outputs[0].shape};
  if (matmul.outputs[0].dtype != sum.dtype || source_.type(residual) != node.outputs[0]) return;
  if (sum.elements() != node.outputs[0].elements()) return;  // the product is broadcast
  a.residual = 1;
  std::vector<TensorType> types;
  for (const Ref& input : matmul.inputs) types.push_back(source_.type(input));
  types.push_back(sum);
  if (!Preparable(can_prepare_, "matmul", types, Attributes(a), {.dtypes = {sum.dtype}})) return;
  product_of_[id] = product.node;
  held_[product.node] = true;
}

// a·b + bias + residual, where HoldBackForResidual has seen that there is such a kernel.
KernelFusion::Replacement KernelFusion::MatmulWithResidual(Rewriting& r, int id) {
  const Node& node = source_.node(id);
  const Node& matmul = source_.node(product_of_[id]);
  const int side = pattern_.Behind(node.inputs[1]).node == product_of_[id] ? 1 : 0;
  auto a = matmul.attributes.as<sy_matmul_attributes>();
  a.residual = 1;
  std::vector<Value> inputs = r.Map(matmul.inputs);
  inputs.push_back(ops::Reshape(r.Map(node.inputs[1 - side]), matmul.outputs[0].shape, node.where));
  const Value sum = ops::MatmulNode(inputs, a, node.outputs[0].dtype, matmul.where, matmul.name)[0];
  for (const int earlier : matmul.control) {
    for (const Value& value : r.mapped[earlier]) {
      if (value) r.result.AddControl(sum.ref().node, value.ref().node);
    }
  }
  return std::vector<Value>{ops::Reshape(sum, node.outputs[0].shape, node.where)};
}

// dy·act'(pre) as the epilogue of the product that gives dy.
KernelFusion::Replacement KernelFusion::GradientOfActivation(Rewriting& r, int id) {
  const Node& node = source_.node(id);
  const Node& matmul = source_.node(product_of_[id]);
  const int side = pattern_.Behind(node.inputs[0]).node == product_of_[id] ? 0 : 1;
  const Node& derivative = source_.node(node.inputs[1 - side].node);
  auto a = matmul.attributes.as<sy_matmul_attributes>();
  a.activation = -ActivationOf(pattern_.Opcode(derivative));
  a.activation_gradient = 1;
  const DType dtype = node.outputs[0].dtype;
  const TensorType pre = {source_.type(derivative.inputs[0]).dtype, matmul.outputs[0].shape};
  if (Preparable(can_prepare_, "matmul", {source_.type(matmul.inputs[0]), source_.type(matmul.inputs[1]), pre},
                 Attributes(a), {.dtypes = {dtype}})) {
    std::vector<Value> inputs = r.Map(matmul.inputs);
    inputs.push_back(ops::Reshape(r.Map(derivative.inputs[0]), pre.shape, node.where));
    const Value fused = ops::MatmulNode(inputs, a, dtype, matmul.where, matmul.name)[0];
    return std::vector<Value>{ops::Reshape(fused, node.outputs[0].shape, node.where)};
  }
  // Not fused after all: the product that was held back comes now.
  const Value product = ops::Reshape(r.result.Clone(matmul, r.Map(matmul.inputs))[0],
                                     source_.type(node.inputs[side]).shape, matmul.where);
  std::vector<Value> inputs = {product, r.Map(node.inputs[1 - side])};
  if (side == 1) std::swap(inputs[0], inputs[1]);
  return r.result.Clone(node, inputs);
}

// act(a·b + bias), where an activation reads the product (through reshapes).
KernelFusion::Replacement KernelFusion::MatmulWithActivation(Rewriting& r, int id) {
  const Node& node = source_.node(id);
  if (node.op != "matmul" || node.outputs.size() != 1) return std::nullopt;
  auto a = node.attributes.as<sy_matmul_attributes>();
  if (a.activation != SY_ACTIVATION_NONE || a.residual) return std::nullopt;
  const auto readers = pattern_.Readers(id);
  for (const int reader : readers) {
    const int activation = ActivationOf(pattern_.Opcode(source_.node(reader)));
    if (activation <= 0 || source_.node(reader).outputs[0].dtype != node.outputs[0].dtype) continue;
    a.activation = activation;
    a.save_preactivation = pattern_.SeveralRead(id);
    const Wanted wanted = {.dtypes = {node.outputs[0].dtype}};
    if (!Exists("matmul", node.inputs, Attributes(a), wanted)) return std::nullopt;
    const auto fused = Emit(r, node, node.inputs, Attributes(a), wanted);
    const Value result = ops::Reshape(fused[0], source_.node(reader).outputs[0].shape, node.where);
    for (const int alike : pattern_.Alike(readers, reader)) done_[alike] = {result};
    return std::vector<Value>{a.save_preactivation ? fused[1] : fused[0]};
  }
  return std::nullopt;
}

// dw = dtᵀ·x and dbias = the sum of dt's rows, from one reading of dt.
KernelFusion::Replacement KernelFusion::WeightAndBiasGradient(Rewriting& r, int id) {
  const Node& node = source_.node(id);
  if (node.op != "matmul" || node.inputs.size() != 2 || node.outputs.size() != 1) return std::nullopt;
  auto a = node.attributes.as<sy_matmul_attributes>();
  if (!a.transpose_a || source_.type(node.inputs[0]).shape.size() != 2) return std::nullopt;
  for (const int reader : pattern_.users[node.inputs[0].node]) {
    const Node& sum = source_.node(reader);
    if (reader < id || sum.op != "reduce" || sum.inputs[0] != node.inputs[0] || !done_[reader].empty()) continue;
    const auto& s = sum.attributes.as<sy_reduce_attributes>();
    if (s.reduction != SY_REDUCE_SUM || s.axes != 1 || s.scale != 1) continue;
    a.bias_gradient = 1;
    const Wanted wanted = {.dtypes = {node.outputs[0].dtype}};
    if (!Exists("matmul", node.inputs, Attributes(a), wanted)) return std::nullopt;
    const auto fused = Emit(r, node, node.inputs, Attributes(a), wanted);
    done_[reader] = {ops::Reshape(ops::Cast(fused[1], sum.outputs[0].dtype, sum.where), sum.outputs[0].shape)};
    return std::vector<Value>{fused[0]};
  }
  return std::nullopt;
}

}  // namespace switchyard
