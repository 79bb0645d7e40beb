// Host side of element.cuh: the operands of a binding as Views.
#pragma once

#include "backends/cuda/element.cuh"
#include "backends/cuda/kernel.h"

namespace switchyard {

inline View In(const Bound& b, size_t i) { return {b.inputs[i], b.kernel->inputs[i].dtype}; }
inline View Out(const Bound& b, size_t o) { return {b.outputs[o], b.kernel->outputs[o].dtype}; }

// Whether rows of `elements` can be moved eight at a time: then every row of a 16-byte aligned tensor is aligned too.
inline bool Packs(int64_t elements) { return elements % kPack == 0; }

}  // namespace switchyard

// Launches kernel<8> where `packs`, else kernel<1>; returns from the enclosing function where that fails.
#define SY_LAUNCH_PACKED(error, packs, kernel, ...)                     \
  do {                                                                  \
    if (packs) {                                                        \
      SY_CUDA(error, Launch(kernel<::switchyard::kPack>, __VA_ARGS__)); \
    } else {                                                            \
      SY_CUDA(error, Launch(kernel<1>, __VA_ARGS__));                   \
    }                                                                   \
  } while (false)
