// pointwise: straight-line elementwise programs, and casts, constants and broadcasts as short programs.
#include "core/graph/ops/pointwise.h"

#include <numbers>

#include "core/graph/factor_lines.h"
#include "core/graph/ops/families.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise_gradient.h"
#include "core/graph/ops/reduction.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace switchyard {
namespace {

// numpy's rules.
Shape CommonShape(const Signature& call) {
  size_t rank = 0;
  for (const TensorType& input : call.inputs) rank = std::max(rank, input.shape.size());
  Shape common(rank, 1);
  for (const TensorType& input : call.inputs) {
    const size_t lead = rank - input.shape.size();
    for (size_t axis = 0; axis < input.shape.size(); ++axis) {
      const int64_t extent = input.shape[axis];
      int64_t& out = common[lead + axis];
      if (extent == out || extent == 1) continue;
      call.Require(out == 1, [&] {
        return fmt::format("shapes do not broadcast: {} against {} on axis {}", extent, out, lead + axis);
      });
      out = extent;
    }
  }
  return common;
}

// Every instruction is known and reads what is there before it; every result is an operand.
void CheckProgram(const Signature& call, const sy_pointwise_attributes& program) {
  call.Require(program.output_count >= 1 && program.output_count <= SY_PW_MAX_OUTPUTS &&
                   program.instruction_count <= SY_PW_MAX_INSTRUCTIONS,
               "the program has too many instructions or results");
  auto known = static_cast<int32_t>(call.inputs.size());
  for (uint32_t j = 0; j < program.instruction_count; ++j, ++known) {
    const sy_instruction& i = program.instructions[j];
    call.Require(i.op >= 0 && i.op < SY_PW_OP_COUNT,
                 [&] { return fmt::format("instruction {} is the unknown {}", j, i.op); });
    const int32_t operands[] = {i.a, i.b, i.c};
    for (int k = 0; k < sy_pointwise_operands(i.op); ++k) {
      call.Require(operands[k] >= 0 && operands[k] < known,
                   [&] { return fmt::format("instruction {} reads operand {} of {}", j, operands[k], known); });
    }
  }
  for (uint32_t o = 0; o < program.output_count; ++o) {
    call.Require(program.outputs[o] >= 0 && program.outputs[o] < known,
                 [&] { return fmt::format("result {} is operand {} of {}", o, program.outputs[o], known); });
  }
}

// The inputs' common shape, or one asked for to which they broadcast; the widest dtype of the inputs unless asked.
std::vector<TensorType> PointwiseTypes(const Signature& call) {
  const auto& program = call.attributes.as<sy_pointwise_attributes>();
  CheckProgram(call, program);
  const Shape common = CommonShape(call), shape = call.wanted.shape.value_or(common);
  call.Require(BroadcastsTo(common, shape), [&] { return fmt::format("does not broadcast to {}", ToString(shape)); });
  call.Require(shape.size() <= SY_MAX_RANK, "more than 8 axes");
  DType dtype = call.inputs.empty() ? DType::kF32 : call[0].dtype;
  for (const TensorType& input : call.inputs) dtype = Widest(dtype, input.dtype);
  std::vector<TensorType> results;
  for (uint32_t o = 0; o < program.output_count; ++o) results.push_back({call.DTypeOr(dtype, o), shape});
  return results;
}

}  // namespace

namespace ops {
namespace {

sy_pointwise_attributes OneInstruction(sy_instruction instruction, int inputs) {
  sy_pointwise_attributes program{};
  program.instruction_count = 1;
  program.output_count = 1;
  program.outputs[0] = inputs;
  program.instructions[0] = instruction;
  return program;
}

}  // namespace

std::vector<Value> Pointwise(const std::vector<Value>& inputs, const sy_pointwise_attributes& program,
                             const std::vector<DType>& dtypes, Where where) {
  return inputs.at(0).graph().Add("pointwise", inputs, Attributes(program), {.dtypes = dtypes}, where);
}

Value Unary(int op, const Value& x, Where where) {
  return Pointwise({x}, OneInstruction({op, 0, 0, 0, 0}, 1), {}, where)[0];
}
Value Binary(int op, const Value& a, const Value& b, Where where) {
  return Pointwise({a, b}, OneInstruction({op, 0, 1, 0, 0}, 2), {}, where)[0];
}
Value Select(const Value& condition, const Value& a, const Value& b, Where where) {
  return Pointwise({condition, a, b}, OneInstruction({SY_PW_SELECT, 0, 1, 2, 0}, 3), {Widest(a.dtype(), b.dtype())},
                   where)[0];
}

Value Full(Graph& graph, const Shape& shape, float value, DType dtype, Where where) {
  return graph.Add("pointwise", {}, Attributes(OneInstruction({SY_PW_CONSTANT, 0, 0, 0, value}, 0)),
                   {.dtypes = {dtype}, .shape = shape}, where)[0];
}

namespace {
sy_pointwise_attributes Copy() {
  sy_pointwise_attributes copy{};
  copy.output_count = 1;
  return copy;
}
}  // namespace

Value Cast(const Value& x, DType dtype, Where where) {
  return x.dtype() == dtype ? x : Pointwise({x}, Copy(), {dtype}, where)[0];
}

bool IsCast(const Graph& graph, const Node& node) {
  return node.op == "pointwise" && node.inputs.size() == 1 && node.outputs.size() == 1 &&
         node.attributes.as<sy_pointwise_attributes>().instruction_count == 0 &&
         graph.type(node.inputs[0]).shape == node.outputs[0].shape &&
         graph.type(node.inputs[0]).dtype != node.outputs[0].dtype;
}

std::vector<Value> CastSums(Graph& graph, const Node& node, const std::vector<Value>& inputs) {
  DType widest = inputs[0].dtype();
  for (const Value& input : inputs) widest = Widest(widest, input.dtype());
  if (SizeOf(widest) != 2 || node.outputs[0].dtype != DType::kF32) return {};
  Wanted wanted = WantedOf(node);
  wanted.dtypes[0] = widest;
  std::vector<Value> results = graph.Add(node.op, inputs, node.attributes, wanted, node.where);
  results[0] = Cast(results[0], DType::kF32, node.where);
  return results;
}

Value BroadcastTo(const Value& x, const Shape& shape, Where where) {
  return x.shape() == shape ? x : x.graph().Add("pointwise", {x}, Attributes(Copy()), {.shape = shape}, where)[0];
}

namespace {
Value WithScalar(int op, const Value& x, float scalar, Where where) {
  sy_pointwise_attributes program{};
  program.instruction_count = 2;
  program.output_count = 1;
  program.outputs[0] = 2;
  program.instructions[0] = {SY_PW_CONSTANT, 0, 0, 0, scalar};
  program.instructions[1] = {op, 0, 1, 0, 0};
  return Pointwise({x}, program, {}, where)[0];
}
}  // namespace

Value Scale(const Value& x, float factor, Where where) {
  return factor == 1 ? x : WithScalar(SY_PW_MUL, x, factor, where);
}
Value AddScalar(const Value& x, float term, Where where) { return WithScalar(SY_PW_ADD, x, term, where); }

void AssignWhen(const Value& condition, const Value& state, const Value& value, Where where) {
  const auto select = OneInstruction({SY_PW_SELECT, 1, 2, 0, 0}, 3);
  state.graph().Assign(
      state, Pointwise({state, condition, value}, select, {Widest(value.dtype(), state.dtype())}, where)[0], where);
}

Value Activation(const Value& x, int act, Where where) {
  switch (act) {
    case SY_ACTIVATION_NONE:
      return x;
    case SY_ACTIVATION_GELU:
      return Unary(SY_PW_GELU, x, where);
    case SY_ACTIVATION_GELU_TANH:
      return Unary(SY_PW_GELU_TANH, x, where);
    case SY_ACTIVATION_RELU:
      return Unary(SY_PW_RELU, x, where);
    case SY_ACTIVATION_SILU:
      return Unary(SY_PW_SILU, x, where);
    default:
      ThrowBuildError("activation", fmt::format("unknown activation {}", act), {x}, where);
  }
}

}  // namespace ops

namespace {

// Every axis of the result; an input has those along which it is not broadcast.
std::string PointwiseFactors(const Graph& graph, const Node& node) {
  const Shape& shape = node.outputs[0].shape;
  std::vector<std::string> inputs;
  for (const Ref& input : node.inputs) inputs.push_back(BroadcastNames("x", graph.type(input).shape, shape));
  const std::vector<std::string> outputs(node.outputs.size(), AxisNames("x", shape.size()));
  return fmt::format("{} -> {}", fmt::join(inputs, ", "), fmt::join(outputs, ", "));
}

// Exponentials, logarithms and powers leave the range of a half type early: they are read and written in f32. A ReLU
// alone gives its input or 0.
Precision PointwisePrecision(const Node& node) {
  const auto& program = node.attributes.as<sy_pointwise_attributes>();
  if (program.instruction_count == 1 && program.instructions[0].op == SY_PW_RELU) return Precision::kSelects;
  for (uint32_t j = 0; j < program.instruction_count; ++j) {
    const int32_t op = program.instructions[j].op;
    if (op == SY_PW_EXP || op == SY_PW_LOG || op == SY_PW_POW) return Precision::kFull;
  }
  return Precision::kWidest;
}

}  // namespace

std::vector<OpDefinition> PointwiseOps() {
  return {{.name = "pointwise",
           .summary = "elementwise programs with broadcasting, casts, constants",
           .infer = PointwiseTypes,
           .gradient = PointwiseGradient,
           .flops =
               [](const Graph&, const Node& n) {
                 return static_cast<double>(n.outputs[0].elements()) *
                        n.attributes.as<sy_pointwise_attributes>().instruction_count;
               },
           .traits = {.pointwise = true},
           .precision = PointwisePrecision,
           .factors = {"..., ... -> ...", PointwiseFactors}}};
}

}  // namespace switchyard
