// A reduction as a step of a kernel.
#pragma once

#include "backends/opencl/kernel.h"

namespace switchyard {

// y (outer, inner) = scale · what over `reduced` of x (outer, reduced, inner), plus y where it accumulates.
struct Reduction {
  int32_t what = SY_REDUCE_SUM;
  Operand x{};
  sy_dtype x_dtype = SY_F32;
  Operand y{};
  sy_dtype y_dtype = SY_F32;
  int64_t outer = 1, reduced = 1, inner = 1;
  double scale = 1;
  bool accumulate = false;
};
void AddReduction(Kernel& kernel, const Reduction& reduction);

}  // namespace switchyard
