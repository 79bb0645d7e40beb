#include "core/plan/planned_node.h"

#include "core/abi/ops.h"

namespace switchyard {

bool ContiguousSlice(const Graph& graph, const Node& node, uint64_t alignment, uint64_t* offset) {
  const auto& a = node.attributes.as<sy_slice_attributes>();
  const TensorType& in = graph.type(node.inputs[0]);
  const Shape& out = node.outputs[0].shape;
  int64_t start = 0, stride = in.elements();
  bool cut = false;
  for (size_t axis = 0; axis < out.size(); ++axis) {
    if (a.step[axis] != 1) return false;
    stride /= in.shape[axis];
    start += a.start[axis] * stride;
    if (out[axis] == in.shape[axis]) {
      if (!cut && in.shape[axis] != 1) cut = true;  // from here on everything must be whole
      continue;
    }
    if (cut) return false;
    cut = true;
  }
  *offset = static_cast<uint64_t>(start * SizeOf(in.dtype));
  return *offset % alignment == 0;
}

bool ContiguousConcat(const Node& node) {
  const int axis = node.attributes.as<sy_axes_attributes>().values[0];
  for (int i = 0; i < axis; ++i) {
    if (node.outputs[0].shape[i] != 1) return false;
  }
  return true;
}

bool WorksInPlace(const Node& collective) { return collective.op == "all_reduce" || collective.op == "broadcast"; }

Ref Origin(const Graph& graph, const std::vector<PlannedNode>& planned, Ref ref) {
  for (;;) {
    const Node& node = graph.node(ref.node);
    if (planned[ref.node].absorbed) {
      ref = node.inputs[1];
    } else if (node.op == "reshape") {
      ref = node.inputs[0];
    } else {
      return ref;
    }
  }
}

Ref SourceOf(const Graph& graph, const std::vector<PlannedNode>& planned, int id) {
  return graph.node(id).inputs[planned[id].absorbed ? 1 : 0];
}

}  // namespace switchyard
