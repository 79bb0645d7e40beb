// Tensors that do not lie in row-major order without gaps: a kernel takes them, and then computes what it computes
// otherwise and touches nothing between the elements, or prepare refuses them as unsupported. One thread.
#pragma once

#include <cstdint>
#include <span>

#include "core/runtime/device/device.h"
#include "tools/conform/recorder.h"

namespace switchyard::conform {

// A way in which a tensor may lie: changes its strides. False: it says nothing new of this tensor.
struct Layout {
  const char* name;
  bool (*apply)(sy_tensor&);
};
std::span<const Layout> Layouts();

// Checks "strides/OP/CASE", in f32.
void CheckStrides(Recorder& recorder, Device& device, Device& reference, uint64_t seed);

}  // namespace switchyard::conform
