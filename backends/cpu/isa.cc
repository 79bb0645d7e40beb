#include <dnnl.h>

#include <cstring>
#include <mutex>
#include <string>

#include "backends/cpu/amx.h"
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
namespace amx {
uint64_t attention_scratch(int64_t tokens, int64_t head_dim, sy_dtype dtype, bool backward);
void attention(const AttentionHead& a);
void attention_backward(const AttentionHead& a);
bool has_tiles();
void tile_pack(const TilePacking& a, int64_t piece);
void tile_product(const TileProduct& a);
}  // namespace amx
#endif

namespace {

#if defined(SY_X86_64)
// AMX has tiles beside what AVX-512 has, and they serve products alone: attention's and matmul's.
const VectorKernels& AmxTable() {
  static const VectorKernels table = [] {
    VectorKernels t = avx512_bf16::kTable;
    t.isa = "amx";
    t.attention_scratch = amx::attention_scratch;
    t.attention = amx::attention;
    t.attention_backward = amx::attention_backward;
    t.has_tiles = amx::has_tiles;
    t.tile_pack = amx::tile_pack;
    t.tile_product = amx::tile_product;
    return t;
  }();
  return table;
}
#endif

struct InstructionSet {
  const VectorKernels* table;
  bool usable;
  dnnl_cpu_isa_t one_dnn;  // the most that oneDNN may then use
};

struct Choice {
  const VectorKernels* table = &baseline::kTable;
  std::string refusal;
};

constexpr int32_t kWarning = 2;

// oneDNN takes a limit until it is first used, by whomever.
void LimitOneDnn(const sy_instance& instance, const InstructionSet& set) {
  const dnnl_status_t status = dnnl_set_max_cpu_isa(set.one_dnn);
  if (status == dnnl_success) return;
  instance.Log(kWarning,
               Text("cpu: SWITCHYARD_CPU_ISA=", set.table->isa,
                    " limits the plugin's own kernels, but not oneDNN, which does not take it any more (status ",
                    static_cast<int>(status), "): this process used oneDNN before"));
}

#if defined(SY_X86_64)
// Whether the CPU has AMX and this process may use it; says why not where the CPU has it.
bool UsesTiles(const sy_instance& instance) {
  const auto refusal = TilesRefusal(kAmxMachine);
  if (refusal && !refusal->empty()) instance.Log(kWarning, Text("cpu: AMX is not used: ", *refusal));
  return !refusal;
}
#endif

// Whether oneDNN may use what it has for the set.
bool OneDnnTakes(const InstructionSet& set) {
  static const auto effective = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  return (effective & set.one_dnn) == static_cast<unsigned>(set.one_dnn);
}

// The best set that this CPU has and that oneDNN, which ONEDNN_MAX_CPU_ISA limits, may use: both compute with the same.
// One that is asked for by name limits oneDNN instead.
Choice Choose(const sy_instance& instance) {
  const char* wanted = instance.Setting("CPU_ISA");
#if defined(SY_X86_64)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  // Asked of the kernel only where it would be chosen.
  const bool tiles = bf16 && (wanted == nullptr || std::strcmp(wanted, AmxTable().isa) == 0) && UsesTiles(instance);
  const InstructionSet sets[] = {{&baseline::kTable, true, dnnl_cpu_isa_sse41},
                                 {&avx2::kTable, avx2, dnnl_cpu_isa_avx2},
                                 {&avx512::kTable, avx512, dnnl_cpu_isa_avx512_core},
                                 {&avx512_bf16::kTable, bf16, dnnl_cpu_isa_avx512_core_bf16},
                                 {&AmxTable(), tiles, dnnl_cpu_isa_avx512_core_amx}};
#else
  const InstructionSet sets[] = {{&baseline::kTable, true, dnnl_cpu_isa_default}};
#endif
  Choice choice;
  std::string known, offered;
  bool is_known = false, found = false;
  for (const InstructionSet& set : sets) {
    const bool named = wanted && std::strcmp(wanted, set.table->isa) == 0;
    known += (known.empty() ? "" : ", ") + std::string(set.table->isa);
    is_known |= named;
    if (!set.usable || (wanted == nullptr && set.table != &baseline::kTable && !OneDnnTakes(set))) continue;
    offered += (offered.empty() ? "" : ", ") + std::string(set.table->isa);
    if (found) continue;
    choice.table = set.table;
    found = named;
    if (named) LimitOneDnn(instance, set);
  }
  if (wanted && !is_known) {
    choice.refusal = "cpu: SWITCHYARD_CPU_ISA=" + std::string(wanted) + " is none of " + known;
  } else if (wanted && !found) {
    choice.refusal = "cpu: SWITCHYARD_CPU_ISA=" + std::string(wanted) + ", but this CPU has only " + offered +
                     "; unset it or name one";
  }
  return choice;
}

const Choice* chosen = nullptr;  // the process's; set before any device is open

}  // namespace

const VectorKernels& Vector() { return *chosen->table; }

const char* InstructionSetRefusal(const sy_instance& instance) {
  static std::once_flag once;
  std::call_once(once, [&] { chosen = new Choice(Choose(instance)); });
  return chosen->refusal.empty() ? nullptr : chosen->refusal.c_str();
}

bool MultipliesBf16() {
  static const bool multiplies = [] {
    constexpr int kNeeded = dnnl_cpu_isa_avx512_core_bf16;
    return (dnnl_get_effective_cpu_isa() & kNeeded) == kNeeded;
  }();
  return multiplies;
}

}  // namespace switchyard
