// Where the elements of a part (part.h) lie in the tensor that is no part. Thread-safe: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "core/graph/part.h"

namespace switchyard {

// Elements that lie together in the tensor that is no part, from `whole` on, and in the part, from `at` on.
struct PartRun {
  int64_t whole, at, elements;
  bool operator==(const PartRun&) const = default;
};
// All that the part has, in order: both `whole` and `at` grow.
std::vector<PartRun> RunsOf(const Part& part);

}  // namespace switchyard
