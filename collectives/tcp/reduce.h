// Element-wise reductions over what several ranks sent. Sources are taken in their order, so that results are the same
// on every rank and every time; f16 and bf16 are added in f32 and rounded once (to nearest even). NaN wins in max and
// min; integers wrap around. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "core/abi/collective.h"

namespace tcp {

// out[i] = sources[0][i] op sources[1][i] op …, for i < count. `out` may be one of the sources; no other overlap.
// False for a dtype or reduction that ABI version 1 does not know.
bool Reduce(void* out, const std::vector<const void*>& sources, uint64_t count, sy_dtype dtype, int32_t reduction);

}  // namespace tcp
