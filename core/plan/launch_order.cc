#include "core/plan/launch_order.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "core/graph/op.h"

namespace switchyard {
namespace {

// For each node the collective that must come before it, or -1. Ranks that send each other messages run graphs of their
// own: only the order in which those were built says that they will meet.
std::vector<int> BuiltOrder(const Graph& graph) {
  std::vector<int> before(graph.size(), -1);
  const bool sends = std::any_of(graph.nodes().begin(), graph.nodes().end(),
                                 [](const Node& node) { return node.op == "send" || node.op == "receive"; });
  for (int id = 0, last = -1; sends && id < graph.size(); ++id) {
    if (IsCollective(graph.node(id).op)) before[id] = std::exchange(last, id);
  }
  return before;
}

// Collectives, buckets, and what the update phase computes for those alone. Forward and backward stay as they were
// built.
std::vector<bool> LeadsToBuckets(const Graph& graph, const std::vector<std::vector<int>>& followers) {
  std::vector<bool> leads(graph.size(), false);
  for (int id = graph.size() - 1; id >= 0; --id) {
    const Node& node = graph.node(id);
    const bool only = node.phase == Phase::kUpdate && !node.input && !followers[id].empty() &&
                      std::all_of(followers[id].begin(), followers[id].end(), [&](int user) { return leads[user]; });
    leads[id] = IsCollective(node.op) || !node.bucket.empty() || only;
  }
  return leads;
}

class Order {
 public:
  Order(const Graph& graph, bool early)
      : graph_(graph),
        before_(BuiltOrder(graph)),
        followers_(graph.Users()),
        missing_(graph.size(), 0),
        early_(early),
        done_(graph.size(), false) {
    for (int id = 0; id < graph.size(); ++id) {
      if (before_[id] >= 0) followers_[before_[id]].push_back(id);
      for (const int earlier : graph.node(id).control) followers_[earlier].push_back(id);
    }
    for (const auto& users : followers_) {
      for (const int user : users) ++missing_[user];
    }
    if (early) {
      moved_ = LeadsToBuckets(graph, followers_);
    } else {
      for (const Node& node : graph.nodes()) moved_.push_back(IsCollective(node.op));
    }
  }

  std::vector<int> Run() {
    // What needs nothing, such as the zeros between the members of a bucket, holds up nothing.
    for (int id = 0; early_ && id < graph_.size(); ++id) {
      if (moved_[id] && IsFree(id)) Require(id);
    }
    // What is moved waits for its turn, early or late; what is left at the end is read by nobody.
    for (int id = 0; id < graph_.size(); ++id) {
      if (!moved_[id]) Require(id);
    }
    for (int id = 0; id < graph_.size(); ++id) Require(id);
    return std::move(order_);
  }

 private:
  bool IsFree(int id) const {
    return graph_.node(id).inputs.empty() && graph_.node(id).control.empty() && before_[id] < 0;
  }

  // Everything that node `id` needs, and the node.
  void Require(int id) {
    if (done_[id]) return;
    for (const Ref& input : graph_.node(id).inputs) Require(input.node);
    for (const int earlier : graph_.node(id).control) Require(earlier);
    if (before_[id] >= 0) Require(before_[id]);
    Emit(id);
    if (early_) EmitReady();
  }

  void Emit(int id) {
    if (done_[id]) return;
    done_[id] = true;
    order_.push_back(id);
    for (const int user : followers_[id]) {
      if (--missing_[user] == 0 && moved_[user]) ready_.push(user);
    }
  }

  void EmitReady() {
    while (!ready_.empty()) {
      const int id = ready_.top();
      ready_.pop();
      Emit(id);
    }
  }

  const Graph& graph_;
  const std::vector<int> before_;
  std::vector<std::vector<int>> followers_;  // readers and targets of control edges, with repeats
  std::vector<int> missing_;                 // inputs and control edges that are not done
  const bool early_;
  std::vector<bool> moved_, done_;  // moved: does not stand where it was built
  std::vector<int> order_;
  std::priority_queue<int, std::vector<int>, std::greater<>> ready_;  // in the order of building
};

}  // namespace

std::vector<int> LaunchOrder(const Graph& graph, bool early) { return Order(graph, early).Run(); }

}  // namespace switchyard
