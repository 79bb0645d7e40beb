// What the engine itself does: named inputs, assignments to them, what the host may read. Graph makes these nodes.
#include "core/graph/ops/families.h"

namespace switchyard {

std::vector<OpDefinition> StructureOps() {
  const auto none = [](const Signature&) { return std::vector<TensorType>(); };
  const auto assign = [](const Signature& call) {
    call.RequireInputs(2);
    call.Require(call[0] == call[1], "state and value differ in type");
    return std::vector<TensorType>();
  };
  const OpTraits structural = {.structural = true};
  return {{.name = "input", .summary = "a named input", .infer = none, .traits = structural},
          {.name = "assign", .summary = "a state's value after the step", .infer = assign, .traits = structural},
          {.name = "output", .summary = "a value that the host may read", .infer = none, .traits = structural}};
}

}  // namespace switchyard
