#include <cstring>

#include "backends/cpu/device.h"
#include "backends/cpu/vector/kernels.h"

namespace switchyard {

namespace baseline {
extern const VectorKernels kTable;
}
#if defined(SY_X86_64)
namespace avx2 {
extern const VectorKernels kTable;
}
namespace avx512 {
extern const VectorKernels kTable;
}
namespace avx512_bf16 {
extern const VectorKernels kTable;
}
#endif

namespace {

const VectorKernels& Choose() {
  const VectorKernels* best = &baseline::kTable;
  const char* wanted = Setting("CPU_ISA");
#if defined(SY_X86_64)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const struct {
    bool usable;
    const VectorKernels* table;
  } tables[] = {{avx2, &avx2::kTable},
                {avx512, &avx512::kTable},
                {avx512 && __builtin_cpu_supports("avx512bf16"), &avx512_bf16::kTable}};
  if (wanted && std::strcmp(wanted, best->isa) == 0) return *best;
  for (const auto& [usable, table] : tables) {
    if (!usable) continue;
    best = table;
    if (wanted && std::strcmp(wanted, table->isa) == 0) break;
  }
#else
  (void)wanted;
#endif
  return *best;
}

}  // namespace

const VectorKernels& Vector() {
  static const VectorKernels& chosen = Choose();
  return chosen;
}

}  // namespace switchyard
