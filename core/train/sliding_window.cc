#include "core/train/sliding_window.h"

#include <algorithm>
#include <cmath>

namespace switchyard {
namespace {

constexpr double kSmallestUnion = 1e-5;

}  // namespace

SlidingWindow::SlidingWindow(const Extents& patch, int classes, bool gaussian)
    : patch_(patch), classes_(classes), weights_(WindowWeights(patch, gaussian)) {}

void SlidingWindow::Start(const Extents& volume) {
  volume_ = volume;
  sums_.assign(static_cast<size_t>(VoxelsOf(volume) * classes_), 0);
  total_weights_.assign(static_cast<size_t>(VoxelsOf(volume)), 0);
}

void SlidingWindow::Add(const Extents& start, const float* logits) {
  const int64_t first = std::max<int64_t>(0, -start[2]), last = std::min(patch_[2], volume_[2] - start[2]);
  for (int64_t d = 0; d < patch_[0]; ++d) {
    for (int64_t h = 0; h < patch_[1]; ++h) {
      const int64_t z = start[0] + d, y = start[1] + h;
      if (z < 0 || z >= volume_[0] || y < 0 || y >= volume_[1]) continue;
      for (int64_t w = first; w < last; ++w) {
        const int64_t from = (d * patch_[1] + h) * patch_[2] + w, to = (z * volume_[1] + y) * volume_[2] + start[2] + w;
        const float weight = weights_[static_cast<size_t>(from)];
        total_weights_[static_cast<size_t>(to)] += weight;
        for (int64_t c = 0; c < classes_; ++c)
          sums_[static_cast<size_t>(to * classes_ + c)] += weight * logits[from * classes_ + c];
      }
    }
  }
}

std::span<const float> SlidingWindow::Means() {
  for (size_t voxel = 0; voxel < total_weights_.size(); ++voxel) {
    for (int64_t c = 0; c < classes_; ++c)
      sums_[voxel * static_cast<size_t>(classes_) + static_cast<size_t>(c)] /= total_weights_[voxel];
    total_weights_[voxel] = 1;
  }
  return sums_;
}

uint8_t ClassOf(std::span<const float> logits) {
  if (logits.size() == 1) return logits[0] > 0;
  return static_cast<uint8_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

void SegmentationSums::Add(std::span<const float> logits, std::span<const uint8_t> labels,
                           std::span<double> sums) const {
  const auto width = static_cast<size_t>(classes);
  const std::span<double> overlap = sums.subspan(2, width), size = sums.subspan(2 + width, width),
                          confusion = sums.subspan(2 + 2 * width);
  std::vector<double> p(width);
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == kIgnoredClass) continue;
    const std::span<const float> x = logits.subspan(i * width, width);
    const size_t truth = classes == 1 ? labels[i] > 0 : labels[i];
    confusion[truth * static_cast<size_t>(told_apart()) + ClassOf(x)] += 1;
    if (!sigmoid) {
      const double largest = *std::max_element(x.begin(), x.end());
      double sum = 0;
      for (size_t c = 0; c < width; ++c) sum += p[c] = std::exp(x[c] - largest);
      for (double& share : p) share /= sum;
      sums[0] += std::log(sum) + largest - x[truth];
    }
    for (size_t c = 0; c < width; ++c) {
      const double t = classes == 1 ? static_cast<double>(truth) : c == truth;
      if (sigmoid) {
        p[c] = 1 / (1 + std::exp(-double{x[c]}));
        sums[0] += std::max(double{x[c]}, 0.0) - x[c] * t + std::log1p(std::exp(-std::abs(double{x[c]})));
      }
      overlap[c] += p[c] * t;
      size[c] += p[c] + t;
    }
    sums[1] += sigmoid ? static_cast<double>(width) : 1;
  }
}

double SegmentationSums::Loss(std::span<const double> sums, double entropy_weight, double dice_weight) const {
  const auto width = static_cast<size_t>(classes);
  double dice = 0;
  for (size_t c = 0; c < width; ++c) dice += 2 * sums[2 + c] / std::max(sums[2 + width + c], kSmallestUnion);
  return entropy_weight * sums[0] / std::max(sums[1], 1.0) + dice_weight * (1 - dice / static_cast<double>(classes));
}

}  // namespace switchyard
