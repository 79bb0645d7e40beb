// pointwise: each instruction of the program is one or a few elementwise operators, in f32.
#include "backends/npu/kernel.h"

namespace switchyard {
namespace {

// The result of one instruction, in `into` where it fits.
Operand Evaluate(Sequence& s, const sy_instruction& step, const std::vector<Operand>& known, const Operand* into) {
  const auto operand = [&](int32_t index) { return known[static_cast<size_t>(index)]; };
  const auto unary = [&](const auto& which) { return s.Unary(which, operand(step.a), into); };
  const auto binary = [&](const auto& which) { return s.Binary(which, operand(step.a), operand(step.b), into); };
  switch (step.op) {
    case SY_PW_CONSTANT:
      return s.Constant(step.value);
    case SY_PW_ADD:
      return s.Add(operand(step.a), operand(step.b), 1, into);
    case SY_PW_SUB:
      return s.Sub(operand(step.a), operand(step.b), into);
    case SY_PW_MUL:
      return binary(s.op.Mul);
    case SY_PW_DIV:
      return binary(s.op.Div);
    case SY_PW_MAX:
      return binary(s.op.Maximum);
    case SY_PW_MIN:
      return binary(s.op.Minimum);
    case SY_PW_POW:
      return binary(s.op.PowTensorTensor);
    case SY_PW_NEG:
      return unary(s.op.Neg);
    case SY_PW_ABS:
      return unary(s.op.Abs);
    case SY_PW_EXP:
      return unary(s.op.Exp);
    case SY_PW_LOG:
      return unary(s.op.Log);
    case SY_PW_SQRT:
      return unary(s.op.Sqrt);
    case SY_PW_RSQRT:
      return unary(s.op.Rsqrt);
    case SY_PW_RECIPROCAL:
      return unary(s.op.Reciprocal);
    case SY_PW_TANH:
      return unary(s.op.Tanh);
    case SY_PW_SIGMOID:
      return unary(s.op.Sigmoid);
    case SY_PW_ERF:
      return unary(s.op.Erf);
    case SY_PW_FLOOR:
      return unary(s.op.Floor);
    case SY_PW_RELU:
      return Activate(s, SY_ACTIVATION_RELU, operand(step.a), into);
    case SY_PW_GELU:
      return Activate(s, SY_ACTIVATION_GELU, operand(step.a), into);
    case SY_PW_GELU_TANH:
      return Activate(s, SY_ACTIVATION_GELU_TANH, operand(step.a), into);
    case SY_PW_SILU:
      return Activate(s, SY_ACTIVATION_SILU, operand(step.a), into);
    case SY_PW_RELU_GRAD:
      return s.Binary(s.op.LtTensor, s.Constant(0), operand(step.a), into);
    case SY_PW_GELU_GRAD:
    case SY_PW_GELU_TANH_GRAD:
    case SY_PW_SILU_GRAD: {
      const Operand ones = s.Scratch(ACL_FLOAT, operand(step.a).dims);
      s.Emit(s.op.InplaceFillScalar, ones, Scalar{1});
      const int32_t activation = step.op == SY_PW_GELU_GRAD        ? SY_ACTIVATION_GELU
                                 : step.op == SY_PW_GELU_TANH_GRAD ? SY_ACTIVATION_GELU_TANH
                                                                   : SY_ACTIVATION_SILU;
      return ActivateGradient(s, activation, ones, operand(step.a), into);
    }
    case SY_PW_LESS:
      return binary(s.op.LtTensor);
    case SY_PW_LESS_EQUAL:
      return binary(s.op.LeTensor);
    case SY_PW_EQUAL:
      return binary(s.op.EqTensor);
    case SY_PW_SELECT:  // a NaN is not 0
      return s.Where(s.Holds(s.op.EqTensor, operand(step.a), s.Constant(0)), operand(step.c), operand(step.b), into);
    default: {  // SY_PW_IS_FINITE: Build let nothing else through
      const Operand finite = s.Scratch(ACL_BOOL, operand(step.a).dims), number = s.Result(operand(step.a).dims, into);
      s.Emit(s.op.IsFinite, operand(step.a), finite);
      s.Emit(s.op.Cast, finite, ACL_FLOAT, number);
      return number;
    }
  }
}

// Whether `x` broadcasts to `dims`.
bool Broadcasts(const Dims& x, const Dims& dims) {
  if (x.size() > dims.size()) return false;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] != 1 && x[i] != dims[dims.size() - x.size() + i]) return false;
  }
  return true;
}

sy_status BuildPointwise(Sequence& s, Request& r) {
  const auto a = r.Attributes<sy_pointwise_attributes>();
  const auto complain = [&](const std::string& what) { return Refuse(r.error, SY_UNSUPPORTED, "pointwise: " + what); };
  if (a.instruction_count > SY_PW_MAX_INSTRUCTIONS || a.output_count < 1 || a.output_count > SY_PW_MAX_OUTPUTS)
    return complain(Text(a.instruction_count, " instructions and ", a.output_count, " outputs"));
  if (const sy_status status = r.Expect(r.inputs.size(), a.output_count); status != SY_OK) return status;
  const Dims dims = r.outputs[0].dims;
  for (const Operand& output : r.outputs) {
    if (const sy_status status = r.ExpectDims("outputs", output, dims); status != SY_OK) return status;
  }
  for (const Operand& input : r.inputs) {
    if (!Broadcasts(input.dims, dims)) return complain("an input cannot be broadcast to the output");
  }
  const auto inputs = static_cast<int32_t>(r.inputs.size()),
             values = inputs + static_cast<int32_t>(a.instruction_count);
  for (uint32_t j = 0; j < a.instruction_count; ++j) {
    const sy_instruction& step = a.instructions[j];
    if (step.op < 0 || step.op >= SY_PW_OP_COUNT) return complain(Text("unknown instruction ", step.op));
    const int32_t operands[] = {step.a, step.b, step.c};
    for (int k = 0; k < sy_pointwise_operands(step.op); ++k) {
      if (operands[k] < 0 || operands[k] >= inputs + static_cast<int32_t>(j))
        return complain(Text("instruction ", j, " reads operand ", operands[k], ", which is not known yet"));
    }
  }
  for (uint32_t o = 0; o < a.output_count; ++o) {
    if (a.outputs[o] < 0 || a.outputs[o] >= values) return complain(Text("output ", o, " is no operand"));
  }

  // A conversion or a copy moves any dtype and must not go through f32.
  if (a.instruction_count == 0) {
    for (uint32_t o = 0; o < a.output_count; ++o)
      s.Store(r.inputs[static_cast<size_t>(a.outputs[o])], r.outputs[o], r.accumulate[o] != 0);
    return SY_OK;
  }
  std::vector<Operand> known;
  for (const Operand& input : r.inputs) known.push_back(s.Wide(input));
  for (uint32_t j = 0; j < a.instruction_count; ++j) {
    const Operand* into = nullptr;
    for (uint32_t o = 0; o < a.output_count; ++o) {
      if (a.outputs[o] == inputs + static_cast<int32_t>(j) && r.accumulate[o] == 0) into = &r.outputs[o];
    }
    known.push_back(Evaluate(s, a.instructions[j], known, into));
  }
  for (uint32_t o = 0; o < a.output_count; ++o) s.Deliver(r, o, known[static_cast<size_t>(a.outputs[o])]);

  // The last operator alone writes the output, each element after it was read.
  if (a.output_count == 1 && known.back().SamePlaceAs(r.outputs[0]) && a.outputs[0] == values - 1) {
    for (int32_t i = inputs; i-- > 0;) {
      const Operand& input = r.inputs[static_cast<size_t>(i)];
      if (input.dtype == ACL_FLOAT && input.dims == dims) r.inplace[0] = i;
    }
  }
  return SY_OK;
}

const Registration kPointwise{"pointwise", BuildPointwise, sizeof(sy_pointwise_attributes)};

}  // namespace
}  // namespace switchyard
