// optimizer_update: one pass over all tensors, cut into chunks of equal size whatever the tensors' sizes are.
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
      : Kernel(request), attributes_(attributes), moments_(moments) {
    const size_t stride = 2 + moments;
    for (size_t k = 0; kScalars + k * stride < inputs.size(); ++k) {
      const size_t first = kScalars + k * stride;
      for (size_t s = 0; s <= moments; ++s)
        inplace[k * (1 + moments) + s] = static_cast<int32_t>(s == 0 ? first : first + 1 + s);
      for (int64_t begin = 0; begin < Elements(inputs[first]); begin += kChunk)
        chunks_.push_back({first, k * (1 + moments), begin, std::min(kChunk, Elements(inputs[first]) - begin)});
    }
  }

  void Run(const Arguments& a) const override {
    const bool finite = *a.Input<float>(3) != 0.0f;
    const OptimizerStep step = Step(*a.Input<float>(0), *a.Input<int32_t>(1), *a.Input<float>(2));
    ParallelRanges(device->threads, static_cast<int64_t>(chunks_.size()), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const Chunk& c = chunks_[static_cast<size_t>(i)];
        if (finite) {
          Vector().optimizer_update(step, Pointers(a, c));
        } else {
          Keep(a, c);
        }
      }
    });
  }

 private:
  struct Chunk {
    size_t input, output;  // of p
    int64_t begin, count;
  };

  OptimizerStep Step(float lr, int32_t update, float gradient_scale) const {
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
    chunk.count = c.count;
    return chunk;
  }

  // The step is skipped: outputs that are not the inputs themselves become copies.
  void Keep(const Arguments& a, const Chunk& c) const {
    for (size_t s = 0; s <= moments_; ++s) {
      const float* from = a.Input<float>(s == 0 ? c.input : c.input + 1 + s) + c.begin;
      float* to = a.Output<float>(c.output + s) + c.begin;
      if (from != to) std::memcpy(to, from, static_cast<size_t>(c.count) * sizeof(float));
    }
  }

  sy_optimizer_attributes attributes_;
  size_t moments_;
  std::vector<Chunk> chunks_;
};

KernelPointer PrepareOptimizerUpdate(const Request& r) {
  const auto attributes = r.Attributes<sy_optimizer_attributes>();
  if (attributes.kind < SY_OPTIMIZER_SGD || attributes.kind > SY_OPTIMIZER_ADAMW)
    return SY_REFUSE(r, "optimizer_update: kind %d", attributes.kind);
  const size_t moments = attributes.kind != SY_OPTIMIZER_SGD ? 2 : attributes.momentum != 0.0f ? 1 : 0;
  const size_t stride = 2 + moments, tensors = r.inputs.size() < kScalars ? 0 : (r.inputs.size() - kScalars) / stride;
  const size_t count = kScalars + tensors * stride;
  if (tensors == 0 || !r.HasCounts(count, count, tensors * (1 + moments)))
    return tensors ? nullptr : SY_REFUSE(r, "optimizer_update: no tensors");
  if (r.Accumulates()) return SY_REFUSE(r, "optimizer_update: cannot accumulate");
  const char* names[] = {"lr", "update", "gradient_scale", "finite"};
  for (size_t i = 0; i < kScalars; ++i)
    if (!r.RequireDtype(r.inputs[i], i == 1 ? SY_I32 : SY_F32, names[i]) ||
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
    for (size_t s = 0; s <= moments; ++s) {
      const sy_tensor& t = r.outputs[k * (1 + moments) + s];
      if (!r.RequireElements(t, elements, "an output") || !r.RequireDtype(t, SY_F32, "an output")) return nullptr;
    }
  }
  return std::make_unique<OptimizerUpdate>(r, attributes, moments);
}

const Registration kOptimizerUpdate{"optimizer_update", PrepareOptimizerUpdate, sizeof(sy_optimizer_attributes)};

}  // namespace
}  // namespace switchyard
