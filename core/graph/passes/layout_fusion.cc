// Rows that are moved twice, as when a map is rolled and then cut into windows: one gather by a table of row numbers.
#include <limits>
#include <string>
#include <utility>

#include "core/base/random.h"
#include "core/graph/ops/layout.h"
#include "core/graph/passes/kernel_fusion.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

// Bytes of a row. What is moved in smaller pieces is left as it is: the table has four bytes for each.
constexpr int64_t kSmallestRow = 64;

}  // namespace

bool MovesRows(const Node& node) {
  if (node.op != "transpose" && node.op != "roll") return false;
  const size_t rank = node.outputs[0].shape.size(), last = rank - 1;
  return rank >= 2 && node.attributes.as<sy_axes_attributes>().values[last] ==
                          (node.op == "transpose" ? static_cast<int32_t>(last) : 0);
}

std::vector<int32_t> SourceRows(const Node& node, const Shape& input, size_t skipped) {
  const auto& values = node.attributes.as<sy_axes_attributes>().values;
  const size_t axes = input.size() - 1;
  std::vector<int64_t> stride(axes, 1);
  for (size_t axis = axes - 1; axis > skipped; --axis) stride[axis - 1] = stride[axis] * input[axis];
  std::vector<int32_t> rows = {0};
  for (size_t axis = skipped; axis < axes; ++axis) {
    const bool rolls = node.op == "roll";
    const size_t from = rolls ? axis : static_cast<size_t>(values[axis]);
    const int64_t extent = input[from], shift = rolls ? values[axis] % extent : 0;
    std::vector<int32_t> more;
    more.reserve(rows.size() * static_cast<size_t>(extent));
    for (const int32_t row : rows) {
      for (int64_t i = 0; i < extent; ++i)
        more.push_back(static_cast<int32_t>(row + (i - shift + extent) % extent * stride[from]));
    }
    rows = std::move(more);
  }
  return rows;
}

// The later of two moves, where nothing else reads the first.
KernelFusion::Replacement KernelFusion::RowsMovedTwice(Rewriting& r, int id) {
  const Node& node = source_.node(id);
  if (!MovesRows(node)) return std::nullopt;
  const Ref between = pattern_.Behind(node.inputs[0]);
  const Node& before = source_.node(between.node);
  if (!MovesRows(before) || !before.control.empty() || !node.control.empty() || pattern_.SeveralRead(between.node))
    return std::nullopt;
  const Ref start = before.inputs[0];
  const int64_t width = node.outputs[0].shape.back(), count = node.outputs[0].elements() / std::max<int64_t>(width, 1);
  const TensorType table = {node.outputs[0].dtype, {count, width}}, indices = {DType::kI32, {count}};
  if (source_.type(start).shape.back() != width || width * SizeOf(table.dtype) < kSmallestRow ||
      count > std::numeric_limits<int32_t>::max() || !r.HasAll({start}) ||
      !Preparable(can_prepare_, "gather", {table, indices}, Attributes(), {}))
    return std::nullopt;
  std::vector<int32_t> rows = SourceRows(node, source_.type(node.inputs[0]).shape);
  const std::vector<int32_t> earlier = SourceRows(before, source_.type(start).shape);
  std::string bytes(rows.size() * sizeof(int32_t), '\0');
  for (int32_t& row : rows) row = earlier[static_cast<size_t>(row)];
  std::memcpy(bytes.data(), rows.data(), bytes.size());
  // Plans that share their inputs share equal tables by this name.
  const std::string name = fmt::format("moved_rows_{}_{:016x}", count, HashName(bytes));
  Value& numbers = row_tables_[name];
  if (!numbers) numbers = r.result.Constant(name, indices, rows, node.where);
  const Value from = ops::Reshape(r.Map(start), table.shape, node.where);
  const Value moved = r.result.Add("gather", {from, numbers}, {}, {}, node.where, node.name)[0];
  return std::vector<Value>{ops::Reshape(moved, node.outputs[0].shape, node.where)};
}

}  // namespace switchyard
