// attention and its gradient on packed qkv: a piece of work is some (batch, head), one after another, so that the
// rows of the next one are fetched meanwhile; see vector/attention.cc for the algorithm. Where dbias is asked for, a
// piece is a head in a part of the batch, whose sum it makes; how many parts there are depends on the shapes alone, and
// they are added in order.
#include "backends/cpu/kernel.h"
#include "backends/cpu/parallel.h"

namespace switchyard {
namespace {

class Attention : public Kernel {
 public:
  Attention(const Request& request, const sy_attention_attributes& attributes, bool backward)
      : Kernel(request),
        attributes_(attributes),
        backward_(backward),
        batch_(inputs[0].dims[0]),
        tokens_(inputs[0].dims[1]),
        heads_(inputs[0].dims[3]),
        dim_(inputs[0].dims[4]),
        dtype_(inputs[0].dtype),
        scratch_((Vector().attention_scratch(tokens_, dim_, dtype_, backward) + 63) / 64 * 64) {
    workspace_bytes = scratch_ * static_cast<uint64_t>(device->threads);
    if (backward && outputs.size() > 1) {
      parts_ = std::clamp<int64_t>(kDbiasPieces / heads_, 1, batch_);
      partial_ = workspace_bytes;
      if (parts_ > 1) workspace_bytes += static_cast<uint64_t>(parts_ * Bytes(outputs[1]));
    }
  }

  void Run(const Arguments& a) const override {
    const size_t addends = backward_ ? 4 : 1;
    const size_t mask = addends + (attributes_.bias ? 1 : 0);
    const bool dbias = backward_ && outputs.size() > 1;
    const int64_t bytes = DtypeBytes(dtype_), width = heads_ * dim_, pair = tokens_ * tokens_;

    const auto head = [&](int64_t b, int64_t h, int thread, float* dbias_of_head) {
      AttentionHead head = {};
      head.tokens = tokens_;
      head.head_dim = dim_;
      head.stride = 3 * width;
      head.out_stride = width;
      head.scale = attributes_.scale;
      head.dtype = dtype_;
      const int64_t in = (b * tokens_ * 3 * width + h * dim_) * bytes, out = (b * tokens_ * width + h * dim_) * bytes;
      head.q = a.inputs[0] + in;
      head.k = head.q + width * bytes;
      head.v = head.k + width * bytes;
      if (attributes_.bias) {
        head.bias_dtype = inputs[addends].dtype;
        head.bias = a.inputs[addends] + h * pair * DtypeBytes(head.bias_dtype);
      }
      if (attributes_.mask) {
        head.mask_dtype = inputs[mask].dtype;
        head.mask = a.inputs[mask] + b % inputs[mask].dims[0] * pair * DtypeBytes(head.mask_dtype);
      }
      head.scratch = a.workspace + static_cast<uint64_t>(thread) * scratch_;
      const int64_t row = (b * heads_ + h) * tokens_;
      if (backward_) {
        head.out = a.inputs[1] + out;
        head.logsumexp = reinterpret_cast<float*>(a.inputs[2]) + row;
        head.dout = a.inputs[3] + out;
        head.dq = a.outputs[0] + in;
        head.dk = head.dq + width * bytes;
        head.dv = head.dk + width * bytes;
        head.dbias = dbias_of_head;
      } else {
        head.out = a.outputs[0] + out;
        head.logsumexp = a.Output<float>(1) + row;
      }
      return head;
    };
    // Those of `count` heads, of(i), one after another.
    const auto compute = [&](int64_t count, const auto& of) {
      if (count == 0) return;
      AttentionHead current = of(0);
      for (int64_t i = 0; i < count; ++i) {
        AttentionHead next = {};
        if (i + 1 < count) {
          next = of(i + 1);
          current.next = &next;
        }
        backward_ ? Vector().attention_backward(current) : Vector().attention(current);
        current = next;
      }
    };
    if (dbias) {
      ParallelPieces(device->threads, parts_ * heads_, [&](int64_t piece, int thread) {
        const int64_t part = piece / heads_, h = piece % heads_;
        const int64_t begin = batch_ * part / parts_, end = batch_ * (part + 1) / parts_;
        float* sum = (parts_ > 1 ? a.Workspace<float>(partial_) + part * heads_ * pair : a.Output<float>(1)) + h * pair;
        if (parts_ > 1 || !accumulate[1]) std::fill_n(sum, pair, 0.0f);
        compute(end - begin, [&](int64_t i) { return head(begin + i, h, thread, sum); });
      });
      if (parts_ > 1) JoinParts(a);
    } else {
      const int64_t count = batch_ * heads_, pieces = std::min<int64_t>(count, kPiecesPerThread * device->threads);
      ParallelPieces(device->threads, pieces, [&](int64_t piece, int thread) {
        const int64_t begin = count * piece / pieces, end = count * (piece + 1) / pieces;
        compute(end - begin,
                [&](int64_t i) { return head((begin + i) / heads_, (begin + i) % heads_, thread, nullptr); });
      });
    }
  }

 private:
  static constexpr int64_t kDbiasPieces = 64;  // about so many: enough for any thread count to balance
  static constexpr int64_t kPiecesPerThread = 16;

  void JoinParts(const Arguments& a) const {
    const int64_t elements = Elements(outputs[1]);
    ParallelRanges(device->threads, elements, kParallelElements / parts_, [&](int64_t begin, int64_t end, int) {
      float* out = a.Output<float>(1) + begin;
      if (!accumulate[1]) std::fill_n(out, end - begin, 0.0f);
      for (int64_t part = 0; part < parts_; ++part)
        Vector().reduce_into(SY_REDUCE_SUM, out, a.Workspace<float>(partial_) + part * elements + begin, end - begin);
    });
  }

  sy_attention_attributes attributes_;
  bool backward_;
  int64_t batch_, tokens_, heads_, dim_;
  sy_dtype dtype_;
  uint64_t scratch_;
  int64_t parts_ = 1;     // of the batch, if there is dbias
  uint64_t partial_ = 0;  // bytes into the workspace
};

KernelPointer Prepare(const Request& r, bool backward) {
  const auto attributes = r.Attributes<sy_attention_attributes>();
  const size_t addends = backward ? 4 : 1, extra = (attributes.bias ? 1 : 0) + (attributes.mask ? 1 : 0);
  const bool dbias = backward && attributes.bias && r.outputs.size() == 2;
  if (!r.HasCounts(addends + extra, addends + extra, backward && !dbias ? 1 : 2)) return nullptr;
  const sy_tensor& qkv = r.inputs[0];
  if (qkv.rank != 5 || qkv.dims[2] != 3) return SY_REFUSE(r, "%s: qkv must be (B, T, 3, H, D)", r.op);
  if (!r.RequireFloat(qkv, "qkv")) return nullptr;
  if (qkv.dims[4] > 1024 || qkv.dims[1] > 1 << 16) return SY_REFUSE(r, "%s: head too wide or sequence too long", r.op);
  for (size_t o = 0; o < r.accumulate.size(); ++o)
    if (r.accumulate[o] && !(dbias && o == 1)) return SY_REFUSE(r, "%s: cannot accumulate into output %zu", r.op, o);
  const int64_t batch = qkv.dims[0], tokens = qkv.dims[1], heads = qkv.dims[3], out = Elements(qkv) / 3;
  const auto matches = [&](const sy_tensor& t, sy_dtype dtype, int64_t elements, const char* name) {
    return r.RequireDtype(t, dtype, name) && r.RequireElements(t, elements, name);
  };
  const sy_tensor& logsumexp = backward ? r.inputs[2] : r.outputs[1];
  if (!matches(backward ? r.inputs[1] : r.outputs[0], qkv.dtype, out, "out") ||
      !matches(logsumexp, SY_F32, batch * heads * tokens, "logsumexp"))
    return nullptr;
  if (backward && (!matches(r.inputs[3], qkv.dtype, out, "dout") || !matches(r.outputs[0], qkv.dtype, 3 * out, "dqkv")))
    return nullptr;
  if (dbias && !matches(r.outputs[1], SY_F32, heads * tokens * tokens, "dbias")) return nullptr;
  for (size_t i = addends; i < r.inputs.size(); ++i) {
    const bool is_bias = attributes.bias && i == addends;
    if (!r.RequireFloat(r.inputs[i], is_bias ? "bias" : "mask")) return nullptr;
    if (r.inputs[i].rank != 3 || Elements(r.inputs[i]) != r.inputs[i].dims[0] * tokens * tokens ||
        (is_bias && r.inputs[i].dims[0] != heads))
      return SY_REFUSE(r, "%s: bias must be (H, T, T) and mask (G, T, T)", r.op);
  }
  return std::make_unique<Attention>(r, attributes, backward);
}

KernelPointer PrepareAttention(const Request& r) { return Prepare(r, false); }
KernelPointer PrepareAttentionBackward(const Request& r) { return Prepare(r, true); }

const Registration kAttention{"attention", PrepareAttention, sizeof(sy_attention_attributes)};
const Registration kAttentionBackward{"attention_backward", PrepareAttentionBackward, sizeof(sy_attention_attributes)};

}  // namespace
}  // namespace switchyard
