// What a backend plugin says of a device without opening it, checked. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/abi/device.h"

namespace switchyard {

struct DeviceInfo {
  int index = 0;
  std::string plugin, name, uuid;
  uint64_t memory_bytes = 0, free_bytes = 0, alignment = 64;
  uint64_t largest_allocation = UINT64_MAX;  // bytes; this where the plugin names no limit
  uint64_t copy_granularity = 1;             // bytes; the alignment is a multiple of it
  uint32_t address_kind = 0, flags = 0;
  uint64_t dtypes = 0;                      // bits 1 << sy_dtype: those for which it has kernels
  std::string memory_kind;                  // as collectives name what they reach; "": its addresses are its own affair
  std::optional<double> static_loss_scale;  // of fp16, where nobody says another; else dynamic
  std::string libraries;                    // under the plugin, with their versions, for people; "": it says nothing
  bool async() const { return flags & SY_DEVICE_ASYNC; }
  bool host_readable() const { return address_kind == SY_ADDRESS_HOST; }
};

}  // namespace switchyard
