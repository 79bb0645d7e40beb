// matmul on cuBLASLt. Bias, tanh GELU and its gradient, the residual and accumulation become the product's own epilogue
// where the library has that formula for the dtypes at hand; what is left over (ReLU, the exact GELU, SiLU, mixed
// dtypes) is one pass of our own over the output right after the product, unless a product of cuDNN's was measured to
// be faster (gelu_matmul.h). Prepare tries the most fused way first; where the library refuses that and a pass over a
// matrix comes of it, the kernel is a second choice. A bias has the product's dtype there ("Bias vector elements are
// the same type as the elements of output matrix", cublasLt.h); another one, f32 beside halves, is converted before
// each launch: n elements, where it spares a pass or the rewriting of what is saved. A bias' gradient is BGRADB's
// beside a weight gradient in f32; where the plan accumulates, a pass over its M elements adds it, as that epilogue has
// no sum. Of large matrices our own pass makes it sooner. Sums of the product's own columns are made by the pass over
// it, or where there is none by one more.
#include <algorithm>
#include <vector>

#include "backends/cuda/blas.h"
#include "backends/cuda/gelu_matmul.h"
#include "backends/cuda/kernel.h"
#include "backends/cuda/tuning.h"

namespace switchyard {
namespace {

struct Shape {
  int64_t batch, m, k, n;
};

// What the product's epilogue takes over.
struct Fusion {
  bool bias = false, activation = false, residual = false, bias_gradient = false;
  bool operator==(const Fusion&) const = default;
};

constexpr uint64_t kAlignment = 256;  // of parts of the workspace, bytes
uint64_t Aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct MatmulBound : Bound {
  explicit MatmulBound(Bound&& bound)
      : Bound(std::move(bound)), operation(nullptr, BlasLibrary().cublasLtMatmulDescDestroy) {}
  Gemm::Operation operation;
  Gemm::Places places;
  MatmulEpilogue bias_conversion, pass, bias_gradient_sum;
  void* row_sum_workspace = nullptr;
};

class Matmul : public Kernel {
 public:
  Matmul(const Request& request, const sy_matmul_attributes& attributes, const Shape& shape)
      : Kernel(request), t_(attributes), shape_(shape) {
    size_t next = 2;
    if (t_.bias) bias_ = next++;
    if (t_.activation_gradient) preactivation_ = next++;
    if (t_.residual) residual_ = next++;
    if (t_.activation_gradient && t_.activation == SY_ACTIVATION_NONE) t_.activation_gradient = 0;  // times 1
  }

  sy_status Prepare(const Request& request) {
    const bool measure = Measures(request);
    sy_status status = SY_UNSUPPORTED;
    const Fusion most = MostFused();
    Fusion fewer = most;
    fewer.bias_gradient = false;
    const Fusion fewest = {.bias = most.bias && (!most.activation || t_.save_preactivation)};
    std::vector<Fusion> ways;
    // The last for where our own sums have no workspace.
    for (const Fusion& way : {most, fewer, fewest, Fusion{}, Fusion{.bias_gradient = LibrarySums()}}) {
      // A bias that would have to be converted waits for a pass that is made anyway, unless that writes the sum
      // besides.
      const bool waits = ConvertsBias(way) && NeedsPass(way) && !t_.save_preactivation;
      if (!waits && std::find(ways.begin(), ways.end(), way) == ways.end()) ways.push_back(way);
    }
    std::string refusal;  // of the first way
    for (const Fusion& way : ways) {
      fusion_ = way;
      const uint64_t own = VectorBytes() + RowSumWorkspaceBytes();
      sy_error reason{SY_HEADER(sy_error)};
      if (own > request.workspace_limit) {
        status = SY_FAIL(&reason, SY_UNSUPPORTED, "matmul: %llu bytes of workspace are more than the limit",
                         static_cast<unsigned long long>(own));
      } else {
        const uint64_t limit = (request.workspace_limit - own) / kAlignment * kAlignment;
        status = Gemm::Create(*device, Problem(), limit, measure, &gemm_, &reason);
      }
      if (status == SY_OK) break;
      if (refusal.empty()) refusal = reason.message;
      if (request.error != nullptr) FillStruct(request.error, reason);
      if (status != SY_UNSUPPORTED) return status;
    }
    SY_TRY(status);
    if ((NeedsPass(fusion_) && !NeedsPass(most)) || (OwnBiasGradient() && most.bias_gradient))
      second_choice = "a pass over the product, as " + refusal;
    device->instance->Log(
        0, Format("cuda: matmul %s: epilogue %d%s%s", gemm_->problem().Key().c_str(), gemm_->problem().epilogue,
                  ConvertsBias(fusion_) ? ", a converted bias" : "", NeedsPass(fusion_) ? ", a pass of our own" : ""));
    vector_at_ = Aligned(gemm_->workspace_bytes());
    row_sums_at_ = vector_at_ + VectorBytes();
    workspace_bytes = row_sums_at_ + RowSumWorkspaceBytes();
    return SY_OK;
  }

  sy_status Bind(std::unique_ptr<Bound>* bound, sy_error* error) const override {
    auto made = std::make_unique<MatmulBound>(std::move(**bound));
    Gemm::Places& p = made->places;
    p.a = made->inputs[0];
    p.b = made->inputs[1];
    p.d = made->outputs[Product(fusion_)];
    p.c = fusion_.residual ? made->inputs[residual_] : p.d;
    p.workspace = made->workspace;
    if (fusion_.bias) p.bias = ConvertsBias(fusion_) ? made->workspace + vector_at_ : made->inputs[bias_];
    if (fusion_.bias_gradient) p.bias = AddsBiasGradient() ? made->workspace + vector_at_ : made->outputs[1];
    if (gemm_->problem().HasAuxiliary())
      p.auxiliary = t_.activation_gradient ? made->inputs[preactivation_] : made->outputs[1];
    made->row_sum_workspace = made->workspace + row_sums_at_;
    if (ConvertsBias(fusion_)) {
      MatmulEpilogue& conversion = made->bias_conversion;
      conversion.accumulator = made->inputs[bias_];
      conversion.accumulator_dtype = inputs[bias_].dtype;
      conversion.output = p.bias;
      conversion.output_dtype = outputs[Product(fusion_)].dtype;
      conversion.rows = 1;
      conversion.columns = shape_.n;
    }
    if (AddsBiasGradient()) {
      MatmulEpilogue& sum = made->bias_gradient_sum;
      sum.accumulator = p.bias;
      sum.output = made->outputs[1];
      sum.accumulate = true;
      sum.rows = 1;
      sum.columns = shape_.m;
    }
    MatmulEpilogue& pass = made->pass;
    pass.accumulator = p.d;
    pass.accumulator_dtype = outputs[Product(fusion_)].dtype;
    pass.output = made->outputs[0];
    pass.output_dtype = outputs[0].dtype;
    pass.rows = Rows();
    pass.columns = shape_.n;
    if (t_.bias && !fusion_.bias) {
      pass.bias = made->inputs[bias_];
      pass.bias_dtype = inputs[bias_].dtype;
      if (t_.save_preactivation) {
        pass.saved = made->outputs[1];
        pass.saved_dtype = outputs[1].dtype;
      }
    }
    if (!fusion_.activation) {
      pass.activation = t_.activation;
      if (t_.activation_gradient) {
        pass.preactivation = made->inputs[preactivation_];
        pass.preactivation_dtype = inputs[preactivation_].dtype;
      }
    }
    if (t_.residual && !fusion_.residual) {
      pass.residual = made->inputs[residual_];
      pass.residual_dtype = inputs[residual_].dtype;
    }
    if (SumsInPass()) {
      pass.column_sums = made->Output<float>(1);
      pass.adds_column_sums = accumulate[1];
      pass.workspace = made->row_sum_workspace;
    }
    SY_TRY(gemm_->Bind(p, &made->operation, error));
    *bound = std::move(made);
    return SY_OK;
  }

  sy_status Run(const Bound& bound, const LaunchContext& context, sy_error* error) const override {
    const auto& b = static_cast<const MatmulBound&>(bound);
    if (ConvertsBias(fusion_)) SY_CUDA(error, LaunchMatmulEpilogue(b.bias_conversion, context.stream));
    SY_TRY(gemm_->Run(b.operation, b.places, context.stream, error));
    if (NeedsPass(fusion_)) SY_CUDA(error, LaunchMatmulEpilogue(b.pass, context.stream));
    if (AddsBiasGradient()) SY_CUDA(error, LaunchMatmulEpilogue(b.bias_gradient_sum, context.stream));
    if (OwnBiasGradient())
      SY_CUDA(error, LaunchRowSum(b.inputs[0], inputs[0].dtype, shape_.m, shape_.k, t_.transpose_a, accumulate[1],
                                  b.Output<float>(1), b.row_sum_workspace, context.stream));
    if (t_.column_sums && !SumsInPass())
      SY_CUDA(error, LaunchRowSum(b.outputs[0], outputs[0].dtype, shape_.n, Rows(), true, accumulate[1],
                                  b.Output<float>(1), b.row_sum_workspace, context.stream));
    return SY_OK;
  }

 private:
  int64_t Rows() const { return shape_.batch * shape_.m; }
  // Has the pass the derivative to make and nothing else?
  bool SumsInPass() const {
    return t_.column_sums && t_.activation_gradient && !fusion_.activation && !(t_.bias && !fusion_.bias) &&
           !(t_.residual && !fusion_.residual) && shape_.n % 8 == 0;
  }
  bool OwnBiasGradient() const { return t_.bias_gradient && !fusion_.bias_gradient; }
  // The output that the product writes: the preactivation where a pass makes the activation of it.
  size_t Product(const Fusion& f) const { return t_.save_preactivation && !f.activation ? 1 : 0; }
  bool ConvertsBias(const Fusion& f) const { return f.bias && inputs[bias_].dtype != outputs[Product(f)].dtype; }
  bool AddsBiasGradient() const { return fusion_.bias_gradient && accumulate[1]; }
  // Of the bias that is converted, or of its gradient that is added: a product has one of them at most.
  uint64_t VectorBytes() const {
    const int64_t elements = ConvertsBias(fusion_) ? shape_.n : AddsBiasGradient() ? shape_.m : 0;
    return Aligned(static_cast<uint64_t>(elements) * sizeof(float));
  }
  uint64_t RowSumWorkspaceBytes() const {
    if (OwnBiasGradient()) return RowSumBytes(shape_.m, shape_.k, t_.transpose_a);
    if (!t_.column_sums) return 0;
    return SumsInPass() ? ColumnSumBytes(Rows(), shape_.n) : RowSumBytes(shape_.n, Rows(), true);
  }
  bool NeedsPass(const Fusion& f) const {
    const bool activates = t_.activation != SY_ACTIVATION_NONE || t_.save_preactivation;
    return (t_.bias && !f.bias) || (activates && !f.activation) || (t_.residual && !f.residual);
  }

  // The library's GELU is the tanh approximation. Its auxiliary matrix has rows of a multiple of 8 elements. Its ReLU
  // makes 0 of what is not a number (cuBLASLt 13.1 on an H200).
  bool LibraryActivates() const {
    const bool keeps = t_.save_preactivation || t_.activation_gradient;
    if (t_.activation != SY_ACTIVATION_GELU_TANH || (keeps && shape_.n % 8 != 0)) return false;
    return !(t_.activation_gradient && t_.bias);
  }

  bool LibrarySums() const {
    return t_.bias_gradient && t_.activation == SY_ACTIVATION_NONE && !t_.save_preactivation && !t_.bias &&
           shape_.batch == 1;
  }
  // For BGRADB the library reads the matrix again, in a pass of its own, at 2.3 TB/s on an H200 (102 µs for 232 MB).
  // Ours reads at 3.8 TB/s, but takes a second launch that joins the parts, 3 µs: less than is spared of 32 MB.
  bool SumsFasterItself() const {
    constexpr int64_t kBytes = 32 << 20;
    return t_.transpose_a && inputs[0].dtype != SY_F32 && shape_.m % 8 == 0 &&
           shape_.m * shape_.k * static_cast<int64_t>(sizeof(uint16_t)) >= kBytes;
  }

  Fusion MostFused() const {
    const bool linear = t_.activation == SY_ACTIVATION_NONE && !t_.save_preactivation;
    Fusion f;
    f.activation = !linear && LibraryActivates();
    f.residual = linear && t_.residual && !accumulate[0] && inputs[residual_].dtype == outputs[0].dtype;
    f.bias_gradient = LibrarySums() && !SumsFasterItself();
    f.bias = t_.bias;
    return f;
  }

  GemmProblem Problem() const {
    GemmProblem p;
    p.batch = shape_.batch;
    p.m = shape_.m;
    p.k = shape_.k;
    p.n = shape_.n;
    p.transpose_a = t_.transpose_a;
    p.transpose_b = t_.transpose_b;
    p.input = inputs[0].dtype;
    p.output = p.bias = outputs[Product(fusion_)].dtype;
    p.tf32 = device->tf32;
    p.alpha = t_.alpha;
    p.beta = fusion_.residual || accumulate[0] ? 1.0f : 0.0f;
    uint32_t epilogue = fusion_.bias ? CUBLASLT_EPILOGUE_BIAS : 0;
    if (fusion_.activation) {
      epilogue |= t_.activation_gradient  ? CUBLASLT_EPILOGUE_DGELU
                  : t_.save_preactivation ? CUBLASLT_EPILOGUE_GELU_AUX
                                          : CUBLASLT_EPILOGUE_GELU;
      p.auxiliary = t_.activation_gradient  ? inputs[preactivation_].dtype
                    : t_.save_preactivation ? outputs[1].dtype
                                            : SY_F32;
    }
    if (fusion_.bias_gradient) {
      epilogue = CUBLASLT_EPILOGUE_BGRADB;
      p.bias = SY_F32;
    }
    p.epilogue = epilogue != 0 ? static_cast<cublasLtEpilogue_t>(epilogue) : CUBLASLT_EPILOGUE_DEFAULT;
    return p;
  }

  sy_matmul_attributes t_;
  const Shape shape_;
  size_t bias_ = 0, preactivation_ = 0, residual_ = 0;  // input indices
  Fusion fusion_;
  std::unique_ptr<Gemm> gemm_;
  uint64_t vector_at_ = 0, row_sums_at_ = 0;  // offsets into the workspace, bytes
};

bool ProductType(sy_dtype input, sy_dtype output) { return output == input || output == SY_F32; }

KernelPointer PrepareMatmul(const Request& r) {
  if (r.device->blas == nullptr) return SY_REFUSE(r, "matmul: %.300s", r.device->missing.c_str());
  const auto t = r.Attributes<sy_matmul_attributes>();
  const size_t inputs = 2 + (t.bias ? 1 : 0) + (t.activation_gradient ? 1 : 0) + (t.residual ? 1 : 0);
  const int second_outputs = (t.save_preactivation != 0) + (t.bias_gradient != 0) + (t.column_sums != 0);
  if (second_outputs > 1)
    return SY_REFUSE(r, "matmul: save_preactivation, bias_gradient and column_sums exclude each other");
  if (!r.HasCounts(inputs, inputs, second_outputs > 0 ? 2 : 1)) return nullptr;
  const sy_tensor &a = r.inputs[0], &b = r.inputs[1], &c = r.outputs[0];
  if (a.rank < 2 || b.rank != a.rank || c.rank != a.rank)
    return SY_REFUSE(r, "matmul: a, b and c must have one rank of at least 2");
  if (t.activation < SY_ACTIVATION_NONE || t.activation > SY_ACTIVATION_SILU)
    return SY_REFUSE(r, "matmul: activation %d", t.activation);
  if (t.save_preactivation && t.activation_gradient)
    return SY_REFUSE(r, "matmul: save_preactivation together with a gradient");
  Shape shape = {1, c.dims[c.rank - 2], a.dims[a.rank - (t.transpose_a ? 2 : 1)], c.dims[c.rank - 1]};
  for (int d = 0; d + 2 < a.rank; ++d) {
    if (a.dims[d] != b.dims[d] || a.dims[d] != c.dims[d]) return SY_REFUSE(r, "matmul: leading dims differ");
    shape.batch *= a.dims[d];
  }
  if (a.dims[a.rank - (t.transpose_a ? 1 : 2)] != shape.m || b.dims[b.rank - (t.transpose_b ? 2 : 1)] != shape.n ||
      b.dims[b.rank - (t.transpose_b ? 1 : 2)] != shape.k)
    return SY_REFUSE(r, "matmul: the inner dims do not match");
  if (!r.RequireFloat(a, "a") || !r.RequireDtype(b, a.dtype, "b")) return nullptr;
  const int64_t elements = shape.batch * shape.m * shape.n;
  size_t next = 2;
  for (const auto& [given, name, count] :
       {std::tuple(t.bias, "bias", shape.n), std::tuple(t.activation_gradient, "preactivation", elements),
        std::tuple(t.residual, "residual", elements)}) {
    if (!given) continue;
    if (!r.RequireFloat(r.inputs[next], name) || !r.RequireElements(r.inputs[next], count, name)) return nullptr;
    ++next;
  }
  if (!ProductType(a.dtype, c.dtype))
    return SY_REFUSE(r, "matmul: an output of dtype %d from inputs of dtype %d", c.dtype, a.dtype);
  if (t.save_preactivation && (!r.RequireElements(r.outputs[1], elements, "preactivation") || r.accumulate[1] ||
                               !ProductType(a.dtype, r.outputs[1].dtype)))
    return SY_REFUSE(r, "matmul: a preactivation of dtype %d, or one to accumulate into", r.outputs[1].dtype);
  if (r.accumulate[0] && (t.activation != SY_ACTIVATION_NONE || t.save_preactivation))
    return SY_REFUSE(r, "matmul: accumulation after an activation");
  if (t.bias_gradient) {
    if (shape.batch != 1) return SY_REFUSE(r, "matmul: bias_gradient of a batch");
    if (!r.RequireDtype(r.outputs[1], SY_F32, "bias_gradient") ||
        !r.RequireElements(r.outputs[1], shape.m, "bias_gradient"))
      return nullptr;
  }
  if (t.column_sums) {
    if (r.accumulate[0]) return SY_REFUSE(r, "matmul: column_sums of a product that is added to another");
    if (!r.RequireDtype(r.outputs[1], SY_F32, "column_sums") ||
        !r.RequireElements(r.outputs[1], shape.n, "column_sums"))
      return nullptr;
  }
  auto kernel = std::make_unique<Matmul>(r, t, shape);
  if (kernel->Prepare(r) != SY_OK) return nullptr;
  if (Measures(r)) return PreferFusedGelu(r, std::move(kernel));
  return kernel;
}

const Registration kMatmul{"matmul", PrepareMatmul, sizeof(sy_matmul_attributes), kLibrary};

}  // namespace
}  // namespace switchyard
