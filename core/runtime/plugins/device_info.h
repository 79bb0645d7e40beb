// What a backend plugin says of a device without opening it, checked. Plain values.
#pragma once

#include <cstdint>
#include <string>

#include "core/abi/device.h"

namespace switchyard {

struct DeviceInfo {
  int index = 0;
  std::string plugin, name, uuid;
  uint64_t memory_bytes = 0, free_bytes = 0, largest_allocation = 0, alignment = 64;
  uint32_t address_kind = 0, flags = 0, dtypes = 0;
  double static_loss_scale = 0, peak_flops = 0;
  bool async() const { return flags & SY_DEVICE_ASYNC; }
  bool host_readable() const { return address_kind == SY_ADDRESS_HOST; }
};

}  // namespace switchyard
