// A short training run driven through the ABI alone: a two-layer perceptron that learns labels of a linear teacher. Ops
// that the plugin does not take run on the reference through host copies, as the engine would do it.
#pragma once

#include <cstdint>

#include "core/runtime/device/device.h"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// Checks "train/mlp" (the loss falls, and equals that of the reference at every step) and "train/native" (no op fell
// back).
void CheckTraining(Recorder& recorder, Device& device, Device& reference, uint64_t seed);

}  // namespace switchyard::conform
