#include "core/train/confusion.h"

#include <numeric>

namespace switchyard {
namespace {

struct Overlap {
  double both = 0, truth = 0, predicted = 0;
};

Overlap OverlapOf(std::span<const double> counts, size_t classes, size_t of) {
  Overlap o = {counts[of * classes + of], 0, 0};
  for (size_t c = 0; c < classes; ++c) {
    o.truth += counts[of * classes + c];
    o.predicted += counts[c * classes + of];
  }
  return o;
}

std::optional<double> Ratio(double part, double of) { return of > 0 ? std::optional<double>(part / of) : std::nullopt; }

using OfClass = std::optional<double> (*)(std::span<const double> counts, size_t classes, size_t of);

double MeanOver(std::span<const double> counts, size_t classes, OfClass number) {
  double sum = 0;
  int have = 0;
  for (size_t c = 0; c < classes; ++c) {
    const std::optional<double> value = number(counts, classes, c);
    if (value) sum += *value, ++have;
  }
  return have > 0 ? sum / have : 0;
}

}  // namespace

std::optional<double> IoU(std::span<const double> counts, size_t classes, size_t of) {
  const Overlap o = OverlapOf(counts, classes, of);
  return Ratio(o.both, o.truth + o.predicted - o.both);
}

std::optional<double> Dice(std::span<const double> counts, size_t classes, size_t of) {
  const Overlap o = OverlapOf(counts, classes, of);
  return Ratio(2 * o.both, o.truth + o.predicted);
}

std::optional<double> Recall(std::span<const double> counts, size_t classes, size_t of) {
  const Overlap o = OverlapOf(counts, classes, of);
  return Ratio(o.both, o.truth);
}

double MeanIoU(std::span<const double> counts, size_t classes) { return MeanOver(counts, classes, IoU); }
double MeanDice(std::span<const double> counts, size_t classes) { return MeanOver(counts, classes, Dice); }

double Accuracy(std::span<const double> counts, size_t classes) {
  double right = 0;
  for (size_t c = 0; c < classes; ++c) right += counts[c * classes + c];
  return Ratio(right, Total(counts)).value_or(0);
}

double Total(std::span<const double> counts) { return std::accumulate(counts.begin(), counts.end(), 0.0); }

}  // namespace switchyard
