// layer_norm over the last axis (Ba et al., 2016), with the sum of a residual branch in front, and its gradient. A team
// of threads has one row; the gradients of gamma and beta are sums over columns (column_sums.cuh).
#include <cmath>

#include "backends/cuda/column_sums.cuh"

namespace switchyard {
namespace {

struct LayerNormOperands {
  View x, residual, gamma, beta, y, mean, rstd, sum;  // residual and sum: both or neither
};

// h = x + residual, as it was stored; y = (h − mean)·rstd·gamma + beta
template <int N>
__global__ void LayerNormKernel(Teams teams, int64_t c, float eps, LayerNormOperands p) {
  const int64_t row = teams.Row(), base = row * c;
  if (row >= teams.rows) return;
  const View h = p.sum ? p.sum : p.x;
  float total = 0, squares = 0;
  teams.ForRow<N>(c, [&](int64_t i) {
    float v[N];
    Load<N>(p.x, base + i, v);
    if (p.residual) {
      float r[N];
      Load<N>(p.residual, base + i, r);
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] += r[k];
      Store<N>(h, base + i, v);
      Load<N>(h, base + i, v);  // what the backward will see
    }
#pragma unroll
    for (int k = 0; k < N; ++k) total += v[k];
  });
  const float mean = teams.Sum(total) / static_cast<float>(c);
  teams.ForRow<N>(c, [&](int64_t i) {
    float v[N];
    Load<N>(h, base + i, v);
#pragma unroll
    for (int k = 0; k < N; ++k) squares += (v[k] - mean) * (v[k] - mean);
  });
  const float rstd = 1 / sqrtf(teams.Sum(squares) / static_cast<float>(c) + eps);
  teams.ForRow<N>(c, [&](int64_t i) {
    float v[N], g[N], b[N];
    Load<N>(h, base + i, v);
    Load<N>(p.gamma, i, g);
    Load<N>(p.beta, i, b);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = (v[k] - mean) * rstd * g[k] + b[k];
    Store<N>(p.y, base + i, v);
  });
  if (teams.Rank() != 0) return;
  StoreOne(p.mean, row, mean);
  StoreOne(p.rstd, row, rstd);
}

struct LayerNormGradientOperands {
  View h, gamma, mean, rstd, dy, dsum, dh;  // dsum may be absent
};

// dh = rstd·(g − mean(g) − x̂·mean(g·x̂)) [+ dsum], g = dy·gamma, x̂ = (h − mean)·rstd
template <int N>
__global__ void LayerNormBackwardKernel(Teams teams, int64_t c, LayerNormGradientOperands p) {
  const int64_t row = teams.Row(), base = row * c;
  if (row >= teams.rows) return;
  const float mean = LoadOne(p.mean, row), rstd = LoadOne(p.rstd, row);
  float sum = 0, sum_x = 0;
  teams.ForRow<N>(c, [&](int64_t i) {
    float v[N], g[N], d[N];
    Load<N>(p.h, base + i, v);
    Load<N>(p.gamma, i, g);
    Load<N>(p.dy, base + i, d);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      sum += d[k] * g[k];
      sum_x += d[k] * g[k] * (v[k] - mean) * rstd;
    }
  });
  const float mean_g = teams.Sum(sum) / static_cast<float>(c), mean_gx = teams.Sum(sum_x) / static_cast<float>(c);
  teams.ForRow<N>(c, [&](int64_t i) {
    float v[N], g[N], d[N], s[N] = {};
    Load<N>(p.h, base + i, v);
    Load<N>(p.gamma, i, g);
    Load<N>(p.dy, base + i, d);
    if (p.dsum) Load<N>(p.dsum, base + i, s);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = rstd * (d[k] * g[k] - mean_g - (v[k] - mean) * rstd * mean_gx) + s[k];
    Store<N>(p.dh, base + i, v);
  });
}

template <int N>
__global__ void LayerNormSumsKernel(ColumnParts p, View h, View mean, View rstd, View dy, float* partials) {
  SumGradients<N, true>(p, h, mean, rstd, dy, View{}, partials);
}

__global__ void LayerNormFinishKernel(ColumnParts p, const float* partials, View dgamma, View dbeta) {
  FinishGradients(p, partials, dgamma, dbeta);
}

struct LayerNormShape {
  int64_t c, rows;
  Teams teams;
  explicit LayerNormShape(const sy_tensor& x) : c(x.dims[x.rank - 1]), rows(Elements(x) / c), teams(rows, c) {}
};

struct LayerNorm : Kernel, LayerNormShape {
  explicit LayerNorm(const Request& r)
      : Kernel(r), LayerNormShape(inputs[0]), attributes(r.Attributes<sy_layer_norm_attributes>()) {
    // With a residual, x and the residual are read for the last time when the sum is written.
    if (inputs[0].dtype == outputs[0].dtype) inplace[0] = 0;
    if (attributes.residual && inputs[1].dtype == outputs[3].dtype) inplace[3] = 1;
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    const bool residual = attributes.residual;
    const size_t gamma = residual ? 2 : 1;
    const LayerNormOperands p = {
        In(b, 0),  residual ? In(b, 1) : View(), In(b, gamma), In(b, gamma + 1), Out(b, 0), Out(b, 1),
        Out(b, 2), residual ? Out(b, 3) : View()};
    SY_LAUNCH_PACKED(error, Packs(c), LayerNormKernel, teams.Grid(), dim3(kTeamBlock), 0, context.stream, teams, c,
                     attributes.eps, p);
    return SY_OK;
  }
  const sy_layer_norm_attributes attributes;
};

struct LayerNormBackward : Kernel, LayerNormShape {
  explicit LayerNormBackward(const Request& r) : Kernel(r), LayerNormShape(inputs[0]), parts(rows, c) {
    workspace_bytes = static_cast<uint64_t>(2 * parts.Partials()) * sizeof(float);
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    const LayerNormGradientOperands p = {
        In(b, 0), In(b, 1), In(b, 2), In(b, 3), In(b, 4), inputs.size() == 6 ? In(b, 5) : View(), Out(b, 0)};
    SY_LAUNCH_PACKED(error, Packs(c), LayerNormSumsKernel, parts.Grid(), dim3(kWarp, kLanes), 0, context.stream, parts,
                     p.h, p.mean, p.rstd, p.dy, b.Workspace<float>());
    SY_CUDA(error, Launch(LayerNormFinishKernel, dim3(static_cast<unsigned>(CeilDivide(c, kTeamBlock))),
                          dim3(kTeamBlock), 0, context.stream, parts, b.Workspace<float>(), Out(b, 1), Out(b, 2)));
    SY_LAUNCH_PACKED(error, Packs(c), LayerNormBackwardKernel, teams.Grid(), dim3(kTeamBlock), 0, context.stream, teams,
                     c, p);
    return SY_OK;
  }
  const ColumnParts parts;
};

bool AllFloat(const Request& r) {
  for (const auto* tensors : {&r.inputs, &r.outputs}) {
    for (const sy_tensor& x : *tensors) {
      if (!r.RequireFloat(x, "an operand")) return false;
    }
  }
  if (r.inputs[0].rank < 1) return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: expected rank 1 or more", r.op), false;
  if (r.Accumulates()) return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: cannot accumulate", r.op), false;
  return true;
}

KernelPointer PrepareLayerNorm(const Request& r) {
  const bool residual = r.Attributes<sy_layer_norm_attributes>().residual;
  if (!r.HasCounts(residual ? 4 : 3, residual ? 4 : 3, residual ? 4 : 3) || !AllFloat(r)) return nullptr;
  const sy_tensor& x = r.inputs[0];
  const int64_t c = x.dims[x.rank - 1], rows = Elements(x) / c;
  const size_t gamma = residual ? 2 : 1;
  if (!r.RequireElements(r.inputs[gamma], c, "gamma") || !r.RequireElements(r.inputs[gamma + 1], c, "beta") ||
      !r.RequireDimsOf(r.outputs[0], x, "y") || !r.RequireElements(r.outputs[1], rows, "mean") ||
      !r.RequireElements(r.outputs[2], rows, "rstd"))
    return nullptr;
  if (residual && (!r.RequireDimsOf(r.inputs[1], x, "residual") || !r.RequireDimsOf(r.outputs[3], x, "sum")))
    return nullptr;
  return std::make_unique<LayerNorm>(r);
}

KernelPointer PrepareLayerNormBackward(const Request& r) {
  const bool residual = r.Attributes<sy_layer_norm_attributes>().residual;
  if (!r.HasCounts(residual ? 6 : 5, residual ? 6 : 5, 3) || !AllFloat(r)) return nullptr;
  const sy_tensor& h = r.inputs[0];
  const int64_t c = h.dims[h.rank - 1], rows = Elements(h) / c;
  if (!r.RequireElements(r.inputs[1], c, "gamma") || !r.RequireElements(r.inputs[2], rows, "mean") ||
      !r.RequireElements(r.inputs[3], rows, "rstd") || !r.RequireDimsOf(r.inputs[4], h, "dy") ||
      !r.RequireDimsOf(r.outputs[0], h, "dh") || !r.RequireElements(r.outputs[1], c, "dgamma") ||
      !r.RequireElements(r.outputs[2], c, "dbeta"))
    return nullptr;
  if (residual && !r.RequireDimsOf(r.inputs[5], h, "dsum")) return nullptr;
  return std::make_unique<LayerNormBackward>(r);
}

const Registration kLayerNorm{"layer_norm", PrepareLayerNorm, sizeof(sy_layer_norm_attributes)};
const Registration kLayerNormBackward{"layer_norm_backward", PrepareLayerNormBackward,
                                      sizeof(sy_layer_norm_attributes)};

}  // namespace
}  // namespace switchyard
