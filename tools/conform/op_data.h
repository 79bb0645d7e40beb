// Turns a row of the case table into data: the problem that the plugin under test gets, in its dtype, and the same
// numbers in f64 for the reference. Everything is a pure function of seed, case and dtype.
#pragma once

#include <cstdint>

#include "core/runtime/device/device.h"
#include "tools/conform/op_cases.h"
#include "tools/conform/op_run.h"

namespace switchyard::conform {

// Fresh operands only; inputs of a gradient case that come from its forward are left empty.
Problem MakeProblem(const OpCase& one, sy_dtype tested, uint64_t seed);
// The same with every float operand in f64 and contiguous.
Problem InDoubles(const Problem& problem);
// MakeProblem, and for a gradient case the forward's inputs and (rounded) outputs, as the reference computes them.
StatusOr<Problem> MakeWholeProblem(const OpCase& one, sy_dtype tested, uint64_t seed, Device& reference);
// Seeds of a gradient case and its forward agree, so that both see the same inputs.
std::vector<double> Random(Fill fill, double value, const sy_tensor& tensor, uint64_t key);

}  // namespace switchyard::conform
