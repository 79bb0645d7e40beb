// Checks "op/OP/rounding…/DTYPE": conversions, sums, differences, products, matrix products and reductions whose
// results in a half type have one right answer, bit for bit (rounding.h).
#pragma once

#include "core/runtime/device/device.h"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

void CheckRounding(Recorder& recorder, Device& device);

}  // namespace switchyard::conform
