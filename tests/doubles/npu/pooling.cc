// Pooling of volumes and its gradients, by their pages.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/doubles/npu/windows.h"

namespace simulator {
namespace {

struct Pooling {
  Windows windows;
  int64_t images = 1, channels = 1;
};

bool ReadPooling(Planner& plan, const aclTensor* x, const aclTensor* y, const aclIntArray* kernel,
                 const aclIntArray* stride, const aclIntArray* padding, bool ceiling, Pooling* result) {
  plan.Floats({x, y}).SameDtype({x, y});
  if (!plan.ok()) return false;
  plan.Need(x->dims.size() == 5 && y->dims.size() == 5, "simulated on five axes")
      .Need(!ceiling, "simulated rounding down");
  for (const aclIntArray* each : {kernel, stride, padding})
    plan.Need(each->values.size() == 3, "expected three values");
  if (!plan.ok()) return false;
  plan.Need(x->dims[0] == y->dims[0] && x->dims[1] == y->dims[1], "images or channels differ");
  Windows& w = result->windows;
  SetLast(w.in, SpatialOf(*x));
  SetLast(w.out, SpatialOf(*y));
  SetLast(w.kernel, kernel->values);
  SetLast(w.stride, stride->values);
  SetLast(w.padding, padding->values);
  for (int i = 0; i < 3; ++i) {
    plan.Need(w.kernel[i] > 0 && w.stride[i] > 0, "window and stride must be positive");
    plan.Need(w.padding[i] >= 0 && w.padding[i] <= w.kernel[i] / 2, "padding must be half the window at most");
    plan.Need(w.kernel[i] <= w.in[i], "the window is larger than the volume");
    if (!plan.ok()) return false;
    plan.Need(w.out[i] == (w.in[i] + 2 * w.padding[i] - w.kernel[i]) / w.stride[i] + 1,
              "the output's shape does not follow");
  }
  result->images = x->dims[0];
  result->channels = x->dims[1];
  return plan.ok();
}

void CheckMaximum(Planner& plan, const aclTensor* x, const aclTensor* y, const aclTensor* places,
                  const aclIntArray* dilation) {
  if (!plan.ok()) return;
  plan.Takes({places});
  if (!plan.ok()) return;
  plan.Need(places->dtype == ACL_INT32, "indices must be INT32")
      .Shape(places, y->dims)
      .Need(dilation->values == Dims{1, 1, 1}, "dilation must be 1")
      .Need(x->format == ACL_FORMAT_NCDHW && y->format == ACL_FORMAT_NCDHW, "expected format NCDHW");
}

// By what the sum over each window is divided.
std::vector<float> Divisors(const Windows& w, bool count_padding) {
  std::vector<float> result(static_cast<size_t>(w.Outputs()), 0.0f);
  ForEachTap(w, [&](int64_t o, int64_t, int64_t from) {
    result[static_cast<size_t>(o)] += from >= 0 || count_padding ? 1.0f : 0.0f;
  });
  return result;
}

}  // namespace
}  // namespace simulator

using namespace simulator;

NPU_EXPORT aclnnStatus aclnnMaxPool3dWithArgmaxGetWorkspaceSize(const aclTensor* self, const aclIntArray* kernelSize,
                                                                const aclIntArray* stride, const aclIntArray* padding,
                                                                const aclIntArray* dilation, bool ceilMode,
                                                                aclTensor* out, aclTensor* indices,
                                                                uint64_t* workspaceSize, aclOpExecutor** executor) {
  Planner plan("aclnnMaxPool3dWithArgmax");
  Pooling p;
  ReadPooling(plan, self, out, kernelSize, stride, padding, ceilMode, &p);
  CheckMaximum(plan, self, out, indices, dilation);
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [p, from = ChannelsLast(*self), to = ChannelsLast(*out), places_to = ChannelsLast(*indices)]() -> Outcome {
        const Read<float> x(from, from.dims);
        Write y(to), places(places_to);
        if (!x.valid() || !y.valid() || !places.valid()) return LostMemory("aclnnMaxPool3dWithArgmax");
        const int64_t c = p.channels;
        std::fill_n(y.data(), Count(to.dims), -std::numeric_limits<float>::infinity());
        std::fill_n(places.data(), Count(to.dims), -1.0f);
        for (int64_t n = 0; n < p.images; ++n) {
          const float* const image = x.data() + n * p.windows.Inputs() * c;
          ForEachTap(p.windows, [&](int64_t o, int64_t, int64_t at) {
            for (int64_t i = 0; at >= 0 && i < c; ++i) {
              const int64_t place = (n * p.windows.Outputs() + o) * c + i;
              const float value = image[at * c + i];
              if (places[place] >= 0 && !(value > y[place] || (std::isnan(value) && !std::isnan(y[place])))) continue;
              y[place] = value;
              places[place] = static_cast<float>(at);
            }
          });
        }
        y.Finish();
        places.Finish();
        return {};
      },
      0, workspaceSize, executor);
}

NPU_EXPORT aclnnStatus aclnnMaxPool3dWithArgmaxBackwardGetWorkspaceSize(
    const aclTensor* gradOutput, const aclTensor* self, const aclTensor* indices, const aclIntArray* kernelSize,
    const aclIntArray* stride, const aclIntArray* padding, const aclIntArray* dilation, bool ceilMode,
    aclTensor* gradInput, uint64_t* workspaceSize, aclOpExecutor** executor) {
  Planner plan("aclnnMaxPool3dWithArgmaxBackward");
  Pooling p;
  ReadPooling(plan, self, gradOutput, kernelSize, stride, padding, ceilMode, &p);
  CheckMaximum(plan, self, gradOutput, indices, dilation);
  if (plan.ok()) plan.Floats({gradInput}).SameDtype({self, gradInput}).Shape(gradInput, self->dims);
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [p, from = ChannelsLast(*gradOutput), places_from = ChannelsLast(*indices),
       to = ChannelsLast(*gradInput)]() -> Outcome {
        const Read<float> dy(from, from.dims);
        const Read<double> places(places_from, places_from.dims);
        Write dx(to);
        if (!dy.valid() || !places.valid() || !dx.valid()) return LostMemory("aclnnMaxPool3dWithArgmaxBackward");
        std::fill_n(dx.data(), Count(to.dims), 0.0f);
        const int64_t c = p.channels, outputs = p.windows.Outputs();
        for (int64_t i = 0; i < Count(from.dims); ++i) {
          const int64_t n = i / (outputs * c);
          dx[(n * p.windows.Inputs() + static_cast<int64_t>(places[i])) * c + i % c] += dy[i];
        }
        dx.Finish();
        return {};
      },
      0, workspaceSize, executor);
}

NPU_EXPORT aclnnStatus aclnnAvgPool3dGetWorkspaceSize(const aclTensor* self, const aclIntArray* kernelSize,
                                                      const aclIntArray* stride, const aclIntArray* padding,
                                                      bool ceilMode, bool countIncludePad, int64_t divisorOverride,
                                                      aclTensor* out, uint64_t* workspaceSize,
                                                      aclOpExecutor** executor) {
  Planner plan("aclnnAvgPool3d");
  Pooling p;
  ReadPooling(plan, self, out, kernelSize, stride, padding, ceilMode, &p);
  plan.Need(divisorOverride == 0, "simulated without a divisor");
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [p, countIncludePad, from = ChannelsLast(*self), to = ChannelsLast(*out)]() -> Outcome {
        const Read<float> x(from, from.dims);
        Write y(to);
        if (!x.valid() || !y.valid()) return LostMemory("aclnnAvgPool3d");
        const std::vector<float> divisors = Divisors(p.windows, countIncludePad);
        const int64_t c = p.channels, outputs = p.windows.Outputs();
        std::fill_n(y.data(), Count(to.dims), 0.0f);
        for (int64_t n = 0; n < p.images; ++n) {
          ForEachTap(p.windows, [&](int64_t o, int64_t, int64_t at) {
            for (int64_t i = 0; at >= 0 && i < c; ++i)
              y[(n * outputs + o) * c + i] += x[(n * p.windows.Inputs() + at) * c + i];
          });
        }
        for (int64_t i = 0; i < Count(to.dims); ++i) y[i] /= divisors[static_cast<size_t>(i / c % outputs)];
        y.Finish();
        return {};
      },
      0, workspaceSize, executor);
}

NPU_EXPORT aclnnStatus aclnnAvgPool3dBackwardGetWorkspaceSize(const aclTensor* gradOutput, const aclTensor* self,
                                                              const aclIntArray* kernelSize, const aclIntArray* stride,
                                                              const aclIntArray* padding, bool ceilMode,
                                                              bool countIncludePad, int64_t divisorOverride,
                                                              aclTensor* output, uint64_t* workspaceSize,
                                                              aclOpExecutor** executor) {
  Planner plan("aclnnAvgPool3dBackward");
  Pooling p;
  ReadPooling(plan, self, gradOutput, kernelSize, stride, padding, ceilMode, &p);
  plan.Need(divisorOverride == 0, "simulated without a divisor");
  if (plan.ok()) plan.Floats({output}).SameDtype({self, output}).Shape(output, self->dims);
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [p, countIncludePad, from = ChannelsLast(*gradOutput), to = ChannelsLast(*output)]() -> Outcome {
        const Read<float> dy(from, from.dims);
        Write dx(to);
        if (!dy.valid() || !dx.valid()) return LostMemory("aclnnAvgPool3dBackward");
        const std::vector<float> divisors = Divisors(p.windows, countIncludePad);
        const int64_t c = p.channels, outputs = p.windows.Outputs();
        std::fill_n(dx.data(), Count(to.dims), 0.0f);
        for (int64_t n = 0; n < p.images; ++n) {
          ForEachTap(p.windows, [&](int64_t o, int64_t, int64_t at) {
            for (int64_t i = 0; at >= 0 && i < c; ++i) {
              dx[(n * p.windows.Inputs() + at) * c + i] +=
                  dy[(n * outputs + o) * c + i] / divisors[static_cast<size_t>(o)];
            }
          });
        }
        dx.Finish();
        return {};
      },
      0, workspaceSize, executor);
}
