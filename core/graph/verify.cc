#include "core/graph/verify.h"

#include <vector>

#include "core/graph/op.h"
#include "core/graph/ops/structure.h"
#include "core/graph/ops/transfer.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

// Is this a result of a node before node `id`?
bool IsThere(const Graph& graph, Ref ref, int id) {
  return ref.node >= 0 && ref.node < id && ref.output >= 0 &&
         ref.output < static_cast<int>(graph.node(ref.node).outputs.size());
}

// What is wrong with the types of node `id`, whose inputs are there.
std::string ProblemOfTypes(const Graph& graph, const Node& node) {
  std::vector<TensorType> types;
  types.reserve(node.inputs.size());
  for (const Ref& input : node.inputs) types.push_back(graph.type(input));
  try {
    const auto inferred = InferTypes(node.op, types, node.attributes, WantedOf(node));
    if (inferred.size() != node.outputs.size())
      return fmt::format("it has {} results, the op gives {}", node.outputs.size(), inferred.size());
    for (size_t o = 0; o < inferred.size(); ++o) {
      if (inferred[o] != node.outputs[o])
        return fmt::format("result {} is {}, the op gives {}", o, ToString(node.outputs[o]), ToString(inferred[o]));
    }
  } catch (const TypeMismatch& mismatch) {
    return mismatch.what();
  }
  return "";
}

// What is wrong with node `id`; "" if nothing. changed: by node. What is copied from a verified graph, and reads what
// is, has the types and the name that it had there.
std::string ProblemOf(const Graph& graph, int id, const std::vector<bool>& changed) {
  const Node& node = graph.node(id);
  bool retyped = changed[id];
  for (const Ref& input : node.inputs) {
    if (input.node < 0 || input.node >= id) return "it reads a node that does not come before it";
    if (!IsThere(graph, input, id))
      return fmt::format("it reads result {} of {}, which has {}", input.output, graph.node(input.node).name,
                         graph.node(input.node).outputs.size());
    retyped = retyped || changed[input.node];
  }
  for (const int earlier : node.control) {
    if (earlier < 0 || earlier >= id) return "a control edge comes from a node that does not come before it";
  }
  if (node.forward >= id) return "the forward node that it is paired with does not come before it";
  if (node.repeats >= id) return "the node that it repeats does not come before it";
  const std::string& repeated = node.repeats >= 0 ? graph.node(node.repeats).op : node.op;
  if (repeated != node.op && repeated != "region" && node.op != "region") return "it repeats a node of another op";
  if (node.input.has_value() != IsInput(node)) return "only inputs have a role";
  if (node.host != (node.input ? node.input->host : RunsOnHost(graph, node))) return "it is not known where it runs";
  const bool transfer = IsTransfer(node);
  for (const Ref& input : node.inputs) {
    if (!transfer && graph.node(input.node).host != node.host)
      return fmt::format("it reads {}, which lies {}, and runs elsewhere", graph.node(input.node).name,
                         node.host ? "on the device" : "on the host");
  }
  if (IsOutput(node) && node.host) return "the host reads outputs from the device: fetch it first";
  if (const int named = changed[id] ? graph.Find(node.name) : id; named != id)
    return named >= 0 ? "another node has its name" : "it was made with another name";
  return !retyped || node.input || !HasInference(node.op) ? "" : ProblemOfTypes(graph, node);
}

}  // namespace

void Verify(Graph& graph, const std::string& pass) {
  if (graph.verified()) return;
  std::vector<bool> assigned(graph.size(), false), changed(graph.size(), false);
  for (const int id : graph.changed()) changed[id] = true;
  for (int id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    std::string problem = ProblemOf(graph, id, changed);
    if (problem.empty() && IsAssign(node)) {
      const int state = node.inputs[0].node;
      if (!graph.node(state).input) problem = "the target is not a named input";
      if (assigned[state]) problem = "a second assignment to one state";
      assigned[state] = true;
    }
    if (problem.empty()) continue;
    std::vector<Value> inputs;
    for (const Ref& input : node.inputs) {
      if (IsThere(graph, input, id)) inputs.push_back(graph.value(input));
    }
    ThrowBuildError(node.op, fmt::format("the graph after {} is broken at {}: {}", pass, node.name, problem), inputs,
                    node.where);
  }
  graph.SetVerified();
}

}  // namespace switchyard
