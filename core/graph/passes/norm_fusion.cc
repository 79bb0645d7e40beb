// Norms with the sums and activations around them.
#include "core/graph/passes/kernel_fusion.h"

namespace switchyard {

// layer_norm(x + residual), which gives the sum too.
KernelFusion::Replacement KernelFusion::NormOfResidualSum(Rewriting& r, int id) {
  const Node& node = source_.node(id);
  if (!pattern_.Combines(node, SY_PW_ADD) || source_.type(node.inputs[0]).shape != source_.type(node.inputs[1]).shape)
    return std::nullopt;
  for (const int reader : pattern_.users[id]) {
    const Node& norm = source_.node(reader);
    if (norm.op != "layer_norm" || norm.inputs[0] != Ref{id, 0}) continue;
    auto a = norm.attributes.as<sy_layer_norm_attributes>();
    const DType sum = Widest(source_.type(node.inputs[0]).dtype, source_.type(node.inputs[1]).dtype);
    if (a.residual || sum != node.outputs[0].dtype) continue;
    a.residual = 1;
    const std::vector<Ref> inputs = {node.inputs[0], node.inputs[1], norm.inputs[1], norm.inputs[2]};
    const Wanted wanted = {.dtypes = {norm.outputs[0].dtype}};
    if (!r.HasAll(inputs) || !Exists("layer_norm", inputs, Attributes(a), wanted)) return std::nullopt;
    const auto fused = Emit(r, norm, inputs, Attributes(a), wanted);
    done_[reader] = {fused[0], fused[1], fused[2]};
    return std::vector<Value>{fused[3]};
  }
  return std::nullopt;
}

// The norm's input gradient plus the gradient that came past it.
KernelFusion::Replacement KernelFusion::NormGradientWithResidual(Rewriting& r, int id) {
  const Node& node = source_.node(id);
  if (node.op != "layer_norm_backward") return std::nullopt;
  auto a = node.attributes.as<sy_layer_norm_attributes>();
  if (a.residual) return std::nullopt;
  std::vector<int> readers;
  for (const int user : pattern_.users[id]) {
    for (const Ref& input : source_.node(user).inputs) {
      if (input == Ref{id, 0}) readers.push_back(user);
    }
  }
  if (readers.size() != 1 || !pattern_.Combines(source_.node(readers[0]), SY_PW_ADD)) return std::nullopt;
  const Node& add = source_.node(readers[0]);
  const Ref other = add.inputs[0] == Ref{id, 0} ? add.inputs[1] : add.inputs[0];
  a.residual = 1;
  std::vector<Ref> inputs = node.inputs;
  inputs.push_back(other);
  const Wanted wanted = {.dtypes = {add.outputs[0].dtype}};
  if (source_.type(other).shape != add.outputs[0].shape || !r.HasAll({other}) ||
      !Exists("layer_norm_backward", inputs, Attributes(a), wanted))
    return std::nullopt;
  const auto fused = Emit(r, node, inputs, Attributes(a), wanted);
  done_[readers[0]] = {fused[0]};
  return fused;
}

// act(batch_norm(x) + residual): a sum that alone reads the norm, and a relu that alone reads that or the norm.
KernelFusion::Replacement KernelFusion::BatchNormWithActivation(Rewriting& r, int id) {
  const Node& node = source_.node(id);
  if (node.op != "batch_norm" && node.op != "batch_norm_inference") return std::nullopt;
  auto a = node.attributes.as<sy_batch_norm_attributes>();
  if (a.activation != SY_ACTIVATION_NONE || a.residual) return std::nullopt;
  std::vector<Ref> inputs = node.inputs;
  const Wanted wanted = {.dtypes = {node.outputs[0].dtype}};
  const auto alike = [&](int reader) {
    return reader >= 0 && source_.node(reader).outputs == std::vector{node.outputs[0]};
  };
  std::vector<int> chain = {id};  // the norm and what it takes in
  const int sum = pattern_.OnlyReader({id, 0});
  if (alike(sum) && pattern_.Combines(source_.node(sum), SY_PW_ADD)) {
    const Node& add = source_.node(sum);
    const Ref other = add.inputs[0] == Ref{id, 0} ? add.inputs[1] : add.inputs[0];
    if (source_.type(other) != node.outputs[0] || !r.HasAll({other})) return std::nullopt;
    inputs.push_back(other);
    a.residual = 1;
    chain.push_back(sum);
  }
  const int activation = pattern_.OnlyReader({chain.back(), 0});
  if (alike(activation) && pattern_.Opcode(source_.node(activation)) == SY_PW_RELU) {
    a.activation = SY_ACTIVATION_RELU;
    chain.push_back(activation);
  }
  if (chain.size() == 1 || !Exists(node.op, inputs, Attributes(a), wanted)) return std::nullopt;
  auto fused = Emit(r, node, inputs, Attributes(a), wanted);
  std::vector<int> ends = {id};  // of the chain, and of its second computations where the norm has none
  for (size_t next = 1; next < chain.size(); ++next) {
    std::vector<int> readers;
    for (const int end : ends) {
      held_[end] = end != id;
      const auto& users = pattern_.users[end];
      for (const int user : pattern_.Alike({users.begin(), users.end()}, chain[next])) readers.push_back(user);
    }
    ends = std::move(readers);
  }
  for (const int end : ends) done_[end] = {fused[0]};
  return fused;
}

// dy where relu's result y is positive, and the gradient of the batch norm in front of the relu from it.
KernelFusion::Replacement KernelFusion::BatchNormGradientWithActivation(Rewriting& r, int id) {
  const Node& node = source_.node(id);
  if (!pattern_.Combines(node, SY_PW_MUL)) return std::nullopt;
  int side = 0;
  while (side < 2 && pattern_.Opcode(source_.node(node.inputs[side].node)) != SY_PW_RELU_GRAD) ++side;
  if (side == 2) return std::nullopt;
  const Ref y = source_.node(node.inputs[side].node).inputs[0], dy = node.inputs[1 - side];
  for (const int reader : pattern_.users[id]) {
    const Node& backward = source_.node(reader);
    if (backward.op != "batch_norm_backward" || backward.inputs[4] != Ref{id, 0}) continue;
    auto a = backward.attributes.as<sy_batch_norm_attributes>();
    std::vector<Ref> inputs = backward.inputs;
    inputs[4] = dy;
    inputs.push_back(y);
    const bool alike = source_.type(y) == node.outputs[0] && source_.type(dy) == node.outputs[0];
    if (a.activation != SY_ACTIVATION_NONE || !alike) return std::nullopt;
    a.activation = SY_ACTIVATION_RELU;
    a.residual = pattern_.OnlyReader({id, 0}) != reader;
    if (!r.HasAll(inputs) || !Exists(backward.op, inputs, Attributes(a), {})) return std::nullopt;
    const auto fused = Emit(r, backward, inputs, Attributes(a), {});
    done_[reader] = {fused[0], fused[1], fused[2]};
    return a.residual ? std::vector<Value>{fused[3]} : std::vector<Value>();
  }
  return std::nullopt;
}

}  // namespace switchyard
