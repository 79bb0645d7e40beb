// Reductions over any axes, softmax and layer normalisation. Sums are accumulated in f64.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/doubles/npu/operator.h"

namespace simulator {
namespace {

// The dims that remain, and for every element the strides of its result.
struct Reduction {
  Dims kept, without, to;
};

bool MakeReduction(const Dims& dims, const Dims& axes, Reduction* r) {
  r->kept = dims;
  for (const int64_t axis : axes) {
    if (axis < 0 || axis >= static_cast<int64_t>(dims.size())) return false;
    r->kept[static_cast<size_t>(axis)] = 1;
  }
  r->to.assign(dims.size(), 0);
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    const bool reduced = std::find(axes.begin(), axes.end(), static_cast<int64_t>(i)) != axes.end();
    if (!reduced) r->to[i] = stride;
    stride *= r->kept[i];
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    if (std::find(axes.begin(), axes.end(), static_cast<int64_t>(i)) == axes.end()) r->without.push_back(dims[i]);
  }
  return true;
}

// out = combine over `axes`, from `start`.
template <typename Combine>
aclnnStatus Reduce(const char* name, const aclTensor* self, const aclIntArray* axes, bool keep, const aclTensor* out,
                   double start, Combine combine, uint64_t* workspaceSize, aclOpExecutor** executor) {
  Planner plan(name);
  plan.Floats({self, out});
  Reduction r;
  if (plan.ok())
    plan.Need(!axes->values.empty() && MakeReduction(self->dims, axes->values, &r), "axes it does not have");
  if (plan.ok()) plan.Shape(out, keep ? r.kept : r.without);
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [name, from = *self, to = *out, r, start, combine]() -> Outcome {
        const Read<float> x(from, from.dims);
        Write y(to);
        if (!x.valid() || !y.valid()) return LostMemory(name);
        std::vector<double> sums(static_cast<size_t>(Count(to.dims)), start);
        ForEach(from.dims, r.to, [&](int64_t at, int64_t result) {
          double& sum = sums[static_cast<size_t>(result)];
          sum = combine(sum, double{x[at]});
        });
        for (size_t i = 0; i < sums.size(); ++i) y[static_cast<int64_t>(i)] = static_cast<float>(sums[i]);
        y.Finish();
        return {};
      },
      0, workspaceSize, executor);
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// f(row of `columns` inputs …, row of the output) for all rows.
template <typename F>
aclnnStatus Rows(const char* name, std::initializer_list<const aclTensor*> inputs, const aclTensor* out, F f,
                 uint64_t* workspaceSize, aclOpExecutor** executor) {
  Planner plan(name);
  plan.Floats(inputs).Floats({out});
  for (const aclTensor* input : inputs) {
    if (plan.ok()) plan.Shape(input, out->dims);
  }
  if (!plan.ok()) return plan.code();
  std::vector<aclTensor> from;
  for (const aclTensor* input : inputs) from.push_back(*input);
  return plan.Give(
      [name, from, to = *out, f]() -> Outcome {
        const Read<float> a(from.front(), to.dims), b(from.back(), to.dims);
        Write y(to);
        if (!a.valid() || !b.valid() || !y.valid()) return LostMemory(name);
        const int64_t columns = to.dims.back(), count = Count(to.dims);
        for (int64_t row = 0; row < count; row += columns) f(a.data() + row, b.data() + row, y.data() + row, columns);
        y.Finish();
        return {};
      },
      0, workspaceSize, executor);
}

}  // namespace
}  // namespace simulator

using namespace simulator;

NPU_EXPORT aclnnStatus aclnnReduceSumGetWorkspaceSize(const aclTensor* self, const aclIntArray* dims, bool keepDims,
                                                      aclDataType dtype, aclTensor* out, uint64_t* workspaceSize,
                                                      aclOpExecutor** executor) {
  if (out != nullptr && out->dtype != dtype) return Fail(kInvalid, "aclnnReduceSum: out is not of the dtype asked for");
  return Reduce(
      "aclnnReduceSum", self, dims, keepDims, out, 0, [](double sum, double x) { return sum + x; }, workspaceSize,
      executor);
}
NPU_EXPORT aclnnStatus aclnnAmaxGetWorkspaceSize(const aclTensor* self, const aclIntArray* dim, bool keepDim,
                                                 aclTensor* out, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return Reduce(
      "aclnnAmax", self, dim, keepDim, out, -kInfinity,
      [](double most, double x) { return std::isnan(x) || x > most ? x : most; }, workspaceSize, executor);
}
NPU_EXPORT aclnnStatus aclnnAminGetWorkspaceSize(const aclTensor* self, const aclIntArray* dim, bool keepDim,
                                                 aclTensor* out, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return Reduce(
      "aclnnAmin", self, dim, keepDim, out, kInfinity,
      [](double least, double x) { return std::isnan(x) || x < least ? x : least; }, workspaceSize, executor);
}

NPU_EXPORT aclnnStatus aclnnLogSumExpGetWorkspaceSize(const aclTensor* self, const aclIntArray* dim, bool keepDim,
                                                      aclTensor* out, uint64_t* workspaceSize,
                                                      aclOpExecutor** executor) {
  Planner plan("aclnnLogSumExp");
  plan.Floats({self, out});
  Dims rows;
  if (plan.ok()) {
    rows = self->dims;
    rows.back() = 1;
    plan.Need(keepDim && dim->values == Dims{static_cast<int64_t>(self->dims.size()) - 1},
              "simulated over the last axis, which stays")
        .Shape(out, rows);
  }
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [from = *self, to = *out]() -> Outcome {
        const Read<float> x(from, from.dims);
        Write y(to);
        if (!x.valid() || !y.valid()) return LostMemory("aclnnLogSumExp");
        const int64_t columns = from.dims.back();
        for (int64_t row = 0; row < Count(to.dims); ++row) {
          const float* values = x.data() + row * columns;
          const float largest = *std::max_element(values, values + columns);
          double sum = 0;
          for (int64_t i = 0; i < columns; ++i) sum += double{std::exp(values[i] - largest)};
          y[row] = largest + static_cast<float>(std::log(sum));
        }
        y.Finish();
        return {};
      },
      0, workspaceSize, executor);
}

NPU_EXPORT aclnnStatus aclnnSoftmaxGetWorkspaceSize(const aclTensor* self, int64_t dim, aclTensor* out,
                                                    uint64_t* workspaceSize, aclOpExecutor** executor) {
  if (self != nullptr && dim != static_cast<int64_t>(self->dims.size()) - 1)
    return Fail(kInvalid, "aclnnSoftmax: simulated over the last axis");
  const auto body = [](const float* x, const float*, float* y, int64_t columns) {
    const float largest = *std::max_element(x, x + columns);
    double sum = 0;
    for (int64_t i = 0; i < columns; ++i) sum += double{y[i] = std::exp(x[i] - largest)};
    for (int64_t i = 0; i < columns; ++i) y[i] = static_cast<float>(double{y[i]} / sum);
  };
  return Rows("aclnnSoftmax", {self}, out, body, workspaceSize, executor);
}

NPU_EXPORT aclnnStatus aclnnSoftmaxBackwardGetWorkspaceSize(const aclTensor* gradOutput, const aclTensor* output,
                                                            int64_t dim, aclTensor* out, uint64_t* workspaceSize,
                                                            aclOpExecutor** executor) {
  if (output != nullptr && dim != static_cast<int64_t>(output->dims.size()) - 1)
    return Fail(kInvalid, "aclnnSoftmaxBackward: simulated over the last axis");
  const auto body = [](const float* dy, const float* y, float* dx, int64_t columns) {
    double sum = 0;
    for (int64_t i = 0; i < columns; ++i) sum += double{y[i]} * double{dy[i]};
    for (int64_t i = 0; i < columns; ++i) dx[i] = static_cast<float>(double{y[i]} * (double{dy[i]} - sum));
  };
  return Rows("aclnnSoftmaxBackward", {gradOutput, output}, out, body, workspaceSize, executor);
}
