// The starting values of parameters. They depend on the seed and the parameter's name alone, so that every rank, world
// size, device and build order starts from the same weights: element i is drawn from Philox with key Key(seed,
// HashName(name)) and a counter that i gives. Thread-safe: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/graph/part_runs.h"

namespace switchyard::nn {

// The elements of `type`, row-major. Normal draws by Box-Muller; kTruncatedNormal redraws what falls outside ±2
// (absolute, as timm's trunc_normal_).
std::vector<float> InitialValues(const std::string& name, const TensorType& type, const Initializer& initializer,
                                 uint64_t seed);

// Of a tensor those elements alone that `runs` names, where it puts them: what a rank draws that holds a part of it.
std::vector<float> InitialElements(const std::string& name, const std::vector<PartRun>& runs,
                                   const Initializer& initializer, uint64_t seed);

}  // namespace switchyard::nn
