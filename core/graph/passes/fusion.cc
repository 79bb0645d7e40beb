#include "core/graph/passes/fusion.h"

#include <algorithm>

#include "core/graph/op.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/matmul.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/passes/pointwise_chains.h"

namespace switchyard {
namespace {

using Replacement = std::optional<std::vector<Value>>;

// One fusion round's view of the source graph.
struct Pattern {
  const Graph& graph;
  std::vector<std::vector<int>> users;
  switchyard::Readers readers;
  explicit Pattern(const Graph& g) : graph(g), users(g.Users()), readers(g) {}

  // The opcode of a pointwise node with one instruction, else -1.
  int Opcode(const Node& node) const {
    if (node.op != "pointwise") return -1;
    const auto& p = node.attributes.as<sy_pointwise_attributes>();
    return p.instruction_count == 1 && p.output_count == 1 && p.outputs[0] == static_cast<int>(node.inputs.size())
               ? p.instructions[0].op
               : -1;
  }
  // Is it this operation of two values? A value with itself is a program over one input.
  bool Combines(const Node& node, int opcode) const { return Opcode(node) == opcode && node.inputs.size() == 2; }
  // What really produces `ref`, through reshapes.
  Ref Behind(Ref ref) const {
    while (TraitsOf(graph.node(ref.node).op).view) ref = graph.node(ref.node).inputs[0];
    return ref;
  }
  // Is there more than one node that reads node `id` or its second computation, through reshapes?
  bool SeveralRead(int id) const {
    const std::set<int>& all = readers.Of(id);
    if (all.size() != 1) return all.size() > 1;
    return TraitsOf(graph.node(*all.begin()).op).view && SeveralRead(*all.begin());
  }
  // Every reader of node `id`, through reshapes.
  std::vector<int> Readers(int id) const {
    std::vector<int> readers;
    for (const int user : users[id]) {
      if (TraitsOf(graph.node(user).op).view) {
        const auto further = Readers(user);
        readers.insert(readers.end(), further.begin(), further.end());
      } else {
        readers.push_back(user);
      }
    }
    return readers;
  }
};

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

// Patterns that become one kernel. What a rule decides at a node may also settle a later one (`done`), or hold an
// earlier one back until then (`held`).
class KernelFusion {
 public:
  KernelFusion(const Graph& source, const CanPrepare& can_prepare)
      : source_(source),
        can_prepare_(can_prepare),
        pattern_(source),
        done_(source.size()),
        held_(source.size(), false),
        product_of_(source.size(), -1) {
    for (int id = 0; id < source.size(); ++id) HoldBackProduct(id);
  }

  Graph Run() {
    return RemoveDeadNodes(Rewrite("fusion", source_, [this](Rewriting& r, int id) { return Replace(r, id); }));
  }

 private:
  Replacement Replace(Rewriting& r, int id) {
    if (!done_[id].empty()) return done_[id];
    if (product_of_[id] >= 0) return GradientOfActivation(r, id);
    const Node& node = source_.node(id);
    const bool view_of_held = TraitsOf(node.op).view && held_[pattern_.Behind(node.inputs[0]).node];
    if (held_[id] || view_of_held) return std::vector<Value>();
    for (const auto rule : {&KernelFusion::MatmulWithActivation, &KernelFusion::WeightAndBiasGradient,
                            &KernelFusion::NormOfResidualSum, &KernelFusion::NormGradientWithResidual,
                            &KernelFusion::BatchNormWithActivation, &KernelFusion::BatchNormGradientWithActivation}) {
      if (Replacement replacement = (this->*rule)(r, id)) return replacement;
    }
    return std::nullopt;
  }

  bool Exists(const std::string& op, const std::vector<Ref>& inputs, const Attributes& attributes,
              const Wanted& wanted) const {
    return Preparable(can_prepare_, op, source_, inputs, attributes, wanted);
  }
  static std::vector<Value> Emit(Rewriting& r, const Node& like, const std::vector<Ref>& inputs,
                                 const Attributes& attributes, const Wanted& wanted) {
    return r.result.Add(like.op, r.Map(inputs), attributes, wanted, like.where, like.name);
  }

  // Mul(reshape*(matmul), act'(pre)) with a matmul that nothing else reads: the matmul waits for the Mul.
  void HoldBackProduct(int id) {
    const Node& node = source_.node(id);
    if (!pattern_.Combines(node, SY_PW_MUL)) return;
    for (int side = 0; side < 2; ++side) {
      const Ref product = pattern_.Behind(node.inputs[side]), factor = node.inputs[1 - side];
      const Node& matmul = source_.node(product.node);
      if (matmul.op != "matmul" || ActivationOf(pattern_.Opcode(source_.node(factor.node))) >= 0) continue;
      if (pattern_.Readers(product.node).size() != 1 || matmul.inputs.size() != 2 || matmul.outputs.size() != 1)
        continue;
      if (source_.type(factor).shape != node.outputs[0].shape) continue;
      product_of_[id] = product.node;
      held_[product.node] = true;
      return;
    }
  }

  // dy·act'(pre) as the epilogue of the product that gives dy.
  Replacement GradientOfActivation(Rewriting& r, int id) {
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
  Replacement MatmulWithActivation(Rewriting& r, int id) {
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
      done_[reader] = {ops::Reshape(fused[0], source_.node(reader).outputs[0].shape, node.where)};
      return std::vector<Value>{a.save_preactivation ? fused[1] : fused[0]};
    }
    return std::nullopt;
  }

  // dw = dtᵀ·x and dbias = the sum of dt's rows, from one reading of dt.
  Replacement WeightAndBiasGradient(Rewriting& r, int id) {
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

  // layer_norm(x + residual), which gives the sum too.
  Replacement NormOfResidualSum(Rewriting& r, int id) {
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
  Replacement NormGradientWithResidual(Rewriting& r, int id) {
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

  // The one node that reads `ref`, counted with its second computation, or -1.
  int OnlyReader(Ref ref) const {
    int only = -1;
    for (const int user : pattern_.users[ref.node]) {
      const Node& reader = source_.node(user);
      if (std::find(reader.inputs.begin(), reader.inputs.end(), ref) == reader.inputs.end() || user == only) continue;
      if (only >= 0) return -1;
      only = user;
    }
    return only;
  }

  // act(batch_norm(x) + residual): a sum that alone reads the norm, and a relu that alone reads that or the norm.
  Replacement BatchNormWithActivation(Rewriting& r, int id) {
    const Node& node = source_.node(id);
    if (node.op != "batch_norm" && node.op != "batch_norm_inference") return std::nullopt;
    auto a = node.attributes.as<sy_batch_norm_attributes>();
    if (a.activation != SY_ACTIVATION_NONE || a.residual) return std::nullopt;
    std::vector<Ref> inputs = node.inputs;
    const Wanted wanted = {.dtypes = {node.outputs[0].dtype}};
    const auto alike = [&](int reader) {
      return reader >= 0 && source_.node(reader).outputs == std::vector{node.outputs[0]};
    };
    int last = id, sum = OnlyReader({id, 0});
    if (alike(sum) && pattern_.Combines(source_.node(sum), SY_PW_ADD)) {
      const Node& add = source_.node(sum);
      const Ref other = add.inputs[0] == Ref{id, 0} ? add.inputs[1] : add.inputs[0];
      if (source_.type(other) != node.outputs[0] || !r.HasAll({other})) return std::nullopt;
      inputs.push_back(other);
      a.residual = 1;
      last = sum;
    } else {
      sum = -1;
    }
    const int activation = OnlyReader({last, 0});
    if (alike(activation) && pattern_.Opcode(source_.node(activation)) == SY_PW_RELU) {
      a.activation = SY_ACTIVATION_RELU;
      last = activation;
    }
    if (last == id || !Exists(node.op, inputs, Attributes(a), wanted)) return std::nullopt;
    auto fused = Emit(r, node, inputs, Attributes(a), wanted);
    if (sum >= 0 && sum != last) held_[sum] = true;
    done_[last] = {fused[0]};
    return fused;
  }

  // dy where relu's result y is positive, and the gradient of the batch norm in front of the relu from it.
  Replacement BatchNormGradientWithActivation(Rewriting& r, int id) {
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
      a.residual = OnlyReader({id, 0}) != reader;
      if (!r.HasAll(inputs) || !Exists(backward.op, inputs, Attributes(a), {})) return std::nullopt;
      const auto fused = Emit(r, backward, inputs, Attributes(a), {});
      done_[reader] = {fused[0], fused[1], fused[2]};
      return a.residual ? std::vector<Value>{fused[3]} : std::vector<Value>();
    }
    return std::nullopt;
  }

  const Graph& source_;
  const CanPrepare& can_prepare_;
  const Pattern pattern_;
  std::vector<std::vector<Value>> done_;  // replacements decided at an earlier node
  std::vector<bool> held_;                // comes later, with its only reader
  std::vector<int> product_of_;           // Mul by an activation's derivative → the matmul that it waits for
};

}  // namespace

Graph Fuse(const Graph& source, const CanPrepare& can_prepare) {
  return JoinPointwiseChains(KernelFusion(source, can_prepare).Run(), can_prepare);
}

}  // namespace switchyard
