// Which values of a graph lie in one storage: views, parts of a bucket, collectives that work in place, new values of
// states that are written over the old ones; and until when each storage is needed. Pure function of the graph, the
// order and what the kernels declare; internal to core/plan.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/graph/value_table.h"
#include "core/plan/planned_node.h"

namespace switchyard {

struct Sharing {
  static constexpr int kEnd = 1 << 30;  // a position behind all nodes

  // By node.
  std::vector<int> position;                         // in the launch order
  std::vector<bool> in_place_concat;                 // a concat in whose storage at least one part is written
  std::vector<std::optional<uint64_t>> view_offset;  // of what needs no launch: where it begins in its source
  std::vector<bool> written_in_place;                // an assignment whose value is written over the state
  std::vector<bool> copied_at_once;                  // another one: copied where it stands, not at the end
  // By value.
  ValueTable<std::optional<std::pair<int, uint64_t>>> part_of;  // a concat, and the offset in it
  ValueTable<Ref> group;                                        // the value that stands for its storage
  ValueTable<int> last_use;                                     // of one that does: a position
  ValueTable<std::optional<Ref>> over_state;                    // of a new value: the state over which it is written
};

// `order`: ids of all nodes, collectives where they will run. `planned`: by node. Offsets that are no multiples of
// `alignment` are nobody's.
Sharing FindSharing(const Graph& graph, const std::vector<int>& order, const std::vector<PlannedNode>& planned,
                    uint64_t alignment);

}  // namespace switchyard
