// optimizer_update: one pass over all tensors, cut into chunks of equal size whatever the tensors' sizes are. LAMB and
// LARS first sum the squares of every chunk, which are added in order to the norms of its tensor.
#include <cmath>

#include "backends/cpu/kernel.h"
#include "backends/cpu/parallel.h"

namespace switchyard {
namespace {

constexpr int64_t kChunk = 32768;
constexpr size_t kScalars = 4;  // lr, update, gradient_scale, finite

class OptimizerUpdate : public Kernel {
 public:
  OptimizerUpdate(const Request& request, const sy_optimizer_attributes& attributes, size_t moments)
      : Kernel(request),
        attributes_(attributes),
        moments_(moments),
        needs_norms_(attributes.kind == SY_OPTIMIZER_LAMB || attributes.kind == SY_OPTIMIZER_LARS) {
    const size_t stride = 2 + moments, results = 1 + moments + (attributes.half_copies ? 1 : 0);
    for (size_t k = 0; kScalars + k * stride < inputs.size(); ++k) {
      const size_t first = kScalars + k * stride;
      for (size_t s = 0; s <= moments; ++s)
        inplace[k * results + s] = static_cast<int32_t>(s == 0 ? first : first + 1 + s);
      const size_t tensor = chunks_.size();
      for (int64_t begin = 0; begin < Elements(inputs[first]); begin += kChunk)
        chunks_.push_back({first, k * results, tensor, begin, std::min(kChunk, Elements(inputs[first]) - begin)});
    }
    if (needs_norms_) workspace_bytes = chunks_.size() * 3 * sizeof(float);
  }

  void Run(const Arguments& a) const override {
    const bool finite = *a.Input<float>(3) != 0.0f;
    const OptimizerStep step = Step(*a.Input<float>(0), *a.Input<float>(1), *a.Input<float>(2));
    // Per chunk: two sums of squares, then, in the first of a tensor, the tensor's r.
    float *squares = a.Workspace<float>(), *ratios = needs_norms_ ? squares + 2 * chunks_.size() : nullptr;
    if (needs_norms_ && finite) {
      ForChunks([&](const Chunk& c, size_t i) { Vector().optimizer_norms(step, Pointers(a, c), squares + 2 * i); });
      JoinNorms(squares, ratios);
    }
    ForChunks([&](const Chunk& c, size_t) {
      if (!finite) return Keep(a, c);
      OptimizerChunk chunk = Pointers(a, c);
      if (needs_norms_) chunk.ratio = ratios[c.tensor];
      Vector().optimizer_update(step, chunk);
    });
  }

 private:
  struct Chunk {
    size_t input, output;  // of p
    size_t tensor;         // the first chunk of its tensor
    int64_t begin, count;
  };

  // body(chunk, its index)
  template <typename Body>
  void ForChunks(const Body& body) const {
    ParallelRanges(device->threads, static_cast<int64_t>(chunks_.size()), 1, [&](int64_t begin, int64_t end, int) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) body(chunks_[i], i);
    });
  }

  void JoinNorms(const float* squares, float* ratios) const {
    for (size_t first = 0, next; first < chunks_.size(); first = next) {
      double p = 0, other = 0;
      for (next = first; next < chunks_.size() && chunks_[next].tensor == first; ++next) {
        p += squares[2 * next];
        other += squares[2 * next + 1];
      }
      ratios[first] = Ratio(std::sqrt(p), std::sqrt(other));
    }
  }
  // r of a tensor, by ‖p‖ and ‖u‖ (LAMB) or ‖g‖ (LARS).
  float Ratio(double p, double other) const {
    const double decay = attributes_.weight_decay;
    if (p == 0 || other == 0) return 1;
    if (attributes_.kind == SY_OPTIMIZER_LAMB)
      return decay != 0 || attributes_.use_nvlamb ? static_cast<float>(p / other) : 1;
    if (decay == 0) return 1;
    return static_cast<float>(attributes_.trust_coefficient * p / (other + decay * p + double{attributes_.eps}));
  }

  OptimizerStep Step(float lr, float update, float gradient_scale) const {
    const double t = update + 1.0;
    OptimizerStep s = {};
    s.kind = attributes_.kind;
    s.nesterov = attributes_.nesterov;
    s.first = update == 0;
    s.lr = lr;
    s.weight_decay = attributes_.weight_decay;
    s.momentum = attributes_.momentum;
    s.dampening = attributes_.dampening;
    s.beta1 = attributes_.beta1;
    s.beta2 = attributes_.beta2;
    s.eps = attributes_.eps;
    s.gradient_scale = gradient_scale;
    s.step_size = static_cast<float>(lr / (1.0 - std::pow(attributes_.beta1, t)));
    s.inverse_correction1 = static_cast<float>(1.0 / (1.0 - std::pow(attributes_.beta1, t)));
    s.gradient_share = attributes_.grad_averaging ? 1.0f - attributes_.beta1 : 1.0f;
    s.decoupled = attributes_.adam_w_mode;
    s.inverse_root_correction2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(attributes_.beta2, t)));
    return s;
  }

  OptimizerChunk Pointers(const Arguments& a, const Chunk& c) const {
    OptimizerChunk chunk = {};
    chunk.p = a.Input<float>(c.input) + c.begin;
    chunk.g_dtype = inputs[c.input + 1].dtype;
    chunk.g = a.inputs[c.input + 1] + c.begin * DtypeBytes(chunk.g_dtype);
    chunk.p_out = a.Output<float>(c.output) + c.begin;
    if (moments_ > 0) {
      chunk.m = a.Input<float>(c.input + 2) + c.begin;
      chunk.m_out = a.Output<float>(c.output + 1) + c.begin;
    }
    if (moments_ > 1) {
      chunk.v = a.Input<float>(c.input + 3) + c.begin;
      chunk.v_out = a.Output<float>(c.output + 2) + c.begin;
    }
    if (attributes_.half_copies) chunk.h_out = HalfCopy(a, c);
    chunk.count = c.count;
    return chunk;
  }

  Rows HalfCopy(const Arguments& a, const Chunk& c) const {
    const size_t o = c.output + 1 + moments_;
    return {a.outputs[o] + c.begin * DtypeBytes(outputs[o].dtype), outputs[o].dtype};
  }

  // The step is skipped: outputs that are not the inputs themselves become copies.
  void Keep(const Arguments& a, const Chunk& c) const {
    if (attributes_.half_copies) {
      const Rows h = HalfCopy(a, c);
      Vector().from_float(h.dtype, a.Input<float>(c.input) + c.begin, h.data, c.count);
    }
    for (size_t s = 0; s <= moments_; ++s) {
      const float* from = a.Input<float>(s == 0 ? c.input : c.input + 1 + s) + c.begin;
      float* to = a.Output<float>(c.output + s) + c.begin;
      if (from != to) std::memcpy(to, from, static_cast<size_t>(c.count) * sizeof(float));
    }
  }

  sy_optimizer_attributes attributes_;
  size_t moments_;
  bool needs_norms_;
  std::vector<Chunk> chunks_;
};

KernelPointer PrepareOptimizerUpdate(const Request& r) {
  const auto attributes = r.Attributes<sy_optimizer_attributes>();
  if (attributes.kind < SY_OPTIMIZER_SGD || attributes.kind > SY_OPTIMIZER_LARS)
    return SY_REFUSE(r, "optimizer_update: kind %d", attributes.kind);
  const bool has_momentum = attributes.kind == SY_OPTIMIZER_SGD || attributes.kind == SY_OPTIMIZER_LARS;
  const size_t moments = !has_momentum ? 2 : attributes.momentum != 0.0f ? 1 : 0;
  const size_t results = 1 + moments + (attributes.half_copies ? 1 : 0);
  const size_t stride = 2 + moments, tensors = r.inputs.size() < kScalars ? 0 : (r.inputs.size() - kScalars) / stride;
  const size_t count = kScalars + tensors * stride;
  if (tensors == 0 || !r.HasCounts(count, count, tensors * results))
    return tensors ? nullptr : SY_REFUSE(r, "optimizer_update: no tensors");
  if (r.Accumulates()) return SY_REFUSE(r, "optimizer_update: cannot accumulate");
  const char* names[] = {"lr", "update", "gradient_scale", "finite"};
  for (size_t i = 0; i < kScalars; ++i)
    if (!r.RequireDtype(r.inputs[i], SY_F32, names[i]) ||
        !r.RequireElements(r.inputs[i], 1, names[i]))
      return nullptr;
  for (size_t k = 0; k < tensors; ++k) {
    const size_t first = kScalars + k * stride;
    const int64_t elements = Elements(r.inputs[first]);
    for (size_t s = 0; s < stride; ++s) {
      const sy_tensor& t = r.inputs[first + s];
      if (!r.RequireElements(t, elements, "state") ||
          !(s == 1 ? r.RequireFloat(t, "g") : r.RequireDtype(t, SY_F32, "state")))
        return nullptr;
    }
    for (size_t s = 0; s < results; ++s) {
      const sy_tensor& t = r.outputs[k * results + s];
      if (!r.RequireElements(t, elements, "an output")) return nullptr;
      if (s <= moments ? !r.RequireDtype(t, SY_F32, "an output") : !r.RequireFloat(t, "a half copy")) return nullptr;
      if (s > moments && t.dtype == SY_F32) return SY_REFUSE(r, "optimizer_update: a half copy in f32");
    }
  }
  return std::make_unique<OptimizerUpdate>(r, attributes, moments);
}

const Registration kOptimizerUpdate{"optimizer_update", PrepareOptimizerUpdate, sizeof(sy_optimizer_attributes)};

}  // namespace
}  // namespace switchyard
