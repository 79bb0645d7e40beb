// dropout and drop path by counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3", 2011) of key, element, sample and step, so that no mask is ever stored.
#include "backends/cuda/element.cuh"
#include "backends/cuda/views.h"

namespace switchyard {
namespace {

struct Sampling {
  uint64_t key;
  float p;
  int64_t size;     // elements of a sample
  int64_t samples;  // of the tensor
};

// The words of elements 4·group … 4·group + 3 of a sample.
__device__ __forceinline__ uint4 Philox(uint64_t key, uint32_t group, int32_t sample, const int32_t* step) {
  auto low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
  uint4 c =
      make_uint4(group, static_cast<uint32_t>(sample), static_cast<uint32_t>(step[0]), static_cast<uint32_t>(step[1]));
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t a_high = __umulhi(0xD2511F53u, c.x), a_low = 0xD2511F53u * c.x;
    const uint32_t b_high = __umulhi(0xCD9E8D57u, c.z), b_low = 0xCD9E8D57u * c.z;
    c = make_uint4(b_high ^ c.y ^ low, b_low, a_high ^ c.w ^ high, a_low);
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
  return c;
}

__device__ __forceinline__ bool Keeps(const Sampling& s, uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f >= s.p;
}

// y = keep ? x/(1 − p) : 0, decided for each element. A thread has N elements of one sample: N divides the sample's size.
template <int N>
__global__ void DropoutKernel(Sampling s, View x, const int32_t* sample_ids, const int32_t* step, View y) {
  const int64_t at = (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x) * N;
  const int64_t sample = at / s.size, element = at % s.size;
  if (sample >= s.samples) return;
  const auto group = static_cast<uint32_t>(element / 4);
  const float scale = 1 / (1 - s.p);
  uint32_t kept = 0;  // a bit for each
#pragma unroll
  for (int k = 0; k < N; k += 4) {
    const uint4 words = Philox(s.key, group + k / 4, sample_ids[sample], step);
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
    const int first = N == 1 ? static_cast<int>(element % 4) : 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) kept |= (Keeps(s, word[w]) ? 1u : 0u) << (k + w) >> first;
  }
  float v[N];
  Load<N>(x, at, v);
#pragma unroll
  for (int k = 0; k < N; ++k) v[k] = (kept >> k & 1) != 0 ? v[k] * scale : 0;
  Store<N>(y, at, v);
}

// The same, decided for each sample by its first word; one that is dropped is not read. A thread has several times N
// elements of one sample, so that its random numbers and its loads' way pay.
constexpr int kLoadsAtOnce = 4;
constexpr int64_t kMostSamplesAtOnce = 65535;  // blocks along y
template <int N>
__global__ void DropPathKernel(Sampling s, View x, const int32_t* sample_ids, const int32_t* step, View y) {
  const int64_t first = (blockIdx.x * static_cast<int64_t>(kLoadsAtOnce * kThreads) + threadIdx.x) * N;
  for (int64_t sample = blockIdx.y; sample < s.samples; sample += gridDim.y) {
    const bool keeps = Keeps(s, Philox(s.key, 0, sample_ids[sample], step).x);
    const float factor = keeps ? 1 / (1 - s.p) : 0;
    float v[kLoadsAtOnce][N] = {};
#pragma unroll
    for (int r = 0; r < kLoadsAtOnce; ++r) {
      const int64_t at = first + r * kThreads * N;
      if (keeps && at < s.size) Load<N>(x, sample * s.size + at, v[r]);
    }
#pragma unroll
    for (int r = 0; r < kLoadsAtOnce; ++r) {
      const int64_t at = first + r * kThreads * N;
      if (at >= s.size) break;
#pragma unroll
      for (int k = 0; k < N; ++k) v[r][k] *= factor;
      Store<N>(y, sample * s.size + at, v[r]);
    }
  }
}

struct Dropout : Kernel {
  Dropout(const Request& r, const sy_dropout_attributes& a)
      : Kernel(r),
        sampling{a.key, a.p, Elements(inputs[0]) / Elements(inputs[1]), Elements(inputs[1])},
        per_sample(a.per_sample != 0) {
    if (inputs[0].dtype == outputs[0].dtype) inplace[0] = 0;
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    const bool packs = Packs(sampling.size);
    const int64_t of_block = int64_t{kThreads} * (packs ? kPack : 1);
    if (per_sample) {
      const dim3 grid(static_cast<unsigned>(CeilDivide(sampling.size, kLoadsAtOnce * of_block)),
                      static_cast<unsigned>(Least(sampling.samples, kMostSamplesAtOnce)));
      SY_LAUNCH_PACKED(error, packs, DropPathKernel, grid, dim3(kThreads), 0, context.stream, sampling, In(b, 0),
                       b.Input<int32_t>(1), b.Input<int32_t>(2), Out(b, 0));
      return SY_OK;
    }
    const dim3 grid(static_cast<unsigned>(CeilDivide(sampling.samples * sampling.size, of_block)));
    SY_LAUNCH_PACKED(error, packs, DropoutKernel, grid, dim3(kThreads), 0, context.stream, sampling, In(b, 0),
                     b.Input<int32_t>(1), b.Input<int32_t>(2), Out(b, 0));
    return SY_OK;
  }
  const Sampling sampling;
  const bool per_sample;
};

KernelPointer PrepareDropout(const Request& r) {
  const auto attributes = r.Attributes<sy_dropout_attributes>();
  if (!r.HasCounts(3, 3, 1) || !r.RequireFloat(r.inputs[0], "x") || !r.RequireFloat(r.outputs[0], "y") ||
      !r.RequireDtype(r.inputs[1], SY_I32, "sample_ids") || !r.RequireDtype(r.inputs[2], SY_I32, "step") ||
      !r.RequireElements(r.inputs[2], 2, "step") || !r.RequireElements(r.outputs[0], Elements(r.inputs[0]), "y"))
    return nullptr;
  if (r.Accumulates()) return SY_REFUSE(r, "dropout: cannot accumulate");
  if (!(attributes.p >= 0 && attributes.p <= 1))
    return SY_REFUSE(r, "dropout: p = %g is not a probability", static_cast<double>(attributes.p));
  if (Elements(r.inputs[0]) % Elements(r.inputs[1]) != 0)
    return SY_REFUSE(r, "dropout: x does not divide into the samples");
  return std::make_unique<Dropout>(r, attributes);
}

const Registration kDropout{"dropout", PrepareDropout, sizeof(sy_dropout_attributes)};

}  // namespace
}  // namespace switchyard
