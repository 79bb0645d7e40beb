#include "core/plan/planned_node.h"

#include "core/abi/ops.h"
#include "core/graph/op.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/transfer.h"

namespace switchyard {

bool ContiguousSlice(const Graph& graph, const Node& node, uint64_t alignment, uint64_t* offset) {
  if (!IsSlice(node)) return false;
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
  if (!IsConcat(node)) return false;
  const int axis = node.attributes.as<sy_axes_attributes>().values[0];
  for (int i = 0; i < axis; ++i) {
    if (node.outputs[0].shape[i] != 1) return false;
  }
  return true;
}

bool MakesValue(const Graph& graph, const std::vector<PlannedNode>& planned, int id) {
  return planned[id].kernel != nullptr || IsTransfer(graph.node(id));
}

bool WorksInPlace(const Node& node) {
  const auto exchange = ExchangeOf(node);
  return exchange == Exchange::kAllReduce || exchange == Exchange::kBroadcast;
}

Ref Origin(const Graph& graph, const std::vector<PlannedNode>& planned, Ref ref) {
  for (;;) {
    const Node& node = graph.node(ref.node);
    if (planned[ref.node].absorbed) {
      ref = node.inputs[1];
    } else if (TraitsOf(node.op).view) {
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
