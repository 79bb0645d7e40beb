// reduce and squared_norm. The reduced elements are cut into parts by the shape alone; each part is summed into its row
// of partial results, and the parts are added in order, so that the result does not depend on which thread did what.
#include <array>
#include <limits>

#include "backends/cpu/kernel.h"
#include "backends/cpu/parallel.h"

namespace switchyard {
namespace {

constexpr int64_t kColumnBlock = 2048;  // elements of the innermost axis that are worked on at a time
constexpr int64_t kPartElements = 65536;

// A list of axes that one index runs over, outermost first.
struct Loop {
  std::vector<std::array<int64_t, 2>> axes;  // extent, stride in elements of x
  int64_t count = 1;
  void Add(int64_t extent, int64_t stride) {
    axes.push_back({extent, stride});
    count *= extent;
  }
  int64_t Offset(int64_t index) const {
    int64_t offset = 0;
    for (size_t d = axes.size(); d-- > 0;) {
      offset += index % axes[d][0] * axes[d][1];
      index /= axes[d][0];
    }
    return offset;
  }
};

class Reduce : public Kernel {
 public:
  Reduce(const Request& request, const sy_reduce_attributes& attributes) : Kernel(request), attributes_(attributes) {
    // Neighbouring axes that are both kept, or both reduced, are one.
    std::vector<std::pair<int64_t, bool>> groups;
    for (int d = 0; d < inputs[0].rank; ++d) {
      const bool reduced = attributes.axes & 1u << d;
      if (inputs[0].dims[d] == 1) continue;
      if (groups.empty() || groups.back().second != reduced) groups.emplace_back(1, reduced);
      groups.back().first *= inputs[0].dims[d];
    }
    if (groups.empty()) groups.emplace_back(1, false);
    inner_ = groups.back().first;
    inner_reduced_ = groups.back().second;
    int64_t stride = inner_;
    std::vector<std::pair<Loop*, std::array<int64_t, 2>>> outer;
    for (size_t g = groups.size() - 1; g-- > 0;) {
      outer.push_back({groups[g].second ? &reduced_ : &kept_, {groups[g].first, stride}});
      stride *= groups[g].first;
    }
    for (size_t i = outer.size(); i-- > 0;) outer[i].first->Add(outer[i].second[0], outer[i].second[1]);

    blocks_ = (inner_ + kColumnBlock - 1) / kColumnBlock;
    steps_ = reduced_.count * (inner_reduced_ ? blocks_ : 1);
    // Few independent results: cut the reduction itself, unless that costs as much memory as the input.
    const int64_t independent = kept_.count * (inner_reduced_ ? 1 : blocks_);
    const int64_t work = Elements(inputs[0]);
    parts_ = independent >= 16 ? 1 : std::clamp<int64_t>(work / kPartElements, 1, std::min<int64_t>(32, steps_));
    results_ = kept_.count * (inner_reduced_ ? 1 : inner_);
    workspace_bytes = static_cast<uint64_t>(parts_ * results_) * sizeof(float);
  }

  void Run(const Arguments& a) const override {
    float* partial = a.Workspace<float>();
    const int64_t independent = kept_.count * (inner_reduced_ ? 1 : blocks_);
    const int64_t work = Elements(inputs[0]) / (parts_ * independent);
    const auto piece = [&](int64_t i) {
      const int64_t part = i / independent, k = i % independent;
      const int64_t begin = steps_ * part / parts_, end = steps_ * (part + 1) / parts_;
      if (inner_reduced_) {
        partial[part * results_ + k] = ReduceRows(a, kept_.Offset(k), begin, end);
      } else {
        const int64_t column = k % blocks_ * kColumnBlock;
        ReduceColumns(a, kept_.Offset(k / blocks_) + column, std::min(kColumnBlock, inner_ - column), begin, end,
                      partial + part * results_ + k / blocks_ * inner_ + column);
      }
    };
    ParallelRanges(device->threads, parts_ * independent,
                   std::max<int64_t>(1, kParallelElements / std::max<int64_t>(1, work)),
                   [&](int64_t first, int64_t last, int) {
                     for (int64_t i = first; i < last; ++i) piece(i);
                   });
    ParallelRanges(device->threads, results_, kParallelElements,
                   [&](int64_t begin, int64_t end, int) { Store(a, partial, begin, end); });
  }

 private:
  const char* At(const Arguments& a, int64_t element) const {
    return a.inputs[0] + element * DtypeBytes(inputs[0].dtype);
  }
  // Partial results are combined by this: squares are squared once.
  int32_t Combination() const {
    return attributes_.reduction == SY_REDUCE_SUM_OF_SQUARES ? SY_REDUCE_SUM : attributes_.reduction;
  }
  float Start() const {
    if (attributes_.reduction == SY_REDUCE_MAX) return -std::numeric_limits<float>::infinity();
    if (attributes_.reduction == SY_REDUCE_MIN) return std::numeric_limits<float>::infinity();
    return 0.0f;
  }
  // n elements as f32.
  const float* Floats(const Arguments& a, int64_t element, int64_t n, float* scratch) const {
    if (inputs[0].dtype == SY_F32) return reinterpret_cast<const float*>(At(a, element));
    Vector().to_float(inputs[0].dtype, At(a, element), scratch, n);
    return scratch;
  }

  float ReduceRows(const Arguments& a, int64_t base, int64_t begin, int64_t end) const {
    float scratch[kColumnBlock], result = Start();
    for (int64_t step = begin; step < end; ++step) {
      const int64_t column = step % blocks_ * kColumnBlock, n = std::min(kColumnBlock, inner_ - column);
      const float* x = Floats(a, base + reduced_.Offset(step / blocks_) + column, n, scratch);
      const float value = Vector().reduce(attributes_.reduction, x, n);
      Vector().reduce_into(Combination(), &result, &value, 1);
    }
    return result;
  }

  void ReduceColumns(const Arguments& a, int64_t base, int64_t n, int64_t begin, int64_t end, float* sums) const {
    std::fill_n(sums, n, Start());
    if (attributes_.reduction == SY_REDUCE_SUM && reduced_.axes.size() == 1 && IsFloat(inputs[0].dtype)) {
      const int64_t stride = reduced_.axes[0][1];
      Vector().add_columns({const_cast<char*>(At(a, base + begin * stride)), inputs[0].dtype}, end - begin, stride, n,
                           sums);
      return;
    }
    float scratch[kColumnBlock];
    for (int64_t step = begin; step < end; ++step)
      Vector().reduce_into(attributes_.reduction, sums, Floats(a, base + reduced_.Offset(step), n, scratch), n);
  }

  // Combines the parts of results [begin, end), scales, and rounds to the output.
  void Store(const Arguments& a, float* partial, int64_t begin, int64_t end) const {
    for (int64_t part = 1; part < parts_; ++part)
      Vector().reduce_into(Combination(), partial + begin, partial + part * results_ + begin, end - begin);
    for (int64_t i = begin; i < end; ++i) partial[i] *= attributes_.scale;
    const sy_dtype dtype = outputs[0].dtype;
    char* to = a.outputs[0] + begin * DtypeBytes(dtype);
    float held[kColumnBlock];
    for (int64_t i = begin; accumulate[0] && i < end; i += kColumnBlock) {
      const int64_t n = std::min(kColumnBlock, end - i);
      Vector().to_float(dtype, a.outputs[0] + i * DtypeBytes(dtype), held, n);
      Vector().reduce_into(SY_REDUCE_SUM, partial + i, held, n);
    }
    Vector().from_float(dtype, partial + begin, to, end - begin);
  }

  sy_reduce_attributes attributes_;
  Loop kept_, reduced_;     // all but the innermost group
  int64_t inner_, blocks_;  // the innermost group, and how many column blocks it has
  bool inner_reduced_;
  int64_t steps_, parts_, results_;
};

class SquaredNorm : public Kernel {
 public:
  explicit SquaredNorm(const Request& request) : Kernel(request) {
    for (size_t i = 0; i < inputs.size(); ++i)
      for (int64_t first = 0; first < Elements(inputs[i]); first += kPartElements)
        chunks_.push_back({i, first, std::min(kPartElements, Elements(inputs[i]) - first)});
    workspace_bytes = chunks_.size() * sizeof(float);
  }
  void Run(const Arguments& a) const override {
    float* partial = a.Workspace<float>();
    ParallelRanges(device->threads, static_cast<int64_t>(chunks_.size()), 1, [&](int64_t begin, int64_t end, int) {
      float scratch[kColumnBlock];
      for (int64_t c = begin; c < end; ++c) {
        const Chunk& chunk = chunks_[static_cast<size_t>(c)];
        const sy_dtype dtype = inputs[chunk.input].dtype;
        const char* from = a.inputs[chunk.input] + chunk.first * DtypeBytes(dtype);
        if (dtype == SY_F32) {
          partial[c] = Vector().reduce(SY_REDUCE_SUM_OF_SQUARES, reinterpret_cast<const float*>(from), chunk.count);
          continue;
        }
        double sum = 0;
        for (int64_t i = 0; i < chunk.count; i += kColumnBlock) {
          const int64_t n = std::min(kColumnBlock, chunk.count - i);
          Vector().to_float(dtype, from + i * DtypeBytes(dtype), scratch, n);
          sum += Vector().reduce(SY_REDUCE_SUM_OF_SQUARES, scratch, n);
        }
        partial[c] = static_cast<float>(sum);
      }
    });
    double sum = accumulate[0] ? *a.Output<float>(0) : 0.0;
    for (size_t c = 0; c < chunks_.size(); ++c) sum += partial[c];
    *a.Output<float>(0) = static_cast<float>(sum);
  }

 private:
  struct Chunk {
    size_t input;
    int64_t first, count;
  };
  std::vector<Chunk> chunks_;
};

KernelPointer PrepareReduce(const Request& r) {
  if (!r.HasCounts(1, 1, 1)) return nullptr;
  const auto attributes = r.Attributes<sy_reduce_attributes>();
  const sy_tensor& x = r.inputs[0];
  if (attributes.reduction < SY_REDUCE_SUM || attributes.reduction > SY_REDUCE_SUM_OF_SQUARES)
    return SY_REFUSE(r, "reduce: reduction %d", attributes.reduction);
  if (!IsFloat(r.outputs[0].dtype) || x.dtype == SY_F64)
    return SY_REFUSE(r, "reduce: dtypes %d to %d", x.dtype, r.outputs[0].dtype);
  if (!r.RequireReduced(x, attributes.axes, r.outputs[0])) return nullptr;
  return std::make_unique<Reduce>(r, attributes);
}

KernelPointer PrepareSquaredNorm(const Request& r) {
  if (!r.HasCounts(1, 1 << 20, 1)) return nullptr;
  for (const sy_tensor& t : r.inputs)
    if (!r.RequireFloat(t, "an input")) return nullptr;
  if (!r.RequireDtype(r.outputs[0], SY_F32, "the norm") || !r.RequireElements(r.outputs[0], 1, "the norm"))
    return nullptr;
  return std::make_unique<SquaredNorm>(r);
}

const Registration kReduce{"reduce", PrepareReduce, sizeof(sy_reduce_attributes)};
const Registration kSquaredNorm{"squared_norm", PrepareSquaredNorm, 0};

}  // namespace
}  // namespace switchyard
