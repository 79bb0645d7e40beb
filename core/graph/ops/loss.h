// Cross entropy and the rank of the true class (for top-k accuracy).
#pragma once

#include "core/abi/ops.h"
#include "core/graph/graph.h"

namespace switchyard::ops {

using Where = std::source_location;

// logits (N, C), labels (N) i32 or soft targets (N, C) → loss per sample (N) f32; 0 where the label is negative.
Value CrossEntropy(const Value& logits, const Value& labels, float label_smoothing = 0, Where where = Where::current());
// How many classes score higher than the label's: (N) i32; C where the label is negative. top-k is rank < k.
Value LabelRank(const Value& logits, const Value& labels, Where where = Where::current());

}  // namespace switchyard::ops
