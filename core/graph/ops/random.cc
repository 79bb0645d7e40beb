// dropout, per element and per sample.
#include "core/graph/ops/random.h"

#include "core/abi/ops.h"
#include "core/graph/ops/families.h"

namespace switchyard {
namespace ops {
namespace {

Value DropoutNode(const Value& x, const Value& sample_ids, const Value& step, float p, uint64_t key, bool per_sample,
                  Where where) {
  if (p == 0) return x;
  if (p < 0 || p >= 1) ThrowBuildError("dropout", "the probability must lie in [0, 1)", {x}, where);
  if (sample_ids.rank() != 1 || x.type().elements() % sample_ids.dim(0) != 0)
    ThrowBuildError("dropout", "x does not hold a whole number of elements per sample", {x, sample_ids}, where);
  sy_dropout_attributes attributes{};
  attributes.key = key;
  attributes.p = p;
  attributes.per_sample = per_sample;
  return x.graph().Add("dropout", {x, sample_ids, step}, {x.type()}, Attributes(attributes), where)[0];
}

}  // namespace

Value Dropout(const Value& x, const Value& sample_ids, const Value& step, float p, uint64_t key, Where where) {
  return DropoutNode(x, sample_ids, step, p, key, false, where);
}
Value DropPath(const Value& x, const Value& sample_ids, const Value& step, float p, uint64_t key, Where where) {
  return DropoutNode(x, sample_ids, step, p, key, true, where);
}

}  // namespace ops

std::vector<OpDefinition> RandomOps() {
  return {{"dropout", "zeroes elements or whole samples at random",
           [](Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) -> std::vector<Value> {
             const Node node = graph.node(id);
             const auto dx = graph.Add("dropout", {dy[0], graph.value(node.inputs[1]), graph.value(node.inputs[2])},
                                       {dy[0].type()}, node.attributes, node.where, node.name + "/backward");
             return {dx[0], {}, {}};
           },
           nullptr, nullptr}};
}

}  // namespace switchyard
