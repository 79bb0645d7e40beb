// Copies of whole tensors, which pointwise programs without instructions are.
#pragma once

#include "backends/cuda/kernel.h"

namespace switchyard {

// output o = input sources[o], broadcast by numpy's rules, whose dtype it has. The caller has checked the dims.
KernelPointer PrepareBroadcast(const Request& request, const int32_t* sources);

}  // namespace switchyard
