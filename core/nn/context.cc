#include "core/nn/context.h"

#include "fmt/format.h"

namespace switchyard::nn {

namespace {

// The input `full`, made with `info` at its first use.
Value Shared(Context& context, const std::string& full, const Shape& shape, const InputInfo& info, Where where) {
  const TensorType type = {DType::kF32, shape};
  if (const Value existing = context.graph.FindInput(full)) {
    if (existing.type() == type) return existing;
    ThrowBuildError("parameter", fmt::format("used before with another shape than {}", ToString(shape)), {existing},
                    where);
  }
  const Graph::Scope root(context.graph);
  return context.graph.Input(full, type, info, where);
}

}  // namespace

Value Parameter(Context& context, const std::string& name, const Shape& shape, const Initializer& initializer,
                bool weight_decay, Where where) {
  const std::string full = context.averages + context.graph.ScopedName(name);
  if (!context.averages.empty()) {
    InputInfo info = {Role::kState};
    info.average = true;
    return Shared(context, full, shape, info, where);
  }
  return Shared(context, full, shape, {Role::kParameter, initializer, weight_decay}, where);
}

void MayDivide(const Value& parameter, const DividedAxis& axis) {
  parameter.graph().mutable_node(parameter.ref().node).input->divisible = axis;
}

Value State(Context& context, const std::string& name, const Shape& shape, const Initializer& initializer,
            Where where) {
  InputInfo info = {Role::kState, initializer, false};
  info.of_model = true;
  return Shared(context, context.graph.ScopedName(name), shape, info, where);
}

void UseSampleInputs(Context& context, int64_t samples, Where where) {
  const Graph::Scope root(context.graph);
  const auto input = [&](const std::string& name, const Shape& shape) {
    const Value existing = context.graph.FindInput(name);
    return existing ? existing : context.graph.Input(name, {DType::kI32, shape}, {Role::kBatch}, where);
  };
  if (!context.sample_ids) context.sample_ids = input("sample_ids", {samples});
  if (!context.step) context.step = input("step", {2});
  if (context.sample_ids.shape() != Shape{samples}) {
    ThrowBuildError("dropout", fmt::format("sample_ids must be ({}), one for each sample", samples),
                    {context.sample_ids}, where);
  }
}

}  // namespace switchyard::nn
