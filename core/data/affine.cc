#include "core/data/affine.h"

#include <algorithm>
#include <cmath>

namespace switchyard {
namespace {

// The rows and columns that a pixel is made of, `kTaps` of each: those beyond the border are replaced by the nearest.
template <int kTaps>
struct Neighbours {
  std::array<const uint8_t*, kTaps> rows;
  std::array<int, kTaps> columns;  // in bytes
  double dx = 0, dy = 0;           // from the second (bicubic) or first (bilinear) to the place
};

template <int kTaps>
Neighbours<kTaps> Around(const Image& in, double x, double y) {
  Neighbours<kTaps> n;
  const double left = std::floor(x), top = std::floor(y);
  n.dx = x - left, n.dy = y - top;
  for (int i = 0; i < kTaps; ++i) {
    const int offset = i - (kTaps == 4);
    n.rows[i] = in.Row(std::clamp(static_cast<int>(top) + offset, 0, in.height - 1));
    n.columns[i] = std::clamp(static_cast<int>(left) + offset, 0, in.width - 1) * in.channels;
  }
  return n;
}

double Linear(double a, double b, double d) { return a + (b - a) * d; }

// Keys' cubic convolution with a = -1: not that of Resize.
double Cubic(double a, double b, double c, double d, double t) {
  const double p2 = -a + c, p3 = 2 * (a - b) + c - d, p4 = -a + b - c + d;
  return b + t * (p2 + t * (p3 + t * p4));
}

uint8_t At(const Neighbours<2>& n, int c) {
  const auto row = [&](int i) { return Linear(n.rows[i][n.columns[0] + c], n.rows[i][n.columns[1] + c], n.dx); };
  return static_cast<uint8_t>(Linear(row(0), row(1), n.dy));
}

uint8_t At(const Neighbours<4>& n, int c) {
  const auto row = [&](int i) {
    const uint8_t* p = n.rows[i] + c;
    return Cubic(p[n.columns[0]], p[n.columns[1]], p[n.columns[2]], p[n.columns[3]], n.dx);
  };
  return static_cast<uint8_t>(std::clamp(Cubic(row(0), row(1), row(2), row(3), n.dy), 0.0, 255.0));
}

// Calls inside(pixel, x, y) for each pixel of the result that comes from a place in the image, and fills the others.
template <typename F>
void ForEachPlace(const Image& in, const AffineMap& m, std::span<const uint8_t> fill, Image* out, const F& inside) {
  out->Reshape(in.height, in.width, in.channels);
  for (int y = 0; y < in.height; ++y) {
    uint8_t* pixel = out->Row(y);
    const double yc = y + 0.5;
    for (int x = 0; x < in.width; ++x, pixel += in.channels) {
      const double xc = x + 0.5;
      const double from_x = m[0] * xc + m[1] * yc + m[2], from_y = m[3] * xc + m[4] * yc + m[5];
      if (from_x < 0 || from_x >= in.width || from_y < 0 || from_y >= in.height) {
        std::copy(fill.begin(), fill.end(), pixel);
      } else {
        inside(pixel, from_x, from_y);
      }
    }
  }
}

template <int kTaps>
void WarpWith(const Image& in, const AffineMap& m, std::span<const uint8_t> fill, Image* out) {
  ForEachPlace(in, m, fill, out, [&](uint8_t* pixel, double x, double y) {
    const auto neighbours = Around<kTaps>(in, x - 0.5, y - 0.5);
    for (int c = 0; c < in.channels; ++c) pixel[c] = At(neighbours, c);
  });
}

}  // namespace

AffineMap Rotation(double degrees, int height, int width) {
  constexpr double kRadians = 3.14159265358979323846 / 180;
  double turn = std::fmod(degrees, 360.0);
  if (turn < 0) turn += 360;
  const auto rounded = [](double value) { return std::nearbyint(value * 1e15) / 1e15; };
  const double cos = rounded(std::cos(-turn * kRadians)), sin = rounded(std::sin(-turn * kRadians));
  const double x = width / 2.0, y = height / 2.0;
  return {cos, sin, cos * -x + sin * -y + x, -sin, cos, -sin * -x + cos * -y + y};
}

void Warp(const Image& in, const AffineMap& map, Interpolation interpolation, std::span<const uint8_t> fill,
          Image* out) {
  interpolation == Interpolation::kBicubic ? WarpWith<4>(in, map, fill, out) : WarpWith<2>(in, map, fill, out);
}

void WarpNearest(const Image& in, const AffineMap& map, uint8_t fill, Image* out) {
  ForEachPlace(in, map, {&fill, 1}, out,
               [&](uint8_t* pixel, double x, double y) { *pixel = in.Row(static_cast<int>(y))[static_cast<int>(x)]; });
}

}  // namespace switchyard
