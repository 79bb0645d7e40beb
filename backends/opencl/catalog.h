// The OpenCL devices of this machine, over all platforms, and what each says of itself. GPUs come first, then
// accelerators, then CPUs, each in the order of the platforms. They are looked for once, when somebody first asks.
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/opencl/opencl.h"
#include "core/abi/device.h"

namespace switchyard {

struct CatalogEntry {
  cl_platform_id platform;
  cl_device_id device;
  cl_device_type type;
  std::string libraries;  // the platform and the driver, as sy_device_info names them
};

struct Catalog {
  std::vector<CatalogEntry> entries;
  std::string why_none;  // where there are none
};
const Catalog& Devices();

// SY_INVALID, naming the devices that there are, for an index outside the catalog.
sy_status CheckIndex(int32_t index, sy_error* error);

// What kernels and allocations are fitted to.
struct Traits {
  std::string name, version;  // version: of the device, its driver and its platform
  bool computes_on_host = false;
  uint32_t compute_units = 1;
  uint32_t vector_width = 1;  // f32, a power of two up to 16
  uint64_t max_work_group = 1;
  uint64_t memory_bytes = 0, largest_allocation = 0;
  uint32_t alignment = 128;  // bytes
  bool splits_by_counts = false;
  // PoCL compiles a kernel when it is first launched, and keeps it. Asked for a program's binary, it compiles every
  // kernel of the program, most of them never launched.
  bool keeps_kernels = false;
};
sy_status ReadTraits(const CatalogEntry& entry, Traits* traits, sy_error* error);

// Equal for one device in every process of one host.
void FillUuid(int32_t index, const Traits& traits, uint8_t uuid[16]);

}  // namespace switchyard
