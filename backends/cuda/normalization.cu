// layer_norm over the last axis (Ba et al., 2016), with the sum of a residual branch in front, and its gradient. A team
// of threads has one row, in registers where it fits. The gradient of rows of eights reads each operand once: dh, and
// the block's part of the sums over rows that dgamma and dbeta are, and of dh's own if they are asked for. Other rows
// take two passes, of which the first is for the sums (column_sums.cuh), and one more for dh's.
#include <cmath>

#include "backends/cuda/column_sums.cuh"
#include "backends/cuda/packed.cuh"

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

// Rows that lie in the registers of their team, for maps of one dtype: every load of a thread is under way before it
// waits for the first, and each element is read once. A team is the lanes of a warp that share a row, each with kPacks
// times eight elements of it; it has kRowsOfTeam rows at once.
constexpr int kMostPacks = 4;  // so that a warp has a row of up to 1024 elements
template <int kPacks>
constexpr int kRowsOfTeam = kMostPacks / kPacks;  // so that a thread has three loads or four under way

struct RowTeams {
  int32_t lane_bits = 0;  // a team has 2 to this power lanes: a whole warp where they have more than one pack
  int32_t packs;
  int32_t rows_at_once;

  static bool Takes(int64_t c) { return Packs(c) && c <= kWarp * kPack * kMostPacks; }
  explicit RowTeams(int64_t c) : packs(static_cast<int32_t>(Largest<int64_t>(1, CeilDivide(c, kWarp * kPack)))) {
    while (1 << lane_bits < kWarp && kPack << lane_bits < c) ++lane_bits;
    rows_at_once = kMostPacks / packs;
  }
  unsigned Blocks(int64_t rows) const {
    return static_cast<unsigned>(CeilDivide(rows, int64_t{kTeamBlock >> lane_bits} * rows_at_once));
  }
};

__device__ __forceinline__ float SumOverLanes(int lanes, float x) {
#pragma unroll
  for (int bits = kWarp / 2; bits > 0; bits /= 2) {
    const float other = __shfl_xor_sync(~0u, x, bits);
    x += bits < lanes ? other : 0;
  }
  return x;
}

template <int kDtype, int kPacks>
__global__ void __launch_bounds__(kTeamBlock, kDtype == SY_F32 ? 2
                                              : kPacks == 3    ? 4
                                                               : 3)
    LayerNormRowsKernel(int lane_bits, int64_t rows, int64_t c, float eps, LayerNormOperands operands) {
  constexpr int kRows = kRowsOfTeam<kPacks>;
  const View x = Known<kDtype>(operands.x), residual = Known<kDtype>(operands.residual),
             sum = Known<kDtype>(operands.sum), y = Known<kDtype>(operands.y);
  const int bits = kPacks > 1 ? 5 : lane_bits, lanes = 1 << bits;
  const int rank = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int64_t first = (blockIdx.x * int64_t{kTeamBlock >> bits} + (threadIdx.x >> bits)) * kRows;
  // What lies beyond the rows or beyond a row's end is 0, and not read: another team may have put its result there.
  Packed raw[kRows][kPacks], added[kRows][kPacks];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const int column = (j * lanes + rank) * kPack;
      const bool there = column < c && first + r < rows;
      raw[r][j] = added[r][j] = {};
      if (there) raw[r][j] = LoadPacked(x, (first + r) * c + column);
      if (there && residual) added[r][j] = LoadPacked(residual, (first + r) * c + column);
    }
  }
  float v[kRows][kPacks][kPack], mean[kRows], rstd[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float total = 0;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
      const int column = (j * lanes + rank) * kPack;
      Unpack(raw[r][j], x.dtype, v[r][j]);
      if (residual) {
        float more[kPack];
        Unpack(added[r][j], residual.dtype, more);
#pragma unroll
        for (int k = 0; k < kPack; ++k)
          v[r][j][k] = Rounded<kDtype>(v[r][j][k] + more[k]);  // what the backward will see
        if (column < c && first + r < rows) Store<kPack>(sum, (first + r) * c + column, v[r][j]);
      }
#pragma unroll
      for (int k = 0; k < kPack; ++k) total += v[r][j][k];
    }
    mean[r] = total;
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) mean[r] = SumOverLanes(lanes, mean[r]) / static_cast<float>(c);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    rstd[r] = 0;
#pragma unroll
    for (int j = 0; j < kPacks; ++j) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        v[r][j][k] -= mean[r];
        rstd[r] += (j * lanes + rank) * kPack < c ? v[r][j][k] * v[r][j][k] : 0;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) rstd[r] = 1 / sqrtf(SumOverLanes(lanes, rstd[r]) / static_cast<float>(c) + eps);
#pragma unroll
  for (int j = 0; j < kPacks; ++j) {
    const int column = (j * lanes + rank) * kPack;
    if (column >= c) break;
    float gamma[kPack], beta[kPack];
    Load<kPack>(operands.gamma, column, gamma);
    Load<kPack>(operands.beta, column, beta);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) v[r][j][k] = v[r][j][k] * rstd[r] * gamma[k] + beta[k];
      if (first + r < rows) Store<kPack>(y, (first + r) * c + column, v[r][j]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (rank != 0 || first + r >= rows) continue;
    StoreOne(operands.mean, first + r, mean[r]);
    StoreOne(operands.rstd, first + r, rstd[r]);
  }
}

template <int kDtype>
auto RowsKernel(int packs) {
  return packs == 1   ? LayerNormRowsKernel<kDtype, 1>
         : packs == 2 ? LayerNormRowsKernel<kDtype, 2>
         : packs == 3 ? LayerNormRowsKernel<kDtype, 3>
                      : LayerNormRowsKernel<kDtype, 4>;
}

struct LayerNormGradientOperands {
  View h, gamma, mean, rstd, dy, dsum, dh;  // dsum may be absent
};

// dh = rstd·(g − mean(g) − x̂·mean(g·x̂)) [+ dsum], g = dy·gamma, x̂ = (h − mean)·rstd

// A part of the rows for each block, cut by the shape alone. A thread has eight elements of a row, so that a row
// belongs to some lanes of a warp, or to a whole block where it has more than 256 elements.
constexpr int kRowsAtOnce = 2;        // of a team, so that their loads are under way together
constexpr int64_t kWidestRow = 4096;  // elements: a block of 512 threads
constexpr int kMostWarps = kWidestRow / (kWarp * kPack);
constexpr int kMultiprocessors = 132, kWarpsOfEach = 16;  // what an H200 has room for, at the registers of the kernel

struct RowParts {
  int64_t rows, c, rows_per_part;
  int32_t lanes;  // of a warp that have a row between them, a power of 2
  int32_t warps;  // of a block
  int32_t parts;

  static bool Takes(int64_t row_elements) { return Packs(row_elements) && row_elements <= kWidestRow; }
  RowParts(int64_t row_count, int64_t row_elements) : rows(row_count), c(row_elements), lanes(1) {
    while (lanes < kWarp && lanes * kPack < c) lanes *= 2;
    warps = InWarps() ? kLanes : static_cast<int32_t>(CeilDivide(c, kWarp * kPack));
    const int64_t at_once = int64_t{Teams()} * kRowsAtOnce;
    const int64_t most = int64_t{kMultiprocessors} * Largest(1, kWarpsOfEach / warps);
    rows_per_part = CeilDivide(CeilDivide(rows, most), at_once) * at_once;
    parts = static_cast<int32_t>(CeilDivide(rows, rows_per_part));
  }
  __host__ __device__ bool InWarps() const { return c <= kWarp * kPack; }
  __host__ __device__ int Teams() const { return InWarps() ? kLanes * (kWarp / lanes) : 1; }  // of a block
};

// Adds up two values of each of kRowsAtOnce rows over the team, for every thread of it. `turn` counts the calls: a
// block writes one call's places while its slower warps still read those of the call before.
__device__ __forceinline__ void SumOverTeam(const RowParts& t, int turn, float (&sums)[2 * kRowsAtOnce]) {
  static_assert(2 * kRowsAtOnce == 4, "a float4");
  __shared__ float4 of_warp[2][kMostWarps];
  for (int bits = t.lanes / 2; bits > 0; bits /= 2) {
#pragma unroll
    for (float& sum : sums) sum += __shfl_xor_sync(~0u, sum, bits);
  }
  if (t.InWarps()) return;
  auto& places = of_warp[turn % 2];
  if (threadIdx.x == 0) places[threadIdx.y] = make_float4(sums[0], sums[1], sums[2], sums[3]);
  __syncthreads();
#pragma unroll
  for (float& sum : sums) sum = 0;
  for (int warp = 0; warp < t.warps; ++warp) {
    const float4 more = places[warp];
    sums[0] += more.x, sums[1] += more.y, sums[2] += more.z, sums[3] += more.w;
  }
}

// Adds up what the teams of a block have, where a warp has several, for the threads of its first team.
__device__ __forceinline__ void SumOverTeams(const RowParts& t, float (&sum)[kPack]) {
  for (int bits = t.lanes; bits < kWarp; bits *= 2) {
#pragma unroll
    for (float& x : sum) x += __shfl_xor_sync(~0u, x, bits);
  }
  AddLanes<kPack>(sum);
}

// What a thread reads of the rows of one turn.
struct RowsRead {
  Packed h[kRowsAtOnce], dy[kRowsAtOnce], dsum[kRowsAtOnce];
  float mean[kRowsAtOnce], rstd[kRowsAtOnce];
};

// One pass over the rows: dh, and the block's part of dgamma, dbeta and, if `sums_dh`, of dh's sums. Every thread makes
// every turn; what lies beyond the end of a row or of the part has a dy of 0, which counts for nothing. Halves have the
// registers to read the rows of the next turn before this one's are summed over the team.
template <int kDtype>
__global__ void __launch_bounds__(kMostWarps* kWarp)
    LayerNormGradientKernel(RowParts t, LayerNormGradientOperands p, bool sums_dh, float* partials) {
  constexpr bool kReadsAhead = kDtype != kAnyDtype;
  const bool in_warps = t.InWarps();
  const auto thread = static_cast<int>(threadIdx.y * kWarp + threadIdx.x);
  const int rank = in_warps ? thread % t.lanes : thread, team = in_warps ? thread / t.lanes : 0, teams = t.Teams();
  const bool in_row = rank * kPack < t.c;
  const int64_t column = in_row ? rank * kPack : 0;
  const int64_t first = blockIdx.x * t.rows_per_part, last = Least(t.rows, first + t.rows_per_part);
  const float one_over_c = 1 / static_cast<float>(t.c);
  const View h = Known<kDtype>(p.h), dy = Known<kDtype>(p.dy), dsum = Known<kDtype>(p.dsum);
  const auto read = [&](int64_t from, RowsRead& rows) {
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int64_t row = from + team + r * teams, at = row * t.c + column;
      rows.h[r] = rows.dy[r] = rows.dsum[r] = {};
      if (in_row && row < last) {
        rows.h[r] = LoadPacked(h, at);
        rows.dy[r] = LoadPacked(dy, at);
        if (dsum) rows.dsum[r] = LoadPacked(dsum, at);
      }
      rows.mean[r] = LoadOne(p.mean, Least(row, last - 1));
      rows.rstd[r] = LoadOne(p.rstd, Least(row, last - 1));
    }
  };
  float gamma[kPack], dgamma[kPack] = {}, dbeta[kPack] = {}, dh[kPack] = {};
  Load<kPack>(p.gamma, column, gamma);
  int turn = 0;
  RowsRead next;
  if (kReadsAhead && first < last) read(first, next);
  for (int64_t from = first; from < last; from += teams * kRowsAtOnce, ++turn) {
    if (!kReadsAhead) read(from, next);
    const RowsRead rows = next;
    float x[kRowsAtOnce][kPack], g[kRowsAtOnce][kPack], sums[2 * kRowsAtOnce] = {};
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      Unpack(rows.h[r], h.dtype, x[r]);
      Unpack(rows.dy[r], dy.dtype, g[r]);
    }
    if (kReadsAhead && from + teams * kRowsAtOnce < last) read(from + teams * kRowsAtOnce, next);
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        x[r][k] = (x[r][k] - rows.mean[r]) * rows.rstd[r];
        dgamma[k] += g[r][k] * x[r][k];
        dbeta[k] += g[r][k];
        g[r][k] *= gamma[k];
        sums[2 * r] += g[r][k];
        sums[2 * r + 1] += g[r][k] * x[r][k];
      }
    }
    SumOverTeam(t, turn, sums);
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const float mean_g = sums[2 * r] * one_over_c, mean_gx = sums[2 * r + 1] * one_over_c;
      float s[kPack];
      Unpack(rows.dsum[r], dsum.dtype, s);
#pragma unroll
      for (int k = 0; k < kPack; ++k) s[k] += rows.rstd[r] * (g[r][k] - mean_g - x[r][k] * mean_gx);
      const int64_t row = from + team + r * teams;
      if (!in_row || row >= last) continue;
      Store<kPack>(Known<kDtype>(p.dh), row * t.c + column, s);
#pragma unroll
      for (int k = 0; k < kPack; ++k) dh[k] += s[k];
    }
  }
  if (in_warps) {
    SumOverTeams(t, dgamma);
    SumOverTeams(t, dbeta);
    if (sums_dh) SumOverTeams(t, dh);
  }
  if (!in_row || team != 0) return;
  StorePartial(partials + blockIdx.x * t.c + column, dgamma);
  StorePartial(partials + (t.parts + blockIdx.x) * t.c + column, dbeta);
  if (sums_dh) StorePartial(partials + (2 * t.parts + blockIdx.x) * t.c + column, dh);
}

// dgamma, dbeta and dh's sums from their parts, (2 or 3, parts, c).
__global__ void __launch_bounds__(kWarp* kWarp)
    LayerNormFinishKernel(int parts, int64_t c, const float* partials, ColumnGradients to, View dh_sums, bool adds_dh) {
  const int64_t column = int64_t{blockIdx.x} * kWarp + threadIdx.y;
  const float sum = SumOfParts(parts, c, partials + blockIdx.y * parts * c);
  if (threadIdx.x != 0 || column >= c) return;
  if (blockIdx.y == 0) {
    StoreOrAdd(to.dgamma, column, sum, to.adds_dgamma);
  } else if (blockIdx.y == 1) {
    StoreOrAdd(to.dbeta, column, sum, to.adds_dbeta);
  } else {
    StoreOrAdd(dh_sums, column, sum, adds_dh);
  }
}

// The two passes of rows that are no eights, or wider.
__global__ void LayerNormSumsKernel(ColumnParts p, View h, View mean, View rstd, View dy, float* partials) {
  const int64_t column = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  const int64_t first = blockIdx.y * p.rows_per_part, last = Least(p.rows, first + p.rows_per_part);
  float with_x[1] = {}, plain[1] = {};
#pragma unroll 2
  for (int64_t row = first + threadIdx.y; row < last && column < p.columns; row += blockDim.y) {
    const float g = LoadOne(dy, row * p.columns + column);
    with_x[0] += g * (LoadOne(h, row * p.columns + column) - LoadOne(mean, row)) * LoadOne(rstd, row);
    plain[0] += g;
  }
  AddLanes<1>(with_x);
  AddLanes<1>(plain);
  if (column >= p.columns || threadIdx.y != 0) return;
  partials[blockIdx.y * p.columns + column] = with_x[0];
  partials[(p.parts + blockIdx.y) * p.columns + column] = plain[0];
}

__global__ void LayerNormBackwardKernel(Teams teams, int64_t c, LayerNormGradientOperands p) {
  const int64_t row = teams.Row(), base = row * c;
  if (row >= teams.rows) return;
  const float mean = LoadOne(p.mean, row), rstd = LoadOne(p.rstd, row);
  float sum = 0, sum_x = 0;
  teams.ForRow<1>(c, [&](int64_t i) {
    const float g = LoadOne(p.dy, base + i) * LoadOne(p.gamma, i);
    sum += g;
    sum_x += g * (LoadOne(p.h, base + i) - mean) * rstd;
  });
  const float mean_g = teams.Sum(sum) / static_cast<float>(c), mean_gx = teams.Sum(sum_x) / static_cast<float>(c);
  teams.ForRow<1>(c, [&](int64_t i) {
    const float g = LoadOne(p.dy, base + i) * LoadOne(p.gamma, i);
    const float x = (LoadOne(p.h, base + i) - mean) * rstd, past = p.dsum ? LoadOne(p.dsum, base + i) : 0;
    StoreOne(p.dh, base + i, rstd * (g - mean_g - x * mean_gx) + past);
  });
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
    const sy_dtype dtype = inputs[0].dtype;
    bool one_dtype = outputs[0].dtype == dtype;
    if (residual) one_dtype = one_dtype && inputs[1].dtype == dtype && outputs[3].dtype == dtype;
    if (one_dtype && RowTeams::Takes(c)) {
      const RowTeams t(c);
      const auto kernel = dtype == SY_BF16  ? RowsKernel<SY_BF16>(t.packs)
                          : dtype == SY_F16 ? RowsKernel<SY_F16>(t.packs)
                                            : RowsKernel<SY_F32>(t.packs);
      SY_CUDA(error, Launch(kernel, dim3(t.Blocks(rows)), dim3(kTeamBlock), 0, context.stream, t.lane_bits, rows, c,
                            attributes.eps, p));
      return SY_OK;
    }
    SY_LAUNCH_PACKED(error, Packs(c), LayerNormKernel, teams.Grid(), dim3(kTeamBlock), 0, context.stream, teams, c,
                     attributes.eps, p);
    return SY_OK;
  }
  const sy_layer_norm_attributes attributes;
};

struct LayerNormBackward : Kernel, LayerNormShape {
  explicit LayerNormBackward(const Request& r)
      : Kernel(r),
        LayerNormShape(inputs[0]),
        sums_dh(r.Attributes<sy_layer_norm_attributes>().column_sums),
        row_parts(rows, c),
        column_parts(rows, c) {
    if (RowParts::Takes(c)) {
      workspace_bytes = static_cast<uint64_t>((sums_dh ? 3 : 2) * row_parts.parts * c) * sizeof(float);
    } else {
      workspace_bytes = static_cast<uint64_t>(2 * column_parts.parts * c) * sizeof(float);
      if (sums_dh) workspace_bytes = std::max(workspace_bytes, RowSumBytes(c, rows, true));
    }
  }
  sy_status Run(const Bound& b, const LaunchContext& context, sy_error* error) const override {
    const LayerNormGradientOperands p = {
        In(b, 0), In(b, 1), In(b, 2), In(b, 3), In(b, 4), inputs.size() == 6 ? In(b, 5) : View(), Out(b, 0)};
    auto* const partials = b.Workspace<float>();
    const bool one_pass = RowParts::Takes(c);
    const View dh_sums = sums_dh ? Out(b, 3) : View();
    const bool adds_dh = sums_dh && accumulate[3];
    if (one_pass) {
      const auto all_are = [&](sy_dtype dtype) {
        return inputs[0].dtype == dtype && inputs[4].dtype == dtype && (!p.dsum || p.dsum.dtype == dtype) &&
               outputs[0].dtype == dtype;
      };
      const auto kernel = all_are(SY_BF16)  ? LayerNormGradientKernel<SY_BF16>
                          : all_are(SY_F16) ? LayerNormGradientKernel<SY_F16>
                                            : LayerNormGradientKernel<kAnyDtype>;
      SY_CUDA(error, Launch(kernel, dim3(static_cast<unsigned>(row_parts.parts)),
                            dim3(kWarp, static_cast<unsigned>(row_parts.warps)), 0, context.stream, row_parts, p,
                            sums_dh, partials));
    } else {
      const dim3 grid(static_cast<unsigned>(CeilDivide(c, kWarp)), static_cast<unsigned>(column_parts.parts));
      SY_CUDA(error, Launch(LayerNormSumsKernel, grid, dim3(kWarp, kLanes), 0, context.stream, column_parts, p.h,
                            p.mean, p.rstd, p.dy, partials));
    }
    const dim3 grid(static_cast<unsigned>(CeilDivide(c, kWarp)), one_pass && sums_dh ? 3 : 2);
    SY_CUDA(error,
            Launch(LayerNormFinishKernel, grid, dim3(kWarp, kWarp), 0, context.stream,
                   one_pass ? row_parts.parts : column_parts.parts, c, partials,
                   ColumnGradients{Out(b, 1), Out(b, 2), accumulate[1] != 0, accumulate[2] != 0}, dh_sums, adds_dh));
    if (one_pass) return SY_OK;
    SY_CUDA(error, Launch(LayerNormBackwardKernel, teams.Grid(), dim3(kTeamBlock), 0, context.stream, teams, c, p));
    if (sums_dh)
      SY_CUDA(error, LaunchRowSum(b.outputs[0], outputs[0].dtype, c, rows, true, adds_dh, b.Output<float>(3), partials,
                                  context.stream));
    return SY_OK;
  }
  const bool sums_dh;
  const RowParts row_parts;
  const ColumnParts column_parts;
};

bool AllFloat(const Request& r) {
  for (const auto* tensors : {&r.inputs, &r.outputs}) {
    for (const sy_tensor& x : *tensors) {
      if (!r.RequireFloat(x, "an operand")) return false;
    }
  }
  if (r.inputs[0].rank < 1) return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: expected rank 1 or more", r.op), false;
  return true;
}

KernelPointer PrepareLayerNorm(const Request& r) {
  const auto attributes = r.Attributes<sy_layer_norm_attributes>();
  const bool residual = attributes.residual;
  if (attributes.column_sums) return SY_REFUSE(r, "layer_norm: column_sums belongs to the backward");
  const size_t count = residual ? 4 : 3;
  if (!r.HasCounts(count, count, count) || !r.RequireNoAccumulation() || !AllFloat(r)) return nullptr;
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
  const auto attributes = r.Attributes<sy_layer_norm_attributes>();
  const bool residual = attributes.residual, sums_dh = attributes.column_sums;
  if (!r.HasCounts(residual ? 6 : 5, residual ? 6 : 5, sums_dh ? 4 : 3) || !AllFloat(r)) return nullptr;
  if (r.accumulate[0]) return SY_REFUSE(r, "layer_norm_backward: dh cannot accumulate");
  const sy_tensor& h = r.inputs[0];
  const int64_t c = h.dims[h.rank - 1], rows = Elements(h) / c;
  if (!r.RequireElements(r.inputs[1], c, "gamma") || !r.RequireElements(r.inputs[2], rows, "mean") ||
      !r.RequireElements(r.inputs[3], rows, "rstd") || !r.RequireDimsOf(r.inputs[4], h, "dy") ||
      !r.RequireDimsOf(r.outputs[0], h, "dh") || !r.RequireElements(r.outputs[1], c, "dgamma") ||
      !r.RequireElements(r.outputs[2], c, "dbeta"))
    return nullptr;
  if (residual && !r.RequireDimsOf(r.inputs[5], h, "dsum")) return nullptr;
  if (sums_dh &&
      (!r.RequireElements(r.outputs[3], c, "column_sums") || !r.RequireDtype(r.outputs[3], SY_F32, "column_sums")))
    return nullptr;
  return std::make_unique<LayerNormBackward>(r);
}

const Registration kLayerNorm{"layer_norm", PrepareLayerNorm, sizeof(sy_layer_norm_attributes)};
const Registration kLayerNormBackward{"layer_norm_backward", PrepareLayerNormBackward,
                                      sizeof(sy_layer_norm_attributes)};

}  // namespace
}  // namespace switchyard
