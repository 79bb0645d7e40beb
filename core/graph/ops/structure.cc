// What the engine itself does: named inputs, assignments to them, what the host may read (Graph makes these nodes), and
// sums into a place.
#include "core/graph/ops/structure.h"

#include "core/graph/ops/families.h"

namespace switchyard {

Value ops::Accumulate(const Value& held, const Value& x, std::source_location where) {
  return held.graph().Add("accumulate", {held, x}, {}, {}, where)[0];
}

std::vector<OpDefinition> StructureOps() {
  const auto none = [](const Signature&) { return std::vector<TensorType>(); };
  const auto assign = [](const Signature& call) {
    call.RequireInputs(2);
    call.Require(call[0] == call[1], "state and value differ in type");
    return std::vector<TensorType>();
  };
  const auto sum = [](const Signature& call) {
    call.RequireInputs(2);
    call.Require(call[0] == call[1] && call[0].dtype == DType::kF32, "what is added must be f32 of the same shape");
    return std::vector<TensorType>{call[0]};
  };
  const OpTraits structural = {.structural = true};
  return {{.name = "input", .summary = "a named input", .infer = none, .traits = structural},
          {.name = "assign",
           .summary = "a state's value after the step",
           .infer = assign,
           .traits = structural,
           .factors = "..., ... ->"},
          {.name = "accumulate",
           .summary = "adds to what a place holds; the kernel of the added value does, or a sum",
           .infer = sum,
           .traits = structural,
           .factors = "..., ... -> ..."},
          {.name = "output", .summary = "a value that the host may read", .infer = none, .traits = structural}};
}

}  // namespace switchyard
