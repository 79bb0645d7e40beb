// all_reduce and its relatives.
#include "core/graph/ops/collective.h"

#include "core/graph/ops/families.h"
#include "core/graph/ops/pointwise.h"

namespace switchyard {
namespace ops {

Value AllReduce(const Value& x, int reduction, float scale, int group, const std::string& name,
                std::source_location where) {
  sy_collective_attributes attributes{};
  attributes.reduction = reduction;
  attributes.group = group;
  attributes.scale = 1;
  return Scale(x.graph().Add("all_reduce", {x}, {x.type()}, Attributes(attributes), where, name)[0], scale, where);
}

}  // namespace ops

std::vector<OpDefinition> CollectiveOps() {
  const auto none = [](const Graph&, const Node&) { return 0.0; };
  return {{"all_reduce", "sum, max or min over ranks", nullptr, nullptr, none},
          {"reduce_scatter", "sum over ranks, each keeps a part", nullptr, nullptr, none},
          {"all_gather", "every rank's part joined", nullptr, nullptr, none},
          {"broadcast", "one rank's values for all", nullptr, nullptr, none}};
}

}  // namespace switchyard
