// optimizer_update: SGD with momentum, Adam, AdamW, LAMB and LARS (the formulas of ops.h) on all tensors in one launch,
// or in two where a ratio of norms scales each tensor's step. Bind uploads a table of chunks of equal size; the scalars
// are read on the device, so that a launch can be captured. Norms are added chunk by chunk in a fixed order.
#include <cmath>

#include "backends/cuda/team.cuh"
#include "backends/cuda/views.h"

namespace switchyard {
namespace {

constexpr int64_t kChunk = 16384;  // elements of a block
constexpr size_t kScalars = 4;         // lr, update, gradient_scale, finite

struct Chunk {
  View p, g, m, v, next_p, next_m, next_v, next_h;  // at the tensors' first elements; m, v and h may be absent
  int64_t first, count;                             // first is a multiple of kPack
  int64_t place, first_place, places;               // of its sums, and of those of the whole tensor
};

struct Scalars {
  const float* lr;
  const float* update;
  const float* gradient_scale;
  const float* finite;
};

// What all elements share.
struct Rates {
  float lr, gradient_scale, inverse_correction, inverse_root_correction;
  float step;  // lr, times the ratio of norms
  bool finite, first;
};

__device__ Rates ReadRates(const Scalars& s, const sy_optimizer_attributes& a) {
  const double t = *s.update + 1.0;
  Rates rates;
  rates.lr = rates.step = *s.lr;
  rates.gradient_scale = *s.gradient_scale;
  rates.finite = *s.finite != 0;
  rates.first = *s.update == 0;
  rates.inverse_correction = static_cast<float>(1 / (1 - pow(static_cast<double>(a.beta1), t)));
  rates.inverse_root_correction = static_cast<float>(1 / sqrt(1 - pow(static_cast<double>(a.beta2), t)));
  return rates;
}

// The direction of Adam, AdamW and LAMB; m and v become the next ones. g is scaled already.
__device__ __forceinline__ float Direction(const sy_optimizer_attributes& a, const Rates& rates, float g, float p,
                                           float& m, float& v) {
  const bool lamb = a.kind == SY_OPTIMIZER_LAMB, decoupled = lamb && a.adam_w_mode;
  if (a.kind == SY_OPTIMIZER_ADAM || (lamb && !decoupled)) g += a.weight_decay * p;
  m = a.beta1 * m + (lamb && !a.grad_averaging ? 1 : 1 - a.beta1) * g;
  v = a.beta2 * v + (1 - a.beta2) * g * g;
  const float u = m * rates.inverse_correction / (sqrtf(v) * rates.inverse_root_correction + a.eps);
  return decoupled ? u + a.weight_decay * p : u;
}

__device__ __forceinline__ void Update(const sy_optimizer_attributes& a, const Rates& rates, bool momentum, float g,
                                       float& p, float& m, float& v) {
  g *= rates.gradient_scale;
  if (a.kind == SY_OPTIMIZER_SGD || a.kind == SY_OPTIMIZER_LARS) {
    const bool lars = a.kind == SY_OPTIMIZER_LARS;  // its moment holds steps, not gradients
    g += a.weight_decay * p;
    if (lars) g *= rates.step;
    if (momentum) {
      m = rates.first ? g : a.momentum * m + (lars ? 1 : 1 - a.dampening) * g;
      g = a.nesterov ? g + a.momentum * m : m;
    }
    p -= lars ? g : rates.lr * g;
    return;
  }
  const float u = Direction(a, rates, g, p, m, v);
  if (a.kind == SY_OPTIMIZER_ADAMW) p -= rates.lr * a.weight_decay * p;
  p -= rates.step * u;
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
  if (c.next_h) Store<N>(c.next_h, i, p);
}

// Adds p² and the square of LAMB's direction, or of LARS' gradient.
template <int N>
__device__ __forceinline__ void AddSquares(const Chunk& c, const sy_optimizer_attributes& a, const Rates& rates,
                                           int64_t i, float& weights, float& others) {
  float p[N], g[N], m[N] = {}, v[N] = {};
  Load<N>(c.p, i, p);
  Load<N>(c.g, i, g);
  if (a.kind == SY_OPTIMIZER_LAMB) {
    Load<N>(c.m, i, m);
    Load<N>(c.v, i, v);
  }
#pragma unroll
  for (int k = 0; k < N; ++k) {
    float other = g[k] * rates.gradient_scale;
    if (a.kind == SY_OPTIMIZER_LAMB) other = Direction(a, rates, other, p[k], m[k], v[k]);
    weights += p[k] * p[k];
    others += other * other;
  }
}

// packed(element) for each of this thread's groups of kPack elements of the chunk, single(element) for what is left.
template <typename Packed, typename Single>
__device__ __forceinline__ void ForChunk(const Chunk& c, Packed packed, Single single) {
  const int64_t whole = c.count / kPack * kPack;
  for (int64_t i = threadIdx.x * static_cast<int64_t>(kPack); i < whole; i += int64_t{kThreads} * kPack)
    packed(c.first + i);
  if (whole + threadIdx.x < c.count) single(c.first + whole + threadIdx.x);
}

// sums[2·place] = Σ p² of the chunk, and behind it the other sum.
__global__ void NormsKernel(const Chunk* chunks, Scalars scalars, sy_optimizer_attributes a, float* sums) {
  __shared__ Rates shared_rates;
  if (threadIdx.x == 0) shared_rates = ReadRates(scalars, a);
  __syncthreads();
  const Rates rates = shared_rates;
  const Chunk chunk = chunks[blockIdx.x];
  float weights = 0, others = 0;
  ForChunk(
      chunk, [&](int64_t i) { AddSquares<kPack>(chunk, a, rates, i, weights, others); },
      [&](int64_t i) { AddSquares<1>(chunk, a, rates, i, weights, others); });
  weights = BlockReduce(weights, Plus());
  others = BlockReduce(others, Plus());
  if (threadIdx.x != 0) return;
  sums[2 * chunk.place] = weights;
  sums[2 * chunk.place + 1] = others;
}

// The ratio of LAMB or LARS, from the sums of a tensor's chunks. Every thread of the block calls it.
__device__ __forceinline__ float Ratio(const Chunk& c, const sy_optimizer_attributes& a, const float* sums) {
  float weights = 0, others = 0;
  for (int64_t k = threadIdx.x; k < c.places; k += kThreads) {
    weights += sums[2 * (c.first_place + k)];
    others += sums[2 * (c.first_place + k) + 1];
  }
  weights = BlockReduce(weights, Plus());
  others = BlockReduce(others, Plus());
  if (weights == 0 || others == 0) return 1;
  const float weight = sqrtf(weights), other = sqrtf(others);
  if (a.kind == SY_OPTIMIZER_LAMB) return weight / other;
  return a.trust_coefficient * weight / (other + a.weight_decay * weight + a.eps);
}

// sums: null where no ratio scales the step.
__global__ void OptimizerKernel(const Chunk* chunks, Scalars scalars, sy_optimizer_attributes a, const float* sums) {
  __shared__ Rates shared_rates;
  if (threadIdx.x == 0) shared_rates = ReadRates(scalars, a);
  __syncthreads();
  Rates rates = shared_rates;
  const Chunk chunk = chunks[blockIdx.x];
  if (sums != nullptr) rates.step *= Ratio(chunk, a, sums);
  ForChunk(
      chunk, [&](int64_t i) { UpdateElements<kPack>(chunk, a, rates, i); },
      [&](int64_t i) { UpdateElements<1>(chunk, a, rates, i); });
}

size_t MomentCount(const sy_optimizer_attributes& a) {
  if (a.kind == SY_OPTIMIZER_SGD || a.kind == SY_OPTIMIZER_LARS) return a.momentum != 0 ? 1 : 0;
  return 2;
}
bool HasRatio(const sy_optimizer_attributes& a) {
  return (a.kind == SY_OPTIMIZER_LAMB && (a.weight_decay != 0 || a.use_nvlamb)) ||
         (a.kind == SY_OPTIMIZER_LARS && a.weight_decay != 0);
}

struct OptimizerBound : Bound {
  DeviceTable chunks;
};

struct OptimizerUpdate : Kernel {
  OptimizerUpdate(const Request& r, const sy_optimizer_attributes& a)
      : Kernel(r), attributes(a), moments(MomentCount(a)), results(1 + moments + (a.half_copies ? 1 : 0)) {
    for (size_t in = kScalars, out = 0; in < inputs.size(); in += 2 + moments, out += results) {
      chunk_count += CeilDivide(Elements(inputs[in]), kChunk);
      for (size_t s = 0; s <= moments; ++s) inplace[out + s] = static_cast<int32_t>(s == 0 ? in : in + 1 + s);
    }
    if (HasRatio(a)) workspace_bytes = static_cast<uint64_t>(2 * chunk_count) * sizeof(float);
  }
  sy_status Bind(std::unique_ptr<Bound>* bound, sy_error* error) const override {
    auto made = std::make_unique<OptimizerBound>();
    static_cast<Bound&>(*made) = **bound;
    std::vector<Chunk> chunks;
    for (size_t in = kScalars, out = 0; in < inputs.size(); in += 2 + moments, out += results) {
      Chunk chunk{};
      chunk.p = In(*made, in);
      chunk.g = In(*made, in + 1);
      chunk.next_p = Out(*made, out);
      if (attributes.half_copies) chunk.next_h = Out(*made, out + 1 + moments);
      if (moments > 0) {
        chunk.m = In(*made, in + 2);
        chunk.next_m = Out(*made, out + 1);
      }
      if (moments > 1) {
        chunk.v = In(*made, in + 3);
        chunk.next_v = Out(*made, out + 2);
      }
      const int64_t elements = Elements(inputs[in]);
      chunk.first_place = static_cast<int64_t>(chunks.size());
      chunk.places = CeilDivide(elements, kChunk);
      for (chunk.first = 0; chunk.first < elements; chunk.first += kChunk) {
        chunk.count = Least(kChunk, elements - chunk.first);
        chunk.place = static_cast<int64_t>(chunks.size());
        chunks.push_back(chunk);
      }
    }
    SY_TRY(made->chunks.Assign(device, chunks.data(), chunks.size() * sizeof(Chunk), error));
    *bound = std::move(made);
    return SY_OK;
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    const auto& own = static_cast<const OptimizerBound&>(b);
    const Scalars scalars = {b.Input<float>(0), b.Input<float>(1), b.Input<float>(2), b.Input<float>(3)};
    const dim3 grid(static_cast<unsigned>(chunk_count));
    float* const sums = HasRatio(attributes) ? b.Workspace<float>() : nullptr;
    if (sums != nullptr) {
      SY_CUDA(error, Launch(NormsKernel, grid, dim3(kThreads), 0, context.stream, own.chunks.data<Chunk>(), scalars,
                            attributes, sums));
    }
    SY_CUDA(error, Launch(OptimizerKernel, grid, dim3(kThreads), 0, context.stream, own.chunks.data<Chunk>(), scalars,
                          attributes, sums));
    return SY_OK;
  }
  const sy_optimizer_attributes attributes;
  const size_t moments, results;  // of each tensor; results: outputs
  int64_t chunk_count = 0;
};

KernelPointer PrepareOptimizerUpdate(const Request& r) {
  const auto attributes = r.Attributes<sy_optimizer_attributes>();
  if (attributes.kind < SY_OPTIMIZER_SGD || attributes.kind > SY_OPTIMIZER_LARS)
    return SY_REFUSE(r, "optimizer_update: kind %d; there are SGD, Adam, AdamW, LAMB and LARS", attributes.kind);
  const size_t moments = MomentCount(attributes), results = 1 + moments + (attributes.half_copies ? 1 : 0);
  const size_t stride = 2 + moments, tensors = r.inputs.size() <= kScalars ? 0 : (r.inputs.size() - kScalars) / stride;
  if (tensors == 0) return SY_REFUSE(r, "optimizer_update: no tensors");
  const size_t count = kScalars + tensors * stride;
  if (!r.HasCounts(count, count, tensors * results)) return nullptr;
  if (r.Accumulates()) return SY_REFUSE(r, "optimizer_update: cannot accumulate");
  const char* names[] = {"lr", "update", "gradient_scale", "finite"};
  for (size_t i = 0; i < kScalars; ++i) {
    if (!r.RequireDtype(r.inputs[i], SY_F32, names[i]) ||
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
    for (size_t s = 0; s < results; ++s) {
      const sy_tensor& y = r.outputs[k * results + s];
      if (!r.RequireDimsOf(y, p, "an output") ||
          !(s <= moments ? r.RequireDtype(y, SY_F32, "p', m' and v'") : r.RequireFloat(y, "h'")))
        return nullptr;
    }
  }
  return std::make_unique<OptimizerUpdate>(r, attributes);
}

const Registration kOptimizerUpdate{"optimizer_update", PrepareOptimizerUpdate, sizeof(sy_optimizer_attributes)};

}  // namespace
}  // namespace switchyard
