// What matmul.cc asks of cuDNN where kernels are measured.
#pragma once

#include "backends/cuda/kernel.h"

namespace switchyard {

// Of a request for matmul that matmul.cc has checked, and that Measures: `usual`, or a kernel that makes the product
// and the exact GELU, or its gradient, in one launch, whichever took less time; the choice is kept in the tuning cache.
// Where cuDNN has no such kernel, `usual` says so as a second choice; nullptr where the device was lost.
KernelPointer PreferFusedGelu(const Request& request, KernelPointer usual);

}  // namespace switchyard
