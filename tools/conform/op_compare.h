// How results of an op are judged against those of the f64 reference. Pure functions; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "tools/conform/op_cases.h"
#include "tools/conform/op_run.h"

namespace switchyard::conform {

using Values = std::vector<std::vector<double>>;

bool SameNumber(double a, double b);  // two that are not a number are the same

// Of one tensor, by two limits: on the sum of squared errors, and on every element, so that neither a small bias nor a
// single wrong number passes. `tested`: the dtype under test; `looser`: OpCase's factor.
Status CompareNumbers(const std::vector<double>& found, const std::vector<double>& expected, sy_dtype tested,
                      double looser, const std::string& what);
// Of all outputs, as the case demands it: exactly, or within limits and without a bias of rounding.
Status CompareOutputs(const OpCase& one, sy_dtype tested, const std::vector<sy_tensor>& outputs, const Values& found,
                      const Values& expected, const std::string& what);

}  // namespace switchyard::conform
