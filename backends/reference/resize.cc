// Nearest and (bi-, tri-)linear resizing as torch.nn.functional.interpolate given a size. Every output is a weighted
// sum of inputs, and the backward is the transpose of the same sum.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "backends/reference/window.h"

namespace switchyard {
namespace {

using ResizeAttributes = sy_resize_attributes;

// The one or two positions along an axis that output `o` reads, with their weights.
struct AxisSources {
  std::array<int64_t, 2> at;
  std::array<double, 2> weight;
};

AxisSources SourcesOf(const ResizeAttributes& attr, int64_t in, int64_t out, int64_t o) {
  if (attr.mode == SY_RESIZE_NEAREST) return {{o * in / out, 0}, {1, 0}};  // ⌊o·in/out⌋
  const double size = static_cast<double>(in);
  const double x = attr.align_corners
                       ? (out > 1 ? static_cast<double>(o) * (size - 1) / static_cast<double>(out - 1) : 0)
                       : std::max(0.0, (static_cast<double>(o) + 0.5) * size / static_cast<double>(out) - 0.5);
  const int64_t low = std::min(static_cast<int64_t>(x), in - 1);
  const double part = x - static_cast<double>(low);
  return {{low, std::min(low + 1, in - 1)}, {1 - part, part}};
}

// f(small offset, large offset, weight): small is x or dx (N, spatial, C), large is y or dy (N, spatial', C).
template <typename F>
void ForEachTerm(const ResizeAttributes& attr, const Dims& x, const Dims& y, F f) {
  const auto rank = static_cast<size_t>(attr.spatial_rank);
  const Dims from = ContiguousStrides(x), to = ContiguousStrides(y);
  std::array<std::vector<AxisSources>, 4> sources;  // of each axis, by position
  for (size_t axis = 1; axis <= rank; ++axis)
    for (int64_t o = 0; o < y[axis]; ++o) sources[axis].push_back(SourcesOf(attr, x[axis], y[axis], o));
  ForEach(y, to, to, [&](const Dims& index, int64_t out, int64_t) {
    for (size_t corner = 0; corner < size_t{1} << rank; ++corner) {
      int64_t in = index.front() * from.front() + index.back();
      double weight = 1;
      for (size_t axis = 1; axis <= rank; ++axis) {
        const AxisSources& source = sources[axis][static_cast<size_t>(index[axis])];
        const size_t side = corner >> (axis - 1) & 1;
        in += source.at[side] * from[axis];
        weight *= source.weight[side];
      }
      if (weight != 0) f(in, out, weight);
    }
  });
}

void CheckShapes(Check& check, bool backward) {
  const auto& attr = check.attributes<ResizeAttributes>();
  check.Knows(attr.mode == SY_RESIZE_NEAREST || attr.mode == SY_RESIZE_LINEAR, "unknown mode");
  if (!check.Operands(1, 1) || !check.Floats() || !CheckSpatialRank(check, attr.spatial_rank, {0})) return;
  const Dims x = backward ? check.OutputDims(0) : check.InputDims(0),
             y = backward ? check.InputDims(0) : check.OutputDims(0);
  check.Need(x[0] == y[0] && x.back() == y.back(),
             Text("x ", ToText(x), " and y ", ToText(y), " differ in images or channels"));
}

void CheckResize(Check& check) { CheckShapes(check, false); }
void CheckResizeBackward(Check& check) { CheckShapes(check, true); }

void RunResize(Call& call) {
  const Array& x = call.input(0);
  Array& y = call.output(0);
  ForEachTerm(call.attributes<ResizeAttributes>(), x.dims, y.dims,
              [&](int64_t in, int64_t out, double weight) { y[out] += weight * x[in]; });
}

void RunResizeBackward(Call& call) {
  const Array& dy = call.input(0);
  Array& dx = call.output(0);
  ForEachTerm(call.attributes<ResizeAttributes>(), dx.dims, dy.dims,
              [&](int64_t in, int64_t out, double weight) { dx[in] += weight * dy[out]; });
}

const Operation kResize{"resize", sizeof(ResizeAttributes), CheckResize, RunResize};
const Operation kResizeBackward{"resize_backward", sizeof(ResizeAttributes), CheckResizeBackward, RunResizeBackward};

}  // namespace
}  // namespace switchyard
