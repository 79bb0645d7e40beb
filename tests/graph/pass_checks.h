// What tests of passes share: a small model, what a backend can prepare, and what holds behind every pass.
#pragma once

#include <set>
#include <string>

#include "core/graph/op.h"
#include "core/graph/passes/decompose.h"
#include "gtest/gtest.h"
#include "tests/graph/steps.h"

namespace switchyard {

inline constexpr int kDepth = 3;
inline const ModelOptions kMicro = {.name = "vit_micro", .own = {{"depth", kDepth}}};

inline bool Everything(const Graph&, const Node&) { return true; }
inline CanPrepare AllBut(const std::set<std::string>& refused) {
  return [=](const Graph&, const Node& node) { return !refused.contains(node.op); };
}

inline std::multiset<std::string> Written(const Graph& graph) {
  std::multiset<std::string> names;
  for (const Node& node : graph.nodes()) {
    if (node.op == "assign" || node.op == "output") names.insert(node.name);
  }
  return names;
}

inline void ExpectWellFormed(const Graph& graph) {
  for (int id = 0; id < graph.size(); ++id) {
    for (const Ref& input : graph.node(id).inputs) {
      ASSERT_LT(input.node, id) << graph.node(id).name;
      ASSERT_LT(input.output, static_cast<int>(graph.node(input.node).outputs.size())) << graph.node(id).name;
    }
  }
}

}  // namespace switchyard
