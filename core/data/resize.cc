// Separable: along one axis, rounded to 8 bits, then along the other. Weights are the filter, stretched by
// max(1, in / out), around (o + 0.5) * in / out, normalised, in 22-bit fixed point rounded to nearest, which is what
// PIL documents as its convolution-based resampling (Pillow, "Concepts: Filters").
#include "core/data/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/base/names.h"
#include "fmt/ranges.h"

namespace switchyard {
namespace {

constexpr int kWeightBits = 22;
constexpr int32_t kHalf = 1 << (kWeightBits - 1);

struct Axis {
  int taps = 0;                  // stride of `weights`
  std::vector<int> first;        // per output, the first input
  std::vector<int> count;        // per output, the inputs used
  std::vector<int32_t> weights;  // (out, taps)
};

const std::vector<std::string>& InterpolationNames() {
  static const auto& names = *new std::vector<std::string>{"bilinear", "bicubic"};
  return names;
}

struct Filter {
  double support;            // it is zero beyond
  double (*weight)(double);  // of a distance of at least 0
};

Filter FilterOf(Interpolation interpolation) {
  if (interpolation == Interpolation::kBilinear) return {1, [](double x) { return x < 1 ? 1 - x : 0.0; }};
  // Keys, "Cubic convolution interpolation for digital image processing", 1981, with a = -1/2.
  return {2, [](double x) {
            constexpr double a = -0.5;
            if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
            return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
          }};
}

void FillAxis(int in, int out, const Filter& filter, Axis* axis) {
  thread_local std::vector<double> exact;
  const double scale = static_cast<double>(in) / out;
  const double stretch = std::max(scale, 1.0), shrink = 1 / stretch;
  const double support = filter.support * stretch;
  axis->taps = static_cast<int>(std::ceil(support)) * 2 + 1;
  axis->first.resize(static_cast<size_t>(out));
  axis->count.resize(static_cast<size_t>(out));
  axis->weights.assign(static_cast<size_t>(out) * axis->taps, 0);
  exact.resize(static_cast<size_t>(axis->taps));
  for (int o = 0; o < out; ++o) {
    const double center = (o + 0.5) * scale;
    const int begin = std::max(static_cast<int>(center - support + 0.5), 0);
    const int end = std::min(static_cast<int>(center + support + 0.5), in);
    double sum = 0;
    for (int i = begin; i < end; ++i) {
      const double weight = filter.weight(std::abs((i - center + 0.5) * shrink));
      exact[static_cast<size_t>(i - begin)] = weight;
      sum += weight;
    }
    axis->first[static_cast<size_t>(o)] = begin;
    axis->count[static_cast<size_t>(o)] = end - begin;
    int32_t* weights = &axis->weights[static_cast<size_t>(o) * axis->taps];
    for (int i = 0; i < end - begin; ++i) {
      const double weight = exact[static_cast<size_t>(i)] / sum;
      weights[i] = static_cast<int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << kWeightBits));
    }
  }
}

uint8_t Narrow(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255)); }

template <int kChannels>
void ResizeRow(const uint8_t* in, const Axis& axis, int out_width, uint8_t* out) {
  for (int x = 0; x < out_width; ++x) {
    const uint8_t* pixel = in + static_cast<size_t>(axis.first[x]) * kChannels;
    const int32_t* weights = &axis.weights[static_cast<size_t>(x) * axis.taps];
    int32_t sums[kChannels];
    for (int c = 0; c < kChannels; ++c) sums[c] = kHalf;
    for (int i = 0; i < axis.count[x]; ++i, pixel += kChannels) {
      for (int c = 0; c < kChannels; ++c) sums[c] += weights[i] * pixel[c];
    }
    for (int c = 0; c < kChannels; ++c) *out++ = Narrow(sums[c]);
  }
}

// One output row: the weighted sum of `count` rows of `width` bytes.
void BlendRows(const uint8_t* rows, size_t row_bytes, int count, const int32_t* weights, size_t width, int32_t* sums,
               uint8_t* out) {
  std::fill_n(sums, width, kHalf);
  for (int i = 0; i < count; ++i) {
    const uint8_t* row = rows + static_cast<size_t>(i) * row_bytes;
    const int32_t weight = weights[i];
    for (size_t x = 0; x < width; ++x) sums[x] += weight * row[x];
  }
  for (size_t x = 0; x < width; ++x) out[x] = Narrow(sums[x]);
}

// Changes the width.
void ResizeAlongRows(const ImageView& in, int width, const Filter& filter, Image* out) {
  thread_local Axis axis;
  FillAxis(in.width, width, filter, &axis);
  out->Reshape(in.height, width, in.channels);
  for (int y = 0; y < in.height; ++y) {
    const uint8_t* row = in.data + static_cast<size_t>(y) * in.row_bytes;
    in.channels == 3 ? ResizeRow<3>(row, axis, width, out->Row(y)) : ResizeRow<1>(row, axis, width, out->Row(y));
  }
}

// Changes the height.
void ResizeAlongColumns(const ImageView& in, int height, const Filter& filter, Image* out) {
  thread_local Axis axis;
  thread_local std::vector<int32_t> sums;
  FillAxis(in.height, height, filter, &axis);
  out->Reshape(height, in.width, in.channels);
  const size_t width = static_cast<size_t>(in.width) * in.channels;
  sums.resize(width);
  for (int y = 0; y < height; ++y) {
    BlendRows(in.data + static_cast<size_t>(axis.first[y]) * in.row_bytes, in.row_bytes, axis.count[y],
              &axis.weights[static_cast<size_t>(y) * axis.taps], width, sums.data(), out->Row(y));
  }
}

}  // namespace

std::string InterpolationName(Interpolation interpolation) {
  return InterpolationNames()[static_cast<size_t>(interpolation)];
}

StatusOr<Interpolation> ParseInterpolation(const std::string& name) {
  const auto& names = InterpolationNames();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<Interpolation>(found - names.begin());
  return InvalidArgument("unknown interpolation {}{}; expected one of {}", name, DidYouMean(name, names),
                         fmt::join(names, ", "));
}

void Resize(const ImageView& in, int height, int width, Interpolation interpolation, Image* out) {
  thread_local Image between;
  const Filter filter = FilterOf(interpolation);
  // Pillow 13's rule for which axis comes first; the order shows in the rounding between the passes.
  const bool columns_first = height < in.height && in.height - height > 2 * (in.width - width);
  if (height == in.height && width == in.width) {
    out->Reshape(height, width, in.channels);
    const size_t count = static_cast<size_t>(width) * in.channels;
    for (int y = 0; y < height; ++y) std::memcpy(out->Row(y), in.data + static_cast<size_t>(y) * in.row_bytes, count);
  } else if (height == in.height) {
    ResizeAlongRows(in, width, filter, out);
  } else if (width == in.width) {
    ResizeAlongColumns(in, height, filter, out);
  } else if (columns_first) {
    ResizeAlongColumns(in, height, filter, &between);
    ResizeAlongRows(Whole(between), width, filter, out);
  } else {
    ResizeAlongRows(in, width, filter, &between);
    ResizeAlongColumns(Whole(between), height, filter, out);
  }
}

void ResizeNearest(const Image& in, int height, int width, Image* out) {
  out->Reshape(height, width, in.channels);
  const auto channels = static_cast<size_t>(in.channels);
  for (int y = 0; y < height; ++y) {
    const uint8_t* const from = in.Row(static_cast<int>((int64_t{2} * y + 1) * in.height / (int64_t{2} * height)));
    uint8_t* to = out->Row(y);
    for (int x = 0; x < width; ++x, to += channels) {
      const auto column = static_cast<size_t>((int64_t{2} * x + 1) * in.width / (int64_t{2} * width));
      std::memcpy(to, from + column * channels, channels);
    }
  }
}

void CropPadded(const Image& in, int top, int left, int height, int width, const std::array<uint8_t, 3>& fill,
                Image* out) {
  out->Reshape(height, width, in.channels);
  const auto channels = static_cast<size_t>(in.channels);
  const int begin = std::clamp(-left, 0, width), end = std::clamp(in.width - left, begin, width);
  const auto pad = [&](uint8_t* row, int from, int to) {
    for (int x = from; x < to; ++x) std::memcpy(row + static_cast<size_t>(x) * channels, fill.data(), channels);
  };
  for (int y = 0; y < height; ++y) {
    uint8_t* const row = out->Row(y);
    const int source = top + y;
    const bool outside = source < 0 || source >= in.height || begin == end;
    pad(row, 0, outside ? width : begin);
    if (outside) continue;
    std::memcpy(row + static_cast<size_t>(begin) * channels,
                in.Row(source) + static_cast<size_t>(left + begin) * channels,
                static_cast<size_t>(end - begin) * channels);
    pad(row, end, width);
  }
}

}  // namespace switchyard
