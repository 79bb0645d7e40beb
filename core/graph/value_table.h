// What is known of each value of a graph, by Ref, in one array: for passes that ask about all of them. Not thread-safe.
#pragma once

#include <vector>

#include "core/graph/graph.h"

namespace switchyard {

template <typename T>
class ValueTable {
 public:
  ValueTable() = default;
  // A T{} for each value that the graph has now.
  explicit ValueTable(const Graph& graph) {
    size_t count = 0;
    first_.reserve(graph.nodes().size());
    for (const Node& node : graph.nodes()) {
      first_.push_back(count);
      count += node.outputs.size();
    }
    values_.resize(count);
  }
  T& operator[](Ref ref) { return values_[IndexOf(ref)]; }
  const T& operator[](Ref ref) const { return values_[IndexOf(ref)]; }

 private:
  size_t IndexOf(Ref ref) const { return first_[static_cast<size_t>(ref.node)] + static_cast<size_t>(ref.output); }
  std::vector<size_t> first_;  // by node: the index of its result 0
  std::vector<T> values_;
};

}  // namespace switchyard
