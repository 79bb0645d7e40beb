#include "collectives/shm/reduce.h"

#include "core/abi/collective.h"

namespace shm {

// Each is reduce_kernels.cc compiled for one instruction set.
namespace generic {
ReduceFunction Find(sy_dtype dtype, int reduction);
}
#if defined(__x86_64__)
namespace avx2 {
ReduceFunction Find(sy_dtype dtype, int reduction);
}
namespace avx512 {
ReduceFunction Find(sy_dtype dtype, int reduction);
}
#endif

ReduceFunction FindReduction(sy_dtype dtype, int reduction) {
  if (BytesOf(dtype) == 0 || reduction < 0 || reduction >= SY_REDUCTION_COUNT) return nullptr;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return avx512::Find(dtype, reduction);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return avx2::Find(dtype, reduction);
#endif
  return generic::Find(dtype, reduction);
}

size_t BytesOf(sy_dtype dtype) {
  constexpr size_t kBytes[SY_DTYPE_COUNT] = {4, 2, 2, 8, 4, 8, 1};
  return dtype >= 0 && dtype < SY_DTYPE_COUNT ? kBytes[dtype] : 0;
}

}  // namespace shm
