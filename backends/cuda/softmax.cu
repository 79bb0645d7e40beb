// softmax over the last axis and its gradient. A team of threads has one row and reads it three times, from the caches
// after the first.
#include "backends/cuda/team.cuh"
#include "backends/cuda/views.h"

namespace switchyard {
namespace {

// y = exp(x − max) / Σ exp(x − max)
template <int N>
__global__ void SoftmaxKernel(Teams teams, int64_t c, View x, View y) {
  const int64_t row = teams.Row();
  if (row >= teams.rows) return;
  float largest = -INFINITY, sum = 0;
  teams.ForRow<N>(c, [&](int64_t i) {
    float v[N];
    Load<N>(x, row * c + i, v);
#pragma unroll
    for (int k = 0; k < N; ++k) largest = Greater()(v[k], largest);
  });
  largest = teams.Reduce(largest, Greater());
  teams.ForRow<N>(c, [&](int64_t i) {
    float v[N];
    Load<N>(x, row * c + i, v);
#pragma unroll
    for (int k = 0; k < N; ++k) sum += expf(v[k] - largest);
  });
  const float scale = 1 / teams.Sum(sum);
  teams.ForRow<N>(c, [&](int64_t i) {
    float v[N];
    Load<N>(x, row * c + i, v);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = expf(v[k] - largest) * scale;
    Store<N>(y, row * c + i, v);
  });
}

// dx = y·(dy − Σ y·dy)
template <int N>
__global__ void SoftmaxBackwardKernel(Teams teams, int64_t c, View y, View dy, View dx) {
  const int64_t row = teams.Row();
  if (row >= teams.rows) return;
  float sum = 0;
  teams.ForRow<N>(c, [&](int64_t i) {
    float v[N], g[N];
    Load<N>(y, row * c + i, v);
    Load<N>(dy, row * c + i, g);
#pragma unroll
    for (int k = 0; k < N; ++k) sum += v[k] * g[k];
  });
  sum = teams.Sum(sum);
  teams.ForRow<N>(c, [&](int64_t i) {
    float v[N], g[N];
    Load<N>(y, row * c + i, v);
    Load<N>(dy, row * c + i, g);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] *= g[k] - sum;
    Store<N>(dx, row * c + i, v);
  });
}

struct Softmax : Kernel {
  explicit Softmax(const Request& r)
      : Kernel(r), c(inputs[0].dims[inputs[0].rank - 1]), teams(Elements(inputs[0]) / c, c) {}
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    SY_LAUNCH_PACKED(error, Packs(c), SoftmaxKernel, teams.Grid(), dim3(kTeamBlock), 0, context.stream, teams, c,
                     In(b, 0), Out(b, 0));
    return SY_OK;
  }
  const int64_t c;
  const Teams teams;
};

struct SoftmaxBackward : Softmax {
  using Softmax::Softmax;
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    SY_LAUNCH_PACKED(error, Packs(c), SoftmaxBackwardKernel, teams.Grid(), dim3(kTeamBlock), 0, context.stream, teams,
                     c, In(b, 0), In(b, 1), Out(b, 0));
    return SY_OK;
  }
};

// Each element is written by the thread that has read it last, so that the result may take the place of an input.
template <typename K>
KernelPointer Prepare(const Request& r, size_t operands) {
  if (!r.HasCounts(operands, operands, 1) || !r.RequireFloat(r.outputs[0], "the result")) return nullptr;
  if (r.outputs[0].rank < 1) return SY_REFUSE(r, "%s: expected rank 1 or more", r.op);
  if (r.Accumulates()) return SY_REFUSE(r, "%s: cannot accumulate", r.op);
  for (const sy_tensor& x : r.inputs) {
    if (!r.RequireFloat(x, "an input") || !r.RequireDimsOf(x, r.outputs[0], "an input")) return nullptr;
  }
  auto kernel = std::make_unique<K>(r);
  if (r.inputs[0].dtype == r.outputs[0].dtype) kernel->inplace[0] = 0;
  return kernel;
}

KernelPointer PrepareSoftmax(const Request& r) { return Prepare<Softmax>(r, 1); }
KernelPointer PrepareSoftmaxBackward(const Request& r) { return Prepare<SoftmaxBackward>(r, 2); }

const Registration kSoftmax{"softmax", PrepareSoftmax, 0};
const Registration kSoftmaxBackward{"softmax_backward", PrepareSoftmaxBackward, 0};

}  // namespace
}  // namespace switchyard
