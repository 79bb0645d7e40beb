// Copies and fills for a device that moves whole lines (DeviceInfo::copy_granularity above 1). What lies on lines goes
// to the plugin as it is; the lines that are only touched in part are read, merged on the host and written back, for
// which the host waits. Everything of the engine's lies on lines except the ends of what is no multiple of them. The
// caller keeps other work away from a line that it copies into.
#pragma once

#include <cstdint>

#include "core/abi/base.h"
#include "core/base/status.h"

namespace switchyard {

class Device;
class Stream;

// As Device::Copy and Device::Fill.
Status CopyLines(Device& device, const Stream& stream, sy_place destination, sy_place source, uint64_t bytes);
Status FillLines(Device& device, const Stream& stream, sy_place destination, uint8_t value, uint64_t bytes);

}  // namespace switchyard
