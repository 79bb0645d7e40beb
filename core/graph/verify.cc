#include "core/graph/verify.h"

#include <memory_resource>
#include <set>
#include <string_view>
#include <unordered_set>

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

// Types of inputs, by how many there are: written over from node to node, so that their memory is asked for once.
using Types = std::vector<std::vector<TensorType>>;

// What is wrong with node `id`; "" if nothing.
std::string ProblemOf(const Graph& graph, int id, Types& by_count) {
  const Node& node = graph.node(id);
  if (by_count.size() <= node.inputs.size()) by_count.resize(node.inputs.size() + 1);
  std::vector<TensorType>& types = by_count[node.inputs.size()];
  types.resize(node.inputs.size());
  for (size_t i = 0; i < types.size(); ++i) {
    const Ref& input = node.inputs[i];
    if (input.node < 0 || input.node >= id) return "it reads a node that does not come before it";
    if (!IsThere(graph, input, id))
      return fmt::format("it reads result {} of {}, which has {}", input.output, graph.node(input.node).name,
                         graph.node(input.node).outputs.size());
    types[i] = graph.type(input);
  }
  for (const int earlier : node.control) {
    if (earlier < 0 || earlier >= id) return "a control edge comes from a node that does not come before it";
  }
  if (node.forward >= id) return "the forward node that it is paired with does not come before it";
  if (node.repeats >= id) return "the node that it repeats does not come before it";
  if (node.repeats >= 0 && graph.node(node.repeats).op != node.op) return "it repeats a node of another op";
  if (node.input.has_value() != IsInput(node)) return "only inputs have a role";
  if (node.host != (node.input ? node.input->host : RunsOnHost(graph, node))) return "it is not known where it runs";
  const bool transfer = IsTransfer(node);
  for (const Ref& input : node.inputs) {
    if (!transfer && graph.node(input.node).host != node.host)
      return fmt::format("it reads {}, which lies {}, and runs elsewhere", graph.node(input.node).name,
                         node.host ? "on the device" : "on the host");
  }
  if (IsOutput(node) && node.host) return "the host reads outputs from the device: fetch it first";
  if (node.input || !HasInference(node.op)) return "";
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

}  // namespace

void Verify(Graph& graph, const std::string& pass) {
  if (graph.verified()) return;
  std::pmr::monotonic_buffer_resource memory;  // of the set of names
  std::pmr::unordered_set<std::string_view> names(graph.size(), &memory);
  std::set<int> assigned;
  Types types;
  for (int id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    std::string problem = ProblemOf(graph, id, types);
    if (problem.empty() && !names.insert(node.name).second) problem = "another node has its name";
    if (problem.empty() && IsAssign(node)) {
      if (!graph.node(node.inputs[0].node).input) problem = "the target is not a named input";
      if (!assigned.insert(node.inputs[0].node).second) problem = "a second assignment to one state";
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
