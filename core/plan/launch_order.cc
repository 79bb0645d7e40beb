#include "core/plan/launch_order.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <set>
#include <span>
#include <utility>

#include "core/graph/op.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/structure.h"
#include "core/graph/ops/transfer.h"

namespace switchyard {

std::vector<int> BuiltOrder(const Graph& graph) {
  std::vector<int> before(graph.size(), -1);
  const bool sends = std::any_of(graph.nodes().begin(), graph.nodes().end(), IsMessage);
  for (int id = 0, last = -1; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    if (IsCollective(node.op) && (sends || node.phase == Phase::kUpdate)) before[id] = std::exchange(last, id);
  }
  return before;
}

namespace {

// Collectives, transfers, buckets, and what the update phase computes for those alone. Forward and backward stay as
// they were built.
std::vector<bool> LeadsToBuckets(const Graph& graph, const IdLists& followers) {
  std::vector<bool> leads(graph.size(), false);
  for (int id = graph.size() - 1; id >= 0; --id) {
    const Node& node = graph.node(id);
    const bool only = node.phase == Phase::kUpdate && !node.input && !followers[id].empty() &&
                      std::all_of(followers[id].begin(), followers[id].end(), [&](int user) { return leads[user]; });
    leads[id] = IsCollective(node.op) || IsTransfer(node) || !node.bucket.empty() || only;
  }
  return leads;
}

// A fetch gathers inputs that are there when the step begins, or what is computed of those alone, or brings such from
// the host; what is brought to be gathered is part of that.
struct Fetches {
  std::vector<bool> brings;  // by node: a fetch, or computed for fetches alone
  std::vector<int> of;       // by node: the fetch that it is, or is a part or another shape of; -1: none
};

bool Brings(const Node& node) { return ExchangeOf(node) == Exchange::kAllGather || IsFetch(node); }

Fetches FindFetches(const Graph& graph, const IdLists& followers) {
  Fetches fetches{std::vector<bool>(graph.size(), false), std::vector<int>(graph.size(), -1)};
  std::vector<bool> there(graph.size(), false), computed_with(graph.size(), false), for_fetches(graph.size(), false);
  for (int id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    there[id] = node.input ? node.input->role != Role::kBatch
                           : (!IsCollective(node.op) || Brings(node)) &&
                                 std::all_of(node.inputs.begin(), node.inputs.end(),
                                             [&](const Ref& input) { return there[input.node]; });
  }
  for (int id = graph.size() - 1; id >= 0; --id) {
    const Node& node = graph.node(id);
    const std::span<const int> users = followers[id];
    computed_with[id] = std::any_of(users.begin(), users.end(), [&](int user) {
      const Node& reader = graph.node(user);
      return !IsKept(reader) && (!TraitsOf(reader.op).view || computed_with[user]);
    });
    const bool fetch = there[id] && Brings(node) && computed_with[id];
    for_fetches[id] = there[id] && !node.input && !users.empty() &&
                      std::all_of(users.begin(), users.end(), [&](int user) { return fetches.brings[user]; });
    fetches.brings[id] = fetch || for_fetches[id];
  }
  for (int id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    if (fetches.brings[id] && Brings(node) && !(IsFetch(node) && for_fetches[id])) {
      fetches.of[id] = id;
    } else if (TraitsOf(node.op).view || IsSlice(node)) {
      fetches.of[id] = fetches.of[node.inputs[0].node];
    }
  }
  return fetches;
}

class Order {
 public:
  // fetched: the fetches in the order in which they are needed; none: they come when they are.
  Order(const Graph& graph, bool early, std::vector<int> fetched, uint64_t prefetch_bytes)
      : graph_(graph),
        before_(BuiltOrder(graph)),
        followers_(graph.size(),
                   [&](const auto& add) {
                     for (int id = 0; id < graph.size(); ++id) {
                       for (const Ref& input : graph.node(id).inputs) add(input.node, id);
                     }
                     for (int id = 0; id < graph.size(); ++id) {
                       if (before_[id] >= 0) add(before_[id], id);
                       for (const int earlier : graph.node(id).control) add(earlier, id);
                     }
                   }),
        fetches_(FindFetches(graph, graph.Users())),
        missing_(graph.size(), 0),
        when_(graph.size(), When::kAsBuilt),
        done_(graph.size(), false),
        fetched_(std::move(fetched)),
        prefetch_bytes_(prefetch_bytes) {
    for (int id = 0; id < graph.size(); ++id) {
      for (const int user : followers_[id]) ++missing_[user];
    }
    const std::vector<bool> leads = LeadsToBuckets(graph, followers_);
    for (int id = 0; id < graph.size(); ++id) {
      if (fetches_.brings[id] || fetches_.of[id] >= 0 || (!early && IsCollective(graph.node(id).op))) {
        when_[id] = When::kNeeded;
      } else if (early && leads[id]) {
        when_[id] = When::kReady;
      }
    }
  }

  std::vector<int> Run() {
    Prefetch();
    // What needs nothing, such as the zeros between the members of a bucket, holds up nothing.
    for (int id = 0; id < graph_.size(); ++id) {
      if (when_[id] == When::kReady && IsFree(id)) Require(id);
    }
    for (int id = 0; id < graph_.size(); ++id) {
      if (when_[id] == When::kAsBuilt) Require(id);
    }
    for (int id = 0; id < graph_.size(); ++id) Require(id);  // what is left is read by nobody
    return std::move(order_);
  }

  // Those among `order`.
  std::vector<int> FetchesIn(const std::vector<int>& order) const {
    std::vector<int> fetches;
    for (const int id : order) {
      if (fetches_.of[id] == id) fetches.push_back(id);
    }
    return fetches;
  }

 private:
  enum class When { kAsBuilt, kReady, kNeeded };

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
    EmitReady();
  }

  void Emit(int id) {
    if (done_[id]) return;
    done_[id] = true;
    order_.push_back(id);
    for (const int user : followers_[id]) {
      if (--missing_[user] == 0 && when_[user] == When::kReady) ready_.push(user);
    }
    if (fetches_.of[id] == id) unread_.insert(id);
    if (fetches_.of[id] >= 0 && fetches_.of[id] != id) return;  // another shape: nobody has read it yet
    for (const Ref& input : graph_.node(id).inputs) {
      if (const int fetch = fetches_.of[input.node]; fetch >= 0 && unread_.erase(fetch) > 0) ahead_ -= BytesOf(fetch);
    }
    if (fetches_.of[id] == id) ahead_ += BytesOf(id);
  }

  void EmitReady() {
    while (!ready_.empty()) {
      const int id = ready_.top();
      ready_.pop();
      Emit(id);
    }
    Prefetch();
  }

  uint64_t BytesOf(int fetch) const { return static_cast<uint64_t>(graph_.node(fetch).outputs[0].bytes()); }

  // Has what it must stand behind, beside its own inputs, been submitted?
  bool MayBeFetched(int id) const {
    if (done_[id]) return true;
    const Node& node = graph_.node(id);
    return (before_[id] < 0 || done_[before_[id]]) &&
           std::all_of(node.control.begin(), node.control.end(), [&](int earlier) { return done_[earlier]; }) &&
           std::all_of(node.inputs.begin(), node.inputs.end(), [&](Ref input) { return MayBeFetched(input.node); });
  }

  void Prefetch() {
    if (prefetching_) return;
    prefetching_ = true;
    for (; next_ < fetched_.size(); ++next_) {
      const int id = fetched_[next_];
      if (done_[id]) continue;
      if (ahead_ + BytesOf(id) > prefetch_bytes_ || !MayBeFetched(id)) break;
      Require(id);
    }
    prefetching_ = false;
  }

  const Graph& graph_;
  const std::vector<int> before_;
  const IdLists followers_;  // readers and targets of control edges, with repeats
  const Fetches fetches_;
  std::vector<int> missing_;  // inputs and control edges that are not done
  std::vector<When> when_;
  std::vector<bool> done_;
  std::vector<int> order_;
  std::priority_queue<int, std::vector<int>, std::greater<>> ready_;  // in the order of building
  const std::vector<int> fetched_;
  const uint64_t prefetch_bytes_;
  size_t next_ = 0;  // of fetched_
  std::set<int> unread_;
  uint64_t ahead_ = 0;  // bytes of unread_
  bool prefetching_ = false;
};

}  // namespace

std::vector<int> LaunchOrder(const Graph& graph, bool early, uint64_t prefetch_bytes) {
  if (!early) return Order(graph, false, {}, 0).Run();
  Order as_needed(graph, true, {}, 0);
  std::vector<int> order = as_needed.Run();
  std::vector<int> fetches = as_needed.FetchesIn(order);
  if (fetches.empty() || prefetch_bytes == 0) return order;
  return Order(graph, true, std::move(fetches), prefetch_bytes).Run();
}

}  // namespace switchyard
