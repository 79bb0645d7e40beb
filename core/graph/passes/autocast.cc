#include "core/graph/passes/autocast.h"

#include <map>
#include <set>

#include "core/graph/ops/pointwise.h"
#include "core/graph/passes/rewrite.h"

namespace switchyard {
namespace {

const std::set<std::string> kHalfOps = {"matmul", "attention", "convolution"};
const std::set<std::string> kFullOps = {"softmax",      "cross_entropy", "reduce",
                                        "squared_norm", "label_rank",    "batch_norm"};
const std::set<std::string> kLayout = {"reshape", "transpose", "slice", "pad", "roll", "concat", "gather", "dropout"};

}  // namespace

Graph Autocast(const Graph& forward, DType half) {
  const auto users = forward.Users();
  std::map<Ref, Value> halves;  // one half copy per new value
  return Rewrite(forward, [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
    const Node& node = forward.node(id);
    std::vector<Value> inputs = r.Map(node.inputs);
    std::vector<TensorType> outputs = node.outputs;
    const auto to_half = [&](Value& v) {
      if (!IsFloating(v.dtype()) || v.dtype() == half) return;
      Value& copy = halves[v.ref()];
      if (!copy) copy = ops::Cast(v, half, node.where);
      v = copy;
    };
    if (kHalfOps.contains(node.op)) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        const bool bias = i >= 2 || (node.op == "attention" && i >= 1);  // biases and masks are added in f32 anyway
        if (!bias) to_half(inputs[i]);
      }
      outputs[0].dtype = half;
    } else if (kFullOps.contains(node.op)) {
      for (Value& v : inputs) {
        if (IsFloating(v.dtype())) v = ops::Cast(v, DType::kF32, node.where);
      }
    } else if (node.op == "layer_norm") {
      // Reads whatever comes; its result is half if only half ops read it.
      bool only_half = !users[id].empty();
      for (const int user : users[id]) {
        const Node& reader = forward.node(user);
        bool to_half_op = kHalfOps.contains(reader.op);
        if (reader.op == "reshape") {
          to_half_op = !users[user].empty();
          for (const int next : users[user]) to_half_op = to_half_op && kHalfOps.contains(forward.node(next).op);
        }
        only_half = only_half && to_half_op;
      }
      if (only_half) outputs[0].dtype = half;
    } else if (node.op == "output" || node.op == "assign") {
      for (size_t i = 0; i < inputs.size(); ++i)
        inputs[i] = ops::Cast(inputs[i], forward.type(node.inputs[i]).dtype, node.where);
    } else if ((node.op == "pointwise" && !inputs.empty()) || kLayout.contains(node.op)) {
      DType widest = inputs[0].dtype();
      for (const Value& v : inputs) {
        if (IsFloating(v.dtype())) widest = IsFloating(widest) ? Widest(widest, v.dtype()) : widest;
      }
      if (node.op == "concat") {
        for (Value& v : inputs) v = ops::Cast(v, widest, node.where);
      }
      for (TensorType& output : outputs) {
        if (IsFloating(output.dtype)) output.dtype = IsFloating(widest) ? widest : output.dtype;
      }
    }
    const auto values = r.result.Clone(node, inputs);
    if (!values.empty()) r.result.mutable_node(values[0].ref().node).outputs = outputs;
    return values;
  });
}

}  // namespace switchyard
