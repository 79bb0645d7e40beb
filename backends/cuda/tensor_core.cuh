// What a block does from compute capability 8.0 on beside ordinary arithmetic: copies into shared memory that do not
// pass its registers, and products of small matrices by tensor cores, instructions of a whole warp, each thread with
// its share ("fragment"). With g = lane / 4 and t = lane % 4, for a 16×16 A, a 16×8 B and a 16×8 C:
//   a[0], a[1]: A(g, 2t), A(g, 2t + 1) as one word; and of row g + 8       a[2], a[3]: the same, columns 2t + 8, 2t + 9
//   b[0], b[1]: B(2t, g), B(2t + 1, g) as one word; and of rows 2t + 8, 2t + 9
//   c[0], c[1], c[2], c[3]: C(g, 2t), C(g, 2t + 1), C(g + 8, 2t), C(g + 8, 2t + 1)
// https://docs.nvidia.com/cuda/parallel-thread-execution/ (mma.m16n8k16, ldmatrix, cp.async). Elements are bf16 or f16,
// the lower address in the lower half of a word. (A host emulation of CUDA defines its own before and
// SWITCHYARD_TENSOR_CORE_CUH_.)
#ifndef SWITCHYARD_TENSOR_CORE_CUH_
#define SWITCHYARD_TENSOR_CORE_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "core/abi/base.h"

namespace switchyard {

// c += a·b
template <sy_dtype kDtype>
__device__ __forceinline__ void MultiplyFragments(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&c)[4]) {
  static_assert(kDtype == SY_BF16 || kDtype == SY_F16);
  if constexpr (kDtype == SY_BF16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Four 8×8 matrices from shared memory: lane l gives the address of row l % 8 of matrix l / 8, 16 bytes, aligned.
// r[m] = M(g, 2t), M(g, 2t + 1) of matrix m.
__device__ __forceinline__ void LoadMatrices(const void* row, uint32_t (&r)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
// The same of their transposes: r[m] = M(2t, g), M(2t + 1, g).
__device__ __forceinline__ void LoadMatricesTransposed(const void* row, uint32_t (&r)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// 16 bytes, aligned, from global to shared memory while the thread goes on; zeros where not `valid`, and then nothing
// is read. There once the thread has waited for them (for others of the block: and met it at a barrier).
__device__ __forceinline__ void CopyAsync(void* to, const void* from, bool valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(address), "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
               : "memory");
}
// Makes one group of the copies since the last, and waits until at most the `kLeft` latest groups are under way.
__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int kLeft>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kLeft) : "memory");
}

}  // namespace switchyard

#endif  // SWITCHYARD_TENSOR_CORE_CUH_
