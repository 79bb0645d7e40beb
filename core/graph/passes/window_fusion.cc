// Attention within windows of maps: rows that are moved into windows before it and back behind it stay where they are,
// and the kernel takes their numbers (window_attention). What lies between the moves and the attention works on each
// row by itself (products with weights, casts), or sums over all of them (gradients of weights and biases), and does
// not notice.
//
// A value is in an order where its rows are those of a map in the order of windows. Orders begin at moves and are
// handed on by nodes that do not mind them. Where a node minds, the moves that its orders began at are left as they
// are, until no node minds any more. Nodes that are joined by values in an order form a group; those with attention are
// folded.
#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "core/graph/ops/layout.h"
#include "core/graph/passes/kernel_fusion.h"
#include "fmt/format.h"

namespace switchyard {
namespace {

// Of a tensor that is taken as equal maps, one behind the other: row i of a map is row rows[i] of the map where it
// lies.
using RowNumbers = std::vector<int32_t>;
struct Order {
  int64_t maps = 0;
  RowNumbers rows;
  int64_t all() const { return maps * static_cast<int64_t>(rows.size()); }
  bool operator==(const Order&) const = default;
};
using OrderPointer = std::shared_ptr<const Order>;

class Windows {
 public:
  Windows(const Graph& graph, const CanPrepare& can_prepare);
  bool FoldAny() const { return std::find(folded_.begin(), folded_.end(), true) != folded_.end(); }
  bool Folds(int id) const { return folded_[id]; }
  // The order of the node's result 0; null where it has none.
  const Order* OrderOf(int id) const { return orders_[id].get(); }

 private:
  // Gives every node its order, with the moves in `kept_` left as they are. False where a node minds: `kept_` has
  // grown.
  bool Assign();
  // Whether the node does not mind the order of what it reads; says in what order its result 0 is then.
  bool Takes(const Node& node, OrderPointer* result) const;
  bool TakesMatmul(const Node& node, OrderPointer* result) const;
  bool TakesPointwise(const Node& node, OrderPointer* result) const;
  bool TakesAttention(const Node& node, OrderPointer* result) const;
  bool Moves(const Node& node, OrderPointer* result) const;
  OrderPointer At(Ref ref) const { return ref.output == 0 ? orders_[ref.node] : nullptr; }
  int First(int id) const { return graph_.node(id).repeats >= 0 ? First(graph_.node(id).repeats) : id; }
  int Group(int id) {
    while (group_[id] != id) id = group_[id] = group_[group_[id]];
    return id;
  }

  const Graph& graph_;
  const CanPrepare& can_prepare_;
  std::vector<OrderPointer> orders_;
  std::vector<int> starts_, group_;  // starts_: the move at which the node's order began
  std::set<int> kept_;               // moves, by their first computation
  std::vector<bool> folded_;
};

bool IsAttention(const Node& node) { return node.op == "attention" || node.op == "attention_backward"; }
// Where the rows of windows go among the inputs.
size_t PlaceOfRows(const Node& node) { return node.op == "attention" ? 1 : 4; }

bool HasWindowAttention(const Graph& graph, const Node& node, int64_t windows, const CanPrepare& can_prepare) {
  std::vector<TensorType> inputs;
  for (const Ref& input : node.inputs) inputs.push_back(graph.type(input));
  const TensorType rows = {DType::kI32, {windows, inputs[0].shape[1]}};
  inputs.insert(inputs.begin() + static_cast<ptrdiff_t>(PlaceOfRows(node)), rows);
  return !node.host && Preparable(can_prepare, "window_" + node.op, inputs, node.attributes, {});
}

Windows::Windows(const Graph& graph, const CanPrepare& can_prepare)
    : graph_(graph),
      can_prepare_(can_prepare),
      orders_(graph.size()),
      starts_(graph.size()),
      group_(graph.size()),
      folded_(graph.size(), false) {
  const auto any = [&](const Node& node) {
    return IsAttention(node) && HasWindowAttention(graph, node, 1, can_prepare);
  };
  if (std::none_of(graph.nodes().begin(), graph.nodes().end(), any)) return;
  while (!Assign()) {
  }
  std::iota(group_.begin(), group_.end(), 0);
  std::vector<bool> in_group(graph.size(), false), attends(graph.size(), false);
  for (int id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    in_group[id] = orders_[id] != nullptr;
    for (const Ref& input : node.inputs) {
      if (!At(input)) continue;
      in_group[id] = true;
      group_[Group(id)] = Group(input.node);
    }
  }
  for (int id = 0; id < graph.size(); ++id) {
    if (in_group[id] && IsAttention(graph.node(id))) attends[Group(id)] = true;
  }
  for (int id = 0; id < graph.size(); ++id) folded_[id] = in_group[id] && attends[Group(id)];
}

bool Windows::Assign() {
  bool all_take = true;
  for (int id = 0; id < graph_.size(); ++id) {
    const Node& node = graph_.node(id);
    orders_[id] = nullptr;
    starts_[id] = id;
    std::vector<int> began;
    for (const Ref& input : node.inputs) {
      if (At(input)) began.push_back(starts_[input.node]);
    }
    if (began.empty()) {
      if (MovesRows(node) && !kept_.contains(First(id))) Moves(node, &orders_[id]);
      continue;
    }
    starts_[id] = began[0];
    if (Takes(node, &orders_[id])) continue;
    orders_[id] = nullptr;
    all_take = false;
    for (const int move : began) kept_.insert(First(move));
  }
  return all_take;
}

// A node that moves whole rows within maps, which the first axis counts: the order of its result.
bool Windows::Moves(const Node& node, OrderPointer* result) const {
  if (!MovesRows(node) || node.host || !node.control.empty()) return false;
  const Shape& shape = graph_.type(node.inputs[0]).shape;
  if (shape.size() < 3 || node.attributes.as<sy_axes_attributes>().values[0] != 0 ||
      Elements(shape) / (shape[0] * shape.back()) > std::numeric_limits<int32_t>::max())
    return false;
  auto order = std::make_shared<Order>(Order{shape[0], SourceRows(node, shape, 1)});
  if (const OrderPointer before = At(node.inputs[0])) {
    if (before->maps != order->maps || before->rows.size() != order->rows.size()) return false;
    for (int32_t& row : order->rows) row = before->rows[static_cast<size_t>(row)];
  }
  RowNumbers in_order(order->rows.size());
  std::iota(in_order.begin(), in_order.end(), 0);
  if (order->rows != in_order) *result = std::move(order);  // else all lies where it lay
  return true;
}

bool Windows::Takes(const Node& node, OrderPointer* result) const {
  if (node.host || !node.control.empty()) return false;
  if (TraitsOf(node.op).view) return *result = At(node.inputs[0]), true;
  if (MovesRows(node)) return Moves(node, result);
  if (node.op == "matmul") return TakesMatmul(node, result);
  if (node.op == "pointwise") return TakesPointwise(node, result);
  if (IsAttention(node)) return TakesAttention(node, result);
  if (node.op != "reduce") return false;
  // Over whole rows' places, each column by itself: a sum in another order.
  const Shape& shape = graph_.type(node.inputs[0]).shape;
  return node.attributes.as<sy_reduce_attributes>().axes == (1u << (shape.size() - 1)) - 1 &&
         Elements(shape) / shape.back() == At(node.inputs[0])->all();
}

// Of two matrices, with an addend to each row of the result.
bool Windows::TakesMatmul(const Node& node, OrderPointer* result) const {
  const auto& a = node.attributes.as<sy_matmul_attributes>();
  const Shape& shape = graph_.type(node.inputs[0]).shape;
  const OrderPointer left = At(node.inputs[0]), right = At(node.inputs[1]);
  if (shape.size() != 2 || a.residual || a.activation_gradient || a.bias_gradient || a.save_preactivation) return false;
  if (!left || shape[0] != left->all() || (a.bias && At(node.inputs[2]))) return false;
  if (right) return a.transpose_a && !a.transpose_b && *left == *right;  // the sum runs over the rows
  if (a.transpose_a) return false;
  *result = left;
  return true;
}

// Values in one order, and vectors that are the same for every row.
bool Windows::TakesPointwise(const Node& node, OrderPointer* result) const {
  const Shape& shape = node.outputs[0].shape;
  for (const Ref& input : node.inputs) {
    const OrderPointer order = At(input);
    if (order && ((*result && **result != *order) || graph_.type(input).shape != shape)) return false;
    if (order) *result = order;
  }
  const int64_t width = Elements(shape) / (*result)->all();
  for (const Ref& input : node.inputs) {
    const Shape& added = graph_.type(input).shape;
    const int64_t last = added.empty() ? 1 : added.back();
    if (!At(input) && (Elements(added) != last || width % last != 0)) return false;
  }
  return node.outputs.size() == 1;
}

bool Windows::TakesAttention(const Node& node, OrderPointer* result) const {
  const OrderPointer order = At(node.inputs[0]);
  const Shape& qkv = graph_.type(node.inputs[0]).shape;
  const auto same = [&](const OrderPointer& other) { return other && *other == *order; };
  if (!order || order->all() != qkv[0] * qkv[1] || static_cast<int64_t>(order->rows.size()) % qkv[1] != 0) return false;
  const size_t others = PlaceOfRows(node);
  if (others > 1) {  // out, logsumexp of the same windows, dout
    const Node& forward = graph_.node(node.inputs[2].node);
    if (!same(At(node.inputs[1])) || !same(At(node.inputs[3])) || node.inputs[2].output != 1) return false;
    if (forward.op != "attention" || !same(orders_[node.inputs[2].node])) return false;
  }
  for (size_t i = others; i < node.inputs.size(); ++i) {
    if (At(node.inputs[i])) return false;
  }
  *result = order;
  return HasWindowAttention(graph_, node, static_cast<int64_t>(order->rows.size()) / qkv[1], can_prepare_);
}

}  // namespace

Graph FoldWindows(Graph source, const CanPrepare& can_prepare) {
  const Windows windows(source, can_prepare);
  if (!windows.FoldAny()) return source;
  std::map<std::string, Value> tables;  // of the result, by name
  return Rewrite("window fusion", source, [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
    const Node& node = source.node(id);
    if (!windows.Folds(id)) return std::nullopt;
    if (MovesRows(node))
      return std::vector<Value>{ops::Reshape(r.Map(node.inputs[0]), node.outputs[0].shape, node.where)};
    if (!IsAttention(node)) return std::nullopt;
    const RowNumbers& rows = windows.OrderOf(id)->rows;
    const auto tokens = source.type(node.inputs[0]).shape[1], count = static_cast<int64_t>(rows.size()) / tokens;
    std::string bytes(rows.size() * sizeof(int32_t), '\0');
    std::memcpy(bytes.data(), rows.data(), bytes.size());
    const std::string name = fmt::format("window_rows_{}x{}_{:016x}", count, tokens, HashName(bytes));
    Value& table = tables[name];
    if (!table) table = r.result.Constant(name, {DType::kI32, {count, tokens}}, rows, node.where);
    std::vector<Value> inputs = r.Map(node.inputs);
    inputs.insert(inputs.begin() + static_cast<ptrdiff_t>(PlaceOfRows(node)), table);
    const auto made = r.result.Add("window_" + node.op, inputs, node.attributes, {}, node.where, node.name);
    if (node.forward >= 0) {
      const int forward = r.Map({node.forward, 0}).ref().node;
      if (r.result.node(forward).op == "window_attention") r.result.SetForward(made[0].ref().node, forward);
    }
    return made;
  });
}

}  // namespace switchyard
