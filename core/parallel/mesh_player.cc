#include "core/parallel/mesh_player.h"

#include "core/graph/ops/structure.h"

namespace switchyard {

void Player::Begin(const Graph& of) {
  graph = &of;
  at = 0;
  values.clear();
  written.clear();
  reads_left.assign(static_cast<size_t>(of.size()), 0);
  for (const Node& node : of.nodes()) {
    for (const Ref& input : node.inputs) ++reads_left[static_cast<size_t>(input.node)];
    // What the run writes is read when it has ended.
    if (IsKept(node)) ++reads_left[static_cast<size_t>(node.inputs.back().node)];
  }
}

void Player::Advance() {
  for (const Ref& input : node().inputs) {
    if (--reads_left[static_cast<size_t>(input.node)] > 0) continue;
    for (size_t o = 0; o < graph->node(input.node).outputs.size(); ++o) values.erase({input.node, static_cast<int>(o)});
  }
  ++at;
}

}  // namespace switchyard
