// What a confusion matrix says: counts (classes, classes), row-major, a row per true class, a column per predicted one.
// They are whole numbers in doubles, so that sums over samples and ranks are exact in any order (below 2^53). A class
// that is neither in the truth nor predicted has no number of its own and is left out of means.
// Thread-safe: pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace switchyard {

// Intersection over union: |truth ∧ predicted| / |truth ∨ predicted|, the Jaccard index.
std::optional<double> IoU(std::span<const double> counts, size_t classes, size_t of);
// 2 |truth ∧ predicted| / (|truth| + |predicted|).
std::optional<double> Dice(std::span<const double> counts, size_t classes, size_t of);
// The share of a true class that is predicted as it; none where the truth lacks it.
std::optional<double> Recall(std::span<const double> counts, size_t classes, size_t of);

// Over the classes that have one; 0 where none has.
double MeanIoU(std::span<const double> counts, size_t classes);
double MeanDice(std::span<const double> counts, size_t classes);
// The share of all that is predicted right; 0 where nothing was counted.
double Accuracy(std::span<const double> counts, size_t classes);
double Total(std::span<const double> counts);

}  // namespace switchyard
