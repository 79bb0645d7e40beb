// Separable: along rows, rounded to 8 bits, then along columns. Weights
// are the triangle filter of half-width max(1, in / out) around (o + 0.5) * in / out, normalised, in 22-bit fixed point
// with round-half-up, which is what PIL documents as its convolution-based resampling (Pillow, "Concepts: Filters").
#include "core/data/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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

void FillAxis(int in, int out, Axis* axis) {
  thread_local std::vector<double> exact;
  const double scale = static_cast<double>(in) / out;
  const double support = std::max(scale, 1.0);
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
      const double weight = std::max(0.0, 1.0 - std::abs((i - center + 0.5) / support));
      exact[static_cast<size_t>(i - begin)] = weight;
      sum += weight;
    }
    axis->first[static_cast<size_t>(o)] = begin;
    axis->count[static_cast<size_t>(o)] = end - begin;
    int32_t* weights = &axis->weights[static_cast<size_t>(o) * axis->taps];
    for (int i = 0; i < end - begin; ++i) {
      weights[i] = static_cast<int32_t>(0.5 + exact[static_cast<size_t>(i)] / sum * (1 << kWeightBits));
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
void ResizeAlongRows(const ImageView& in, int width, Image* out) {
  thread_local Axis axis;
  FillAxis(in.width, width, &axis);
  out->Reshape(in.height, width, in.channels);
  for (int y = 0; y < in.height; ++y) {
    const uint8_t* row = in.data + static_cast<size_t>(y) * in.row_bytes;
    in.channels == 3 ? ResizeRow<3>(row, axis, width, out->Row(y)) : ResizeRow<1>(row, axis, width, out->Row(y));
  }
}

// Changes the height.
void ResizeAlongColumns(const ImageView& in, int height, Image* out) {
  thread_local Axis axis;
  thread_local std::vector<int32_t> sums;
  FillAxis(in.height, height, &axis);
  out->Reshape(height, in.width, in.channels);
  const size_t width = static_cast<size_t>(in.width) * in.channels;
  sums.resize(width);
  for (int y = 0; y < height; ++y) {
    BlendRows(in.data + static_cast<size_t>(axis.first[y]) * in.row_bytes, in.row_bytes, axis.count[y],
              &axis.weights[static_cast<size_t>(y) * axis.taps], width, sums.data(), out->Row(y));
  }
}

}  // namespace

void ResizeBilinear(const ImageView& in, int height, int width, Image* out) {
  thread_local Image between;
  if (height == in.height && width == in.width) {
    out->Reshape(height, width, in.channels);
    const size_t count = static_cast<size_t>(width) * in.channels;
    for (int y = 0; y < height; ++y) std::memcpy(out->Row(y), in.data + static_cast<size_t>(y) * in.row_bytes, count);
  } else if (height == in.height) {
    ResizeAlongRows(in, width, out);
  } else if (width == in.width) {
    ResizeAlongColumns(in, height, out);
  } else {
    ResizeAlongRows(in, width, &between);
    ResizeAlongColumns(Whole(between), height, out);
  }
}

}  // namespace switchyard
