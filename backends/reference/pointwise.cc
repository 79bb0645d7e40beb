// pointwise: a straight-line program per element over broadcast inputs. Every result is rounded to f32, as the
// program's arithmetic is f32 by definition (so 1e30·1e30 is not finite here either), unless an operand is f64.
#include <algorithm>
#include <cmath>

#include "backends/reference/operation.h"

namespace switchyard {
namespace {

// NaN if either is, as PyTorch's maximum and minimum.
double Largest(double a, double b) { return std::isnan(a) || a > b ? a : b; }
double Smallest(double a, double b) { return std::isnan(a) || a < b ? a : b; }

double Evaluate(int32_t op, double a, double b, double c, double value) {
  switch (op) {
    case SY_PW_CONSTANT:
      return value;
    case SY_PW_ADD:
      return a + b;
    case SY_PW_SUB:
      return a - b;
    case SY_PW_MUL:
      return a * b;
    case SY_PW_DIV:
      return a / b;
    case SY_PW_MAX:
      return Largest(a, b);
    case SY_PW_MIN:
      return Smallest(a, b);
    case SY_PW_POW:
      return std::pow(a, b);
    case SY_PW_NEG:
      return -a;
    case SY_PW_ABS:
      return std::abs(a);
    case SY_PW_EXP:
      return std::exp(a);
    case SY_PW_LOG:
      return std::log(a);
    case SY_PW_SQRT:
      return std::sqrt(a);
    case SY_PW_RSQRT:
      return 1 / std::sqrt(a);
    case SY_PW_RECIPROCAL:
      return 1 / a;
    case SY_PW_TANH:
      return std::tanh(a);
    case SY_PW_SIGMOID:
      return 1 / (1 + std::exp(-a));
    case SY_PW_ERF:
      return std::erf(a);
    case SY_PW_FLOOR:
      return std::floor(a);
    case SY_PW_RELU:
      return Activate(SY_ACTIVATION_RELU, a);
    case SY_PW_GELU:
      return Activate(SY_ACTIVATION_GELU, a);
    case SY_PW_GELU_TANH:
      return Activate(SY_ACTIVATION_GELU_TANH, a);
    case SY_PW_SILU:
      return Activate(SY_ACTIVATION_SILU, a);
    case SY_PW_RELU_GRAD:
      return ActivationDerivative(SY_ACTIVATION_RELU, a);
    case SY_PW_GELU_GRAD:
      return ActivationDerivative(SY_ACTIVATION_GELU, a);
    case SY_PW_GELU_TANH_GRAD:
      return ActivationDerivative(SY_ACTIVATION_GELU_TANH, a);
    case SY_PW_SILU_GRAD:
      return ActivationDerivative(SY_ACTIVATION_SILU, a);
    case SY_PW_LESS:
      return a < b;
    case SY_PW_LESS_EQUAL:
      return a <= b;
    case SY_PW_EQUAL:
      return a == b;
    case SY_PW_SELECT:
      return a != 0 ? b : c;
    default:
      return std::isfinite(a);  // SY_PW_IS_FINITE: the check let nothing else through
  }
}

void CheckPointwise(Check& check) {
  const auto& attr = check.attributes<sy_pointwise_attributes>();
  const auto inputs = static_cast<int32_t>(check.input_count());
  if (!check.Need(attr.instruction_count <= SY_PW_MAX_INSTRUCTIONS, "more than 32 instructions") ||
      !check.Need(attr.output_count >= 1 && attr.output_count <= SY_PW_MAX_OUTPUTS, "1 … 8 outputs are possible") ||
      !check.Operands(check.input_count(), attr.output_count)) {
    return;
  }
  for (uint32_t j = 0; j < attr.instruction_count; ++j) {
    const sy_instruction& step = attr.instructions[j];
    const int32_t known = inputs + static_cast<int32_t>(j);
    if (!check.Knows(step.op >= 0 && step.op < SY_PW_OP_COUNT,
                     Text("instruction ", j, " has the unknown op ", step.op)))
      return;
    const int32_t operands[] = {step.a, step.b, step.c};
    for (int k = 0; k < sy_pointwise_operands(step.op); ++k) {
      check.Need(operands[k] >= 0 && operands[k] < known,
                 Text("instruction ", j, " reads operand ", operands[k], " of ", known));
    }
  }
  const Dims dims = check.OutputDims(0);
  for (uint32_t o = 0; o < attr.output_count; ++o) {
    check.Output("output", o, dims);
    check.Need(attr.outputs[o] >= 0 && attr.outputs[o] < inputs + static_cast<int32_t>(attr.instruction_count),
               Text("output ", o, " is the unknown operand ", attr.outputs[o]));
  }
  for (size_t i = 0; i < check.input_count(); ++i) {
    const Dims input = check.InputDims(i);
    bool fits = input.size() <= dims.size();
    for (size_t axis = 0; fits && axis < input.size(); ++axis) {
      fits = input[axis] == 1 || input[axis] == dims[dims.size() - input.size() + axis];
    }
    check.Need(fits, Text("input ", i, " ", ToText(input), " cannot be broadcast to ", ToText(dims)));
  }
}

// Strides of `input` seen as having the dims of the output: 0 along broadcast axes.
Dims BroadcastStrides(const Dims& input, const Dims& dims) {
  const Dims own = ContiguousStrides(input);
  Dims strides(dims.size(), 0);
  for (size_t axis = 0; axis < input.size(); ++axis) {
    if (input[axis] != 1) strides[dims.size() - input.size() + axis] = own[axis];
  }
  return strides;
}

// Where each element of the output finds its operand in `input`.
std::vector<int64_t> Sources(const Dims& input, const Dims& dims) {
  std::vector<int64_t> sources;
  sources.reserve(static_cast<size_t>(Count(dims)));
  const Dims strides = BroadcastStrides(input, dims);
  ForEach(dims, strides, strides, [&](const Dims&, int64_t at, int64_t) { sources.push_back(at); });
  return sources;
}

constexpr int64_t kBlock = 64;  // elements that go through the program together

// results[e] = op(a[e], b[e], c[e]), as it is stored.
void EvaluateAll(const sy_instruction& step, const double* a, const double* b, const double* c, int64_t count,
                 bool double_precision, double* results) {
  for (int64_t e = 0; e < count; ++e) {
    const double result = Evaluate(step.op, a[e], b[e], c[e], double{step.value});
    results[e] = double_precision ? result : double{static_cast<float>(result)};
  }
}

void RunPointwise(Call& call) {
  const auto& attr = call.attributes<sy_pointwise_attributes>();
  const Dims dims = call.output(0).dims;
  const size_t inputs = call.input_count(), operands = inputs + attr.instruction_count;
  std::vector<std::vector<int64_t>> sources(inputs);  // empty: as the outputs lie
  for (size_t i = 0; i < inputs; ++i) {
    if (call.input(i).dims != dims) sources[i] = Sources(call.input(i).dims, dims);
  }
  std::vector<double> values(operands * kBlock);  // of one block, operand by operand
  std::vector<const double*> operand(operands);
  const double none[kBlock] = {};
  const int64_t elements = call.output(0).size();
  for (int64_t begin = 0; begin < elements; begin += kBlock) {
    const int64_t count = std::min(kBlock, elements - begin);
    for (size_t k = 0; k < operands; ++k) operand[k] = &values[k * kBlock];
    for (size_t i = 0; i < inputs; ++i) {
      const Array& x = call.input(i);
      if (sources[i].empty()) operand[i] = &x.values[static_cast<size_t>(begin)];
      for (size_t e = 0; !sources[i].empty() && e < static_cast<size_t>(count); ++e)
        values[i * kBlock + e] = x[sources[i][static_cast<size_t>(begin) + e]];
    }
    for (uint32_t j = 0; j < attr.instruction_count; ++j) {
      const sy_instruction& step = attr.instructions[j];
      const int used = sy_pointwise_operands(step.op);
      const auto read = [&](int k, int32_t index) { return k < used ? operand[static_cast<size_t>(index)] : none; };
      EvaluateAll(step, read(0, step.a), read(1, step.b), read(2, step.c), count, call.double_precision(),
                  &values[(inputs + j) * kBlock]);
    }
    for (uint32_t o = 0; o < attr.output_count; ++o)
      std::copy_n(operand[static_cast<size_t>(attr.outputs[o])], count, &call.output(o)[begin]);
  }
}

const Operation kPointwise{"pointwise", sizeof(sy_pointwise_attributes), CheckPointwise, RunPointwise};

}  // namespace
}  // namespace switchyard
