// The symbolic derivative of straight-line elementwise programs.
#include "core/graph/ops/pointwise_gradient.h"

#include <numbers>

#include "core/graph/ops/layout.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"

namespace switchyard {
namespace {

using namespace ops;

// Beside `like`: one element, without axes where that has none, as broadcasting adds axes.
Value Constant(Graph& graph, const Value& like, float value) {
  return Full(graph, Shape(std::min(like.rank(), 1), 1), value);
}

// d(result)/d(a) and d(result)/d(b) of one instruction, times `dy`; none where it is zero everywhere.
struct Partials {
  Value a, b, c;
};
Partials Differentiate(const sy_instruction& i, const Value& a, const Value& b, const Value& c, const Value& y,
                       const Value& dy, Graph& graph) {
  switch (i.op) {
    case SY_PW_ADD:
      return {dy, dy, {}};
    case SY_PW_SUB:
      return {dy, Unary(SY_PW_NEG, dy), {}};
    case SY_PW_MUL:
      return {Mul(dy, b), Mul(dy, a), {}};
    case SY_PW_DIV:
      return {Div(dy, b), Unary(SY_PW_NEG, Div(Mul(dy, y), b)), {}};
    case SY_PW_MAX:
      return {Mul(dy, Binary(SY_PW_LESS_EQUAL, b, a)), Mul(dy, Binary(SY_PW_LESS, a, b)), {}};
    case SY_PW_MIN:
      return {Mul(dy, Binary(SY_PW_LESS_EQUAL, a, b)), Mul(dy, Binary(SY_PW_LESS, b, a)), {}};
    case SY_PW_POW: {  // 0 to the power of 0 and more has gradients too
      const Value zero = Constant(graph, dy, 0);
      const Value slope = Mul(b, Binary(SY_PW_POW, a, AddScalar(b, -1)));
      return {Mul(dy, Select(b, slope, zero)), Mul(dy, Select(y, Mul(y, Unary(SY_PW_LOG, a)), zero)), {}};
    }
    case SY_PW_NEG:
      return {Unary(SY_PW_NEG, dy), {}, {}};
    case SY_PW_ABS: {
      const Value zero = Constant(graph, a, 0);
      return {Mul(dy, Sub(Binary(SY_PW_LESS, zero, a), Binary(SY_PW_LESS, a, zero))), {}, {}};
    }
    case SY_PW_EXP:
      return {Mul(dy, y), {}, {}};
    case SY_PW_LOG:
      return {Div(dy, a), {}, {}};
    case SY_PW_SQRT:
      return {Scale(Div(dy, y), 0.5f), {}, {}};
    case SY_PW_RSQRT:
      return {Scale(Mul(dy, Div(y, a)), -0.5f), {}, {}};
    case SY_PW_RECIPROCAL:
      return {Unary(SY_PW_NEG, Mul(dy, Mul(y, y))), {}, {}};
    case SY_PW_TANH:
      return {Sub(dy, Mul(dy, Mul(y, y))), {}, {}};
    case SY_PW_SIGMOID:
      return {Mul(dy, Sub(y, Mul(y, y))), {}, {}};
    case SY_PW_ERF:
      return {
          Mul(dy, Scale(Unary(SY_PW_EXP, Unary(SY_PW_NEG, Mul(a, a))), 2 * std::numbers::inv_sqrtpi_v<float>)), {}, {}};
    case SY_PW_RELU:
      return {Mul(dy, Unary(SY_PW_RELU_GRAD, y)), {}, {}};  // of y as of a, which then need not be kept
    case SY_PW_GELU:
      return {Mul(dy, Unary(SY_PW_GELU_GRAD, a)), {}, {}};
    case SY_PW_GELU_TANH:
      return {Mul(dy, Unary(SY_PW_GELU_TANH_GRAD, a)), {}, {}};
    case SY_PW_SILU:
      return {Mul(dy, Unary(SY_PW_SILU_GRAD, a)), {}, {}};
    case SY_PW_SELECT: {
      const Value zero = Constant(graph, dy, 0);
      return {{}, Select(a, dy, zero), Select(a, zero, dy)};
    }
    default:
      return {};  // constants, comparisons, floor, is_finite: zero almost everywhere
  }
  (void)c;
}

// Sums `gradient` over the axes along which `input` was broadcast, and gives it the input's dtype.
Value Unbroadcast(const Value& gradient, const TensorType& input) {
  Value g = gradient;
  if (g.shape() != input.shape) {
    const size_t lead = g.shape().size() - input.shape.size();
    uint32_t axes = 0;
    for (size_t axis = 0; axis < g.shape().size(); ++axis) {
      if (axis < lead || (input.shape[axis - lead] == 1 && g.shape()[axis] != 1)) axes |= 1u << axis;
    }
    if (axes != 0) g = Reduce(g, SY_REDUCE_SUM, axes);
    g = Reshape(g, input.shape);
  }
  return Cast(g, input.dtype);
}

}  // namespace

// Reverse mode over the program: intermediate results are rebuilt as nodes (fusion joins them again).
std::vector<Value> PointwiseGradient(Graph& graph, int node, const std::vector<Value>& dy,
                                     const std::vector<bool>& wanted) {
  const Node& source = graph.node(node);
  const auto program = source.attributes.as<sy_pointwise_attributes>();
  const size_t inputs = source.inputs.size();
  const Shape& shape = source.outputs[0].shape;
  std::vector<Value> operands;
  for (const Ref& input : source.inputs) {  // whose intermediate results are f32 at least
    const Value v = graph.value(input);
    operands.push_back(IsFloating(v.dtype()) ? v : Cast(v, DType::kF32));
  }
  std::vector<Value> adjoint(inputs + program.instruction_count);
  for (uint32_t j = 0; j < program.instruction_count; ++j) {
    const sy_instruction& i = program.instructions[j];
    Value result;
    for (uint32_t o = 0; o < program.output_count; ++o) {
      if (program.outputs[o] == static_cast<int>(inputs + j)) result = {&graph, {node, static_cast<int>(o)}};
    }
    if (!result && i.op == SY_PW_CONSTANT) result = Constant(graph, {&graph, {node, 0}}, i.value);
    if (!result && i.op >= SY_PW_ADD && i.op <= SY_PW_POW) result = Binary(i.op, operands[i.a], operands[i.b]);
    if (!result && i.op == SY_PW_SELECT) result = Select(operands[i.a], operands[i.b], operands[i.c]);
    if (!result && i.op >= SY_PW_LESS && i.op <= SY_PW_EQUAL) result = Binary(i.op, operands[i.a], operands[i.b]);
    if (!result) result = Unary(i.op, operands[i.a]);
    operands.push_back(result);
  }
  const auto accumulate = [&](int operand, const Value& term) {
    if (term) adjoint[operand] = adjoint[operand] ? Add(adjoint[operand], term) : term;
  };
  for (uint32_t o = 0; o < program.output_count; ++o) accumulate(program.outputs[o], dy[o]);
  for (int j = static_cast<int>(program.instruction_count) - 1; j >= 0; --j) {
    const Value& g = adjoint[inputs + j];
    if (!g) continue;
    const sy_instruction& i = program.instructions[j];
    const bool binary = (i.op >= SY_PW_ADD && i.op <= SY_PW_POW) || i.op >= SY_PW_LESS;
    const Partials p = Differentiate(i, operands[i.a], binary ? operands[i.b] : Value(),
                                     i.op == SY_PW_SELECT ? operands[i.c] : Value(), operands[inputs + j], g, graph);
    accumulate(i.a, p.a);
    if (binary) accumulate(i.b, p.b);
    if (i.op == SY_PW_SELECT) accumulate(i.c, p.c);
  }
  std::vector<Value> gradients(inputs);
  for (size_t k = 0; k < inputs; ++k) {
    if (!wanted[k] || !adjoint[k]) continue;
    gradients[k] = Unbroadcast(BroadcastTo(adjoint[k], shape), graph.type(source.inputs[k]));
  }
  return gradients;
}

}  // namespace switchyard
