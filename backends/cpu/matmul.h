// What the ways of computing a matmul share. bf16 on a CPU with AMX is ours (tile_matmul.cc). oneDNN's primitive
// (matmul.cc; weight_gradient.cc) takes f32 everywhere, and bf16 in batches, or where the CPU multiplies it but has no
// AMX. Whatever else there is, f16 and bf16 on other CPUs and all that oneDNN has no own kernel for, is converted
// (converted_matmul.cc): blocks of the operands become f32, are multiplied by oneDNN's f32 GEMM, and the sums over the
// whole of K are rounded once. Everything here is immutable after construction. The shapes that are passed on were
// checked.
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

// What follows the sums of the columns [column, column + columns) of C from element `at` on, which is in the first of
// them.
inline MatmulRows AfterSums(const Kernel& kernel, const Arguments& a, const sy_matmul_attributes& t,
                            const MatmulShape& shape, int64_t at, int64_t column, int64_t columns) {
  const MatmulInputs optional(t);
  const auto from = [](const Rows& x, int64_t i) { return Rows{x.data + i * DtypeBytes(x.dtype), x.dtype}; };
  MatmulRows m = {};
  m.columns = columns;
  m.stride = shape.n;
  m.alpha = t.alpha;
  m.activation = t.activation;
  if (t.bias) m.bias = from(kernel.In(a, optional.bias), column);
  if (t.activation_gradient && t.activation != SY_ACTIVATION_NONE)
    m.preactivation = from(kernel.In(a, optional.preactivation), at);
  if (t.save_preactivation) m.saved = from(kernel.Out(a, 1), at);
  if (t.residual) m.residual = from(kernel.In(a, optional.residual), at);
  m.out = from(kernel.Out(a, 0), at);
  return m;
}

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

// Takes two factors of bf16, all epilogues, and accumulation into every output. nullptr without tiles, for a batch, for
// an extent of 0, and for an inner dimension above 65536 that cannot be cut.
KernelPointer MakeTileMatmul(const Request& request, const sy_matmul_attributes& attributes, const MatmulShape& shape);

// Of what oneDNN's matmul would take, dyᵀ·x of one pair of matrices that are not empty, with nothing but a bias
// gradient beside it; else nullptr. In f32 that matmul is as fast where M or N is larger than this.
inline constexpr int64_t kMostOfWeightGradientInF32 = 1536;
KernelPointer MakeWeightGradient(const Request& request, const sy_matmul_attributes& attributes,
                                 const MatmulShape& shape);

// Takes every mix of float dtypes, all epilogues, and accumulation into every output.
KernelPointer MakeConvertedMatmul(const Request& request, const sy_matmul_attributes& attributes,
                                  const MatmulShape& shape);

}  // namespace switchyard
