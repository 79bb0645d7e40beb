// Requests that make no sense: too few inputs, shapes and dtypes that do not fit, attributes out of range. A plugin
// answers SY_INVALID or SY_UNSUPPORTED with a message; it neither takes them nor crashes.
#pragma once

#include "core/runtime/device/device.h"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// Checks "argument/OP".
void CheckArguments(Recorder& recorder, Device& device);

}  // namespace switchyard::conform
