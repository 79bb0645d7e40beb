// convolution, 2-D and 3-D, grouped, strided and dilated, channels last. Forward and both gradients visit the same
// triples (x, w, y) and differ in which of the three they add to.
#include "backends/reference/window.h"

namespace switchyard {
namespace {

using ConvolutionAttributes = sy_convolution_attributes;

Windows MakeWindows(const ConvolutionAttributes& attr, const Dims& x, const Dims& w, const Dims& y) {
  return Windows(Spatial(x), Spatial(y), Spatial(w), attr.stride, attr.dilation, attr.before, attr.after);
}

// f(x offset, w offset, y offset, count): `count` consecutive input channels of x and w meet one element of y.
template <typename F>
void ForEachProduct(const ConvolutionAttributes& attr, const Dims& x, const Dims& w, const Dims& y, F f) {
  const Windows windows = MakeWindows(attr, x, w, y);
  const int64_t channels = x.back(), filters = y.back(), depth = w.back(), per_group = filters / attr.groups;
  const int64_t taps = windows.Taps();
  for (int64_t n = 0; n < x[0]; ++n) {
    for (int64_t position = 0; position < windows.Outputs(); ++position) {
      windows.ForEachTap(position, [&](int64_t tap, int64_t pixel) {
        for (int64_t filter = 0; filter < filters;) {
          const int64_t first = (n * windows.Inputs() + pixel) * channels + filter / per_group * depth;
          for (const int64_t end = filter + per_group; filter < end; ++filter)
            f(first, (filter * taps + tap) * depth, (n * windows.Outputs() + position) * filters + filter, depth);
        }
      });
    }
  }
}

void AddScaled(double scale, const double* from, int64_t count, double* __restrict to) {
  for (int64_t c = 0; c < count; ++c) to[c] += scale * from[c];
}

void CheckShapes(Check& check, const Dims& x, const Dims& w, const Dims& y) {
  const auto& attr = check.attributes<ConvolutionAttributes>();
  check.Need(x[0] == y[0], Text("x and y must have equally many images, found ", x[0], " and ", y[0]));
  check.Need(w[0] == y.back(), Text("w has ", w[0], " filters and y ", y.back(), " channels"));
  check.Need(attr.groups >= 1 && w[0] % attr.groups == 0 && w.back() * attr.groups == x.back(),
             Text("w ", ToText(w), " and x ", ToText(x), " do not fit ", attr.groups, " groups"));
  if (check.ok()) MakeWindows(attr, x, w, y).Valid(check);
}

void CheckConvolution(Check& check) {
  const auto& attr = check.attributes<ConvolutionAttributes>();
  if (!check.Operands(attr.bias ? 3 : 2, 1) || !check.Floats() || !CheckSpatialRank(check, attr.spatial_rank, {0, 1}))
    return;
  CheckShapes(check, check.InputDims(0), check.InputDims(1), check.OutputDims(0));
  if (attr.bias) check.Input("bias", 2, {check.InputDims(1)[0]});
}

void RunConvolution(Call& call) {
  const auto& attr = call.attributes<ConvolutionAttributes>();
  const Array &x = call.input(0), &w = call.input(1);
  Array& y = call.output(0);
  ForEachProduct(attr, x.dims, w.dims, y.dims, [&](int64_t xi, int64_t wi, int64_t yi, int64_t count) {
    double sum = y[yi];
    for (int64_t c = 0; c < count; ++c) sum += x[xi + c] * w[wi + c];
    y[yi] = sum;
  });
  if (!attr.bias) return;
  for (int64_t at = 0; at < y.size(); ++at) y[at] += call.input(2)[at % y.dims.back()];
}

void CheckBackwardData(Check& check) {
  const auto& attr = check.attributes<ConvolutionAttributes>();
  if (!check.Operands(2, 1) || !check.Floats() || !CheckSpatialRank(check, attr.spatial_rank, {0, 1})) return;
  CheckShapes(check, check.OutputDims(0), check.InputDims(1), check.InputDims(0));
}

void RunBackwardData(Call& call) {
  const Array &dy = call.input(0), &w = call.input(1);
  Array& dx = call.output(0);
  ForEachProduct(call.attributes<ConvolutionAttributes>(), dx.dims, w.dims, dy.dims,
                 [&](int64_t xi, int64_t wi, int64_t yi, int64_t count) {
                   AddScaled(dy[yi], &w.values[static_cast<size_t>(wi)], count, &dx[xi]);
                 });
}

void CheckBackwardWeights(Check& check) {
  const auto& attr = check.attributes<ConvolutionAttributes>();
  if (!check.Operands(2, 1) || !check.Floats() || !CheckSpatialRank(check, attr.spatial_rank, {0, 1})) return;
  CheckShapes(check, check.InputDims(0), check.OutputDims(0), check.InputDims(1));
}

void RunBackwardWeights(Call& call) {
  const Array &x = call.input(0), &dy = call.input(1);
  Array& dw = call.output(0);
  ForEachProduct(call.attributes<ConvolutionAttributes>(), x.dims, dw.dims, dy.dims,
                 [&](int64_t xi, int64_t wi, int64_t yi, int64_t count) {
                   AddScaled(dy[yi], &x.values[static_cast<size_t>(xi)], count, &dw[wi]);
                 });
}

const Operation kConvolution{"convolution", sizeof(ConvolutionAttributes), CheckConvolution, RunConvolution};
const Operation kConvolutionBackwardData{"convolution_backward_data", sizeof(ConvolutionAttributes), CheckBackwardData,
                                         RunBackwardData};
const Operation kConvolutionBackwardWeights{"convolution_backward_weights", sizeof(ConvolutionAttributes),
                                            CheckBackwardWeights, RunBackwardWeights};

}  // namespace
}  // namespace switchyard
