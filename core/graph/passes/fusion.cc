#include "core/graph/passes/fusion.h"

#include <algorithm>

#include "core/graph/ops/layout.h"
#include "core/graph/ops/matmul.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

// One fusion round's view of the source graph.
struct Pattern {
  const Graph& graph;
  std::vector<std::vector<int>> users;
  explicit Pattern(const Graph& g) : graph(g), users(g.Users()) {}

  // The opcode of a pointwise node with one instruction, else -1.
  int Opcode(const Node& node) const {
    if (node.op != "pointwise") return -1;
    const auto& p = node.attributes.as<sy_pointwise_attributes>();
    return p.instruction_count == 1 && p.output_count == 1 && p.outputs[0] == static_cast<int>(node.inputs.size())
               ? p.instructions[0].op
               : -1;
  }
  // The node that really produces `ref`, through reshapes.
  Ref Behind(Ref ref) const {
    while (graph.node(ref.node).op == "reshape") ref = graph.node(ref.node).inputs[0];
    return ref;
  }
  // Every reader of node `id`, through reshapes.
  std::vector<int> Readers(int id) const {
    std::vector<int> readers;
    for (const int user : users[id]) {
      if (graph.node(user).op == "reshape") {
        const auto further = Readers(user);
        readers.insert(readers.end(), further.begin(), further.end());
      } else {
        readers.push_back(user);
      }
    }
    return readers;
  }
};

bool Preparable(const Rewriting& r, const CanPrepare& can_prepare, const std::vector<Ref>& inputs,
                const std::string& op, const Attributes& attributes, const std::vector<TensorType>& outputs) {
  Node probe;
  probe.op = op;
  probe.attributes = attributes;
  probe.inputs = inputs;
  probe.outputs = outputs;
  return can_prepare(r.source, probe);
}

std::vector<Value> Emit(Rewriting& r, const Node& like, const std::vector<Ref>& inputs, const std::string& op,
                        const Attributes& attributes, const std::vector<TensorType>& outputs) {
  return r.result.Add(op, r.Map(inputs), outputs, attributes, like.where, like.name);
}

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

// Kernel-shaped patterns: decisions are made on the source graph first, then carried out while it is rewritten.
Graph FuseKernels(const Graph& source, const CanPrepare& can_prepare) {
  const Pattern pattern(source);
  std::vector<std::vector<Value>> done(source.size());  // replacements decided at an earlier node
  std::vector<bool> swallowed(source.size(), false);    // emitted later, as part of its only reader

  // Backward of an activation behind a matmul: Mul(reshape*(matmul), act'(pre)), the matmul read by it alone.
  std::vector<int> gradient_matmul(source.size(), -1);  // Mul id → matmul id
  for (int id = 0; id < source.size(); ++id) {
    const Node& node = source.node(id);
    if (pattern.Opcode(node) != SY_PW_MUL) continue;
    for (int side = 0; side < 2; ++side) {
      const Ref product = pattern.Behind(node.inputs[side]), factor = node.inputs[1 - side];
      const Node& matmul = source.node(product.node);
      if (matmul.op != "matmul" || ActivationOf(pattern.Opcode(source.node(factor.node))) >= 0) continue;
      if (pattern.Readers(product.node).size() != 1 || matmul.inputs.size() != 2 || matmul.outputs.size() != 1)
        continue;
      if (source.type(factor).shape != node.outputs[0].shape) continue;
      gradient_matmul[id] = product.node;
      swallowed[product.node] = true;
      break;
    }
  }

  return RemoveDeadNodes(Rewrite(source, [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
    const Node& node = source.node(id);
    if (!done[id].empty()) return done[id];
    const auto preparable = [&](const std::vector<Ref>& inputs, const std::string& op, const Attributes& a,
                                const std::vector<TensorType>& outputs) {
      return Preparable(r, can_prepare, inputs, op, a, outputs);
    };

    if (gradient_matmul[id] >= 0) {
      const Node& matmul = source.node(gradient_matmul[id]);
      const int side = pattern.Behind(node.inputs[0]).node == gradient_matmul[id] ? 0 : 1;
      const Node& derivative = source.node(node.inputs[1 - side].node);
      auto a = matmul.attributes.as<sy_matmul_attributes>();
      a.activation = -ActivationOf(pattern.Opcode(derivative));
      a.activation_gradient = 1;
      // The preactivation in the matmul's own shape.
      const Value pre = ops::Reshape(r.Map(derivative.inputs[0]), matmul.outputs[0].shape, node.where);
      Node probe = matmul;
      probe.attributes = Attributes(a);
      Graph scratch;
      std::vector<Ref> refs;
      for (const Ref& input : matmul.inputs)
        refs.push_back(scratch.Input(fmt::format("i{}", refs.size()), source.type(input), {}).ref());
      refs.push_back(scratch.Input("pre", pre.type(), {}).ref());
      probe.inputs = refs;
      probe.outputs[0].dtype = node.outputs[0].dtype;
      if (can_prepare(scratch, probe)) {
        std::vector<Value> inputs = r.Map(matmul.inputs);
        inputs.push_back(pre);
        const Value fused = ops::MatmulNode(inputs, a, node.outputs[0].dtype, matmul.where, matmul.name)[0];
        return std::vector<Value>{ops::Reshape(fused, node.outputs[0].shape, node.where)};
      }
      // Not fused after all: the product that was held back comes now.
      const Value product = ops::Reshape(r.result.Clone(matmul, r.Map(matmul.inputs))[0],
                                         source.type(node.inputs[side]).shape, matmul.where);
      std::vector<Value> inputs = {product, r.Map(node.inputs[1 - side])};
      if (side == 1) std::swap(inputs[0], inputs[1]);
      return r.result.Clone(node, inputs);
    }
    if (swallowed[id]) return std::vector<Value>();
    if (node.op == "reshape" && swallowed[pattern.Behind(node.inputs[0]).node]) return std::vector<Value>();

    if (node.op == "matmul") {
      auto a = node.attributes.as<sy_matmul_attributes>();
      // Forward: an activation reads the product (through reshapes).
      if (a.activation == SY_ACTIVATION_NONE && !a.residual && node.outputs.size() == 1) {
        const auto readers = pattern.Readers(id);
        for (const int reader : readers) {
          const int activation = ActivationOf(pattern.Opcode(source.node(reader)));
          if (activation <= 0 || source.node(reader).outputs[0].dtype != node.outputs[0].dtype) continue;
          a.activation = activation;
          a.save_preactivation = readers.size() > 1;
          std::vector<TensorType> outputs = {node.outputs[0]};
          if (a.save_preactivation) outputs.push_back(node.outputs[0]);
          if (!preparable(node.inputs, "matmul", Attributes(a), outputs)) break;
          const auto fused = Emit(r, node, node.inputs, "matmul", Attributes(a), outputs);
          done[reader] = {ops::Reshape(fused[0], source.node(reader).outputs[0].shape, node.where)};
          return std::vector<Value>{a.save_preactivation ? fused[1] : fused[0]};
        }
      }
      // Weight gradient with the bias gradient of the same rows: reduce(dt, rows) beside dtᵀ·x.
      if (a.transpose_a && node.inputs.size() == 2 && node.outputs.size() == 1 &&
          source.type(node.inputs[0]).shape.size() == 2) {
        for (const int reader : pattern.users[node.inputs[0].node]) {
          const Node& sum = source.node(reader);
          if (reader < id || sum.op != "reduce" || sum.inputs[0] != node.inputs[0] || !done[reader].empty()) continue;
          const auto& s = sum.attributes.as<sy_reduce_attributes>();
          if (s.reduction != SY_REDUCE_SUM || s.axes != 1 || s.scale != 1) continue;
          auto with = a;
          with.bias_gradient = 1;
          const std::vector<TensorType> outputs = {node.outputs[0], {DType::kF32, sum.outputs[0].shape}};
          if (!preparable(node.inputs, "matmul", Attributes(with), outputs)) break;
          const auto fused = Emit(r, node, node.inputs, "matmul", Attributes(with), outputs);
          Value bias = fused[1];
          if (sum.outputs[0].dtype != DType::kF32) {
            sy_pointwise_attributes copy{};
            copy.output_count = 1;
            bias = r.result.Add("pointwise", {bias}, {sum.outputs[0]}, Attributes(copy), sum.where)[0];
          }
          done[reader] = {bias};
          return std::vector<Value>{fused[0]};
        }
      }
    }

    // x + residual feeding a layer_norm.
    if (pattern.Opcode(node) == SY_PW_ADD && source.type(node.inputs[0]).shape == source.type(node.inputs[1]).shape) {
      for (const int reader : pattern.users[id]) {
        const Node& norm = source.node(reader);
        if (norm.op != "layer_norm" || norm.inputs[0] != Ref{id, 0}) continue;
        auto a = norm.attributes.as<sy_layer_norm_attributes>();
        if (a.residual) continue;
        a.residual = 1;
        const std::vector<Ref> inputs = {node.inputs[0], node.inputs[1], norm.inputs[1], norm.inputs[2]};
        const std::vector<TensorType> outputs = {norm.outputs[0], norm.outputs[1], norm.outputs[2], node.outputs[0]};
        bool ready = true;
        for (const Ref& input : inputs) ready = ready && r.Map(input);
        if (!ready || !preparable(inputs, "layer_norm", Attributes(a), outputs)) break;
        const auto fused = Emit(r, norm, inputs, "layer_norm", Attributes(a), outputs);
        done[reader] = {fused[0], fused[1], fused[2]};
        return std::vector<Value>{fused[3]};
      }
    }

    // The norm's input gradient plus the gradient that came past it.
    if (node.op == "layer_norm_backward" && !node.attributes.as<sy_layer_norm_attributes>().residual) {
      std::vector<int> readers;
      for (const int user : pattern.users[id]) {
        for (const Ref& input : source.node(user).inputs) {
          if (input == Ref{id, 0}) readers.push_back(user);
        }
      }
      if (readers.size() == 1 && pattern.Opcode(source.node(readers[0])) == SY_PW_ADD) {
        const Node& add = source.node(readers[0]);
        const Ref other = add.inputs[0] == Ref{id, 0} ? add.inputs[1] : add.inputs[0];
        auto a = node.attributes.as<sy_layer_norm_attributes>();
        a.residual = 1;
        std::vector<Ref> inputs = node.inputs;
        inputs.push_back(other);
        std::vector<TensorType> outputs = node.outputs;
        outputs[0] = add.outputs[0];
        if (source.type(other).shape == outputs[0].shape && r.Map(other) &&
            preparable(inputs, "layer_norm_backward", Attributes(a), outputs)) {
          const auto fused = Emit(r, node, inputs, "layer_norm_backward", Attributes(a), outputs);
          done[readers[0]] = {fused[0]};
          return fused;
        }
      }
    }
    return std::nullopt;
  }));
}

// Joins a pointwise producer into its only pointwise reader: the reader's program with the producer's in front.
std::optional<std::pair<sy_pointwise_attributes, std::vector<Ref>>> Join(const Node& producer, const Node& reader,
                                                                         Ref link) {
  const auto &p = producer.attributes.as<sy_pointwise_attributes>(),
             &q = reader.attributes.as<sy_pointwise_attributes>();
  if (p.instruction_count + q.instruction_count > SY_PW_MAX_INSTRUCTIONS) return std::nullopt;
  std::vector<Ref> inputs;
  const auto input_index = [&](Ref ref) {
    const auto found = std::find(inputs.begin(), inputs.end(), ref);
    if (found != inputs.end()) return static_cast<int>(found - inputs.begin());
    inputs.push_back(ref);
    return static_cast<int>(inputs.size()) - 1;
  };
  std::vector<int> from_producer, from_reader;
  for (const Ref& ref : producer.inputs) from_producer.push_back(input_index(ref));
  for (const Ref& ref : reader.inputs) from_reader.push_back(ref == link ? -1 : input_index(ref));
  if (inputs.size() > 12) return std::nullopt;
  const int n = static_cast<int>(inputs.size());
  const auto in_p = [&](int operand) {
    const int k = static_cast<int>(producer.inputs.size());
    return operand < k ? from_producer[operand] : n + operand - k;
  };
  const int linked = in_p(p.outputs[link.output]);
  const auto in_q = [&](int operand) {
    const int k = static_cast<int>(reader.inputs.size());
    if (operand >= k) return n + static_cast<int>(p.instruction_count) + operand - k;
    return from_reader[operand] < 0 ? linked : from_reader[operand];
  };
  sy_pointwise_attributes joined{};
  joined.output_count = q.output_count;
  for (uint32_t o = 0; o < q.output_count; ++o) joined.outputs[o] = in_q(q.outputs[o]);
  const auto append = [&](const sy_instruction& i, const auto& map) {
    joined.instructions[joined.instruction_count++] = {i.op, i.op == SY_PW_CONSTANT ? 0 : map(i.a),
                                                       i.op == SY_PW_CONSTANT ? 0 : map(i.b),
                                                       i.op == SY_PW_CONSTANT ? 0 : map(i.c), i.value};
  };
  for (uint32_t j = 0; j < p.instruction_count; ++j) append(p.instructions[j], in_p);
  for (uint32_t j = 0; j < q.instruction_count; ++j) append(q.instructions[j], in_q);
  return std::make_pair(joined, inputs);
}

Graph FusePointwise(const Graph& source, const CanPrepare& can_prepare, bool& changed) {
  const auto users = source.Users();
  std::vector<bool> skip(source.size(), false);
  return RemoveDeadNodes(Rewrite(source, [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
    const Node& node = source.node(id);
    if (node.op != "pointwise") return std::nullopt;
    for (const Ref& link : node.inputs) {
      const Node& producer = source.node(link.node);
      if (producer.op != "pointwise" || producer.outputs.size() != 1 || producer.phase != node.phase) continue;
      const bool constant = producer.inputs.empty();
      // Read once by this node alone (a constant may be repeated), and as large as the result: nothing is computed
      // twice.
      const auto& readers = users[link.node];
      const bool alone = std::all_of(readers.begin(), readers.end(), [&](int reader) { return reader == id; });
      if (!constant && (!alone || producer.outputs[0].elements() != node.outputs[0].elements() ||
                        producer.outputs[0].shape != node.outputs[0].shape))
        continue;
      const auto joined = Join(producer, node, link);
      if (!joined) continue;
      bool ready = true;
      for (const Ref& input : joined->second) ready = ready && r.Map(input);
      if (!ready || !Preparable(r, can_prepare, joined->second, "pointwise", Attributes(joined->first), node.outputs))
        continue;
      changed = true;
      return Emit(r, node, joined->second, "pointwise", Attributes(joined->first), node.outputs);
    }
    return std::nullopt;
  }));
}

}  // namespace

Graph Fuse(const Graph& source, const CanPrepare& can_prepare) {
  Graph graph = FuseKernels(source, can_prepare);
  for (bool changed = true; changed;) {
    changed = false;
    graph = FusePointwise(graph, can_prepare, changed);
  }
  return graph;
}

}  // namespace switchyard
