// Every op of the case table in every dtype of the device, against the fp64 reference; and gradients against finite
// differences.
#pragma once

#include <cstdint>

#include "core/runtime/device/device.h"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// Checks "op/OP/CASE/DTYPE": numbers, guards and untouched inputs, repeated launches, a second binding of the same
// kernel, declared in-place pairs, accumulation where it is accepted, and a backward paired with its forward.
// Tolerance: normalised squared error 1e-7 in f32, 1e-5 in f16, 1e-4 in bf16; none where an op only moves data.
void CheckOps(Recorder& recorder, Device& device, Device& reference, uint64_t seed);

// Checks "gradient/OP/CASE": the device's backward (in f64 where it takes that, else f32) against central differences
// of the reference's forward.
void CheckGradients(Recorder& recorder, Device& device, Device& reference, uint64_t seed);

}  // namespace switchyard::conform
