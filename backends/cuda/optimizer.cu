// optimizer_update: SGD with momentum, Adam and AdamW (the formulas of ops.h) on all tensors in one launch. Bind
// uploads a table of chunks of equal size; the scalars are read on the device, so that a launch can be captured.
#include <cmath>

#include "backends/cuda/element.cuh"
#include "backends/cuda/views.h"

namespace switchyard {
namespace {

constexpr int64_t kChunk = 16384;  // elements of a block
constexpr int kThreads = 256;
constexpr size_t kScalars = 4;  // lr, update, gradient_scale, finite

struct Chunk {
  View p, g, m, v, next_p, next_m, next_v;  // at the tensors' first elements; m and v may be absent
  int64_t first, count;                     // first is a multiple of kPack
};

struct Scalars {
  const float* lr;
  const int32_t* update;
  const float* gradient_scale;
  const float* finite;
};

// What all elements share.
struct Rates {
  float lr, gradient_scale, step_size, inverse_root_correction;
  bool finite, first;
};

__device__ Rates ReadRates(const Scalars& s, const sy_optimizer_attributes& a) {
  const double t = *s.update + 1.0;
  Rates rates;
  rates.lr = *s.lr;
  rates.gradient_scale = *s.gradient_scale;
  rates.finite = *s.finite != 0;
  rates.first = *s.update == 0;
  rates.step_size = static_cast<float>(rates.lr / (1 - pow(static_cast<double>(a.beta1), t)));
  rates.inverse_root_correction = static_cast<float>(1 / sqrt(1 - pow(static_cast<double>(a.beta2), t)));
  return rates;
}

__device__ __forceinline__ void Update(const sy_optimizer_attributes& a, const Rates& rates, bool momentum, float g,
                                       float& p, float& m, float& v) {
  g *= rates.gradient_scale;
  if (a.kind == SY_OPTIMIZER_SGD) {
    g += a.weight_decay * p;
    if (momentum) {
      m = rates.first ? g : a.momentum * m + (1 - a.dampening) * g;
      g = a.nesterov ? g + a.momentum * m : m;
    }
    p -= rates.lr * g;
    return;
  }
  if (a.kind == SY_OPTIMIZER_ADAM) g += a.weight_decay * p;
  if (a.kind == SY_OPTIMIZER_ADAMW) p -= rates.lr * a.weight_decay * p;
  m = a.beta1 * m + (1 - a.beta1) * g;
  v = a.beta2 * v + (1 - a.beta2) * g * g;
  p -= rates.step_size * m / (sqrtf(v) * rates.inverse_root_correction + a.eps);
}

template <int N>
__device__ __forceinline__ void UpdateElements(const Chunk& c, const sy_optimizer_attributes& a, const Rates& rates,
                                               int64_t i) {
  float p[N], g[N], m[N] = {}, v[N] = {};
  Load<N>(c.p, i, p);
  Load<N>(c.g, i, g);
  if (c.m) Load<N>(c.m, i, m);
  if (c.v) Load<N>(c.v, i, v);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if (rates.finite) Update(a, rates, static_cast<bool>(c.m), g[k], p[k], m[k], v[k]);
  }
  Store<N>(c.next_p, i, p);
  if (c.m) Store<N>(c.next_m, i, m);
  if (c.v) Store<N>(c.next_v, i, v);
}

__global__ void OptimizerKernel(const Chunk* chunks, Scalars scalars, sy_optimizer_attributes attributes) {
  __shared__ Rates shared_rates;
  if (threadIdx.x == 0) shared_rates = ReadRates(scalars, attributes);
  __syncthreads();
  const Rates rates = shared_rates;
  const Chunk chunk = chunks[blockIdx.x];
  const int64_t packed = chunk.count / kPack * kPack;
  for (int64_t i = threadIdx.x * static_cast<int64_t>(kPack); i < packed; i += int64_t{kThreads} * kPack)
    UpdateElements<kPack>(chunk, attributes, rates, chunk.first + i);
  if (packed + threadIdx.x < chunk.count)
    UpdateElements<1>(chunk, attributes, rates, chunk.first + packed + threadIdx.x);
}

struct OptimizerBound : Bound {
  DeviceTable chunks;
};

struct OptimizerUpdate : Kernel {
  OptimizerUpdate(const Request& r, const sy_optimizer_attributes& a, size_t moment_count)
      : Kernel(r), attributes(a), moments(moment_count) {
    for (size_t in = kScalars, out = 0; in < inputs.size(); in += 2 + moments, out += 1 + moments) {
      chunk_count += CeilDivide(Elements(inputs[in]), kChunk);
      for (size_t s = 0; s <= moments; ++s) inplace[out + s] = static_cast<int32_t>(s == 0 ? in : in + 1 + s);
    }
  }
  sy_status Bind(std::unique_ptr<Bound>* bound, sy_error* error) const override {
    auto made = std::make_unique<OptimizerBound>();
    static_cast<Bound&>(*made) = **bound;
    std::vector<Chunk> chunks;
    for (size_t in = kScalars, out = 0; in < inputs.size(); in += 2 + moments, out += 1 + moments) {
      Chunk chunk = {In(*made, in), In(*made, in + 1), {}, {}, Out(*made, out), {}, {}, 0, 0};
      if (moments > 0) {
        chunk.m = In(*made, in + 2);
        chunk.next_m = Out(*made, out + 1);
      }
      if (moments > 1) {
        chunk.v = In(*made, in + 3);
        chunk.next_v = Out(*made, out + 2);
      }
      const int64_t elements = Elements(inputs[in]);
      for (chunk.first = 0; chunk.first < elements; chunk.first += kChunk) {
        chunk.count = Least(kChunk, elements - chunk.first);
        chunks.push_back(chunk);
      }
    }
    SY_TRY(made->chunks.Assign(device, chunks.data(), chunks.size() * sizeof(Chunk), error));
    *bound = std::move(made);
    return SY_OK;
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    const auto& own = static_cast<const OptimizerBound&>(b);
    const Scalars scalars = {b.Input<float>(0), b.Input<int32_t>(1), b.Input<float>(2), b.Input<float>(3)};
    SY_CUDA(error, Launch(OptimizerKernel, dim3(static_cast<unsigned>(chunk_count)), dim3(kThreads), 0, context.stream,
                          own.chunks.data<Chunk>(), scalars, attributes));
    return SY_OK;
  }
  const sy_optimizer_attributes attributes;
  const size_t moments;
  int64_t chunk_count = 0;
};

KernelPointer PrepareOptimizerUpdate(const Request& r) {
  const auto attributes = r.Attributes<sy_optimizer_attributes>();
  if (attributes.kind < SY_OPTIMIZER_SGD || attributes.kind > SY_OPTIMIZER_ADAMW)
    return SY_REFUSE(r, "optimizer_update: kind %d; there are SGD, Adam and AdamW, LAMB and LARS run as simpler ops",
                     attributes.kind);
  if (attributes.half_copies)
    return SY_REFUSE(r, "optimizer_update: no half copies; the graph converts what this op updated");
  const size_t moments = attributes.kind != SY_OPTIMIZER_SGD ? 2 : attributes.momentum != 0 ? 1 : 0;
  const size_t stride = 2 + moments, tensors = r.inputs.size() <= kScalars ? 0 : (r.inputs.size() - kScalars) / stride;
  if (tensors == 0) return SY_REFUSE(r, "optimizer_update: no tensors");
  const size_t count = kScalars + tensors * stride;
  if (!r.HasCounts(count, count, tensors * (1 + moments))) return nullptr;
  if (r.Accumulates()) return SY_REFUSE(r, "optimizer_update: cannot accumulate");
  const char* names[] = {"lr", "update", "gradient_scale", "finite"};
  for (size_t i = 0; i < kScalars; ++i) {
    if (!r.RequireDtype(r.inputs[i], i == 1 ? SY_I32 : SY_F32, names[i]) ||
        !r.RequireElements(r.inputs[i], 1, names[i]))
      return nullptr;
  }
  for (size_t k = 0; k < tensors; ++k) {
    const sy_tensor& p = r.inputs[kScalars + k * stride];
    for (size_t s = 0; s < stride; ++s) {
      const sy_tensor& x = r.inputs[kScalars + k * stride + s];
      if (!r.RequireDimsOf(x, p, "g, m and v") ||
          !(s == 1 ? r.RequireFloat(x, "g") : r.RequireDtype(x, SY_F32, "p, m and v")))
        return nullptr;
    }
    for (size_t s = 0; s <= moments; ++s) {
      const sy_tensor& y = r.outputs[k * (1 + moments) + s];
      if (!r.RequireDimsOf(y, p, "an output") || !r.RequireDtype(y, SY_F32, "an output")) return nullptr;
    }
  }
  return std::make_unique<OptimizerUpdate>(r, attributes, moments);
}

const Registration kOptimizerUpdate{"optimizer_update", PrepareOptimizerUpdate, sizeof(sy_optimizer_attributes)};

}  // namespace
}  // namespace switchyard
