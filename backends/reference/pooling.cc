// Maximum and average pooling, channels last. The gradient of a window goes to its first maximum in row-major order, or
// to all equally.
#include <cmath>

#include "backends/reference/window.h"

namespace switchyard {
namespace {

using PoolAttributes = sy_pool_attributes;

Windows MakeWindows(const PoolAttributes& attr, const Dims& x, const Dims& y) {
  const Dims kernel(attr.kernel, attr.kernel + attr.spatial_rank);
  return Windows(Spatial(x), Spatial(y), kernel, attr.stride, nullptr, attr.before, attr.after);
}

// f(x offset, y offset, weight) for every element that an output is made of: y = Σ weight·x.
template <typename F>
void ForEachTerm(const PoolAttributes& attr, const Array& x, const Dims& y, F f) {
  const Windows windows = MakeWindows(attr, x.dims, y);
  const int64_t channels = y.back();
  for (int64_t place = 0; place < y[0] * windows.Outputs(); ++place) {
    const int64_t image = place / windows.Outputs() * windows.Inputs(), position = place % windows.Outputs();
    int64_t inside = 0;
    windows.ForEachTap(position, [&](int64_t, int64_t) { ++inside; });
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t out = place * channels + c;
      if (attr.average) {
        const double weight = 1 / static_cast<double>(attr.count_include_pad ? windows.Taps() : inside);
        windows.ForEachTap(position, [&](int64_t, int64_t pixel) { f((image + pixel) * channels + c, out, weight); });
      } else {
        int64_t first = -1;
        windows.ForEachTap(position, [&](int64_t, int64_t pixel) {
          const int64_t at = (image + pixel) * channels + c;
          if (first < 0 || x[at] > x[first] || (std::isnan(x[at]) && !std::isnan(x[first]))) first = at;
        });
        f(first, out, 1.0);
      }
    }
  }
}

void CheckShapes(Check& check, const Dims& x, const Dims& y) {
  const auto& attr = check.attributes<PoolAttributes>();
  check.Need(x[0] == y[0] && x.back() == y.back(),
             Text("x ", ToText(x), " and y ", ToText(y), " differ in images or channels"));
  for (int i = 0; i < attr.spatial_rank; ++i) {
    check.Need(attr.before[i] < attr.kernel[i] && attr.after[i] < attr.kernel[i],
               "padding must be smaller than the window");
  }
  if (check.ok()) MakeWindows(attr, x, y).Valid(check);
}

void CheckPool(Check& check) {
  if (!check.Operands(1, 1) || !check.Floats()) return;
  if (!CheckSpatialRank(check, check.attributes<PoolAttributes>().spatial_rank, {0})) return;
  CheckShapes(check, check.InputDims(0), check.OutputDims(0));
}

void RunPool(Call& call) {
  const Array& x = call.input(0);
  Array& y = call.output(0);
  ForEachTerm(call.attributes<PoolAttributes>(), x, y.dims,
              [&](int64_t in, int64_t out, double weight) { y[out] += weight * x[in]; });
}

void CheckPoolBackward(Check& check) {
  if (!check.Operands(2, 1) || !check.Floats()) return;
  if (!CheckSpatialRank(check, check.attributes<PoolAttributes>().spatial_rank, {0, 1})) return;
  CheckShapes(check, check.InputDims(0), check.InputDims(1));
  check.Output("dx", 0, check.InputDims(0));
}

void RunPoolBackward(Call& call) {
  const Array &x = call.input(0), &dy = call.input(1);
  Array& dx = call.output(0);
  ForEachTerm(call.attributes<PoolAttributes>(), x, dy.dims,
              [&](int64_t in, int64_t out, double weight) { dx[in] += weight * dy[out]; });
}

const Operation kPool{"pool", sizeof(PoolAttributes), CheckPool, RunPool};
const Operation kPoolBackward{"pool_backward", sizeof(PoolAttributes), CheckPoolBackward, RunPoolBackward};

}  // namespace
}  // namespace switchyard
