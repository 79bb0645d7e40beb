#include "collectives/reduction/reduce.h"

#include "core/abi/collective_class.h"

namespace switchyard {

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

}  // namespace switchyard
