#include "core/parallel/hierarchical_all_reduce.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/parallel/mesh.h"

namespace switchyard {
namespace {

// Where a rank stands on its node, and how many ranks the nodes have.
struct Stand {
  int local = 0, ranks = 0;
  int across = 0, nodes = 0;  // the same among the ranks at this place of their nodes
  bool equal = true;          // all nodes have as many ranks
};

Stand StandOf(const std::vector<int>& nodes, int rank) {
  const auto on = [&](int node) { return static_cast<int>(std::count(nodes.begin(), nodes.end(), node)); };
  const int own = nodes[static_cast<size_t>(rank)];
  Stand stand;
  stand.local = static_cast<int>(std::count(nodes.begin(), nodes.begin() + rank, own));
  stand.ranks = on(own);
  std::map<int, int> before;  // ranks of each node, of those before this one
  for (int other = 0; other < rank; ++other)
    stand.across += before[nodes[static_cast<size_t>(other)]]++ == stand.local ? 1 : 0;
  stand.nodes = static_cast<int>(std::set<int>(nodes.begin(), nodes.end()).size());
  stand.equal = std::all_of(nodes.begin(), nodes.end(), [&](int node) { return on(node) == stand.ranks; });
  return stand;
}

Value ThroughFirstRanks(const Value& x, const Stand& stand, const std::string& name) {
  Value sum = stand.ranks > 1 ? ops::AllReduce(x, SY_SUM, 1, kNodeGroup, name + "/within") : x;
  if (stand.local == 0) sum = ops::AllReduce(sum, SY_SUM, 1, kAcrossGroup, name + "/across");
  return stand.ranks > 1 ? ops::Broadcast(sum, 0, kNodeGroup, name + "/spread") : sum;
}

}  // namespace

bool HasHierarchy(const std::vector<int>& nodes) {
  const size_t different = std::set<int>(nodes.begin(), nodes.end()).size();
  return different > 1 && different < nodes.size();
}

Value HierarchicalAllReduce(const Value& x, const std::vector<int>& nodes, int rank, const std::string& name) {
  const Stand stand = StandOf(nodes, rank);
  if (!stand.equal) return ThroughFirstRanks(x, stand, name);
  const int64_t n = x.dim(0), share = n / stand.ranks, rest = n % stand.ranks, divided = n - rest;
  const bool last = stand.local == stand.ranks - 1;
  std::vector<Value> own;  // what this rank sums across nodes: its part, and the rest on the last rank
  Value left;
  if (share > 0)
    own.push_back(ops::ReduceScatter(rest > 0 ? ops::Slice(x, 0, 0, divided) : x, SY_SUM, stand.ranks, kNodeGroup,
                                     name + "/within"));
  if (rest > 0) left = ops::AllReduce(ops::Slice(x, 0, divided, rest), SY_SUM, 1, kNodeGroup, name + "/within_rest");
  if (rest > 0 && last) own.push_back(left);
  Value part;
  if (!own.empty()) {
    const Value sum =
        ops::AllReduce(own.size() > 1 ? ops::Concat(own, 0) : own[0], SY_SUM, 1, kAcrossGroup, name + "/across");
    if (share > 0) part = own.size() > 1 ? ops::Slice(sum, 0, 0, share) : sum;
    if (rest > 0 && last) left = share > 0 ? ops::Slice(sum, 0, share, rest) : sum;
  }
  std::vector<Value> whole;
  if (share > 0) whole.push_back(ops::AllGather(part, stand.ranks, kNodeGroup, name + "/gathered"));
  if (rest > 0) whole.push_back(ops::Broadcast(left, stand.ranks - 1, kNodeGroup, name + "/spread_rest"));
  return whole.size() > 1 ? ops::Concat(whole, 0) : whole[0];
}

Value HierarchicalReduceScatter(const Value& x, const std::vector<int>& nodes, int rank, const std::string& name) {
  const Stand stand = StandOf(nodes, rank);
  if (stand.equal) {
    const Value within = ops::ReduceScatter(x, SY_SUM, stand.ranks, kNodeGroup, name + "/within");
    return ops::ReduceScatter(within, SY_SUM, stand.nodes, kAcrossGroup, name + "/across");
  }
  const int64_t n = x.dim(0) / static_cast<int64_t>(nodes.size());
  return ops::Slice(ThroughFirstRanks(x, stand, name), 0, rank * n, n);
}

int PartOfRank(const std::vector<int>& nodes, int rank) {
  if (!HasHierarchy(nodes)) return rank;
  const Stand stand = StandOf(nodes, rank);
  return stand.equal ? stand.local * stand.nodes + stand.across : rank;
}

std::vector<GatherStep> GathersOfParts(const std::vector<int>& nodes, int rank, int ranks) {
  if (!HasHierarchy(nodes)) return {{ranks, kDataGroup}};
  const Stand stand = StandOf(nodes, rank);
  if (!stand.equal) return {{ranks, kDataGroup}};
  return {{stand.nodes, kAcrossGroup}, {stand.ranks, kNodeGroup}};
}

}  // namespace switchyard
