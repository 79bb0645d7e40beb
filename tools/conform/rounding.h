// Numbers whose rounding to a half type tells nearest-even from everything else: ties between an even and an odd
// neighbour, what lies just beside a tie, subnormals, the step from the largest number to infinity, NaN. Every number,
// sum and product here is exact in f32, so that a computation in f32 that rounds once has one right answer, whatever
// its order. Pure functions; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "tools/conform/values.h"

namespace switchyard::conform {

inline bool IsHalf(sy_dtype dtype) { return dtype == SY_BF16 || dtype == SY_F16; }

// `value` rounded once to a half type: to nearest, ties to even, too large becomes infinite.
double RoundedOnce(double value, sy_dtype half);
// The distance between neighbours in the half type at `value`.
double UnitAt(double value, sy_dtype half);

// Every number of the half type, and between each and the next one the tie and the f32 numbers on both sides of it.
std::vector<double> NumbersToRound(sy_dtype half);

// Two numbers of the half type, whose sum or product is to be rounded to it. Of bf16 none is subnormal: hardware for
// products may take those for zero.
struct Pair {
  double a, b;
};
std::vector<Pair> PairsToAdd(sy_dtype half);
std::vector<Pair> PairsToMultiply(sy_dtype half);

// kInternal, with the first number that is not what `expected` rounds to, the exact number and a guess at what was done
// instead. NaN is any NaN; 0 is either zero.
Status ExpectRounded(const std::vector<double>& found, const std::vector<double>& exact, sy_dtype half);

// kInternal where numbers of a half type lie to one side of the exact ones more than chance allows: what rounding
// towards zero, or always down, does to results that nobody can tell exactly. Numbers that are off by more than one
// unit of the last place beside their rounding do not count.
Status ExpectUnbiased(const std::vector<double>& found, const std::vector<double>& exact, sy_dtype half);

}  // namespace switchyard::conform
