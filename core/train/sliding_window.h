// A volume's logits put together from those of windows that overlap, and what they say of the volume. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/data/volume_transforms.h"

namespace switchyard {

class SlidingWindow {
 public:
  // gaussian: windows weigh as WindowWeights says, else all alike.
  SlidingWindow(const Extents& patch, int classes, bool gaussian);

  void Start(const Extents& volume);
  // logits: (patch, classes) of the window that begins at `start`; what lies outside of the volume is left out.
  void Add(const Extents& start, const float* logits);
  // The weighted means (volume, classes), once windows cover the volume; until the next Start.
  std::span<const float> Means();

 private:
  const Extents patch_;
  const int64_t classes_;
  const std::vector<float> weights_;
  Extents volume_ = {};
  std::vector<float> sums_, total_weights_;
};

// The class of a voxel: of one logit 1 where it is above 0, else 0; of several the first of the largest.
uint8_t ClassOf(std::span<const float> logits);

// What a segmentation's evaluation adds up, over places of any shape: for the loss (SegmentationLoss) Σ CE, Σ places,
// and by class Σ p·t and Σ (p + t); then how often each class was taken for each (confusion.h), with
// 2 classes where there is one logit. kIgnoredClass counts nowhere.
struct SegmentationSums {
  int classes = 1;  // of the logits
  bool sigmoid = true;

  int told_apart() const { return classes == 1 ? 2 : classes; }
  int count() const { return 2 + 2 * classes + told_apart() * told_apart(); }
  void Add(std::span<const float> logits, std::span<const uint8_t> labels, std::span<double> sums) const;
  double Loss(std::span<const double> sums, double entropy_weight, double dice_weight) const;
  std::span<const double> Confusion(std::span<const double> sums) const {
    return sums.subspan(static_cast<size_t>(2 + 2 * classes));
  }
};

}  // namespace switchyard
