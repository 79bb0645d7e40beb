// reshape, transpose, slice, pad, roll, concat, gather, scatter_add.
#include "core/graph/ops/layout.h"

#include "core/graph/ops/families.h"
#include "core/graph/ops/pointwise.h"
#include "fmt/format.h"

namespace switchyard {
namespace ops {

Value Reshape(const Value& x, const Shape& shape, Where where) {
  Shape target = shape;
  int64_t known = 1;
  int64_t* open = nullptr;
  for (int64_t& extent : target) {
    if (extent == -1 && open == nullptr) {
      open = &extent;
    } else {
      known *= extent;
    }
  }
  if (open != nullptr) *open = known == 0 ? 0 : x.type().elements() / known;
  if (Elements(target) != x.type().elements())
    ThrowBuildError("reshape", fmt::format("{} has another number of elements", ToString(shape)), {x}, where);
  if (target == x.shape()) return x;
  return x.graph().Add("reshape", {x}, {{x.dtype(), target}}, {}, where)[0];
}

Value Transpose(const Value& x, const std::vector<int>& axes, Where where) {
  if (static_cast<int>(axes.size()) != x.rank())
    ThrowBuildError("transpose", "one axis per dimension is needed", {x}, where);
  sy_axes_attributes attributes{};
  Shape shape;
  uint32_t seen = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] < 0 || axes[i] >= x.rank() || (seen >> axes[i] & 1))
      ThrowBuildError("transpose", "axes are no permutation", {x}, where);
    seen |= 1u << axes[i];
    attributes.values[i] = axes[i];
    shape.push_back(x.dim(axes[i]));
  }
  return x.graph().Add("transpose", {x}, {{x.dtype(), shape}}, Attributes(attributes), where)[0];
}

Value Slice(const Value& x, int axis, int64_t start, int64_t length, int64_t step, Where where) {
  if (axis < 0) axis += x.rank();
  if (axis < 0 || axis >= x.rank() || start < 0 || step < 1 || length < 1 ||
      start + (length - 1) * step >= x.dim(axis)) {
    ThrowBuildError("slice",
                    fmt::format("axis {} from {} for {} with step {} leaves the tensor", axis, start, length, step),
                    {x}, where);
  }
  if (length == x.dim(axis)) return x;
  sy_slice_attributes attributes{};
  for (int i = 0; i < SY_MAX_RANK; ++i) attributes.step[i] = 1;
  attributes.start[axis] = start;
  attributes.step[axis] = step;
  Shape shape = x.shape();
  shape[axis] = length;
  return x.graph().Add("slice", {x}, {{x.dtype(), shape}}, Attributes(attributes), where)[0];
}

Value Pad(const Value& x, const Shape& before, const Shape& after, float value, Where where) {
  if (before.size() != x.shape().size() || after.size() != x.shape().size())
    ThrowBuildError("pad", "one extent per axis is needed", {x}, where);
  sy_pad_attributes attributes{};
  attributes.value = value;
  Shape shape = x.shape();
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    attributes.before[axis] = before[axis];
    attributes.after[axis] = after[axis];
    shape[axis] += before[axis] + after[axis];
  }
  return x.graph().Add("pad", {x}, {{x.dtype(), shape}}, Attributes(attributes), where)[0];
}

Value Roll(const Value& x, const std::vector<int>& shift, Where where) {
  if (static_cast<int>(shift.size()) != x.rank()) ThrowBuildError("roll", "one shift per axis is needed", {x}, where);
  sy_axes_attributes attributes{};
  for (size_t axis = 0; axis < shift.size(); ++axis) attributes.values[axis] = shift[axis];
  return x.graph().Add("roll", {x}, {x.type()}, Attributes(attributes), where)[0];
}

Value Concat(const std::vector<Value>& parts, int axis, Where where) {
  if (parts.size() == 1) return parts[0];
  TensorType type = parts.at(0).type();
  if (axis < 0) axis += static_cast<int>(type.shape.size());
  type.shape.at(axis) = 0;
  for (const Value& part : parts) {
    Shape rest = part.shape();
    if (rest.size() != type.shape.size() || part.dtype() != type.dtype)
      ThrowBuildError("concat", "parts differ in rank or dtype", parts, where);
    rest[axis] = type.shape[axis];
    if (rest != type.shape) ThrowBuildError("concat", fmt::format("parts differ outside axis {}", axis), parts, where);
    type.shape[axis] += part.dim(axis);
  }
  sy_axes_attributes attributes{};
  attributes.values[0] = axis;
  return parts[0].graph().Add("concat", parts, {type}, Attributes(attributes), where)[0];
}

Value Gather(const Value& table, const Value& indices, Where where) {
  if (indices.dtype() != DType::kI32 || table.rank() < 1)
    ThrowBuildError("gather", "indices must be i32", {table, indices}, where);
  Shape shape = indices.shape();
  shape.insert(shape.end(), table.shape().begin() + 1, table.shape().end());
  return table.graph().Add("gather", {table, indices}, {{table.dtype(), shape}}, {}, where)[0];
}

Value ScatterAdd(const Value& indices, const Value& updates, int64_t rows, Where where) {
  Shape shape = {rows};
  shape.insert(shape.end(), updates.shape().begin() + indices.rank(), updates.shape().end());
  return updates.graph().Add("scatter_add", {indices, updates}, {{updates.dtype(), shape}}, {}, where)[0];
}

}  // namespace ops

namespace {

std::vector<Value> TransposeGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
  const auto a = graph.node(id).attributes.as<sy_axes_attributes>();
  std::vector<int> inverse(dy[0].rank());
  for (int i = 0; i < dy[0].rank(); ++i) inverse[a.values[i]] = i;
  return {ops::Transpose(dy[0], inverse)};
}

// One axis is cut; a step above 1 spreads the gradient with zeros between by pad on an extra axis.
std::vector<Value> SliceGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
  const auto a = graph.node(id).attributes.as<sy_slice_attributes>();
  const Shape full = graph.type(graph.node(id).inputs[0]).shape;
  Value g = dy[0];
  for (int axis = 0; axis < static_cast<int>(full.size()); ++axis) {
    const int64_t step = a.step[axis], length = g.dim(axis);
    if (step > 1) {
      Shape split = g.shape(), zero(split.size() + 1, 0), after(split.size() + 1, 0), merged = g.shape();
      split.insert(split.begin() + axis + 1, 1);
      after[axis + 1] = step - 1;
      merged[axis] = length * step;
      g = ops::Reshape(ops::Pad(ops::Reshape(g, split), zero, after), merged);
      g = ops::Slice(g, axis, 0, (length - 1) * step + 1);
    }
    if (g.dim(axis) != full[axis]) {
      Shape before(full.size(), 0), after(full.size(), 0);
      before[axis] = a.start[axis];
      after[axis] = full[axis] - g.dim(axis) - a.start[axis];
      g = ops::Pad(g, before, after);
    }
  }
  return {g};
}

std::vector<Value> PadGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
  const auto a = graph.node(id).attributes.as<sy_pad_attributes>();
  const Shape shape = graph.type(graph.node(id).inputs[0]).shape;
  Value g = dy[0];
  for (size_t axis = 0; axis < shape.size(); ++axis)
    g = ops::Slice(g, static_cast<int>(axis), a.before[axis], shape[axis]);
  return {g};
}

std::vector<Value> RollGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
  const auto a = graph.node(id).attributes.as<sy_axes_attributes>();
  std::vector<int> back(dy[0].rank());
  for (size_t axis = 0; axis < back.size(); ++axis) back[axis] = -a.values[axis];
  return {ops::Roll(dy[0], back)};
}

// Two slices and a concat per axis.
std::vector<Value> RollDecompose(Graph&, const Node& node, const std::vector<Value>& inputs) {
  const auto a = node.attributes.as<sy_axes_attributes>();
  Value y = inputs[0];
  for (int axis = 0; axis < y.rank(); ++axis) {
    const int64_t n = y.dim(axis), shift = ((a.values[axis] % n) + n) % n;
    if (shift != 0) y = ops::Concat({ops::Slice(y, axis, n - shift, shift), ops::Slice(y, axis, 0, n - shift)}, axis);
  }
  return {y};
}

std::vector<Value> ConcatGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>& wanted) {
  const std::vector<Ref> inputs = graph.node(id).inputs;
  const int axis = graph.node(id).attributes.as<sy_axes_attributes>().values[0];
  std::vector<Value> gradients(inputs.size());
  int64_t start = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int64_t length = graph.type(inputs[i]).shape[axis];
    if (wanted[i]) gradients[i] = ops::Slice(dy[0], axis, start, length);
    start += length;
  }
  return gradients;
}

std::vector<Value> GatherGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>& wanted) {
  const std::vector<Ref> inputs = graph.node(id).inputs;
  if (!wanted[0]) return {{}, {}};
  return {ops::ScatterAdd(graph.value(inputs[1]), dy[0], graph.type(inputs[0]).shape[0]), {}};
}

std::vector<Value> ScatterAddGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
  return {{}, ops::Gather(dy[0], graph.value(graph.node(id).inputs[0]))};
}

std::vector<Value> ReshapeGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
  return {ops::Reshape(dy[0], graph.type(graph.node(id).inputs[0]).shape)};
}

double NoFlops(const Graph&, const Node&) { return 0; }

}  // namespace

std::vector<OpDefinition> LayoutOps() {
  return {{"reshape", "another shape of the same elements; never a kernel", ReshapeGradient, nullptr, NoFlops},
          {"transpose", "permutes axes", TransposeGradient, nullptr, NoFlops},
          {"slice", "a part of each axis, with steps", SliceGradient, nullptr, NoFlops},
          {"pad", "surrounds with a constant", PadGradient, nullptr, NoFlops},
          {"roll", "cyclic shift, as window shifts need", RollGradient, RollDecompose, NoFlops},
          {"concat", "joins along one axis", ConcatGradient, nullptr, NoFlops},
          {"gather", "rows of a table by index", GatherGradient, nullptr, NoFlops},
          {"scatter_add", "adds rows into a table by index", ScatterAddGradient, nullptr, nullptr}};
}

}  // namespace switchyard
