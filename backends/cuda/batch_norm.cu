// batch_norm over all axes but the last (Ioffe and Szegedy, 2015): training, inference and the gradient, with the ReLU
// and the residual that the graph fuses into it. Statistics are taken per column in parts of the rows, each with the
// mean of its own rows, and joined in a fixed order.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "backends/cuda/activation.cuh"
#include "backends/cuda/column_sums.cuh"
#include "backends/cuda/packed.cuh"

namespace switchyard {
namespace {

// Rows of a thread whose loads are under way together: of the maps that a result is made of, and of the two or three
// that a gradient is made of.
constexpr int kMomentRowsAtOnce = 4, kRowsAtOnce = 3, kGradientRowsAtOnce = 2;

// Of each part and column: partials[part] = mean, partials[parts + part] = Σ (x − mean)². Each thread joins the moments
// of its rows, a few at a time (Chan et al., 1983, "Algorithms for computing the sample variance"), and the lanes' are
// joined around the mean of all.
template <int N, int kDtype>
__global__ void __launch_bounds__(kWarp* kLanes, kDtype == kAnyDtype ? 2 : 3)
    MomentsKernel(ColumnParts p, View maps, float* partials) {
  constexpr int kRows = kMomentRowsAtOnce;
  __shared__ float mean_of[kWarp * N];
  const View x = Known<kDtype>(maps);
  const int64_t column = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) * N;
  const int64_t first = blockIdx.y * p.rows_per_part, last = Least(p.rows, first + p.rows_per_part);
  float mean[N] = {}, squares[N] = {}, seen = 0;
  const auto join = [&]<int kCount>(int64_t row) {  // kCount of the thread's rows, from `row` on
    decltype(LoadRaw<N>(x, 0)) raw[kCount];
#pragma unroll
    for (int r = 0; r < kCount; ++r) raw[r] = LoadRaw<N>(x, (row + r * blockDim.y) * p.columns + column);
    float v[kCount][N];
#pragma unroll
    for (int r = 0; r < kCount; ++r) Unpack(raw[r], x.dtype, v[r]);
    const float before = seen;
    seen += kCount;
    const float weight = kCount / seen;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      float own = 0;
#pragma unroll
      for (int r = 0; r < kCount; ++r) own += v[r][k];
      own *= 1.0f / kCount;
      const float off = own - mean[k], step = off * weight;
      mean[k] += step;
      squares[k] += step * (off * before);  // in this order 0 at first, however large `off` is
#pragma unroll
      for (int r = 0; r < kCount; ++r) squares[k] += (v[r][k] - own) * (v[r][k] - own);
    }
  };
  int64_t row = column < p.columns ? first + threadIdx.y : last;
  for (; row + (kRows - 1) * blockDim.y < last; row += kRows * blockDim.y) join.template operator()<kRows>(row);
#pragma unroll 1  // else the rest is counted, by a division
  for (; row < last; row += blockDim.y) join.template operator()<1>(row);
  float sum[N];
#pragma unroll
  for (int k = 0; k < N; ++k) sum[k] = mean[k] * seen;
  AddLanes<N>(sum);
  if (threadIdx.y == 0) {
#pragma unroll
    for (int k = 0; k < N; ++k) mean_of[threadIdx.x + blockDim.x * k] = sum[k] / static_cast<float>(last - first);
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float off = mean[k] - mean_of[threadIdx.x + blockDim.x * k];
    squares[k] += seen * off * off;
  }
  AddLanes<N>(squares);
  if (column >= p.columns || threadIdx.y != 0) return;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    partials[blockIdx.y * p.columns + column + k] = mean_of[threadIdx.x + blockDim.x * k];
    partials[(p.parts + blockIdx.y) * p.columns + column + k] = squares[k];
  }
}

struct RunningStatistics {
  View mean, variance, next_mean, next_variance;
};

// A warp joins the parts of a column: the mean of all rows, then Σ (x − mean)² of each part, moved to that mean.
__global__ void JoinMomentsKernel(ColumnParts p, const float* partials, float eps, float momentum, View mean, View rstd,
                                  RunningStatistics running) {
  const int64_t column = blockIdx.x * static_cast<int64_t>(kLanes) + threadIdx.y;
  if (column >= p.columns) return;
  const auto rows_of = [&](int part) {
    const int64_t first = part * p.rows_per_part;
    return static_cast<float>(Least(p.rows, first + p.rows_per_part) - first);
  };
  const auto count = static_cast<float>(p.rows);
  float sum = 0, squares = 0;
#pragma unroll 4
  for (int part = threadIdx.x; part < p.parts; part += kWarp)
    sum += rows_of(part) * partials[part * p.columns + column];
  const float joined = WarpReduce(sum, Plus()) / count;
#pragma unroll 4
  for (int part = threadIdx.x; part < p.parts; part += kWarp) {
    const float off = partials[part * p.columns + column] - joined;
    squares += partials[(p.parts + part) * p.columns + column] + rows_of(part) * off * off;
  }
  squares = WarpReduce(squares, Plus());
  if (threadIdx.x != 0) return;
  const float unbiased = count > 1 ? squares / (count - 1) : squares;
  StoreOne(mean, column, joined);
  StoreOne(rstd, column, 1 / sqrtf(squares / count + eps));
  StoreOne(running.next_mean, column, (1 - momentum) * LoadOne(running.mean, column) + momentum * joined);
  StoreOne(running.next_variance, column, (1 - momentum) * LoadOne(running.variance, column) + momentum * unbiased);
}

struct NormalizeOperands {
  View x, gamma, beta, mean, spread, residual, y;  // spread: rstd, or the variance at inference; residual may be absent
};

// Rows of a block in the kernels below, whose threads each keep what belongs to their columns: as many as leave a few
// waves of blocks.
int64_t RowsPerBlock(const ColumnParts& p) {
  constexpr int64_t kEnoughBlocks = 2048, kMostRowsPerThread = 32, kMostBlocks = 65535;
  const int64_t lanes = p.Block().y, blocks_of_rows = CeilDivide(kEnoughBlocks, p.Grid().x);
  const int64_t per_thread = Least(kMostRowsPerThread, CeilDivide(p.rows, lanes * blocks_of_rows));
  return Largest(lanes * CeilDivide(per_thread, kRowsAtOnce) * kRowsAtOnce, CeilDivide(p.rows, kMostBlocks));
}
dim3 RowGrid(const ColumnParts& p) {
  return dim3(p.Grid().x, static_cast<unsigned>(CeilDivide(p.rows, RowsPerBlock(p))));
}

// y = act((x − mean)·rstd·gamma + beta + residual)
template <int N, int kDtype>
__global__ void __launch_bounds__(kWarp* kLanes, kDtype == kAnyDtype ? 2 : 3)
    NormalizeKernel(ColumnParts shape, int64_t rows_per_block, bool spread_is_variance, sy_batch_norm_attributes a,
                    NormalizeOperands p) {
  constexpr int kRows = kRowsAtOnce;
  const View x = Known<kDtype>(p.x), residual = Known<kDtype>(p.residual), y = Known<kDtype>(p.y);
  const int64_t column = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) * N;
  if (column >= shape.columns) return;
  float scale[N], g[N], b[N], m[N];
  Load<N>(p.gamma, column, g);
  Load<N>(p.beta, column, b);
  Load<N>(p.mean, column, m);
  Load<N>(p.spread, column, scale);
#pragma unroll
  for (int k = 0; k < N; ++k) scale[k] = (spread_is_variance ? 1 / sqrtf(scale[k] + a.eps) : scale[k]) * g[k];
  const int64_t first = blockIdx.y * rows_per_block, last = Least(shape.rows, first + rows_per_block);
  for (int64_t row = first + threadIdx.y; row < last; row += kRows * blockDim.y) {
    decltype(LoadRaw<N>(x, 0)) raw[kRows], added[kRows] = {};
    int64_t at[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t own = row + r * blockDim.y;
      at[r] = (own < last ? own : row) * shape.columns + column;
      raw[r] = LoadRaw<N>(x, at[r]);
      if (residual) added[r] = LoadRaw<N>(residual, at[r]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row + r * blockDim.y >= last) break;
      float v[N], more[N];
      Unpack(raw[r], x.dtype, v);
      Unpack(added[r], residual.dtype, more);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float t = (v[k] - m[k]) * scale[k] + b[k] + more[k];
        v[k] = a.activation == SY_ACTIVATION_RELU ? Relu(t) : t;
      }
      Store<N>(y, at[r], v);
    }
  }
}

// Calls each(element, v, g) for N columns of the thread's rows first, first + step, … before last: v is x there, g is
// dy where y > 0, else 0 (what passes back through a ReLU that gave y); without y, dy as it is. A few rows' loads are
// under way together; for those beyond the end the first is read again.
template <int N, typename Each>
__device__ __forceinline__ void ForGradientRows(const View& x, const View& dy, const View& y, int64_t first,
                                                int64_t step, int64_t last, int64_t columns, int64_t column,
                                                const Each& each) {
  constexpr int kRows = kGradientRowsAtOnce;
  for (int64_t row = first; row < last; row += kRows * step) {
    decltype(LoadRaw<N>(x, 0)) raw_x[kRows], raw_dy[kRows], raw_y[kRows] = {};
    int64_t at[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      at[r] = (row + r * step < last ? row + r * step : row) * columns + column;
      raw_x[r] = LoadRaw<N>(x, at[r]);
      raw_dy[r] = LoadRaw<N>(dy, at[r]);
      if (y) raw_y[r] = LoadRaw<N>(y, at[r]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (row + r * step >= last) break;
      float v[N], g[N], passed[N];
      Unpack(raw_x[r], x.dtype, v);
      Unpack(raw_dy[r], dy.dtype, g);
      Unpack(raw_y[r], y.dtype, passed);
#pragma unroll
      for (int k = 0; k < N; ++k) g[k] = !y || passed[k] > 0 ? g[k] : 0;
      each(at[r], v, g);
    }
  }
}

// Of each part and column Σ g·(x − mean)·rstd, and behind all parts' Σ g.
template <int N, int kDtype>
__global__ void __launch_bounds__(kWarp* kLanes, kDtype == kAnyDtype ? 2 : 3)
    BatchNormSumsKernel(ColumnParts p, View of_x, View mean, View rstd, View of_dy, View of_y, float* partials) {
  const View x = Known<kDtype>(of_x), dy = Known<kDtype>(of_dy), y = Known<kDtype>(of_y);
  const int64_t column = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) * N;
  const int64_t first = blockIdx.y * p.rows_per_part, last = Least(p.rows, first + p.rows_per_part);
  float with_x[N] = {}, plain[N] = {};
  if (column < p.columns) {
    float m[N], s[N];
    Load<N>(mean, column, m);
    ForGradientRows<N>(x, dy, y, first + threadIdx.y, blockDim.y, last, p.columns, column,
                       [&](int64_t, const float(&v)[N], const float(&g)[N]) {
#pragma unroll
                         for (int k = 0; k < N; ++k) {
                           with_x[k] += g[k] * (v[k] - m[k]);
                           plain[k] += g[k];
                         }
                       });
    Load<N>(rstd, column, s);
#pragma unroll
    for (int k = 0; k < N; ++k) with_x[k] *= s[k];
  }
  AddLanes<N>(with_x);
  AddLanes<N>(plain);
  if (column >= p.columns || threadIdx.y != 0) return;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    partials[blockIdx.y * p.columns + column + k] = with_x[k];
    partials[(p.parts + blockIdx.y) * p.columns + column + k] = plain[k];
  }
}

// The sums are kept in f32 for the next kernel, whatever the dtype of dgamma and dbeta.
__global__ void BatchNormFinishKernel(ColumnParts p, const float* partials, ColumnGradients to, View sums_x,
                                      View sums) {
  float with_x = 0, plain = 0;
  AddParts(p, partials, &with_x, &plain);
  const int64_t column = blockIdx.x * static_cast<int64_t>(kWarp) + threadIdx.x;
  if (column >= p.columns || threadIdx.y != 0) return;
  StoreOne(sums_x, column, with_x);
  StoreOne(sums, column, plain);
  StoreOrAdd(to.dgamma, column, with_x, to.adds_dgamma);
  StoreOrAdd(to.dbeta, column, plain, to.adds_dbeta);
}

struct GradientOperands {
  View x, gamma, mean, rstd, dy, y, sums_x, sums, dx, dresidual;  // y and dresidual may be absent
};

// dx = rstd·gamma·(g − Σg/n − x̂·Σ(g·x̂)/n), dresidual = g, where g is dy behind the activation
template <int N, int kDtype>
__global__ void __launch_bounds__(kWarp* kLanes, kDtype == kAnyDtype ? 2 : 3)
    BatchNormBackwardKernel(ColumnParts shape, int64_t rows_per_block, GradientOperands p) {
  const View x = Known<kDtype>(p.x), dy = Known<kDtype>(p.dy), y = Known<kDtype>(p.y), dx = Known<kDtype>(p.dx),
             dresidual = Known<kDtype>(p.dresidual);
  const int64_t column = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) * N;
  if (column >= shape.columns) return;
  float scale[N], m[N], s[N], with_x[N], plain[N];
  Load<N>(p.gamma, column, scale);
  Load<N>(p.mean, column, m);
  Load<N>(p.rstd, column, s);
  Load<N>(p.sums_x, column, with_x);
  Load<N>(p.sums, column, plain);
  const float share = 1 / static_cast<float>(shape.rows);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    scale[k] *= s[k];
    with_x[k] *= s[k] * share;
    plain[k] *= share;
  }
  const int64_t first = blockIdx.y * rows_per_block, last = Least(shape.rows, first + rows_per_block);
  ForGradientRows<N>(x, dy, y, first + threadIdx.y, blockDim.y, last, shape.columns, column,
                     [&](int64_t at, const float(&v)[N], const float(&g)[N]) {
                       float result[N];
#pragma unroll
                       for (int k = 0; k < N; ++k) result[k] = scale[k] * (g[k] - plain[k] - (v[k] - m[k]) * with_x[k]);
                       Store<N>(dx, at, result);
                       if (dresidual) Store<N>(dresidual, at, g);
                     });
}

// The instance of a kernel for maps of that dtype, where all of them have it and rows are eights.
#define SY_OF_DTYPE(kernel, packs, dtype)        \
  (!(packs)             ? kernel<1, kAnyDtype>   \
   : (dtype) == SY_BF16 ? kernel<kPack, SY_BF16> \
   : (dtype) == SY_F16  ? kernel<kPack, SY_F16>  \
                        : kernel<kPack, kAnyDtype>)

struct BatchNormShape {
  int64_t c;
  ColumnParts parts;
  explicit BatchNormShape(const sy_tensor& x) : c(x.dims[x.rank - 1]), parts(Elements(x) / c, c) {}
};

// The dtype of all maps that are there, or kAnyDtype.
int CommonDtype(std::initializer_list<View> maps) {
  const sy_dtype dtype = maps.begin()->dtype;
  const bool common =
      std::all_of(maps.begin(), maps.end(), [&](const View& map) { return !map || map.dtype == dtype; });
  return common ? dtype : kAnyDtype;
}

sy_status Normalize(const BatchNormShape& shape, const sy_batch_norm_attributes& attributes, bool spread_is_variance,
                    const NormalizeOperands& p, const LaunchContext& context, sy_error* error) {
  const auto kernel = SY_OF_DTYPE(NormalizeKernel, Packs(shape.c), CommonDtype({p.x, p.y, p.residual}));
  SY_CUDA(error, Launch(kernel, RowGrid(shape.parts), shape.parts.Block(), 0, context.stream, shape.parts,
                        RowsPerBlock(shape.parts), spread_is_variance, attributes, p));
  return SY_OK;
}

struct BatchNorm : Kernel, BatchNormShape {
  explicit BatchNorm(const Request& r)
      : Kernel(r), BatchNormShape(inputs[0]), attributes(r.Attributes<sy_batch_norm_attributes>()) {
    workspace_bytes = static_cast<uint64_t>(2 * parts.Partials()) * sizeof(float);
    for (const int o : {0, 3, 4}) {
      if (inputs[static_cast<size_t>(o)].dtype == outputs[static_cast<size_t>(o)].dtype)
        inplace[static_cast<size_t>(o)] = o;
    }
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    const auto moments = SY_OF_DTYPE(MomentsKernel, Packs(c), inputs[0].dtype);
    SY_CUDA(error,
            Launch(moments, parts.Grid(), parts.Block(), 0, context.stream, parts, In(b, 0), b.Workspace<float>()));
    SY_CUDA(error, Launch(JoinMomentsKernel, dim3(static_cast<unsigned>(CeilDivide(c, kLanes))), dim3(kWarp, kLanes), 0,
                          context.stream, parts, b.Workspace<float>(), attributes.eps, attributes.momentum, Out(b, 1),
                          Out(b, 2), RunningStatistics{In(b, 3), In(b, 4), Out(b, 3), Out(b, 4)}));
    const NormalizeOperands p = {
        In(b, 0), In(b, 1), In(b, 2), Out(b, 1), Out(b, 2), attributes.residual ? In(b, 5) : View{}, Out(b, 0)};
    return Normalize(*this, attributes, false, p, context, error);
  }
  const sy_batch_norm_attributes attributes;
};

struct BatchNormInference : Kernel, BatchNormShape {
  explicit BatchNormInference(const Request& r)
      : Kernel(r), BatchNormShape(inputs[0]), attributes(r.Attributes<sy_batch_norm_attributes>()) {
    if (inputs[0].dtype == outputs[0].dtype) inplace[0] = 0;
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    const NormalizeOperands p = {
        In(b, 0), In(b, 1), In(b, 2), In(b, 3), In(b, 4), attributes.residual ? In(b, 5) : View{}, Out(b, 0)};
    return Normalize(*this, attributes, true, p, context, error);
  }
  const sy_batch_norm_attributes attributes;
};

struct BatchNormBackward : Kernel, BatchNormShape {
  explicit BatchNormBackward(const Request& r)
      : Kernel(r), BatchNormShape(inputs[0]), attributes(r.Attributes<sy_batch_norm_attributes>()) {
    sums_offset = static_cast<uint64_t>(CeilDivide(2 * parts.Partials(), kPack) * kPack) * sizeof(float);
    column_bytes = static_cast<uint64_t>(CeilDivide(c, kPack) * kPack) * sizeof(float);
    workspace_bytes = sums_offset + 2 * column_bytes;
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    const View y = attributes.activation != SY_ACTIVATION_NONE ? In(b, 5) : View{};
    const View sums_x = {b.workspace + sums_offset, SY_F32}, sums = {b.workspace + sums_offset + column_bytes, SY_F32};
    const auto sum = SY_OF_DTYPE(BatchNormSumsKernel, Packs(c), CommonDtype({In(b, 0), In(b, 4), y}));
    SY_CUDA(error, Launch(sum, parts.Grid(), parts.Block(), 0, context.stream, parts, In(b, 0), In(b, 2), In(b, 3),
                          In(b, 4), y, b.Workspace<float>()));
    SY_CUDA(error, Launch(BatchNormFinishKernel, parts.JoinGrid(), dim3(kWarp, kLanes), 0, context.stream, parts,
                          b.Workspace<float>(),
                          ColumnGradients{Out(b, 1), Out(b, 2), accumulate[1] != 0, accumulate[2] != 0}, sums_x, sums));
    const GradientOperands p = {In(b, 0), In(b, 1), In(b, 2), In(b, 3),  In(b, 4),
                                y,        sums_x,   sums,     Out(b, 0), attributes.residual ? Out(b, 3) : View{}};
    const auto kernel =
        SY_OF_DTYPE(BatchNormBackwardKernel, Packs(c), CommonDtype({p.x, p.dy, p.y, p.dx, p.dresidual}));
    SY_CUDA(error, Launch(kernel, RowGrid(parts), parts.Block(), 0, context.stream, parts, RowsPerBlock(parts), p));
    return SY_OK;
  }
  const sy_batch_norm_attributes attributes;
  uint64_t sums_offset, column_bytes;
};

// Every operand is a float; inputs 1 … `vectors` and outputs 1 … `results` are (C); all others are like x.
bool CheckShapes(const Request& r, size_t vectors, size_t results) {
  const auto a = r.Attributes<sy_batch_norm_attributes>();
  if (a.activation != SY_ACTIVATION_NONE && a.activation != SY_ACTIVATION_RELU)
    return SY_REFUSE_OP(r, "expected no activation or ReLU, found activation %d", a.activation), false;
  for (const auto* tensors : {&r.inputs, &r.outputs}) {
    for (const sy_tensor& x : *tensors) {
      if (!r.RequireFloat(x, "an operand")) return false;
    }
  }
  const sy_tensor& x = r.inputs[0];
  if (x.rank < 1) return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: expected rank 1 or more", r.op), false;
  const int64_t c = x.dims[x.rank - 1];
  for (size_t i = 1; i < r.inputs.size(); ++i) {
    if (i <= vectors ? !r.RequireElements(r.inputs[i], c, "a vector of the channels")
                     : !r.RequireDimsOf(r.inputs[i], x, "residual, dy or y"))
      return false;
  }
  for (size_t o = 0; o < r.outputs.size(); ++o) {
    if (o >= 1 && o <= results ? !r.RequireElements(r.outputs[o], c, "a vector of the channels")
                               : !r.RequireDimsOf(r.outputs[o], x, "a result"))
      return false;
  }
  return true;
}

KernelPointer PrepareBatchNorm(const Request& r) {
  const size_t count = r.Attributes<sy_batch_norm_attributes>().residual ? 6 : 5;
  if (!r.HasCounts(count, count, 5) || !r.RequireNoAccumulation() || !CheckShapes(r, 4, 4)) return nullptr;
  return std::make_unique<BatchNorm>(r);
}

KernelPointer PrepareBatchNormInference(const Request& r) {
  const size_t count = r.Attributes<sy_batch_norm_attributes>().residual ? 6 : 5;
  if (!r.HasCounts(count, count, 1) || !r.RequireNoAccumulation() || !CheckShapes(r, 4, 0)) return nullptr;
  return std::make_unique<BatchNormInference>(r);
}

KernelPointer PrepareBatchNormBackward(const Request& r) {
  const auto a = r.Attributes<sy_batch_norm_attributes>();
  const size_t count = a.activation != SY_ACTIVATION_NONE ? 6 : 5;
  if (!r.HasCounts(count, count, a.residual ? 4 : 3) || !CheckShapes(r, 3, 2)) return nullptr;
  if (r.accumulate[0] || (a.residual && r.accumulate[3]))
    return SY_REFUSE(r, "batch_norm_backward: dx and dresidual cannot accumulate");
  return std::make_unique<BatchNormBackward>(r);
}

const Registration kBatchNorm{"batch_norm", PrepareBatchNorm, sizeof(sy_batch_norm_attributes)};
const Registration kBatchNormInference{"batch_norm_inference", PrepareBatchNormInference,
                                       sizeof(sy_batch_norm_attributes)};
const Registration kBatchNormBackward{"batch_norm_backward", PrepareBatchNormBackward,
                                      sizeof(sy_batch_norm_attributes)};

}  // namespace
}  // namespace switchyard
