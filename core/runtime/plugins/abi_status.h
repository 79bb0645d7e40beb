// Errors of plugins as the engine's own. Thread-safe.
#pragma once

#include <string>

#include "core/abi/base.h"
#include "core/base/status.h"

namespace switchyard {

// The status of an ABI call: OK, or an absl::Status whose message starts with `what` ("cpu: alloc of 4096 bytes") and
// carries the plugin's text, native code and location. SY_UNSUPPORTED → kUnimplemented, SY_OUT_OF_MEMORY →
// kResourceExhausted, SY_TIMEOUT → kDeadlineExceeded, SY_DEVICE_LOST → kUnavailable, SY_ABORTED → kAborted, SY_INVALID
// → kInvalidArgument, SY_INTERNAL → kInternal.
Status FromAbi(sy_status status, const sy_error& error, const std::string& what);
sy_error EmptyError();

}  // namespace switchyard
