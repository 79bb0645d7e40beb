// all_reduce and its relatives.
#include "core/graph/ops/collective.h"

#include <string_view>
#include <utility>

#include "core/graph/ops/families.h"
#include "core/graph/ops/pointwise.h"

namespace switchyard {
namespace ops {
namespace {

Attributes On(int group, int reduction, int peer) {
  sy_collective_attributes attributes{};
  attributes.reduction = reduction;
  attributes.root = peer;
  attributes.group = group;
  attributes.scale = 1;
  return Attributes(attributes);
}

Shape Parts(const Value& x, int64_t times, int64_t over) {
  Shape shape = x.shape();
  if (!shape.empty()) shape[0] = shape[0] * times / over;
  return shape;
}

}  // namespace

Value AllReduce(const Value& x, int reduction, float scale, int group, const std::string& name,
                std::source_location where) {
  return Scale(x.graph().Add("all_reduce", {x}, On(group, reduction, 0), {}, where, name)[0], scale, where);
}

Value ReduceScatter(const Value& x, int reduction, int ranks, int group, const std::string& name,
                    std::source_location where) {
  return x.graph().Add("reduce_scatter", {x}, On(group, reduction, 0), {.shape = Parts(x, 1, ranks)}, where, name)[0];
}

Value AllGather(const Value& x, int ranks, int group, const std::string& name, std::source_location where) {
  return x.graph().Add("all_gather", {x}, On(group, SY_SUM, 0), {.shape = Parts(x, ranks, 1)}, where, name)[0];
}

Value Broadcast(const Value& x, int root, int group, const std::string& name, std::source_location where) {
  return x.graph().Add("broadcast", {x}, On(group, SY_SUM, root), {}, where, name)[0];
}

Value AllToAll(const Value& x, int ranks, int group, const std::string& name, std::source_location where) {
  if (x.rank() == 0 || x.dim(0) % ranks != 0)
    ThrowBuildError("all_to_all", "the outermost axis must be a multiple of the ranks", {x}, where);
  return x.graph().Add("all_to_all", {x}, On(group, SY_SUM, 0), {}, where, name)[0];
}

void Send(const Value& x, int peer, int group, const std::string& name, std::source_location where) {
  x.graph().Add("send", {x}, On(group, SY_SUM, peer), {}, where, name);
}

Value Receive(Graph& graph, const TensorType& type, int peer, int group, const std::string& name,
              std::source_location where) {
  return graph.Add("receive", {}, On(group, SY_SUM, peer), {.dtypes = {type.dtype}, .shape = type.shape}, where,
                   name)[0];
}

}  // namespace ops

namespace {

// How many ranks a group has is the program's knowledge: the shape is asked for, along the outermost axis.
std::vector<TensorType> PartOf(const Signature& call, bool gathers) {
  call.RequireInputs(1);
  Shape whole = gathers ? call.WantedShape() : call.shape(0), part = gathers ? call.shape(0) : call.WantedShape();
  call.Require(!whole.empty() && whole.size() == part.size() && part[0] > 0 && whole[0] % part[0] == 0,
               "the whole must be a multiple of a rank's part along the outermost axis");
  whole[0] = part[0];
  call.Require(whole == part, "the whole and a rank's part differ beside the outermost axis");
  return {{call[0].dtype, call.WantedShape()}};
}

// Of a sum that every rank reads: each rank's gradient is the sum of theirs.
std::vector<Value> AllReduceGradient(Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
  const Node node = graph.node(id);
  if (node.attributes.as<sy_collective_attributes>().reduction != SY_SUM)
    ThrowBuildError(node.op, "only a sum over ranks has a gradient", {}, node.where);
  return graph.Add(node.op, {dy[0]}, node.attributes, {}, node.where, node.name + "/backward");
}

std::vector<TensorType> Sent(const Signature& call) {
  call.RequireInputs(1);
  return {};
}

std::vector<TensorType> Received(const Signature& call) {
  call.RequireInputs(0);
  return {{call.DTypeOr(DType::kF32), call.WantedShape()}};
}

}  // namespace

std::optional<Exchange> ExchangeOf(const Node& node) {
  static constexpr std::pair<std::string_view, Exchange> exchanges[] = {
      {"all_reduce", Exchange::kAllReduce}, {"reduce_scatter", Exchange::kReduceScatter},
      {"all_gather", Exchange::kAllGather}, {"broadcast", Exchange::kBroadcast},
      {"all_to_all", Exchange::kAllToAll},  {"send", Exchange::kSend},
      {"receive", Exchange::kReceive}};
  for (const auto& [op, exchange] : exchanges) {
    if (node.op == op) return exchange;
  }
  return std::nullopt;
}

bool IsMessage(const Node& node) {
  const auto exchange = ExchangeOf(node);
  return exchange == Exchange::kSend || exchange == Exchange::kReceive;
}

std::vector<OpDefinition> CollectiveOps() {
  const auto none = [](const Graph&, const Node&) { return 0.0; };
  const auto op = [&](const char* name, const char* summary, std::vector<TensorType> (*infer)(const Signature&)) {
    return OpDefinition{
        .name = name, .summary = summary, .infer = infer, .flops = none, .traits = {.collective = true}};
  };
  OpDefinition all_reduce = op("all_reduce", "sum, max or min over ranks", SameType);
  all_reduce.gradient = AllReduceGradient;
  return {std::move(all_reduce),
          op("reduce_scatter", "sum over ranks, each keeps a part",
             [](const Signature& call) { return PartOf(call, false); }),
          op("all_gather", "every rank's part joined", [](const Signature& call) { return PartOf(call, true); }),
          op("broadcast", "one rank's values for all", SameType),
          op("all_to_all", "part r of every rank goes to rank r", SameType),
          op("send", "a message to another rank", Sent),
          op("receive", "a message from another rank", Received)};
}

}  // namespace switchyard
