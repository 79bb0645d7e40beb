// The gradient of a depthwise convolution's weights, which oneDNN (3.2) has at a twentieth of the speed of its other
// kernels. All float dtypes, 2-D and 3-D; the shapes were checked, and groups, channels and filters are equally many.
#pragma once

#include "backends/cpu/kernel.h"

namespace switchyard {

KernelPointer MakeDepthwiseWeights(const Request& request);

}  // namespace switchyard
