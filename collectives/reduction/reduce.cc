#include "collectives/reduction/reduce.h"

#include "core/abi/collective_class.h"

namespace switchyard {

// Each is reduce_kernels.cc compiled for one instruction set.
namespace generic {
ReduceFunction Find(sy_dtype dtype, int reduction);
const WideForm* FindWide(sy_dtype dtype);
}  // namespace generic
#if defined(__x86_64__)
namespace avx2 {
ReduceFunction Find(sy_dtype dtype, int reduction);
const WideForm* FindWide(sy_dtype dtype);
}  // namespace avx2
namespace avx512 {
ReduceFunction Find(sy_dtype dtype, int reduction);
const WideForm* FindWide(sy_dtype dtype);
}  // namespace avx512
#endif

namespace {

struct Set {
  ReduceFunction (*find)(sy_dtype dtype, int reduction);
  const WideForm* (*find_wide)(sy_dtype dtype);
};

Set SetOfThisMachine() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return {avx512::Find, avx512::FindWide};
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return {avx2::Find, avx2::FindWide};
#endif
  return {generic::Find, generic::FindWide};
}

}  // namespace

ReduceFunction FindReduction(sy_dtype dtype, int reduction) {
  if (BytesOf(dtype) == 0 || reduction < 0 || reduction >= SY_REDUCTION_COUNT) return nullptr;
  return SetOfThisMachine().find(dtype, reduction);
}

const WideForm* FindWideForm(sy_dtype dtype) { return SetOfThisMachine().find_wide(dtype); }

}  // namespace switchyard
