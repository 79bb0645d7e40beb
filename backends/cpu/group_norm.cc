// group_norm (Wu and He, 2018) and its gradient. The rows of a sample are cut into parts of fixed size, which threads
// take as they are free; sums are taken per channel and part, and added in order, so that results do not depend on the
// thread count. Rows are worked on several at a time, against vectors of the channels repeated as often, so that few
// channels fill the vector units too.
#include <cmath>

#include "backends/cpu/kernel.h"
#include "backends/cpu/parallel.h"

namespace switchyard {
namespace {

constexpr int64_t kParts = 32;           // of a sample
constexpr int64_t kTileElements = 2048;  // that are worked on at a time: in the first cache with all vectors beside

// x (N, …, C) as samples of rows of channels.
struct Shape {
  int64_t samples, rows, channels, groups, group_channels;
  int64_t part_rows, parts;
  int64_t tile_rows, tile;  // tile: elements

  Shape(const sy_tensor& x, int32_t group_count) : samples(x.dims[0]), channels(x.dims[x.rank - 1]) {
    rows = Elements(x) / (samples * channels);
    groups = group_count;
    group_channels = channels / groups;
    part_rows = std::max(RowGrain(channels), (rows + kParts - 1) / kParts);
    parts = (rows + part_rows - 1) / part_rows;
    tile_rows = std::max<int64_t>(1, std::min(part_rows, kTileElements / channels));
    tile = tile_rows * channels;
  }
  float group_elements() const { return static_cast<float>(rows * group_channels); }
};

void Apply(int32_t op, float* out, const float* a, const float* b, int64_t n) {
  Vector().instruction({op, 0, 1, 0, 0}, out, a, b, nullptr, n);
}

// What both directions share: tiles of float tensors as f32, vectors repeated over a tile, sums over the rows.
class GroupKernel : public Kernel {
 protected:
  GroupKernel(const Request& request, int32_t groups, int64_t tiles_per_thread)
      : Kernel(request), shape_(inputs[0], groups), tiles_per_thread_(tiles_per_thread) {}

  // `count` elements from `first` on, in `scratch` unless they are f32 where they lie.
  static const float* Widened(Rows x, int64_t first, int64_t count, float* scratch) {
    if (x.dtype == SY_F32) return reinterpret_cast<const float*>(x.data) + first;
    Vector().to_float(x.dtype, x.data + first * DtypeBytes(x.dtype), scratch, count);
    return scratch;
  }
  static void Write(Rows y, int64_t first, int64_t count, const float* values) {
    Vector().from_float(y.dtype, values, y.data + first * DtypeBytes(y.dtype), count);
  }
  // of_channel(c) in every row of a tile.
  template <typename F>
  void Repeat(float* tile, const F& of_channel) const {
    for (int64_t c = 0; c < shape_.channels; ++c) tile[c] = of_channel(c);
    for (int64_t row = 1; row < shape_.tile_rows; ++row)
      std::copy(tile, tile + shape_.channels, tile + row * shape_.channels);
  }
  // sums[c] = Σ over the rows of a tile.
  void FoldTile(const float* tile, float* sums) const {
    std::copy(tile, tile + shape_.channels, sums);
    for (int64_t row = 1; row < shape_.tile_rows; ++row)
      Vector().reduce_into(SY_REDUCE_SUM, sums, tile + row * shape_.channels, shape_.channels);
  }
  // body(first element, count, thread's tiles) for each tile of each part; before(sample, tiles) and
  // after(piece, tiles) once a part, where piece = sample·parts + part.
  template <typename Before, typename Body, typename After>
  void ForTiles(const Arguments& a, const Before& before, const Body& body, const After& after) const {
    float* tiles = a.Workspace<float>();
    ParallelPieces(device->threads, shape_.samples * shape_.parts, [&](int64_t piece, int thread) {
      float* own = tiles + thread * tiles_per_thread_ * shape_.tile;
      const int64_t sample = piece / shape_.parts, row = piece % shape_.parts * shape_.part_rows;
      const int64_t begin = sample * shape_.rows + row;
      const int64_t end = sample * shape_.rows + std::min(shape_.rows, row + shape_.part_rows);
      before(sample, own);
      for (int64_t at = begin; at < end; at += shape_.tile_rows)
        body(at * shape_.channels, std::min(shape_.tile_rows, end - at) * shape_.channels, own);
      after(piece, own);
    });
  }
  // Behind the threads' tiles: `floats` for sums.
  void WorkspaceFor(int64_t floats) {
    sums_offset_ = device->threads * tiles_per_thread_ * shape_.tile;
    workspace_bytes = static_cast<uint64_t>(sums_offset_ + floats) * sizeof(float);
  }
  float* Sums(const Arguments& a) const { return a.Workspace<float>() + sums_offset_; }
  // Σ over the parts of a sample and the channels of a group of weight(c)·sums, whose pieces lie `stride` apart.
  template <typename F>
  float GroupSum(const float* sums, int64_t stride, int64_t sample, int64_t group, const F& weight) const {
    double sum = 0;
    for (int64_t part = 0; part < shape_.parts; ++part) {
      const float* of_piece = sums + (sample * shape_.parts + part) * stride;
      for (int64_t c = group * shape_.group_channels; c < (group + 1) * shape_.group_channels; ++c)
        sum += double{weight(c)} * of_piece[c];
    }
    return static_cast<float>(sum);
  }

  const Shape shape_;

 private:
  const int64_t tiles_per_thread_;
  int64_t sums_offset_ = 0;
};

class GroupNorm : public GroupKernel {
 public:
  GroupNorm(const Request& request, const sy_group_norm_attributes& attributes)
      : GroupKernel(request, attributes.groups, 5), eps_(attributes.eps) {
    WorkspaceFor(shape_.samples * shape_.parts * shape_.channels);
    if (inputs[0].dtype == outputs[0].dtype) inplace[0] = 0;
  }

  void Run(const Arguments& a) const override {
    float *mean = a.Output<float>(1), *rstd = a.Output<float>(2);
    SumRows(a, nullptr);
    Join(a, [&](int64_t j, float sum) { mean[j] = sum / shape_.group_elements(); });
    SumRows(a, mean);
    Join(a, [&](int64_t j, float sum) { rstd[j] = 1 / std::sqrt(sum / shape_.group_elements() + eps_); });
    Normalize(a, mean, rstd);
  }

 private:
  // Per piece and channel: Σ x, or Σ (x − mean)².
  void SumRows(const Arguments& a, const float* mean) const {
    const Rows x = In(a, 0);
    const int64_t tile = shape_.tile;
    ForTiles(
        a,
        [&](int64_t sample, float* own) {
          std::fill(own, own + tile, 0.0f);
          if (mean != nullptr) RepeatStatistic(mean, sample, own + tile);
        },
        [&](int64_t first, int64_t count, float* own) {
          const float* values = Widened(x, first, count, own + 2 * tile);
          if (mean != nullptr) {
            Apply(SY_PW_SUB, own + 3 * tile, values, own + tile, count);
            values = own + 3 * tile;
          }
          Vector().reduce_into(mean != nullptr ? SY_REDUCE_SUM_OF_SQUARES : SY_REDUCE_SUM, own, values, count);
        },
        [&](int64_t piece, float* own) { FoldTile(own, Sums(a) + piece * shape_.channels); });
  }
  // take(sample·groups + group, the group's sum).
  template <typename F>
  void Join(const Arguments& a, const F& take) const {
    for (int64_t j = 0; j < shape_.samples * shape_.groups; ++j) {
      take(j, GroupSum(Sums(a), shape_.channels, j / shape_.groups, j % shape_.groups, [](int64_t) { return 1.0f; }));
    }
  }
  void RepeatStatistic(const float* statistic, int64_t sample, float* tile) const {
    Repeat(tile, [&](int64_t c) { return statistic[sample * shape_.groups + c / shape_.group_channels]; });
  }
  void Normalize(const Arguments& a, const float* mean, const float* rstd) const {
    const Rows x = In(a, 0), y = Out(a, 0), gamma = In(a, 1), beta = In(a, 2);
    const int64_t tile = shape_.tile;
    ForTiles(
        a,
        [&](int64_t sample, float* own) {
          RepeatStatistic(mean, sample, own);
          const float* g = Widened(gamma, 0, shape_.channels, own + 3 * tile);
          Repeat(own + tile,
                 [&](int64_t c) { return g[c] * rstd[sample * shape_.groups + c / shape_.group_channels]; });
          const float* b = Widened(beta, 0, shape_.channels, own + 3 * tile);
          Repeat(own + 2 * tile, [&](int64_t c) { return b[c]; });
        },
        [&](int64_t first, int64_t count, float* own) {
          float* values = own + 4 * tile;
          Apply(SY_PW_SUB, values, Widened(x, first, count, own + 3 * tile), own, count);
          Apply(SY_PW_MUL, values, values, own + tile, count);
          Apply(SY_PW_ADD, values, values, own + 2 * tile, count);
          Write(y, first, count, values);
        },
        [](int64_t, float*) {});
  }

  float eps_;
};

// With x̂ = (x − mean)·rstd and g = dy·gamma: dx = rstd·(g − mean(g) − x̂·mean(g·x̂)), means over the sample's group;
// dgamma = Σ dy·x̂; dbeta = Σ dy.
class GroupNormBackward : public GroupKernel {
 public:
  GroupNormBackward(const Request& request, const sy_group_norm_attributes& attributes)
      : GroupKernel(request, attributes.groups, 7) {
    const int64_t group_sums = 2 * shape_.samples * shape_.groups;
    WorkspaceFor(shape_.samples * shape_.parts * 2 * shape_.channels + group_sums + shape_.channels);
    for (const int32_t i : {4, 0})
      if (inputs[static_cast<size_t>(i)].dtype == outputs[0].dtype) inplace[0] = i;
  }

  void Run(const Arguments& a) const override {
    float* group_sums = Sums(a) + shape_.samples * shape_.parts * 2 * shape_.channels;
    const int64_t count = shape_.samples * shape_.groups, stride = 2 * shape_.channels;
    const float* gamma = Widened(In(a, 1), 0, shape_.channels, group_sums + 2 * count);
    SumRows(a);
    for (int64_t j = 0; j < count; ++j) {
      for (const int64_t which : {0, 1}) {
        group_sums[which * count + j] = GroupSum(Sums(a) + which * shape_.channels, stride, j / shape_.groups,
                                                 j % shape_.groups, [&](int64_t c) { return gamma[c]; });
      }
    }
    for (const size_t o : {1, 2}) AddParts(a, o);
    Differentiate(a, gamma, group_sums, group_sums + count);
  }

 private:
  float Statistic(const Arguments& a, size_t input, int64_t sample, int64_t c) const {
    return a.Input<float>(input)[sample * shape_.groups + c / shape_.group_channels];
  }
  // Per piece and channel: Σ dy·x̂, then Σ dy.
  void SumRows(const Arguments& a) const {
    const Rows x = In(a, 0), dy = In(a, 4);
    const int64_t tile = shape_.tile;
    ForTiles(
        a,
        [&](int64_t sample, float* own) {
          std::fill(own, own + 2 * tile, 0.0f);
          Repeat(own + 2 * tile, [&](int64_t c) { return Statistic(a, 2, sample, c); });
          Repeat(own + 3 * tile, [&](int64_t c) { return Statistic(a, 3, sample, c); });
        },
        [&](int64_t first, int64_t count, float* own) {
          float* normal = own + 4 * tile;
          const float* d = Widened(dy, first, count, own + 5 * tile);
          Apply(SY_PW_SUB, normal, Widened(x, first, count, own + 6 * tile), own + 2 * tile, count);
          Apply(SY_PW_MUL, normal, normal, own + 3 * tile, count);
          Apply(SY_PW_MUL, normal, normal, d, count);
          Vector().reduce_into(SY_REDUCE_SUM, own, normal, count);
          Vector().reduce_into(SY_REDUCE_SUM, own + tile, d, count);
        },
        [&](int64_t piece, float* own) {
          float* sums = Sums(a) + piece * 2 * shape_.channels;
          FoldTile(own, sums);
          FoldTile(own + tile, sums + shape_.channels);
        });
  }
  // dgamma (output 1) or dbeta (output 2).
  void AddParts(const Arguments& a, size_t o) const {
    float* out = a.Output<float>(o);
    if (!accumulate[o]) std::fill(out, out + shape_.channels, 0.0f);
    for (int64_t piece = 0; piece < shape_.samples * shape_.parts; ++piece) {
      const float* sums = Sums(a) + (2 * piece + static_cast<int64_t>(o) - 1) * shape_.channels;
      Vector().reduce_into(SY_REDUCE_SUM, out, sums, shape_.channels);
    }
  }
  // dx = dy·(rstd·gamma) − (x − mean)·(rstd²·mean(g·x̂)) − rstd·mean(g)
  void Differentiate(const Arguments& a, const float* gamma, const float* with_x, const float* plain) const {
    const Rows x = In(a, 0), dy = In(a, 4), dx = Out(a, 0);
    const int64_t tile = shape_.tile;
    const auto group = [&](int64_t sample, int64_t c) { return sample * shape_.groups + c / shape_.group_channels; };
    ForTiles(
        a,
        [&](int64_t sample, float* own) {
          const auto rstd = [&](int64_t c) { return Statistic(a, 3, sample, c); };
          Repeat(own, [&](int64_t c) { return Statistic(a, 2, sample, c); });
          Repeat(own + tile, [&](int64_t c) { return rstd(c) * gamma[c]; });
          Repeat(own + 2 * tile,
                 [&](int64_t c) { return rstd(c) * rstd(c) * with_x[group(sample, c)] / shape_.group_elements(); });
          Repeat(own + 3 * tile,
                 [&](int64_t c) { return rstd(c) * plain[group(sample, c)] / shape_.group_elements(); });
        },
        [&](int64_t first, int64_t count, float* own) {
          float *off = own + 4 * tile, *gradient = own + 5 * tile, *scratch = own + 6 * tile;
          Apply(SY_PW_SUB, off, Widened(x, first, count, scratch), own, count);
          Apply(SY_PW_MUL, off, off, own + 2 * tile, count);
          Apply(SY_PW_MUL, gradient, Widened(dy, first, count, scratch), own + tile, count);
          Apply(SY_PW_SUB, gradient, gradient, off, count);
          Apply(SY_PW_SUB, gradient, gradient, own + 3 * tile, count);
          Write(dx, first, count, gradient);
        },
        [](int64_t, float*) {});
  }
};

// x (N, …, C), its vectors of channels, and statistics (N, groups).
bool Check(const Request& r, size_t channel_inputs) {
  const int32_t groups = r.Attributes<sy_group_norm_attributes>().groups;
  const sy_tensor& x = r.inputs[0];
  for (const sy_tensor& input : r.inputs) {
    if (!r.RequireFloat(input, "an input")) return false;
  }
  if (x.rank < 2 || groups < 1 || x.dims[x.rank - 1] % groups != 0) {
    SY_REFUSE_OP(r, "%d groups do not divide the channels of x, %s", groups,
                 DimsText(x.dims, static_cast<size_t>(x.rank)).c_str());
    return false;
  }
  for (size_t i = 1; i <= channel_inputs; ++i) {
    if (!r.RequireElements(r.inputs[i], x.dims[x.rank - 1], "a vector of the channels")) return false;
  }
  return r.RequireFloat(r.outputs[0], "the result") && r.RequireDimsOf(r.outputs[0], x, "the result");
}

bool CheckStatistic(const Request& r, const sy_tensor& statistic) {
  return r.RequireDtype(statistic, SY_F32, "a statistic") &&
         r.RequireDims(statistic, {r.inputs[0].dims[0], r.Attributes<sy_group_norm_attributes>().groups},
                       "a statistic");
}

KernelPointer PrepareGroupNorm(const Request& r) {
  if (!r.HasCounts(3, 3, 3) || !r.RequireNoAccumulation() || !Check(r, 2) || !CheckStatistic(r, r.outputs[1]) ||
      !CheckStatistic(r, r.outputs[2]))
    return nullptr;
  return std::make_unique<GroupNorm>(r, r.Attributes<sy_group_norm_attributes>());
}

KernelPointer PrepareGroupNormBackward(const Request& r) {
  if (!r.HasCounts(5, 5, 3) || !Check(r, 1) || !CheckStatistic(r, r.inputs[2]) || !CheckStatistic(r, r.inputs[3]) ||
      !r.RequireDimsOf(r.inputs[4], r.inputs[0], "dy"))
    return nullptr;
  if (r.accumulate[0]) return SY_REFUSE(r, "group_norm_backward: dx cannot accumulate");
  for (const size_t o : {1, 2}) {
    const sy_tensor& x = r.inputs[0];
    if (!r.RequireDtype(r.outputs[o], SY_F32, "dgamma and dbeta") ||
        !r.RequireElements(r.outputs[o], x.dims[x.rank - 1], "dgamma and dbeta"))
      return nullptr;
  }
  return std::make_unique<GroupNormBackward>(r, r.Attributes<sy_group_norm_attributes>());
}

const Registration kGroupNorm{"group_norm", PrepareGroupNorm, sizeof(sy_group_norm_attributes)};
const Registration kGroupNormBackward{"group_norm_backward", PrepareGroupNormBackward,
                                      sizeof(sy_group_norm_attributes)};

}  // namespace
}  // namespace switchyard
