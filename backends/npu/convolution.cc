// convolution and its two gradients. The operators number axes channels first; our tensors are views of that kind. The
// gradient by the data is the transposed convolution, which writes to a view; that by the weights is the backward
// operator, which does not. Products run in the operands' dtype where all three tensors share it, else in f32.
#include "backends/npu/kernel.h"

namespace switchyard {
namespace {

struct Problem {
  Dims stride, dilation, before, after;  // per spatial axis
  bool even = true;                      // as much padding behind as before: what the operators know
  int64_t groups = 1;
  aclDataType dtype = ACL_FLOAT;
};

// x (N, spatial, C), w (K, kernel, C/groups), y (N, spatial', K), or what stands for them.
sy_status ReadProblem(const Request& r, const Operand& x, const Operand& w, const Operand& y, Problem* p) {
  const auto a = r.Attributes<sy_convolution_attributes>();
  const auto refuse = [&r](const std::string& why) { return Refuse(r.error, SY_UNSUPPORTED, r.op + ": " + why); };
  if (a.spatial_rank != 2 && a.spatial_rank != 3)
    return refuse(Text("spatial_rank must be 2 or 3, found ", a.spatial_rank));
  const auto spatial = static_cast<size_t>(a.spatial_rank);
  for (const Operand* each : {&x, &w, &y}) {
    if (each->dims.size() != spatial + 2) return refuse(Text("x, w and y must have rank ", spatial + 2));
  }
  p->groups = a.groups;
  if (a.groups < 1 || w.dims.back() * a.groups != x.dims.back() || w.dims[0] % a.groups != 0)
    return refuse(Text(a.groups, " groups do not divide the channels as w says"));
  Dims expected = {x.dims[0]};
  for (size_t i = 0; i < spatial; ++i) {
    if (a.stride[i] < 1 || a.dilation[i] < 1 || a.before[i] < 0 || a.after[i] < 0)
      return refuse("stride and dilation must be positive, padding not negative");
    const int64_t room = x.dims[i + 1] + a.before[i] + a.after[i] - int64_t{a.dilation[i]} * (w.dims[i + 1] - 1) - 1;
    if (room < 0) return refuse(Text("axis ", i, " of the padded x is smaller than the window"));
    expected.push_back(room / a.stride[i] + 1);
    p->stride.push_back(a.stride[i]);
    p->dilation.push_back(a.dilation[i]);
    p->before.push_back(a.before[i]);
    p->after.push_back(a.after[i]);
    p->even = p->even && a.before[i] == a.after[i];
  }
  expected.push_back(w.dims[0]);
  p->dtype = x.dtype == w.dtype && x.dtype == y.dtype ? x.dtype : ACL_FLOAT;
  return r.ExpectDims("y", y, expected);
}

Operand As(Sequence& s, aclDataType dtype, const Operand& x) { return dtype == ACL_FLOAT ? s.Wide(x) : x; }

Dims PaddedDims(const Problem& p, Dims dims) {
  for (size_t i = 0; i < p.before.size(); ++i) dims[i + 1] += p.before[i] + p.after[i];
  return dims;
}
Operand Middle(const Problem& p, Operand padded, const Dims& dims) {
  for (size_t i = 0; i < p.before.size(); ++i) padded = padded.Part(i + 1, p.before[i], dims[i + 1]);
  return padded;
}
// x in the problem's dtype, with zeros around it where the padding is uneven.
Operand Image(Sequence& s, const Problem& p, const Operand& x) {
  const Operand image = As(s, p.dtype, x);
  if (p.even) return image;
  const Operand padded = s.Scratch(p.dtype, PaddedDims(p, x.dims));
  s.Emit(s.op.InplaceFillScalar, padded, Scalar{0});
  s.Emit(s.op.InplaceCopy, Middle(p, padded, x.dims), image);
  return padded;
}
Dims Padding(const Problem& p) { return p.even ? p.before : Dims(p.before.size(), 0); }

// Output o itself, or scratch in the problem's dtype that Finish stores there.
Operand ProductPlace(Sequence& s, const Request& r, const Problem& p) {
  const Operand& output = r.outputs[0];
  return output.dtype == p.dtype && r.accumulate[0] == 0 ? output : s.Scratch(p.dtype, output.dims);
}

sy_status BuildConvolution(Sequence& s, Request& r) {
  const bool bias = r.Attributes<sy_convolution_attributes>().bias != 0;
  if (const sy_status status = r.Expect(bias ? 3 : 2, 1); status != SY_OK) return status;
  if (const sy_status status = r.ExpectFloats(); status != SY_OK) return status;
  Problem p;
  if (const sy_status status = ReadProblem(r, r.inputs[0], r.inputs[1], r.outputs[0], &p); status != SY_OK)
    return status;
  Operand b;
  if (bias) {
    if (const sy_status status = r.ExpectDims("bias", r.inputs[2], {r.inputs[1].dims[0]}); status != SY_OK)
      return status;
    b = r.inputs[2];
    if (b.dtype != p.dtype) {  // the operator wants one dtype
      b = s.Scratch(p.dtype, b.dims);
      s.Emit(s.op.Cast, r.inputs[2], p.dtype, b);
    }
  }
  const Operand y = ProductPlace(s, r, p);
  s.Emit(s.op.Convolution, Image(s, p, r.inputs[0]).ChannelsFirst(), As(s, p.dtype, r.inputs[1]).ChannelsFirst(), b,
         p.stride, Padding(p), p.dilation, false, Dims(p.stride.size(), 0), p.groups, y.ChannelsFirst(), int8_t{0});
  return s.Deliver(r, 0, y);
}

sy_status BuildBackwardData(Sequence& s, Request& r) {
  if (const sy_status status = r.Expect(2, 1); status != SY_OK) return status;
  if (const sy_status status = r.ExpectFloats(); status != SY_OK) return status;
  Problem p;
  const Operand &dy = r.inputs[0], &w = r.inputs[1], &output = r.outputs[0];
  if (const sy_status status = ReadProblem(r, output, w, dy, &p); status != SY_OK) return status;
  const Dims padding = Padding(p);
  const Dims dims = p.even ? output.dims : PaddedDims(p, output.dims);
  Dims beyond;  // what the last window does not reach
  for (size_t i = 0; i < padding.size(); ++i) {
    beyond.push_back((dims[i + 1] + 2 * padding[i] - p.dilation[i] * (w.dims[i + 1] - 1) - 1) % p.stride[i]);
  }
  const Operand dx = p.even ? ProductPlace(s, r, p) : s.Scratch(p.dtype, dims);
  s.Emit(s.op.Convolution, As(s, p.dtype, dy).ChannelsFirst(), As(s, p.dtype, w).ChannelsFirst(), Operand(), p.stride,
         padding, p.dilation, true, beyond, p.groups, dx.ChannelsFirst(), int8_t{0});
  return s.Deliver(r, 0, p.even ? dx : Middle(p, dx, output.dims));
}

sy_status BuildBackwardWeights(Sequence& s, Request& r) {
  if (const sy_status status = r.Expect(2, 1); status != SY_OK) return status;
  if (const sy_status status = r.ExpectFloats(); status != SY_OK) return status;
  Problem p;
  const Operand& output = r.outputs[0];
  if (const sy_status status = ReadProblem(r, r.inputs[0], output, r.inputs[1], &p); status != SY_OK) return status;
  // As of a product (matmul.cc).
  if (r.inputs[0].dtype == r.inputs[1].dtype && r.inputs[0].dtype != ACL_FLOAT && output.dtype == ACL_FLOAT)
    return Refuse(r.error, SY_UNSUPPORTED, r.op + ": the gradient of halves is half, expected no f32");
  const Operand view = output.ChannelsFirst();
  Operand dw = s.Scratch(p.dtype, view.dims), shape = s.Scratch(p.dtype, view.dims);  // shape: its values are not read
  dw.format = shape.format = view.format;
  s.Emit(s.op.ConvolutionBackward, As(s, p.dtype, r.inputs[1]).ChannelsFirst(),
         Image(s, p, r.inputs[0]).ChannelsFirst(), shape, Dims{output.dims[0]}, p.stride, Padding(p), p.dilation, false,
         Dims(p.stride.size(), 0), static_cast<int>(p.groups), Flags{{0, 1, 0}}, int8_t{0}, Operand(), dw, Operand());
  s.Store(dw, view, r.accumulate[0] != 0);
  return SY_OK;
}

const Registration kConvolution{"convolution", BuildConvolution, sizeof(sy_convolution_attributes)};
const Registration kBackwardData{"convolution_backward_data", BuildBackwardData, sizeof(sy_convolution_attributes)};
const Registration kBackwardWeights{"convolution_backward_weights", BuildBackwardWeights,
                                    sizeof(sy_convolution_attributes)};

}  // namespace
}  // namespace switchyard
