// matmul: one aclnnMatmul on views (a transposed operand is a view with swapped strides), then what the attributes ask
// for as operators of its own. Products of half operands are rounded to half once, before the rest runs in f32.
#include "backends/npu/kernel.h"

namespace switchyard {
namespace {

// (…, R, C) as (R, C) or (lead, R, C).
Operand Matrices(const Operand& x) {
  const size_t rank = x.dims.size();
  if (rank == 2) return x;
  const int64_t rows = x.dims[rank - 2], columns = x.dims[rank - 1];
  return x.Reshaped({x.count() / (rows * columns), rows, columns});
}

}  // namespace

Operand Activate(Sequence& s, int32_t activation, const Operand& x, const Operand* into) {
  if (activation == SY_ACTIVATION_RELU) return s.Unary(s.op.Relu, x, into);
  if (activation == SY_ACTIVATION_SILU) return s.Unary(s.op.Silu, x, into);
  const Operand y = s.Result(x.dims, into);
  s.Emit(s.op.GeluV2, x, int64_t{activation == SY_ACTIVATION_GELU_TANH}, y);
  return y;
}

Operand ActivateGradient(Sequence& s, int32_t activation, const Operand& gradient, const Operand& x,
                         const Operand* into) {
  static char none[] = "none", tanh[] = "tanh";  // the operator takes char*
  const Operand y = s.Result(x.dims, into);
  if (activation == SY_ACTIVATION_RELU) {
    s.Emit(s.op.ThresholdBackward, gradient, x, Scalar{0}, y);
  } else if (activation == SY_ACTIVATION_SILU) {
    s.Emit(s.op.SiluBackward, gradient, x, y);
  } else {
    s.Emit(s.op.GeluBackwardV2, gradient, x, activation == SY_ACTIVATION_GELU ? &none[0] : &tanh[0], y);
  }
  return y;
}

namespace {

sy_status BuildMatmul(Sequence& s, Request& r) {
  const auto a = r.Attributes<sy_matmul_attributes>();
  const bool second_output = a.save_preactivation != 0 || a.bias_gradient != 0;
  const auto inputs = static_cast<size_t>(2 + (a.bias != 0) + (a.activation_gradient != 0) + (a.residual != 0));
  if (a.activation < SY_ACTIVATION_NONE || a.activation > SY_ACTIVATION_SILU)
    return SY_FAIL(r.error, SY_UNSUPPORTED, "matmul: unknown activation %d", a.activation);
  if (a.column_sums) return SY_FAIL(r.error, SY_UNSUPPORTED, "matmul: column_sums");
  if (const sy_status status = r.Expect(inputs, second_output ? 2 : 1); status != SY_OK) return status;
  if (const sy_status status = r.ExpectFloats(); status != SY_OK) return status;
  const Operand &left = r.inputs[0], &right = r.inputs[1];
  const size_t rank = left.dims.size();
  if (rank < 2 || right.dims.size() != rank) {
    return SY_FAIL(r.error, SY_UNSUPPORTED,
                   "matmul: expected two operands of one rank of at least 2, found %zu and %zu", rank,
                   right.dims.size());
  }
  const int64_t m = left.dims[rank - (a.transpose_a ? 1 : 2)], k = left.dims[rank - (a.transpose_a ? 2 : 1)],
                n = right.dims[rank - (a.transpose_b ? 2 : 1)];
  Dims expected = left.dims;
  expected[rank - 2] = a.transpose_b ? n : k;
  expected[rank - 1] = a.transpose_b ? k : n;
  if (const sy_status status = r.ExpectDims("b", right, expected); status != SY_OK) return status;
  expected[rank - 2] = m;
  expected[rank - 1] = n;
  if (const sy_status status = r.ExpectDims("c", r.outputs[0], expected); status != SY_OK) return status;
  size_t next = 2;
  const Operand bias = a.bias ? r.inputs[next++] : Operand();
  const Operand preactivation = a.activation_gradient ? r.inputs[next++] : Operand();
  const Operand residual = a.residual ? r.inputs[next++] : Operand();
  if (a.bias) {
    if (const sy_status status = r.ExpectDims("bias", bias, {n}); status != SY_OK) return status;
  }
  for (const Operand* whole : {&preactivation, &residual}) {
    if (whole->home == Operand::kNone) continue;
    if (const sy_status status = r.ExpectDims("an operand of the size of c", *whole, expected); status != SY_OK)
      return status;
  }
  if (second_output) {
    const sy_status status = r.ExpectDims("output 1", r.outputs[1], a.bias_gradient ? Dims{m} : expected);
    if (status != SY_OK) return status;
  }

  // Its result has the type that its operands promote to (aclnnMatmul.md, `out`). To widen halves instead would make an
  // f32 product of it: the engine's half product with a cast behind it is faster.
  if (left.dtype == right.dtype && left.dtype != ACL_FLOAT && r.outputs[0].dtype == ACL_FLOAT)
    return SY_FAIL(r.error, SY_UNSUPPORTED, "matmul: a product of halves is half, expected no f32");
  const aclDataType dtype = left.dtype == right.dtype && r.outputs[0].dtype == left.dtype ? left.dtype : ACL_FLOAT;
  const Operand from_left = dtype == ACL_FLOAT ? s.Wide(left) : left,
                from_right = dtype == ACL_FLOAT ? s.Wide(right) : right;
  const Operand op_a = a.transpose_a ? Matrices(from_left).Transposed() : Matrices(from_left);
  const Operand op_b = a.transpose_b ? Matrices(from_right).Transposed() : Matrices(from_right);
  // The operator's result has the type of its operands.
  const bool plain = r.outputs[0].dtype == dtype && a.alpha == 1 && inputs == 2 && a.activation == SY_ACTIVATION_NONE &&
                     !a.save_preactivation;

  if (a.bias_gradient) {
    const Operand wide = s.Wide(from_left);
    const Operand whole = a.transpose_a ? Matrices(wide).Transposed() : Matrices(wide);
    Dims axes = {static_cast<int64_t>(whole.dims.size()) - 1};
    if (whole.dims.size() == 3) axes.insert(axes.begin(), 0);
    s.Deliver(r, 1, s.Sum(whole, axes, false));
  }
  if (plain && r.accumulate[0] == 0) {
    s.Emit(s.op.Matmul, op_a, op_b, Matrices(r.outputs[0]), int8_t{0});
    return SY_OK;
  }
  const Operand c = s.Destination(r, 0);
  Operand t = s.Wide(s.Matmul(op_a, op_b)).Reshaped(expected);
  if (a.alpha != 1) t = s.Scaled(t, a.alpha);
  if (a.bias) t = s.Add(t, s.Wide(bias), 1, &c);
  if (a.save_preactivation) s.Deliver(r, 1, t);
  if (a.activation_gradient && a.activation != SY_ACTIVATION_NONE) {
    t = ActivateGradient(s, a.activation, t, s.Wide(preactivation), &c);
  } else if (a.activation != SY_ACTIVATION_NONE) {
    t = Activate(s, a.activation, t, &c);
  }
  if (a.residual) t = s.Add(t, s.Wide(residual), 1, &c);
  return s.Deliver(r, 0, t);
}

const Registration kMatmul{"matmul", BuildMatmul, sizeof(sy_matmul_attributes)};

}  // namespace

}  // namespace switchyard
