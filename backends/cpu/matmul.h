// What the three ways of computing a matmul share. bf16 on a CPU with AMX is ours (tile_matmul.cc). oneDNN's primitive
// (matmul.cc) takes f32 everywhere, and bf16 where the CPU multiplies it without. Whatever else there is, f16 and bf16
// on other CPUs and all that oneDNN has no own kernel for, is converted (converted_matmul.cc): blocks of the operands
// become f32, are multiplied by oneDNN's f32 GEMM, and the sums over the whole of K are rounded once. Everything here
// is immutable after construction. The shapes that are passed on were checked.
#pragma once

#include "backends/cpu/kernel.h"

namespace switchyard {

struct MatmulShape {
  int64_t batch, m, k, n;
};

// Where a matmul's optional inputs are, by the order that core/abi/ops.h gives them; 0: it has none.
struct MatmulInputs {
  explicit MatmulInputs(const sy_matmul_attributes& t) {
    if (t.bias) bias = count++;
    if (t.activation_gradient) preactivation = count++;
    if (t.residual) residual = count++;
  }
  size_t bias = 0, preactivation = 0, residual = 0, count = 2;
};

// out (M) = the sum of op(a) over K, for a of (M, K), or (K, M) if transposed.
class MatmulBiasGradient {
 public:
  MatmulBiasGradient(const MatmulShape& shape, bool transposed, int threads);
  uint64_t workspace_bytes() const { return static_cast<uint64_t>(parts_ * m_) * sizeof(float); }
  void Run(Rows a, bool accumulate, float* out, float* workspace) const;

 private:
  int64_t m_, k_, parts_ = 0;  // parts: of K, if transposed
  int threads_;
};

// Takes two factors of bf16 and no batch, all epilogues, and accumulation into every output; nullptr for all else.
KernelPointer MakeTileMatmul(const Request& request, const sy_matmul_attributes& attributes, const MatmulShape& shape);

// Takes every mix of float dtypes, all epilogues, and accumulation into every output.
KernelPointer MakeConvertedMatmul(const Request& request, const sy_matmul_attributes& attributes,
                                  const MatmulShape& shape);

}  // namespace switchyard
