#include "core/plan/region_order.h"

#include <map>

#include "core/plan/launch_order.h"

namespace switchyard {
namespace {

class RegionOrder {
 public:
  // before: by node, the one that must come before it beside its inputs and control edges, or -1.
  RegionOrder(const Graph& graph, const std::vector<std::vector<int>>& regions, const std::vector<int>& region_of,
              const std::vector<int>& before)
      : graph_(graph), regions_(regions), region_of_(region_of), before_(before) {}

  bool Run() {
    for (int id = 0; id < graph_.size() && unfit_ < 0; ++id) Emit(id);
    return unfit_ < 0;
  }
  const std::vector<int>& order() const { return order_; }
  int unfit() const { return unfit_; }  // a region that would have to run before itself

 private:
  enum class State { kUntouched, kBegun, kDone };

  void Emit(int node) {
    const int region = region_of_[node], item = region >= 0 ? -1 - region : node;
    if (unfit_ >= 0 || state_[item] == State::kDone) return;
    if (state_[item] == State::kBegun) {  // single nodes have no cycles: a region takes part in this one
      for (auto begun = path_.rbegin(); unfit_ < 0; ++begun) {
        if (*begun < 0) unfit_ = -1 - *begun;
      }
      return;
    }
    state_[item] = State::kBegun;
    path_.push_back(item);
    const std::vector<int> alone = {node};
    for (const int member : region >= 0 ? regions_[region] : alone) {
      const auto require = [&](int earlier) {
        if (region < 0 || region_of_[earlier] != region) Emit(earlier);
      };
      for (const Ref& input : graph_.node(member).inputs) require(input.node);
      for (const int earlier : graph_.node(member).control) require(earlier);
      if (before_[member] >= 0) require(before_[member]);
    }
    path_.pop_back();
    state_[item] = State::kDone;
    order_.push_back(item);
  }

  const Graph& graph_;
  const std::vector<std::vector<int>>& regions_;
  const std::vector<int>& region_of_;
  const std::vector<int>& before_;
  std::map<int, State> state_;  // by item
  std::vector<int> order_, path_;
  int unfit_ = -1;
};

}  // namespace

StatusOr<std::vector<int>> OrderWithRegions(const Graph& graph, const std::vector<std::vector<int>>& regions,
                                            std::vector<int>& region_of, const std::string& plugin) {
  const std::vector<int> free(static_cast<size_t>(graph.size()), -1), built = BuiltOrder(graph);
  RegionOrder convex(graph, regions, region_of, free);
  if (!convex.Run()) {
    return Internal("{}: it claimed a region around {} that is not convex: the region would have to run before itself",
                    plugin, graph.node(regions[convex.unfit()].front()).name);
  }
  for (;;) {
    RegionOrder order(graph, regions, region_of, built);
    if (order.Run()) return order.order();
    for (const int member : regions[order.unfit()]) region_of[member] = -1;
  }
}

}  // namespace switchyard
