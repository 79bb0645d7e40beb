// resize and its gradient, axis by axis. Nearest selects rows; what is linear is a product with a table of weights,
// which is exact in f32, needs no atomic additions and serves every mode, rank and direction alike.
#include <algorithm>

#include "backends/npu/kernel.h"

namespace switchyard {
namespace {

int64_t NearestOf(int64_t in, int64_t out, int64_t o) { return o * in / out; }

// (out, in): how much of each input every output takes, as torch.nn.functional.interpolate does.
std::vector<float> Weights(const sy_resize_attributes& a, int64_t in, int64_t out) {
  std::vector<float> table(static_cast<size_t>(in * out), 0.0f);
  for (int64_t o = 0; o < out; ++o) {
    float* const row = table.data() + o * in;
    if (a.mode == SY_RESIZE_NEAREST) {
      row[NearestOf(in, out, o)] = 1;
      continue;
    }
    const auto size = static_cast<double>(in), place = static_cast<double>(o);
    const double x = a.align_corners ? (out > 1 ? place * (size - 1) / static_cast<double>(out - 1) : 0)
                                     : std::max(0.0, (place + 0.5) * size / static_cast<double>(out) - 0.5);
    const int64_t low = std::min(static_cast<int64_t>(x), in - 1);
    const double part = x - static_cast<double>(low);
    row[low] += static_cast<float>(1 - part);
    row[std::min(low + 1, in - 1)] += static_cast<float>(part);
  }
  return table;
}

sy_status CheckResize(const Request& r, const sy_resize_attributes& a) {
  if (a.mode != SY_RESIZE_NEAREST && a.mode != SY_RESIZE_LINEAR)
    return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: unknown mode %d", r.op.c_str(), a.mode);
  if (a.spatial_rank != 2 && a.spatial_rank != 3)
    return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: spatial_rank must be 2 or 3, found %d", r.op.c_str(), a.spatial_rank);
  if (const sy_status status = r.Expect(1, 1); status != SY_OK) return status;
  if (const sy_status status = r.ExpectFloats(); status != SY_OK) return status;
  const auto rank = static_cast<size_t>(a.spatial_rank) + 2;
  Dims expected = r.inputs[0].dims;
  if (expected.size() != rank || r.outputs[0].dims.size() != rank)
    return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: x and y must have rank %zu", r.op.c_str(), rank);
  for (size_t axis = 1; axis + 1 < rank; ++axis) expected[axis] = r.outputs[0].dims[axis];
  return r.ExpectDims("the result", r.outputs[0], expected);
}

// x with extent `out` at `axis`. The table is (out, in), or its transpose where `backward`.
Operand AlongAxis(Sequence& s, const sy_resize_attributes& a, const Operand& x, size_t axis, int64_t out,
                  bool backward) {
  const int64_t in = x.dims[axis];
  Dims dims = x.dims;
  dims[axis] = out;
  const Operand y = s.Scratch(x.dtype, dims);
  if (a.mode == SY_RESIZE_NEAREST && !backward) {
    std::vector<int32_t> rows(static_cast<size_t>(out));
    for (int64_t o = 0; o < out; ++o) rows[static_cast<size_t>(o)] = static_cast<int32_t>(NearestOf(in, out, o));
    s.Emit(s.op.IndexSelect, x, static_cast<int64_t>(axis), s.Constant(rows), y);
    return y;
  }
  int64_t outer = 1, inner = 1;
  for (size_t i = 0; i < axis; ++i) outer *= x.dims[i];
  for (size_t i = axis + 1; i < x.dims.size(); ++i) inner *= x.dims[i];
  const Operand table = backward ? s.Constant(Weights(a, out, in)).Reshaped({in, out}).Transposed()
                                 : s.Constant(Weights(a, in, out)).Reshaped({out, in});
  s.Emit(s.op.Matmul, table.Expanded({outer, out, in}), x.Reshaped({outer, in, inner}), y.Reshaped({outer, out, inner}),
         int8_t{0});
  return y;
}

sy_status BuildAlongAxes(Sequence& s, Request& r, bool backward) {
  const auto a = r.Attributes<sy_resize_attributes>();
  if (const sy_status status = CheckResize(r, a); status != SY_OK) return status;
  Operand x = a.mode == SY_RESIZE_NEAREST && !backward ? r.inputs[0] : s.Wide(r.inputs[0]);
  for (size_t axis = 1; axis + 1 < x.dims.size(); ++axis) {
    const int64_t out = r.outputs[0].dims[axis];
    if (out != x.dims[axis]) x = AlongAxis(s, a, x, axis, out, backward);
  }
  return s.Deliver(r, 0, x);
}

sy_status BuildResize(Sequence& s, Request& r) { return BuildAlongAxes(s, r, false); }
sy_status BuildResizeBackward(Sequence& s, Request& r) { return BuildAlongAxes(s, r, true); }

const Registration kResize{"resize", BuildResize, sizeof(sy_resize_attributes)};
const Registration kResizeBackward{"resize_backward", BuildResizeBackward, sizeof(sy_resize_attributes)};

}  // namespace
}  // namespace switchyard
