// Recomputation (Chen et al. 2016, "Training deep nets with sublinear memory cost"): of chosen blocks of the model
// (Graph::Block) only what goes in and out is kept between the forward and the backward pass; what the backward pass
// reads of their inside is computed a second time, just before it is read. Losses and gradients keep every bit.
//
// A second computation has the attributes of the first, in which random ops carry their key, so that it draws the same
// numbers whatever its name. It is part of the forward phase, is named "<name>/recomputed" and says what it repeats
// (Node::repeats), so that fusion treats both alike; it has a control edge from the backward node before it, and takes
// the first one's place in pairs of forward and backward. Never repeated: inputs, assignments, and collectives, whose
// results are kept.
#pragma once

#include <optional>
#include <string>

#include "core/parallel/passes.h"

namespace switchyard {

// "none", "blocks" or "every:K", K ≥ 1 → ProgramOptions::recompute; else InvalidArgument.
StatusOr<std::optional<int>> ParseRecompute(const std::string& setting);
std::string RecomputeText(std::optional<int> every);  // and back

// The setting that says: the least that fits. Whoever knows the device puts a value in its place
// (core/train/fitting.h); ParseRecompute refuses it.
inline constexpr char kAutoRecompute[] = "auto";

}  // namespace switchyard
