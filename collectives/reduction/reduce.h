// Element-wise reductions over the memory of several ranks, vectorised. The order is that of the sources, so that
// results are the same on every rank and every time; f16 and bf16 are added in f32 and rounded once (to nearest even).
// NaN wins in max and min; integers wrap around. Pure functions.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "core/abi/base.h"

namespace switchyard {

// destinations[d][i] = sources[0][i] op sources[1][i] op …, for i < count. A destination may be a source; no other
// overlap.
using ReduceFunction = void (*)(void* const* destinations, int destination_count, const void* const* sources,
                                int source_count, size_t count);

// nullptr for a pair that is not offered; every dtype × reduction of core/abi is.
ReduceFunction FindReduction(sy_dtype dtype, int reduction);

// Between a half type and f32, in which it is reduced: for reductions that are made in several steps and round once.
struct WideForm {
  void (*widen)(float* to, const void* from, size_t count);
  void (*narrow)(void* to, const float* from, size_t count);
};
// nullptr for a dtype that is reduced as it is stored.
const WideForm* FindWideForm(sy_dtype dtype);

}  // namespace switchyard
