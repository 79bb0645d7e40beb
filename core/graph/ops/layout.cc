// reshape, transpose, slice, pad, roll, concat, gather, scatter_add, flip.
#include "core/graph/ops/layout.h"

#include "core/graph/factor_lines.h"
#include "core/graph/ops/families.h"
#include "core/graph/ops/pointwise.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

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
  if (target == x.shape()) return x;
  return x.graph().Add("reshape", {x}, {}, {.shape = target}, where)[0];
}

Value Transpose(const Value& x, const std::vector<int>& axes, Where where) {
  if (static_cast<int>(axes.size()) != x.rank())
    ThrowBuildError("transpose", "one axis per dimension is needed", {x}, where);
  sy_axes_attributes attributes{};
  for (size_t i = 0; i < axes.size(); ++i) attributes.values[i] = axes[i];
  return x.graph().Add("transpose", {x}, Attributes(attributes), {}, where)[0];
}

Value Slice(const Value& x, int axis, int64_t start, int64_t length, int64_t step, Where where) {
  if (axis < 0) axis += x.rank();
  if (axis < 0 || axis >= x.rank()) ThrowBuildError("slice", fmt::format("there is no axis {}", axis), {x}, where);
  if (length == x.dim(axis) && start == 0 && step == 1) return x;
  sy_slice_attributes attributes{};
  for (int64_t& s : attributes.step) s = 1;
  attributes.start[axis] = start;
  attributes.step[axis] = step;
  Shape shape = x.shape();
  shape[axis] = length;
  return x.graph().Add("slice", {x}, Attributes(attributes), {.shape = shape}, where)[0];
}

Value Pad(const Value& x, const Shape& before, const Shape& after, float value, Where where) {
  if (before.size() != x.shape().size() || after.size() != x.shape().size())
    ThrowBuildError("pad", "one extent per axis is needed", {x}, where);
  sy_pad_attributes attributes{};
  attributes.value = value;
  std::copy(before.begin(), before.end(), attributes.before);
  std::copy(after.begin(), after.end(), attributes.after);
  return x.graph().Add("pad", {x}, Attributes(attributes), {}, where)[0];
}

Value Roll(const Value& x, const std::vector<int>& shift, Where where) {
  if (static_cast<int>(shift.size()) != x.rank()) ThrowBuildError("roll", "one shift per axis is needed", {x}, where);
  sy_axes_attributes attributes{};
  for (size_t axis = 0; axis < shift.size(); ++axis) attributes.values[axis] = shift[axis];
  return x.graph().Add("roll", {x}, Attributes(attributes), {}, where)[0];
}

Value Concat(const std::vector<Value>& parts, int axis, Where where) {
  if (parts.size() == 1) return parts[0];
  sy_axes_attributes attributes{};
  attributes.values[0] = axis < 0 ? axis + parts.at(0).rank() : axis;
  return parts.at(0).graph().Add("concat", parts, Attributes(attributes), {}, where)[0];
}

Value Gather(const Value& table, const Value& indices, Where where) {
  return table.graph().Add("gather", {table, indices}, {}, {}, where)[0];
}

Value ScatterAdd(const Value& indices, const Value& updates, int64_t rows, Where where) {
  if (updates.rank() < indices.rank())
    ThrowBuildError("scatter_add", "updates (…I, …R) need the axes of indices (…I)", {indices, updates}, where);
  Shape shape = {rows};
  shape.insert(shape.end(), updates.shape().begin() + indices.rank(), updates.shape().end());
  return updates.graph().Add("scatter_add", {indices, updates}, {}, {.shape = shape}, where)[0];
}

Value Flip(const Value& x, const Value& flips, int axis, Where where) {
  sy_axes_attributes attributes{};
  attributes.values[0] = axis;
  return x.graph().Add("flip", {x, flips}, Attributes(attributes), {}, where)[0];
}

}  // namespace ops

namespace {

std::vector<TensorType> ReshapeTypes(const Signature& call) {
  call.RequireInputs(1);
  const Shape& shape = call.WantedShape();
  call.Require(Elements(shape) == call[0].elements(),
               [&] { return fmt::format("{} has another number of elements", ToString(shape)); });
  return {{call[0].dtype, shape}};
}

std::vector<TensorType> TransposeTypes(const Signature& call) {
  call.RequireInputs(1);
  const auto& a = call.attributes.as<sy_axes_attributes>();
  Shape shape;
  uint32_t seen = 0;
  for (int i = 0; i < call.rank(0); ++i) {
    const int axis = a.values[i];
    call.Require(axis >= 0 && axis < call.rank(0) && (seen >> axis & 1) == 0, "axes are no permutation");
    seen |= 1u << axis;
    shape.push_back(call.dim(0, axis));
  }
  return {{call[0].dtype, shape}};
}

// How many elements are taken along each axis is asked for.
std::vector<TensorType> SliceTypes(const Signature& call) {
  call.RequireInputs(1);
  const auto& a = call.attributes.as<sy_slice_attributes>();
  const Shape& shape = call.WantedShape();
  call.Require(shape.size() == call.shape(0).size(), "one length per axis is needed");
  for (int axis = 0; axis < call.rank(0); ++axis) {
    const int64_t start = a.start[axis], step = a.step[axis], length = shape[axis];
    int64_t reach = 0, last = 0;
    const bool wraps = __builtin_mul_overflow(length - 1, step, &reach) || __builtin_add_overflow(start, reach, &last);
    call.Require(start >= 0 && step >= 1 && length >= 1 && !wraps && last < call.dim(0, axis), [&] {
      return fmt::format("axis {} from {} for {} with step {} leaves the tensor", axis, start, length, step);
    });
  }
  return {{call[0].dtype, shape}};
}

std::vector<TensorType> PadTypes(const Signature& call) {
  call.RequireInputs(1);
  const auto& a = call.attributes.as<sy_pad_attributes>();
  Shape shape = call.shape(0);
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    call.Require(a.before[axis] >= 0 && a.after[axis] >= 0, "extents must be 0 or more");
    shape[axis] += a.before[axis] + a.after[axis];
  }
  return {{call[0].dtype, shape}};
}

std::vector<TensorType> ConcatTypes(const Signature& call) {
  call.Require(!call.inputs.empty(), "there is nothing to join");
  const int axis = call.attributes.as<sy_axes_attributes>().values[0];
  TensorType joined = call[0];
  call.Require(axis >= 0 && axis < call.rank(0), [&] { return fmt::format("there is no axis {}", axis); });
  joined.shape[axis] = 0;
  for (const TensorType& part : call.inputs) {
    call.Require(part.shape.size() == joined.shape.size() && part.dtype == joined.dtype,
                 "parts differ in rank or dtype");
    Shape rest = part.shape;
    rest[axis] = joined.shape[axis];
    call.Require(rest == joined.shape, [&] { return fmt::format("parts differ outside axis {}", axis); });
    joined.shape[axis] += part.shape[axis];
  }
  return {joined};
}

std::vector<TensorType> GatherTypes(const Signature& call) {
  call.RequireInputs(2);
  call.Require(call[1].dtype == DType::kI32 && call.rank(0) >= 1, "expected a table (V, …R) and indices i32");
  Shape shape = call.shape(1);
  shape.insert(shape.end(), call.shape(0).begin() + 1, call.shape(0).end());
  return {{call[0].dtype, shape}};
}

// How many rows the table has is asked for.
std::vector<TensorType> ScatterAddTypes(const Signature& call) {
  call.RequireInputs(2);
  const Shape &indices = call.shape(0), &updates = call.shape(1), &table = call.WantedShape();
  call.Require(call[0].dtype == DType::kI32, "indices must be i32");
  call.Require(updates.size() >= indices.size() && std::equal(indices.begin(), indices.end(), updates.begin()),
               "updates (…I, …R) need the axes of indices (…I)");
  call.Require(
      !table.empty() && std::equal(table.begin() + 1, table.end(), updates.begin() + indices.size(), updates.end()),
      [&] { return fmt::format("{} is no table of such rows", ToString(table)); });
  return {{call[1].dtype, table}};
}

std::vector<TensorType> FlipTypes(const Signature& call) {
  call.RequireInputs(2);
  const int axis = call.attributes.as<sy_axes_attributes>().values[0];
  call.Require(axis >= 1 && axis < call.rank(0),
               [&] { return fmt::format("there is no axis {} behind that of the samples", axis); });
  call.Require(call[1].dtype == DType::kU8 && call.shape(1) == Shape{call.dim(0, 0)},
               "expected x (B, …) and flips u8 (B)");
  return {call[0]};
}

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

std::vector<Value> FlipGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>& wanted) {
  const Node& node = graph.node(id);
  if (!wanted[0]) return {{}, {}};
  return {ops::Flip(dy[0], graph.value(node.inputs[1]), node.attributes.as<sy_axes_attributes>().values[0]), {}};
}

std::vector<Value> ReshapeGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
  return {ops::Reshape(dy[0], graph.type(graph.node(id).inputs[0]).shape)};
}

const Shape& InputShape(const Graph& graph, const Node& node, size_t i) { return graph.type(node.inputs[i]).shape; }

std::string ReshapeFactors(const Graph& graph, const Node& node) {
  return ReshapeLine(InputShape(graph, node, 0), node.outputs[0].shape);
}

std::string TransposeFactors(const Graph& graph, const Node& node) {
  const auto& a = node.attributes.as<sy_axes_attributes>();
  std::vector<std::string> to;
  for (size_t i = 0; i < node.outputs[0].shape.size(); ++i) to.push_back(fmt::format("x{}", a.values[i]));
  return fmt::format("{} -> {}", AxisNames("x", InputShape(graph, node, 0).size()), fmt::join(to, " "));
}

// An op that leaves some axes as they are.
template <typename F>
std::string AxesThatStay(size_t rank, F stays) {
  std::vector<std::string> names;
  for (size_t axis = 0; axis < rank; ++axis) names.push_back(stays(axis) ? fmt::format("x{}", axis) : "_");
  return fmt::format("{}", fmt::join(names, " "));
}

std::string SliceFactors(const Graph& graph, const Node& node) {
  const auto& a = node.attributes.as<sy_slice_attributes>();
  const Shape &from = InputShape(graph, node, 0), &to = node.outputs[0].shape;
  const std::string names = AxesThatStay(
      from.size(), [&](size_t axis) { return a.start[axis] == 0 && a.step[axis] == 1 && from[axis] == to[axis]; });
  return names + " -> " + names;
}

std::string PadFactors(const Graph& graph, const Node& node) {
  const auto& a = node.attributes.as<sy_pad_attributes>();
  const std::string names = AxesThatStay(InputShape(graph, node, 0).size(),
                                         [&](size_t axis) { return a.before[axis] == 0 && a.after[axis] == 0; });
  return names + " -> " + names;
}

std::string RollFactors(const Graph& graph, const Node& node) {
  const auto& a = node.attributes.as<sy_axes_attributes>();
  const std::string names =
      AxesThatStay(InputShape(graph, node, 0).size(), [&](size_t axis) { return a.values[axis] == 0; });
  return names + " -> " + names;
}

std::string ConcatFactors(const Graph&, const Node& node) {
  const auto joined = static_cast<size_t>(node.attributes.as<sy_axes_attributes>().values[0]);
  const std::string names = AxesThatStay(node.outputs[0].shape.size(), [&](size_t axis) { return axis != joined; });
  return fmt::format("{} -> {}", fmt::join(std::vector<std::string>(node.inputs.size(), names), ", "), names);
}

// A row may be split, and so may the indices; a part of the table would not know which rows it has.
std::string GatherFactors(const Graph& graph, const Node& node) {
  const std::string i = AxisNames("i", InputShape(graph, node, 1).size()),
                    r = AxisNames("r", InputShape(graph, node, 0).size() - 1);
  return fmt::format("_ {1}, {0} -> {0} {1}", i, r);
}
std::string ScatterAddFactors(const Graph& graph, const Node& node) {
  const std::string i = AxisNames("i", InputShape(graph, node, 0).size()),
                    r = AxisNames("r", node.outputs[0].shape.size() - 1);
  return fmt::format("{0}, {0} {1} -> _ {1}", i, r);
}

std::string FlipFactors(const Graph& graph, const Node& node) {
  const auto flipped = static_cast<size_t>(node.attributes.as<sy_axes_attributes>().values[0]);
  const std::string names =
      AxesThatStay(InputShape(graph, node, 0).size(), [&](size_t axis) { return axis != flipped; });
  return fmt::format("{0}, x0 -> {0}", names);
}

double NoFlops(const Graph&, const Node&) { return 0; }

// What is read of the first input is as much as is written; what says which part is read whole.
double BytesOfPart(const Graph& graph, const Node& node) {
  auto bytes = 2 * static_cast<double>(node.outputs[0].bytes());
  for (size_t i = 1; i < node.inputs.size(); ++i) bytes += static_cast<double>(graph.type(node.inputs[i]).bytes());
  return bytes;
}

}  // namespace

std::vector<OpDefinition> LayoutOps() {
  return {{.name = "reshape",
           .summary = "another shape of the same elements; never a kernel",
           .infer = ReshapeTypes,
           .gradient = ReshapeGradient,
           .flops = NoFlops,
           .traits = {.structural = true, .view = true, .moves = 0},
           .factors = {"x (y z) -> (x y) z", ReshapeFactors}},
          {.name = "transpose",
           .summary = "permutes axes",
           .infer = TransposeTypes,
           .gradient = TransposeGradient,
           .flops = NoFlops,
           .traits = {.moves = 0, .precision = Precision::kSelects},
           .factors = {"x y -> y x", TransposeFactors}},
          {.name = "slice",
           .summary = "a part of each axis, with steps",
           .infer = SliceTypes,
           .gradient = SliceGradient,
           .flops = NoFlops,
           .bytes = BytesOfPart,
           .traits = {.precision = Precision::kSelects},
           .factors = {"x _ -> x _", SliceFactors}},
          {.name = "pad",
           .summary = "surrounds with a constant",
           .infer = PadTypes,
           .gradient = PadGradient,
           .flops = NoFlops,
           .traits = {.precision = Precision::kSelects},
           .factors = {"x _ -> x _", PadFactors}},
          {.name = "roll",
           .summary = "cyclic shift, as window shifts need",
           .infer = SameType,
           .gradient = RollGradient,
           .decompose = RollDecompose,
           .flops = NoFlops,
           .traits = {.precision = Precision::kSelects},
           .factors = {"x _ -> x _", RollFactors}},
          {.name = "concat",
           .summary = "joins along one axis",
           .infer = ConcatTypes,
           .gradient = ConcatGradient,
           .flops = NoFlops,
           .traits = {.one_dtype = true, .precision = Precision::kSelects},
           .factors = {"x _, x _ -> x _", ConcatFactors}},
          {.name = "gather",
           .summary = "rows of a table by index",
           .infer = GatherTypes,
           .gradient = GatherGradient,
           .flops = NoFlops,
           .bytes = BytesOfPart,
           .factors = {"_ r, i -> i r", GatherFactors}},
          {.name = "scatter_add",
           .summary = "adds rows into a table by index",
           .infer = ScatterAddTypes,
           .gradient = ScatterAddGradient,
           .traits = {.moves = 1},
           .factors = {"i, i r -> _ r", ScatterAddFactors}},
          {.name = "flip",
           .summary = "reverses an axis of some samples",
           .infer = FlipTypes,
           .gradient = FlipGradient,
           .flops = NoFlops,
           .factors = {"b _, b -> b _", FlipFactors}}};
}

}  // namespace switchyard
