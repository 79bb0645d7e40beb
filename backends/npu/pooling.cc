// pool and its gradient, as volumes: an image is one of depth 1. The maximum's gradient asks for the places of the
// maxima once more, which its forward pass does not hand out.
#include "backends/npu/kernel.h"

namespace switchyard {
namespace {

struct Window {
  Dims kernel, stride, padding;
  bool average = false, count_padding = false;
};

sy_status ReadWindow(const Request& r, const Operand& x, const Operand& y, Window* window) {
  const auto a = r.Attributes<sy_pool_attributes>();
  const auto refuse = [&r](const std::string& why) { return Refuse(r.error, SY_UNSUPPORTED, r.op + ": " + why); };
  if (a.spatial_rank != 2 && a.spatial_rank != 3)
    return refuse(Text("spatial_rank must be 2 or 3, found ", a.spatial_rank));
  const auto spatial = static_cast<size_t>(a.spatial_rank);
  if (x.dims.size() != spatial + 2) return refuse(Text("x must have rank ", spatial + 2));
  Dims expected = {x.dims[0]};
  for (size_t i = 0; i < spatial; ++i) {
    if (a.kernel[i] < 1 || a.stride[i] < 1) return refuse("window and stride must be positive");
    if (a.before[i] != a.after[i] || a.before[i] < 0 || a.before[i] > a.kernel[i] / 2)
      return refuse("the operators pad both sides alike, by half the window at most");
    const int64_t room = x.dims[i + 1] + 2 * int64_t{a.before[i]} - a.kernel[i];
    if (room < 0 || a.kernel[i] > x.dims[i + 1]) return refuse(Text("axis ", i, " of x is smaller than the window"));
    expected.push_back(room / a.stride[i] + 1);
    window->kernel.push_back(a.kernel[i]);
    window->stride.push_back(a.stride[i]);
    window->padding.push_back(a.before[i]);
  }
  expected.push_back(x.dims.back());
  if (spatial == 2) {
    window->kernel.insert(window->kernel.begin(), 1);
    window->stride.insert(window->stride.begin(), 1);
    window->padding.insert(window->padding.begin(), 0);
  }
  window->average = a.average != 0;
  window->count_padding = a.count_include_pad != 0;
  if (y.dtype != x.dtype) return refuse("x and y must have one dtype");
  return r.ExpectDims("y", y, expected);
}

// (N, spatial, C) as (N, C, D, H, W).
Operand Volume(const Operand& x) {
  Dims dims = x.dims;
  if (dims.size() == 4) dims.insert(dims.begin() + 1, 1);
  return x.Reshaped(dims).ChannelsFirst();
}
Operand WithoutFormat(Operand x) {
  x.format = ACL_FORMAT_ND;
  return x;
}
// Output 0, or scratch of its dtype where it accumulates.
Operand PoolPlace(Sequence& s, const Request& r) {
  return r.accumulate[0] ? s.Scratch(r.outputs[0].dtype, r.outputs[0].dims) : r.outputs[0];
}

// The maxima of x and where they are, (N, C, D', H', W') of x's (D, H, W).
Operand EmitMaximum(Sequence& s, const Window& window, const Operand& x, const Operand& y) {
  Operand places = s.Scratch(ACL_INT32, Volume(y).dims);
  places.format = ACL_FORMAT_NCDHW;
  s.Emit(s.op.MaxPool3dWithArgmax, Volume(x), window.kernel, window.stride, window.padding, Dims{1, 1, 1}, false,
         Volume(y), places);
  return places;
}

sy_status BuildPool(Sequence& s, Request& r) {
  if (const sy_status status = r.Expect(1, 1); status != SY_OK) return status;
  if (const sy_status status = r.ExpectFloats(); status != SY_OK) return status;
  Window window;
  if (const sy_status status = ReadWindow(r, r.inputs[0], r.outputs[0], &window); status != SY_OK) return status;
  const Operand y = PoolPlace(s, r);
  if (window.average) {
    s.Emit(s.op.AvgPool3d, WithoutFormat(Volume(r.inputs[0])), window.kernel, window.stride, window.padding, false,
           window.count_padding, int64_t{0}, WithoutFormat(Volume(y)));
  } else {
    EmitMaximum(s, window, r.inputs[0], y);
  }
  return s.Deliver(r, 0, y);
}

sy_status BuildPoolBackward(Sequence& s, Request& r) {
  if (const sy_status status = r.Expect(2, 1); status != SY_OK) return status;
  if (const sy_status status = r.ExpectFloats(); status != SY_OK) return status;
  Window window;
  const Operand &x = r.inputs[0], &dy = r.inputs[1];
  if (const sy_status status = ReadWindow(r, x, dy, &window); status != SY_OK) return status;
  if (r.outputs[0].dtype != x.dtype) return Refuse(r.error, SY_UNSUPPORTED, r.op + ": x and dx must have one dtype");
  if (const sy_status status = r.ExpectDims("dx", r.outputs[0], x.dims); status != SY_OK) return status;
  const Operand dx = PoolPlace(s, r);
  if (window.average) {
    s.Emit(s.op.AvgPool3dBackward, WithoutFormat(Volume(dy)), WithoutFormat(Volume(x)), window.kernel, window.stride,
           window.padding, false, window.count_padding, int64_t{0}, WithoutFormat(Volume(dx)));
  } else {
    const Operand places = EmitMaximum(s, window, x, s.Scratch(x.dtype, dy.dims));
    s.Emit(s.op.MaxPool3dWithArgmaxBackward, Volume(dy), Volume(x), places, window.kernel, window.stride,
           window.padding, Dims{1, 1, 1}, false, Volume(dx));
  }
  return s.Deliver(r, 0, dx);
}

const Registration kPool{"pool", BuildPool, sizeof(sy_pool_attributes)};
const Registration kPoolBackward{"pool_backward", BuildPoolBackward, sizeof(sy_pool_attributes)};

}  // namespace
}  // namespace switchyard
