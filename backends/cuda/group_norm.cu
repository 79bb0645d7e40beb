// group_norm (Wu and He, 2018) and its gradient. A sample's group is cut into parts by the shape alone, each a block;
// moments are taken per part around the part's own mean and joined in order by Chan's formula (as in batch_norm.cu).
// The gradient's sums are taken per part and channel, joined over a group's channels for dx and over samples for dgamma
// and dbeta.
#include <cmath>

#include "backends/cuda/column_sums.cuh"

namespace switchyard {
namespace {

// x (N, …, C): `rows` of a sample in `parts` of rows_per_part.
struct Groups {
  int64_t samples, rows, channels, groups, width;  // width: channels of a group
  int64_t rows_per_part;
  int parts;

  Groups(const sy_tensor& x, int32_t group_count)
      : samples(x.dims[0]), channels(x.dims[x.rank - 1]), groups(group_count), width(channels / groups) {
    rows = Elements(x) / (samples * channels);
    rows_per_part = Largest<int64_t>(CeilDivide(4096, width), CeilDivide(rows, 256));
    parts = static_cast<int>(CeilDivide(rows, rows_per_part));
  }
  __host__ __device__ int64_t Statistics() const { return samples * groups; }
  __host__ __device__ int64_t Count() const { return samples * rows * channels; }
  // Of part `part` of any sample.
  __device__ int64_t RowsOf(int part) const { return Least(rows_per_part, rows - part * rows_per_part); }
  // Place in x of element e of part `part` of statistic `at` = sample·groups + group.
  __device__ int64_t Place(int64_t at, int part, int64_t e) const {
    const int64_t row = (at / groups) * rows + part * rows_per_part + e / width;
    return row * channels + at % groups * width + e % width;
  }
  __device__ int64_t Statistic(int64_t element) const {
    return element / (rows * channels) * groups + element % channels / width;
  }
};

// Block (statistic, part): partials[statistic·parts + part] = mean, and as many further on Σ (x − mean)².
__global__ void GroupMomentsKernel(Groups g, View x, float* partials) {
  const int64_t at = blockIdx.x, count = g.RowsOf(static_cast<int>(blockIdx.y)) * g.width;
  const int part = static_cast<int>(blockIdx.y);
  float sum = 0, squares = 0;
  for (int64_t e = threadIdx.x; e < count; e += blockDim.x) sum += LoadOne(x, g.Place(at, part, e));
  const float mean = BlockReduce(sum, Plus()) / static_cast<float>(count);
  for (int64_t e = threadIdx.x; e < count; e += blockDim.x) {
    const float off = LoadOne(x, g.Place(at, part, e)) - mean;
    squares += off * off;
  }
  squares = BlockReduce(squares, Plus());
  if (threadIdx.x != 0) return;
  partials[at * g.parts + part] = mean;
  partials[(g.Statistics() + at) * g.parts + part] = squares;
}

__global__ void GroupJoinMomentsKernel(Groups g, const float* partials, float eps, View mean, View rstd) {
  const int64_t at = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (at >= g.Statistics()) return;
  float joined = 0, squares = 0, count = 0;
  for (int part = 0; part < g.parts; ++part) {
    const auto n = static_cast<float>(g.RowsOf(part) * g.width);
    const float off = partials[at * g.parts + part] - joined;
    joined += off * n / (count + n);
    squares += partials[(g.Statistics() + at) * g.parts + part] + off * off * count * n / (count + n);
    count += n;
  }
  StoreOne(mean, at, joined);
  StoreOne(rstd, at, 1 / sqrtf(squares / count + eps));
}

struct GroupNormOperands {
  View x, gamma, beta, mean, rstd, y;
};

// A thread for every N elements; N divides the channels of a group, so that they share their statistics.
template <int N>
__global__ void GroupNormKernel(Groups g, GroupNormOperands p) {
  const int64_t i = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) * N, channel = i % g.channels;
  if (i >= g.Count()) return;
  const float mean = LoadOne(p.mean, g.Statistic(i)), rstd = LoadOne(p.rstd, g.Statistic(i));
  float v[N], gamma[N], beta[N];
  Load<N>(p.x, i, v);
  Load<N>(p.gamma, channel, gamma);
  Load<N>(p.beta, channel, beta);
#pragma unroll
  for (int k = 0; k < N; ++k) v[k] = (v[k] - mean) * rstd * gamma[k] + beta[k];
  Store<N>(p.y, i, v);
}

struct GroupGradientOperands {
  View x, gamma, mean, rstd, dy, dx;
};

// Block (32 channels, part, sample) of 32 × kLanes threads. Of each piece = sample·parts + part and channel:
// sums[piece·channels + c] = Σ dy·x̂, and as many further on Σ dy.
__global__ void GroupSumsKernel(Groups g, GroupGradientOperands p, float* sums) {
  const int64_t channel = blockIdx.x * static_cast<int64_t>(kWarp) + threadIdx.x, sample = blockIdx.z;
  const int64_t first = sample * g.rows + blockIdx.y * g.rows_per_part;
  const int64_t last = first + g.RowsOf(static_cast<int>(blockIdx.y));
  float with_x[1] = {}, plain[1] = {};
  if (channel < g.channels) {
    const int64_t at = sample * g.groups + channel / g.width;
    const float mean = LoadOne(p.mean, at), rstd = LoadOne(p.rstd, at);
    for (int64_t row = first + threadIdx.y; row < last; row += kLanes) {
      const float d = LoadOne(p.dy, row * g.channels + channel);
      with_x[0] += d * (LoadOne(p.x, row * g.channels + channel) - mean) * rstd;
      plain[0] += d;
    }
  }
  AddLanes<1>(with_x);
  AddLanes<1>(plain);
  if (channel >= g.channels || threadIdx.y != 0) return;
  const int64_t piece = sample * g.parts + blockIdx.y;
  sums[piece * g.channels + channel] = with_x[0];
  sums[(g.samples * g.parts + piece) * g.channels + channel] = plain[0];
}

__global__ void GroupChannelSumsKernel(Groups g, const float* sums, ColumnGradients to) {
  const int64_t channel = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x, pieces = g.samples * g.parts;
  if (channel >= g.channels) return;
  float with_x = 0, plain = 0;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    with_x += sums[piece * g.channels + channel];
    plain += sums[(pieces + piece) * g.channels + channel];
  }
  StoreOrAdd(to.dgamma, channel, with_x, to.adds_dgamma);
  StoreOrAdd(to.dbeta, channel, plain, to.adds_dbeta);
}

// A block for each statistic: means[at] = mean(g·x̂), and as many further on mean(g), with g = dy·gamma.
__global__ void GroupMeansKernel(Groups g, const float* sums, View gamma, float* means) {
  const int64_t at = blockIdx.x, pieces = g.samples * g.parts;
  float with_x = 0, plain = 0;
  for (int64_t e = threadIdx.x; e < g.parts * g.width; e += blockDim.x) {
    const int64_t piece = at / g.groups * g.parts + e / g.width, channel = at % g.groups * g.width + e % g.width;
    const float weight = LoadOne(gamma, channel);
    with_x += weight * sums[piece * g.channels + channel];
    plain += weight * sums[(pieces + piece) * g.channels + channel];
  }
  with_x = BlockReduce(with_x, Plus());
  plain = BlockReduce(plain, Plus());
  if (threadIdx.x != 0) return;
  const auto count = static_cast<float>(g.rows * g.width);
  means[at] = with_x / count;
  means[g.Statistics() + at] = plain / count;
}

// dx = rstd·(g − mean(g) − x̂·mean(g·x̂))
template <int N>
__global__ void GroupNormBackwardKernel(Groups g, GroupGradientOperands p, const float* means) {
  const int64_t i = (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x) * N, channel = i % g.channels;
  if (i >= g.Count()) return;
  const int64_t at = g.Statistic(i);
  const float mean = LoadOne(p.mean, at), rstd = LoadOne(p.rstd, at);
  const float with_x = means[at], plain = means[g.Statistics() + at];
  float v[N], d[N], gamma[N];
  Load<N>(p.x, i, v);
  Load<N>(p.dy, i, d);
  Load<N>(p.gamma, channel, gamma);
#pragma unroll
  for (int k = 0; k < N; ++k) v[k] = rstd * (d[k] * gamma[k] - plain - (v[k] - mean) * rstd * with_x);
  Store<N>(p.dx, i, v);
}

struct GroupKernel : Kernel {
  explicit GroupKernel(const Request& r) : Kernel(r), g(inputs[0], r.Attributes<sy_group_norm_attributes>().groups) {}
  // For one thread for every element, or every eight.
  dim3 ElementGrid() const {
    const int64_t each = Packs(g.width) ? kPack : 1;
    return dim3(static_cast<unsigned>(CeilDivide(g.Count(), kTeamBlock * each)));
  }
  static dim3 GridOf(int64_t threads) { return dim3(static_cast<unsigned>(CeilDivide(threads, kTeamBlock))); }
  const Groups g;
};

struct GroupNorm : GroupKernel {
  explicit GroupNorm(const Request& r) : GroupKernel(r), eps(r.Attributes<sy_group_norm_attributes>().eps) {
    workspace_bytes = static_cast<uint64_t>(2 * g.Statistics() * g.parts) * sizeof(float);
    if (inputs[0].dtype == outputs[0].dtype) inplace[0] = 0;
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    const dim3 blocks(static_cast<unsigned>(g.Statistics()), static_cast<unsigned>(g.parts));
    SY_CUDA(error,
            Launch(GroupMomentsKernel, blocks, dim3(kTeamBlock), 0, context.stream, g, In(b, 0), b.Workspace<float>()));
    SY_CUDA(error, Launch(GroupJoinMomentsKernel, GridOf(g.Statistics()), dim3(kTeamBlock), 0, context.stream, g,
                          b.Workspace<float>(), eps, Out(b, 1), Out(b, 2)));
    const GroupNormOperands p = {In(b, 0), In(b, 1), In(b, 2), Out(b, 1), Out(b, 2), Out(b, 0)};
    SY_LAUNCH_PACKED(error, Packs(g.width), GroupNormKernel, ElementGrid(), dim3(kTeamBlock), 0, context.stream, g, p);
    return SY_OK;
  }
  const float eps;
};

struct GroupNormBackward : GroupKernel {
  explicit GroupNormBackward(const Request& r) : GroupKernel(r) {
    sums_bytes = static_cast<uint64_t>(2 * g.samples * g.parts * g.channels) * sizeof(float);
    workspace_bytes = sums_bytes + static_cast<uint64_t>(2 * g.Statistics()) * sizeof(float);
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    const GroupGradientOperands p = {In(b, 0), In(b, 1), In(b, 2), In(b, 3), In(b, 4), Out(b, 0)};
    float *sums = b.Workspace<float>(), *means = b.Workspace<float>(sums_bytes);
    const dim3 blocks(static_cast<unsigned>(CeilDivide(g.channels, kWarp)), static_cast<unsigned>(g.parts),
                      static_cast<unsigned>(g.samples));
    SY_CUDA(error, Launch(GroupSumsKernel, blocks, dim3(kWarp, kLanes), 0, context.stream, g, p, sums));
    SY_CUDA(error, Launch(GroupMeansKernel, dim3(static_cast<unsigned>(g.Statistics())), dim3(kTeamBlock), 0,
                          context.stream, g, sums, p.gamma, means));
    SY_CUDA(error, Launch(GroupChannelSumsKernel, GridOf(g.channels), dim3(kTeamBlock), 0, context.stream, g, sums,
                          ColumnGradients{Out(b, 1), Out(b, 2), accumulate[1] != 0, accumulate[2] != 0}));
    SY_LAUNCH_PACKED(error, Packs(g.width), GroupNormBackwardKernel, ElementGrid(), dim3(kTeamBlock), 0, context.stream,
                     g, p, means);
    return SY_OK;
  }
  uint64_t sums_bytes;
};

// Every operand is a float; inputs 1 … `vectors` are (C); the statistics are two neighbours; output 0 is like x.
bool Check(const Request& r, size_t vectors, const sy_tensor* statistics) {
  for (const auto* tensors : {&r.inputs, &r.outputs}) {
    for (const sy_tensor& x : *tensors) {
      if (!r.RequireFloat(x, "an operand")) return false;
    }
  }
  const int32_t groups = r.Attributes<sy_group_norm_attributes>().groups;
  const sy_tensor& x = r.inputs[0];
  if (x.rank < 2 || groups < 1 || x.dims[x.rank - 1] % groups != 0) {
    SY_REFUSE_OP(r, "%d groups do not divide the channels of x (N, …, C)", groups);
    return false;
  }
  constexpr int64_t kMostBlocks = 65535;  // of a grid's second and third axis
  if (x.dims[0] > kMostBlocks) return SY_REFUSE_OP(r, "more than 65535 samples"), false;
  for (size_t i = 1; i <= vectors; ++i) {
    if (!r.RequireElements(r.inputs[i], x.dims[x.rank - 1], "a vector of the channels")) return false;
  }
  for (int i = 0; i < 2; ++i) {
    if (!r.RequireDims(statistics[i], {x.dims[0], groups}, "a statistic")) return false;
  }
  return r.RequireDimsOf(r.outputs[0], x, "the result");
}

KernelPointer PrepareGroupNorm(const Request& r) {
  if (!r.HasCounts(3, 3, 3) || !r.RequireNoAccumulation() || !Check(r, 2, &r.outputs[1])) return nullptr;
  return std::make_unique<GroupNorm>(r);
}

KernelPointer PrepareGroupNormBackward(const Request& r) {
  if (!r.HasCounts(5, 5, 3) || !Check(r, 1, &r.inputs[2]) || !r.RequireDimsOf(r.inputs[4], r.inputs[0], "dy"))
    return nullptr;
  if (r.accumulate[0]) return SY_REFUSE(r, "group_norm_backward: dx cannot accumulate");
  const sy_tensor& x = r.inputs[0];
  for (const size_t o : {1, 2}) {
    if (!r.RequireElements(r.outputs[o], x.dims[x.rank - 1], "dgamma and dbeta")) return nullptr;
  }
  return std::make_unique<GroupNormBackward>(r);
}

const Registration kGroupNorm{"group_norm", PrepareGroupNorm, sizeof(sy_group_norm_attributes)};
const Registration kGroupNormBackward{"group_norm_backward", PrepareGroupNormBackward,
                                      sizeof(sy_group_norm_attributes)};

}  // namespace
}  // namespace switchyard
