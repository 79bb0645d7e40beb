#include "core/plan/accumulation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/abi/ops.h"
#include "core/graph/op.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/structure.h"
#include "core/plan/planned_node.h"

namespace switchyard {
namespace {

Ref BehindReshapes(const Graph& graph, Ref ref) {
  while (TraitsOf(graph.node(ref.node).op).view) ref = graph.node(ref.node).inputs[0];
  return ref;
}

}  // namespace

Ref AddedBy(const Graph& graph, int id) { return BehindReshapes(graph, graph.node(id).inputs[1]); }

StatusOr<std::vector<std::vector<uint8_t>>> ResultsToAccumulate(Graph& graph, uint64_t alignment, CanAdd can_add) {
  const auto users = graph.Users();
  // Do only views of the result, and at their end node `reader`, read it?
  const auto read_only_by = [&](Ref ref, int reader, size_t input) {
    for (Ref at = graph.node(reader).inputs[input];; at = graph.node(at.node).inputs[0]) {
      int readers = 0;
      for (const int user : users[at.node]) {
        const auto& inputs = graph.node(user).inputs;
        readers += std::find(inputs.begin(), inputs.end(), at) != inputs.end();
      }
      if (readers != 1) return false;
      if (at == ref) return true;
    }
  };
  // Has it a kernel that may write where the bucket lies? What may be a place in another value's memory, or be put
  // together in its own, has not (sharing.cc).
  const auto is_written = [&](const Node& node) {
    uint64_t unused = 0;
    return !IsStructural(node.op) && !IsCollective(node.op) && !IsConcat(node) &&
           !ContiguousSlice(graph, node, alignment, &unused);
  };
  // Is it what the bucket held when the run began, or a part of that?
  const auto holds_part_of = [&](const std::string& bucket, Ref value) {
    uint64_t unused = 0;
    if (ContiguousSlice(graph, graph.node(value.node), alignment, &unused))
      value = BehindReshapes(graph, graph.node(value.node).inputs[0]);
    const Node& node = graph.node(value.node);
    return node.input && node.name == bucket;
  };
  // What is added to one place, the last first, and what the first of it is added to where a kernel has written that in
  // the same run. Empty where some of it cannot be added there.
  struct Chain {
    std::vector<Ref> added;
    std::optional<Ref> first;
  };
  const auto chain_of = [&](Ref part, const std::string& bucket) {
    Chain chain;
    for (Ref sum = BehindReshapes(graph, part); IsAccumulate(graph.node(sum.node));) {
      const Ref added = AddedBy(graph, sum.node);
      if (!is_written(graph.node(added.node)) || !read_only_by(added, sum.node, 1)) return Chain();
      if (!chain.added.empty() && added.node >= chain.added.back().node) return Chain();
      chain.added.push_back(added);
      const Ref held = BehindReshapes(graph, graph.node(sum.node).inputs[0]);
      if (!IsAccumulate(graph.node(held.node)) && holds_part_of(bucket, held)) return chain;
      if (held.node >= added.node || !read_only_by(held, sum.node, 0)) return Chain();
      if (!IsAccumulate(graph.node(held.node))) {
        if (!is_written(graph.node(held.node))) return Chain();
        chain.first = held;
      }
      sum = held;
    }
    return chain;
  };
  std::vector<Chain> chains;
  for (const Node& concat : graph.nodes()) {
    if (concat.bucket.empty()) continue;
    uint64_t offset = 0;
    for (const Ref& part : concat.inputs) {
      if (offset % alignment == 0) {
        if (Chain chain = chain_of(part, concat.bucket); !chain.added.empty()) chains.push_back(std::move(chain));
      }
      offset += static_cast<uint64_t>(graph.type(part).bytes());
    }
  }
  std::vector<std::vector<uint8_t>> flags(graph.size());
  const auto mark = [&](const Chain& chain, uint8_t flag) {
    for (const Ref& added : chain.added) {
      auto& of_node = flags[added.node];
      of_node.resize(graph.node(added.node).outputs.size());
      of_node[static_cast<size_t>(added.output)] = flag;
    }
  };
  for (const Chain& chain : chains) mark(chain, 1);
  // A node that cannot add all that it is asked for takes its chains out, and what else is in them is asked for less.
  for (bool changed = true; changed;) {
    changed = false;
    std::vector<Chain> kept;
    for (Chain& chain : chains) {
      bool can = true;
      for (size_t i = 0; i < chain.added.size() && can; ++i) {
        const int id = chain.added[i].node;
        SY_ASSIGN_OR_RETURN(can, can_add(id, flags[id]));
      }
      if (can) {
        kept.push_back(std::move(chain));
      } else {
        mark(chain, 0);
        changed = true;
      }
    }
    chains = std::move(kept);
  }
  for (auto& of_node : flags) {
    if (std::none_of(of_node.begin(), of_node.end(), [](uint8_t flag) { return flag != 0; })) of_node.clear();
  }
  for (const Chain& chain : chains) {
    std::vector<Ref> writers = chain.added;  // the last first
    if (chain.first) writers.push_back(*chain.first);
    for (size_t i = 0; i + 1 < writers.size(); ++i) {
      auto& control = graph.mutable_node(writers[i].node).control;
      const int before = writers[i + 1].node;
      if (std::find(control.begin(), control.end(), before) == control.end()) control.push_back(before);
    }
  }
  return flags;
}

void BecomeSum(Graph& graph, int id) {
  sy_pointwise_attributes sum{};
  sum.instruction_count = 1;
  sum.output_count = 1;
  sum.outputs[0] = 2;
  sum.instructions[0] = {SY_PW_ADD, 0, 1, 0, 0};
  Node& node = graph.mutable_node(id);
  node.op = "pointwise";
  node.attributes = Attributes(sum);
}

}  // namespace switchyard
