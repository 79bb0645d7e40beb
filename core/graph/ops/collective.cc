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
  return Scale(x.graph().Add("all_reduce", {x}, Attributes(attributes), {}, where, name)[0], scale, where);
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

}  // namespace

std::vector<OpDefinition> CollectiveOps() {
  const auto none = [](const Graph&, const Node&) { return 0.0; };
  const OpTraits traits = {.collective = true};
  return {{.name = "all_reduce",
           .summary = "sum, max or min over ranks",
           .infer = SameType,
           .flops = none,
           .traits = traits},
          {.name = "reduce_scatter",
           .summary = "sum over ranks, each keeps a part",
           .infer = [](const Signature& call) { return PartOf(call, false); },
           .flops = none,
           .traits = traits},
          {.name = "all_gather",
           .summary = "every rank's part joined",
           .infer = [](const Signature& call) { return PartOf(call, true); },
           .flops = none,
           .traits = traits},
          {.name = "broadcast",
           .summary = "one rank's values for all",
           .infer = SameType,
           .flops = none,
           .traits = traits}};
}

}  // namespace switchyard
