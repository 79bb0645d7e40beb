// Rows of `columns` channels with a mean and a variance per channel. Sums are taken over a tile of rows and a few
// vectors of channels at a time, in registers, while the tile lies in the first cache; tiles are joined in order.
#include "backends/cpu/vector/convert.h"

namespace switchyard::SY_ISA {
namespace {

constexpr int64_t kTileRows = 64;
constexpr int kStripVectors = 4;  // vectors of channels at a time

// body(first channel, vectors, lanes of the last one) over the channels.
template <typename Body>
SY_INLINE void ForEachStrip(int64_t columns, Body body) {
  constexpr int64_t kStrip = kStripVectors * kLanes;
  int64_t c = 0;
  for (; c + kStrip <= columns; c += kStrip) body(c, kStripVectors, int64_t{kLanes});
  for (; c < columns; c += kLanes) body(c, 1, Min(kLanes, columns - c));
}

// y = what is stored where the activation took what is positive.
SY_INLINE Floats Masked(Floats g, Floats y) { return y > 0.0f ? g : Floats{}; }

SY_INLINE Floats Gradient(const BatchNormGradientRows& a, int64_t at, int64_t lanes) {
  const Floats g = LoadRow(a.dy, at, lanes);
  return a.y.data ? Masked(g, LoadRow(a.y, at, lanes)) : g;
}

// The mean and Σ (x − mean)² of a tile, joined with those of `before` rows (Chan, Golub and LeVeque, 1979).
template <int vectors>
SY_INLINE void JoinTile(const Rows& x, int64_t columns, int64_t row, int64_t rows, int64_t c, int64_t lanes,
                        int64_t before, float* mean, float* squares) {
  Floats sum[vectors] = {}, square[vectors] = {};
  for (int64_t r = row; r < row + rows; ++r)
    for (int j = 0; j < vectors; ++j) sum[j] += LoadRow(x, r * columns + c + j * kLanes, lanes);
  const float count = static_cast<float>(rows), all = static_cast<float>(before + rows);
  for (int j = 0; j < vectors; ++j) sum[j] /= count;
  for (int64_t r = row; r < row + rows; ++r) {
    for (int j = 0; j < vectors; ++j) {
      const Floats d = LoadRow(x, r * columns + c + j * kLanes, lanes) - sum[j];
      square[j] += d * d;
    }
  }
  for (int j = 0; j < vectors; ++j) {
    const int64_t at = c + j * kLanes;
    const Floats m = Load(mean + at, lanes), d = sum[j] - m;
    Store(mean + at, before == 0 ? sum[j] : m + d * (count / all), lanes);
    const Floats between = d * d * (count / all * static_cast<float>(before));
    Store(squares + at, before == 0 ? square[j] : Load(squares + at, lanes) + square[j] + between, lanes);
  }
}

template <int vectors>
SY_INLINE void AddTile(const BatchNormGradientRows& a, int64_t row, int64_t rows, int64_t c, int64_t lanes,
                       float* with_x, float* plain) {
  Floats product[vectors] = {}, sum[vectors] = {};
  for (int64_t r = row; r < row + rows; ++r) {
    for (int j = 0; j < vectors; ++j) {
      const int64_t channel = c + j * kLanes, at = r * a.columns + channel;
      const Floats g = Gradient(a, at, lanes);
      product[j] += g * (LoadRow(a.x, at, lanes) - Load(a.mean + channel, lanes));
      sum[j] += g;
    }
  }
  for (int j = 0; j < vectors; ++j) {
    const int64_t at = c + j * kLanes;
    Store(with_x + at, Load(with_x + at, lanes) + product[j], lanes);
    Store(plain + at, Load(plain + at, lanes) + sum[j], lanes);
  }
}

}  // namespace

void batch_norm_statistics(Rows x, int64_t columns, int64_t begin, int64_t end, float* mean, float* squares) {
  for (int64_t row = begin; row < end; row += kTileRows) {
    const int64_t rows = Min(kTileRows, end - row);
    ForEachStrip(columns, [&](int64_t c, int vectors, int64_t lanes) SY_INLINED {
      if (vectors == kStripVectors)
        JoinTile<kStripVectors>(x, columns, row, rows, c, kLanes, row - begin, mean, squares);
      else if (lanes == kLanes)
        JoinTile<1>(x, columns, row, rows, c, kLanes, row - begin, mean, squares);
      else
        JoinTile<1>(x, columns, row, rows, c, lanes, row - begin, mean, squares);
    });
  }
}

void batch_norm(const BatchNormRows& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    ForEachVector(a.columns, [&](int64_t c, int64_t lanes) SY_INLINED {
      const int64_t at = r * a.columns + c;
      const Floats off = LoadRow(a.x, at, lanes) - Load(a.mean + c, lanes);
      Floats y = off * Load(a.scale + c, lanes) + Load(a.beta + c, lanes);
      if (a.residual.data) y += LoadRow(a.residual, at, lanes);
      if (a.relu) y = y < 0.0f ? Floats{} : y;  // NaN stays
      StoreRow(a.y, at, y, lanes);
    });
  }
}

void batch_norm_sums(const BatchNormGradientRows& a, int64_t begin, int64_t end, float* with_x, float* plain) {
  for (int64_t row = begin; row < end; row += kTileRows) {
    const int64_t rows = Min(kTileRows, end - row);
    ForEachStrip(a.columns, [&](int64_t c, int vectors, int64_t lanes) SY_INLINED {
      if (vectors == kStripVectors)
        AddTile<kStripVectors>(a, row, rows, c, kLanes, with_x, plain);
      else if (lanes == kLanes)
        AddTile<1>(a, row, rows, c, kLanes, with_x, plain);
      else
        AddTile<1>(a, row, rows, c, lanes, with_x, plain);
    });
  }
}

// dx = scale·(g − mean_g − (x − mean)·slope)
void batch_norm_backward(const BatchNormGradientRows& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    ForEachVector(a.columns, [&](int64_t c, int64_t lanes) SY_INLINED {
      const int64_t at = r * a.columns + c;
      const Floats g = Gradient(a, at, lanes);
      const Floats off = LoadRow(a.x, at, lanes) - Load(a.mean + c, lanes);
      const Floats rest = g - Load(a.mean_g + c, lanes) - off * Load(a.slope + c, lanes);
      StoreRow(a.dx, at, rest * Load(a.scale + c, lanes), lanes);
      if (a.dresidual.data) StoreRow(a.dresidual, at, g, lanes);
    });
  }
}

}  // namespace switchyard::SY_ISA
