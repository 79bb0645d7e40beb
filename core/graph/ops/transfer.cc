// store and fetch: no kernel runs them, the planner makes copies of them.
#include "core/graph/ops/transfer.h"

#include <algorithm>
#include <string_view>

#include "core/graph/ops/families.h"

namespace switchyard {

using std::literals::operator""sv;

// Asked for every input in every pass: compared by length first.
bool IsStore(const Node& node) { return node.op == "store"sv; }
bool IsFetch(const Node& node) { return node.op == "fetch"sv; }

bool RunsOnHost(const Graph& graph, const Node& node) {
  if (IsStore(node)) return true;
  return !IsFetch(node) && std::any_of(node.inputs.begin(), node.inputs.end(),
                                       [&](const Ref& input) { return graph.node(input.node).host; });
}

Value ops::Store(const Value& x, std::source_location where) { return x.graph().Add("store", {x}, {}, {}, where)[0]; }
Value ops::Fetch(const Value& x, std::source_location where) { return x.graph().Add("fetch", {x}, {}, {}, where)[0]; }

std::vector<OpDefinition> TransferOps() {
  const OpTraits traits = {.structural = true, .transfer = true};
  return {{.name = "store",
           .summary = "a copy from the device's memory to the host's",
           .infer = SameType,
           .traits = traits,
           .factors = "... -> ..."},
          {.name = "fetch",
           .summary = "a copy from the host's memory to the device's",
           .infer = SameType,
           .traits = traits,
           .factors = "... -> ..."}};
}

}  // namespace switchyard
