// attention and its gradient on cuDNN's fused kernels, bf16 and f16; our own kernels (flash_attention.cu) take the
// rest. A graph of plain operations is described, which cuDNN recognises as scaled dot-product attention; the patterns
// are those of https://docs.nvidia.com/deeplearning/cudnn/backend/latest/developer/graph-api.html ("Fused Attention
// fprop", "Fused Attention bprop"). With s = scale·q·kᵀ (+ bias | mask) and L = logsumexp:
//   forward:  p = exp(s − max)/Σ, out = p·v, L = max + log Σ
//   backward: p = exp(s − L), D = Σ_d dout·out, dv = pᵀ·dout, ds = p·(dout·vᵀ − D)·scale, dk = dsᵀ·q, dq = ds·k
// q, k and v are strided views of packed qkv (B, T, 3, H, D); cuDNN's dims are (B, H, T, D).
#include <optional>

#include "backends/cuda/cudnn.h"
#include "backends/cuda/kernel.h"

namespace switchyard {
namespace {

enum : int64_t { kQ = 1, kK, kV, kOut, kStatistics, kAddend, kDOut, kDQ, kDK, kDV, kRowSum, kDQSum, kScale, kOne };

struct Shape {
  int64_t batch, tokens, heads, dim;
};

uint64_t Aligned(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

struct AttentionBound : Bound {
  AttentionBound(Bound&& bound, CudnnDescriptor&& made) : Bound(std::move(bound)), pack(std::move(made)) {}
  CudnnDescriptor pack;
};

class CudnnAttention : public Kernel {
 public:
  // `addend`: the input that is added to s, the bias or the mask.
  CudnnAttention(const Request& request, float scale, std::optional<size_t> addend, bool mask, bool backward)
      : Kernel(request),
        scale_(scale),
        addend_(addend),
        mask_(mask),
        backward_(backward),
        accumulates_queries_(backward && !request.deterministic),
        dtype_(inputs[0].dtype),
        shape_{inputs[0].dims[0], inputs[0].dims[1], inputs[0].dims[3], inputs[0].dims[4]},
        graph_(*device) {}

  // Throws CudnnError.
  void Prepare(const Request& request) {
    backward_ ? DescribeBackward() : DescribeForward();
    if (backward_) query_sum_at_ = plan_at_ = Aligned(static_cast<uint64_t>(Rows()) * sizeof(float));
    if (accumulates_queries_) plan_at_ += Aligned(static_cast<uint64_t>(Rows() * shape_.dim) * sizeof(float));
    if (plan_at_ > request.workspace_limit) throw CudnnError("the workspace limit is too low");
    graph_.Build(request.workspace_limit - plan_at_, request.deterministic, false);
    workspace_bytes = plan_at_ + graph_.workspace_bytes();
    repeatable = !backward_ || request.deterministic;
  }

  sy_status Bind(std::unique_ptr<Bound>* bound, sy_error* error) const override {
    const Bound& b = **bound;
    const int64_t part = shape_.heads * shape_.dim * DtypeBytes(dtype_);  // from q to k to v, bytes
    char *qkv = b.inputs[0], *out = backward_ ? b.inputs[1] : b.outputs[0];
    std::vector<std::pair<int64_t, void*>> places = {{kQ, qkv}, {kK, qkv + part}, {kV, qkv + 2 * part}, {kOut, out}};
    places.emplace_back(kStatistics, backward_ ? b.inputs[2] : b.outputs[1]);
    if (addend_) places.emplace_back(kAddend, b.inputs[*addend_]);
    if (backward_) {
      char* dqkv = b.outputs[0];
      places.insert(
          places.end(),
          {{kDOut, b.inputs[3]}, {kDQ, dqkv}, {kDK, dqkv + part}, {kDV, dqkv + 2 * part}, {kRowSum, b.workspace}});
      if (accumulates_queries_) places.emplace_back(kDQSum, b.workspace + query_sum_at_);
    }
    try {
      CudnnDescriptor pack = graph_.Pack(places, b.workspace ? b.workspace + plan_at_ : nullptr);
      *bound = std::make_unique<AttentionBound>(std::move(**bound), std::move(pack));
      return SY_OK;
    } catch (const CudnnError& failure) {
      return SY_FAIL(error, SY_INTERNAL, "attention: %.400s", failure.what());
    }
  }

  sy_status Run(const Bound& bound, const LaunchContext& context, sy_error* error) const override {
    return graph_.Run(static_cast<const AttentionBound&>(bound).pack, context.stream, error);
  }

 private:
  int64_t Rows() const { return shape_.batch * shape_.heads * shape_.tokens; }
  // (B, H, T, D) of packed q, k or v, and of out.
  TensorDims Heads() const { return {shape_.batch, shape_.heads, shape_.tokens, shape_.dim}; }
  TensorDims PackedStrides() const {
    const int64_t width = shape_.heads * shape_.dim;
    return {shape_.tokens * 3 * width, shape_.dim, 3 * width, 1};
  }
  TensorDims OutStrides() const {
    const int64_t width = shape_.heads * shape_.dim;
    return {shape_.tokens * width, shape_.dim, width, 1};
  }
  static TensorDims Transposed(TensorDims axes) {
    std::swap(axes[2], axes[3]);
    return axes;
  }
  // One number per row of s; and s itself.
  TensorDims RowDims() const { return {shape_.batch, shape_.heads, shape_.tokens, 1}; }
  TensorDims RowStrides() const { return {shape_.heads * shape_.tokens, shape_.tokens, 1, 1}; }
  TensorDims ScoreDims() const { return {shape_.batch, shape_.heads, shape_.tokens, shape_.tokens}; }
  TensorDims ScoreStrides() const {
    const int64_t t = shape_.tokens;
    return {shape_.heads * t * t, t * t, t, 1};
  }
  const CudnnDescriptor& Row() { return graph_.Virtual(SY_F32, RowDims(), RowStrides()); }
  const CudnnDescriptor& Score(sy_dtype dtype = SY_F32) { return graph_.Virtual(dtype, ScoreDims(), ScoreStrides()); }
  const CudnnDescriptor& TransposedScore() { return graph_.Virtual(dtype_, ScoreDims(), Transposed(ScoreStrides())); }
  const CudnnDescriptor& Pointwise(cudnnPointwiseMode_t mode, const CudnnDescriptor& x, const CudnnDescriptor* b,
                                   const CudnnDescriptor& y) {
    graph_.Pointwise(mode, x, b, y);
    return y;
  }

  // s = scale·q·kᵀ (+ addend).
  const CudnnDescriptor& DescribeScores(const CudnnDescriptor& q, const CudnnDescriptor& k_transposed,
                                        const CudnnDescriptor& scale) {
    const CudnnDescriptor& product = Score();
    graph_.Matmul(q, k_transposed, product);
    const CudnnDescriptor& scores = Pointwise(CUDNN_POINTWISE_MUL, product, &scale, Score());
    if (!addend_) return scores;
    const sy_tensor& t = inputs[*addend_];
    const int64_t plane = shape_.tokens * shape_.tokens;
    // A bias has a plane for each head, a mask one for each image or one for all.
    const bool per_head = !mask_;
    TensorDims dims = {1, 1, shape_.tokens, shape_.tokens}, strides = {plane, plane, shape_.tokens, 1};
    dims[per_head ? 1 : 0] = t.dims[0];
    if (per_head) strides[0] = t.dims[0] * plane;
    const CudnnDescriptor& addend = graph_.Tensor(kAddend, t.dtype, dims, strides);
    return Pointwise(CUDNN_POINTWISE_ADD, scores, &addend, Score());
  }

  void DescribeForward() {
    const CudnnDescriptor& q = graph_.Tensor(kQ, dtype_, Heads(), PackedStrides());
    const CudnnDescriptor& k = graph_.Tensor(kK, dtype_, Transposed(Heads()), Transposed(PackedStrides()));
    const CudnnDescriptor& v = graph_.Tensor(kV, dtype_, Heads(), PackedStrides());
    const CudnnDescriptor& scores = DescribeScores(q, k, graph_.Constant(kScale, 4, scale_));
    const CudnnDescriptor &max = Row(), &sum = Row();
    graph_.Reduce(CUDNN_REDUCE_TENSOR_MAX, scores, max);
    const CudnnDescriptor& below_max = Pointwise(CUDNN_POINTWISE_SUB, scores, &max, Score());
    const CudnnDescriptor& exponential = Pointwise(CUDNN_POINTWISE_EXP, below_max, nullptr, Score());
    graph_.Reduce(CUDNN_REDUCE_TENSOR_ADD, exponential, sum);
    const CudnnDescriptor& log_sum = Pointwise(CUDNN_POINTWISE_LOG, sum, nullptr, Row());
    Pointwise(CUDNN_POINTWISE_ADD, max, &log_sum, graph_.Tensor(kStatistics, SY_F32, RowDims(), RowStrides()));
    const CudnnDescriptor& probabilities = Pointwise(CUDNN_POINTWISE_DIV, exponential, &sum, Score(dtype_));
    graph_.Matmul(probabilities, v, graph_.Tensor(kOut, dtype_, Heads(), OutStrides()));
  }

  void DescribeBackward() {
    const TensorDims heads = Heads(), packed = PackedStrides(), out = OutStrides();
    const CudnnDescriptor& q = graph_.Tensor(kQ, dtype_, heads, packed);
    const CudnnDescriptor& k = graph_.Tensor(kK, dtype_, Transposed(heads), Transposed(packed));
    const CudnnDescriptor& v = graph_.Tensor(kV, dtype_, Transposed(heads), Transposed(packed));
    const CudnnDescriptor& o = graph_.Tensor(kOut, dtype_, heads, out);
    const CudnnDescriptor& d_out = graph_.Tensor(kDOut, dtype_, heads, out);
    const CudnnDescriptor& statistics = graph_.Tensor(kStatistics, SY_F32, RowDims(), RowStrides());
    const CudnnDescriptor& scale = graph_.Constant(kScale, 4, scale_);
    // D = Σ_d dout·out. The pattern wants it scaled by the dropout's keep rate, 1 here, and stored.
    const int64_t t = shape_.tokens, d = shape_.dim, h = shape_.heads;
    const CudnnDescriptor& product = graph_.Virtual(SY_F32, heads, {h * t * d, t * d, h * d, 1});
    graph_.Pointwise(CUDNN_POINTWISE_MUL, d_out, &o, product);
    const CudnnDescriptor& reduced = Row();
    graph_.Reduce(CUDNN_REDUCE_TENSOR_ADD, product, reduced);
    const CudnnDescriptor& row_sum = Pointwise(CUDNN_POINTWISE_MUL, reduced, &graph_.Constant(kOne, 4, 1.0f),
                                               graph_.Tensor(kRowSum, SY_F32, RowDims(), RowStrides()));
    // p and dv
    const CudnnDescriptor& scores = DescribeScores(q, k, scale);
    const CudnnDescriptor& below = Pointwise(CUDNN_POINTWISE_SUB, scores, &statistics, Score());
    const CudnnDescriptor& p = Pointwise(CUDNN_POINTWISE_EXP, below, nullptr, Score());
    const CudnnDescriptor& p_transposed = TransposedScore();
    graph_.Reshape(p, p_transposed);
    graph_.Matmul(p_transposed, d_out, graph_.Tensor(kDV, dtype_, heads, packed));
    // ds and dk
    const CudnnDescriptor& dp = Score();
    graph_.Matmul(d_out, v, dp);
    const CudnnDescriptor& difference = Pointwise(CUDNN_POINTWISE_SUB, dp, &row_sum, Score());
    const CudnnDescriptor& unscaled = Pointwise(CUDNN_POINTWISE_MUL, difference, &p, Score());
    const CudnnDescriptor& ds = Pointwise(CUDNN_POINTWISE_MUL, unscaled, &scale, Score());
    const CudnnDescriptor& ds_transposed = TransposedScore();
    graph_.Reshape(ds, ds_transposed);
    graph_.Matmul(ds_transposed, q, graph_.Tensor(kDK, dtype_, heads, packed));
    // dq, summed in f32 by whichever block comes, unless the sum has to be repeatable
    const CudnnDescriptor& k_rows = graph_.Virtual(SY_F32, heads, packed);
    graph_.Reshape(k, k_rows);
    const CudnnDescriptor& dq = graph_.Tensor(kDQ, dtype_, heads, packed);
    if (!accumulates_queries_) {
      graph_.Matmul(ds, k_rows, dq);
      return;
    }
    const CudnnDescriptor& sum = graph_.Tensor(kDQSum, SY_F32, heads, {h * t * d, t * d, d, 1});
    graph_.Matmul(ds, k_rows, sum);
    graph_.Pointwise(CUDNN_POINTWISE_IDENTITY, sum, nullptr, dq);
  }

  const float scale_;
  const std::optional<size_t> addend_;
  const bool mask_, backward_, accumulates_queries_;
  const sy_dtype dtype_;
  const Shape shape_;
  OperationGraph graph_;
  // The workspace holds D, then dq's sum, then what the plan asks for.
  uint64_t query_sum_at_ = 0, plan_at_ = 0;  // offsets into the workspace, bytes
};

KernelPointer Prepare(const Request& r, bool backward) {
  // Before 9.6 sums had to be cleared by the caller; before 9.15.1 gradients were wrong for T not a multiple of 128.
  constexpr size_t kLeastVersion = 90600, kOddTokensVersion = 91501;
  const auto t = r.Attributes<sy_attention_attributes>();
  const size_t addends = backward ? 4 : 1, extra = (t.bias ? 1 : 0) + (t.mask ? 1 : 0);
  const bool dbias = backward && t.bias && r.outputs.size() == 2;
  if (!r.HasCounts(addends + extra, addends + extra, backward && !dbias ? 1 : 2)) return nullptr;
  const sy_tensor& qkv = r.inputs[0];
  if (qkv.rank != 5 || qkv.dims[2] != 3) return SY_REFUSE(r, "%s: qkv must be (B, T, 3, H, D)", r.op);
  if (qkv.dtype != SY_BF16 && qkv.dtype != SY_F16) return SY_REFUSE(r, "%s: cuDNN takes bf16 and f16 only", r.op);
  const int64_t batch = qkv.dims[0], tokens = qkv.dims[1], heads = qkv.dims[3], dim = qkv.dims[4];
  if (dim > 128 || dim % 8 != 0) return SY_REFUSE(r, "%s: cuDNN takes heads of 8, 16, … 128 elements", r.op);
  if (r.Accumulates()) return SY_REFUSE(r, "%s: cuDNN does not accumulate", r.op);
  const int64_t out = batch * tokens * heads * dim;
  const auto matches = [&](const sy_tensor& tensor, sy_dtype dtype, int64_t elements, const char* name) {
    return r.RequireDtype(tensor, dtype, name) && r.RequireElements(tensor, elements, name);
  };
  if (!matches(backward ? r.inputs[1] : r.outputs[0], qkv.dtype, out, "out") ||
      !matches(backward ? r.inputs[2] : r.outputs[1], SY_F32, batch * heads * tokens, "logsumexp"))
    return nullptr;
  if (backward && (!matches(r.inputs[3], qkv.dtype, out, "dout") || !matches(r.outputs[0], qkv.dtype, 3 * out, "dqkv")))
    return nullptr;
  const auto planes_of = [&](const sy_tensor& tensor) {  // 0: it has no planes of scores
    const bool has_planes = tensor.rank == 3 && tensor.dims[1] == tokens && tensor.dims[2] == tokens;
    return has_planes ? tensor.dims[0] : 0;
  };
  std::optional<size_t> addend;
  if (t.bias || t.mask) addend = addends;
  if (t.bias && (!r.RequireFloat(r.inputs[addends], "bias") || planes_of(r.inputs[addends]) != heads))
    return SY_REFUSE(r, "%s: a bias must be (H, T, T)", r.op);
  int64_t masks = 1;
  if (t.mask) {
    const sy_tensor& mask = r.inputs[addends + (t.bias ? 1 : 0)];
    if (!r.RequireFloat(mask, "mask")) return nullptr;
    masks = planes_of(mask);
    if (masks < 1) return SY_REFUSE(r, "%s: a mask must be (G, T, T)", r.op);
  }
  // What is left is attention as ops.h has it, which cuDNN takes in part.
  if (t.bias && t.mask) return SY_MISS(r, "%s: cuDNN adds a bias or a mask, not both", r.op);
  if (masks != 1 && masks != batch) return SY_MISS(r, "%s: cuDNN takes a mask (1 or B, T, T)", r.op);
  if (dbias) return SY_MISS(r, "%s: cuDNN makes no gradient of a bias", r.op);
  if (r.device->cudnn == nullptr) return SY_MISS(r, "%s: %.300s", r.op, r.device->missing.c_str());
  const size_t version = r.device->cudnn->version();
  if (version < kLeastVersion || (backward && tokens % 128 != 0 && version < kOddTokensVersion))
    return SY_MISS(r, "%s: cuDNN %zu is too old for these shapes", r.op, version);
  try {
    auto kernel = std::make_unique<CudnnAttention>(r, t.scale, addend, t.mask, backward);
    kernel->Prepare(r);
    return kernel;
  } catch (const CudnnError& failure) {
    return SY_MISS(r, "%s: cuDNN: %.400s", r.op, failure.what());
  }
}

KernelPointer PrepareCudnnAttention(const Request& r) { return Prepare(r, false); }
KernelPointer PrepareCudnnAttentionBackward(const Request& r) { return Prepare(r, true); }

const Registration kAttention{"attention", PrepareCudnnAttention, sizeof(sy_attention_attributes), kLibrary};
const Registration kAttentionBackward{"attention_backward", PrepareCudnnAttentionBackward,
                                      sizeof(sy_attention_attributes), kLibrary};

}  // namespace
}  // namespace switchyard
