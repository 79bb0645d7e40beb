// Which values of a graph lie in one storage: views, parts of a bucket, collectives that work in place, new values of
// states that are written over the old ones; and until when each storage is needed. Pure function of the graph, the
// order and what the kernels declare; internal to core/plan.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/plan/planned_node.h"

namespace switchyard {

struct Sharing {
  static constexpr int kEnd = 1 << 30;  // a position behind all nodes

  std::vector<int> position;                        // by node: in the launch order
  std::map<Ref, std::pair<int, uint64_t>> part_of;  // value → (concat, offset in it)
  std::set<int> in_place_concat;                    // concats in whose storage at least one part is written
  std::map<int, uint64_t> view_offset;              // node that needs no launch → where it begins in its source
  std::map<Ref, Ref> group;                         // value → the one that stands for its storage
  std::map<Ref, int> last_use;                      // by that one: a position
  std::map<Ref, Ref> over_state;                    // new value → the state over which it is written
  std::set<int> written_in_place;                   // the assignments of those
  std::set<int> copied_at_once;                     // other assignments: copied where they stand, not at the end
};

// `order`: ids of all nodes, collectives where they will run. `planned`: by node. Offsets that are no multiples of
// `alignment` are nobody's.
Sharing FindSharing(const Graph& graph, const std::vector<int>& order, const std::vector<PlannedNode>& planned,
                    uint64_t alignment);

}  // namespace switchyard
