#include "models/position_tables.h"

#include <algorithm>
#include <cmath>

#include "core/base/logging.h"

namespace switchyard {
namespace {

// Keys, "Cubic convolution interpolation for digital image processing", 1981, equation 8 with free a.
double Cubic(double x, double a) {
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

// (to, from): how much of each old place goes into a new one.
std::vector<double> Shares(int64_t from, int64_t to, GridFilter filter) {
  std::vector<double> shares(static_cast<size_t>(to * from));
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  for (int64_t i = 0; i < to; ++i) {
    double* const row = shares.data() + i * from;
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    if (filter == GridFilter::kCubic) {
      const auto first = static_cast<int64_t>(std::floor(centre - 0.5)) - 1;
      for (int64_t j = first; j < first + 4; ++j)
        row[std::clamp<int64_t>(j, 0, from - 1)] += Cubic(centre - 0.5 - static_cast<double>(j), -0.75);
      continue;
    }
    const double width = std::max(scale, 1.0);
    const auto begin = std::max<int64_t>(static_cast<int64_t>(centre - 2 * width + 0.5), 0);
    const auto end = std::min<int64_t>(static_cast<int64_t>(centre + 2 * width + 0.5), from);
    double sum = 0;
    for (int64_t j = begin; j < end; ++j) sum += row[j] = Cubic((static_cast<double>(j) + 0.5 - centre) / width, -0.5);
    for (int64_t j = begin; j < end; ++j) row[j] /= sum;
  }
  return shares;
}

// The side of a square of so many places; 0 where there is none.
int64_t SideOf(int64_t places) {
  const auto side = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(places))));
  return places > 0 && side * side == places ? side : 0;
}

// The last `from²` rows of a table (…, C), in front of which `before` rows stay.
void Resample(const std::string& name, int64_t before, const Shape& expected, GridFilter filter, HostTensor* table) {
  const size_t rows = expected.size() - 2;
  Shape shape = table->shape;
  if (shape.size() != expected.size() || shape == expected || shape[rows] <= before || expected[rows] <= before) return;
  const int64_t from = SideOf(shape[rows] - before), to = SideOf(expected[rows] - before), channels = shape.back();
  shape[rows] = expected[rows];
  if (from == 0 || to == 0 || shape != expected) return;
  const auto kept = table->values.begin() + static_cast<std::ptrdiff_t>(before * channels);
  const std::vector<float> grid = ResampleGrid({kept, table->values.end()}, from, to, channels, filter);
  table->values.erase(kept, table->values.end());
  table->values.insert(table->values.end(), grid.begin(), grid.end());
  table->shape = expected;
  LogInfo("{}: resampled bicubically from {}x{} to {}x{} positions", name, from, from, to, to);
}

}  // namespace

std::vector<float> ResampleGrid(const std::vector<float>& table, int64_t from, int64_t to, int64_t channels,
                                GridFilter filter) {
  const std::vector<double> shares = Shares(from, to, filter);
  // Along rows, then along columns.
  std::vector<double> wide(static_cast<size_t>(from * to * channels));
  for (int64_t y = 0; y < from; ++y) {
    for (int64_t x = 0; x < to; ++x) {
      for (int64_t k = 0; k < from; ++k) {
        const double share = shares[static_cast<size_t>(x * from + k)];
        if (share == 0) continue;
        for (int64_t c = 0; c < channels; ++c) {
          wide[static_cast<size_t>((y * to + x) * channels + c)] +=
              share * table[static_cast<size_t>((y * from + k) * channels + c)];
        }
      }
    }
  }
  std::vector<float> result;
  result.reserve(static_cast<size_t>(to * to * channels));
  for (int64_t y = 0; y < to; ++y) {
    for (int64_t i = 0; i < to * channels; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < from; ++k)
        sum += shares[static_cast<size_t>(y * from + k)] * wide[static_cast<size_t>(k * to * channels + i)];
      result.push_back(static_cast<float>(sum));
    }
  }
  return result;
}

void ResamplePositions(const std::map<std::string, TensorType>& expected, HostTensors* tensors) {
  const auto table = tensors->find("pos_embed");
  const auto type = expected.find("pos_embed");
  if (table == tensors->end() || type == expected.end()) return;
  Resample(table->first, 1, type->second.shape, GridFilter::kAntialiased, &table->second);
}

void ResampleBiasTables(const std::map<std::string, TensorType>& expected, HostTensors* tensors) {
  for (auto& [name, table] : *tensors) {
    const auto type = expected.find(name);
    if (type == expected.end() || !name.ends_with("relative_position_bias_table")) continue;
    Resample(name, 0, type->second.shape, GridFilter::kCubic, &table);
  }
}

}  // namespace switchyard
