// Batch normalisation by given statistics, the inference form, and its gradient, by their pages.
#include <cmath>

#include "tests/doubles/npu/operator.h"

namespace simulator {
namespace {

void CheckChannels(Planner& plan, const aclTensor* input, std::initializer_list<const aclTensor*> channels) {
  if (!plan.ok()) return;
  plan.Need(input->dims.size() == 2, "simulated on (N, C)");
  for (const aclTensor* each : channels) plan.Floats({each}).Shape(each, {input->dims[1]});
}

}  // namespace
}  // namespace simulator

using namespace simulator;

NPU_EXPORT aclnnStatus aclnnBatchNormGetWorkspaceSize(const aclTensor* input, const aclTensor* weight,
                                                      const aclTensor* bias, aclTensor* runningMean,
                                                      aclTensor* runningVar, bool training, double, double eps,
                                                      aclTensor* output, aclTensor*, aclTensor*,
                                                      uint64_t* workspaceSize, aclOpExecutor** executor) {
  Planner plan("aclnnBatchNorm");
  plan.Need(!training, "simulated with training false").Floats({input, output}).SameDtype({input, output});
  CheckChannels(plan, input, {weight, bias, runningMean, runningVar});
  if (plan.ok()) plan.Shape(output, input->dims).Need(input->format == output->format, "the formats differ");
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [from = *input, weight_from = *weight, bias_from = *bias, mean_from = *runningMean, var_from = *runningVar, eps,
       to = *output]() -> Outcome {
        const Read<float> x(from, from.dims), gamma(weight_from, weight_from.dims), beta(bias_from, bias_from.dims),
            mean(mean_from, mean_from.dims), variance(var_from, var_from.dims);
        Write y(to);
        if (!x.valid() || !gamma.valid() || !beta.valid() || !mean.valid() || !variance.valid() || !y.valid())
          return LostMemory("aclnnBatchNorm");
        const int64_t c = from.dims[1];
        for (int64_t i = 0; i < Count(from.dims); ++i) {
          const double rstd = 1 / std::sqrt(double{variance[i % c]} + eps);
          y[i] = static_cast<float>((double{x[i]} - double{mean[i % c]}) * rstd * double{gamma[i % c]} +
                                    double{beta[i % c]});
        }
        y.Finish();
        return {};
      },
      0, workspaceSize, executor);
}

NPU_EXPORT aclnnStatus aclnnBatchNormBackwardGetWorkspaceSize(const aclTensor* gradOut, const aclTensor* input,
                                                              const aclTensor* weight, const aclTensor* runningMean,
                                                              const aclTensor* runningVar, const aclTensor*,
                                                              const aclTensor*, bool training, double eps,
                                                              const aclBoolArray* outputMask, aclTensor* gradInput,
                                                              aclTensor* gradWeight, aclTensor* gradBias,
                                                              uint64_t* workspaceSize, aclOpExecutor** executor) {
  Planner plan("aclnnBatchNormBackward");
  plan.Need(!training, "simulated with training false")
      .Need(outputMask->values == std::vector<bool>{true, true, true}, "simulated with all outputs")
      .Floats({gradOut, input, gradInput});
  CheckChannels(plan, input, {weight, runningMean, runningVar, gradWeight, gradBias});
  if (plan.ok()) {
    plan.SameDtype({gradOut, input, gradInput, weight, runningMean, runningVar, gradWeight, gradBias})
        .Shape(gradOut, input->dims)
        .Shape(gradInput, input->dims);
  }
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [dy_from = *gradOut, x_from = *input, weight_from = *weight, mean_from = *runningMean, var_from = *runningVar,
       eps, dx_to = *gradInput, dgamma_to = *gradWeight, dbeta_to = *gradBias]() -> Outcome {
        const Read<float> dy(dy_from, dy_from.dims), x(x_from, x_from.dims), gamma(weight_from, weight_from.dims),
            mean(mean_from, mean_from.dims), variance(var_from, var_from.dims);
        Write dx(dx_to), dgamma(dgamma_to), dbeta(dbeta_to);
        if (!dy.valid() || !x.valid() || !gamma.valid() || !mean.valid() || !variance.valid() || !dx.valid() ||
            !dgamma.valid() || !dbeta.valid()) {
          return LostMemory("aclnnBatchNormBackward");
        }
        const int64_t c = x_from.dims[1];
        std::vector<double> weights(static_cast<size_t>(c)), biases(static_cast<size_t>(c));
        for (int64_t i = 0; i < Count(x_from.dims); ++i) {
          const int64_t j = i % c;
          const double rstd = 1 / std::sqrt(double{variance[j]} + eps);
          weights[static_cast<size_t>(j)] += double{dy[i]} * (double{x[i]} - double{mean[j]}) * rstd;
          biases[static_cast<size_t>(j)] += double{dy[i]};
          dx[i] = static_cast<float>(double{dy[i]} * rstd * double{gamma[j]});
        }
        for (int64_t j = 0; j < c; ++j) {
          dgamma[j] = static_cast<float>(weights[static_cast<size_t>(j)]);
          dbeta[j] = static_cast<float>(biases[static_cast<size_t>(j)]);
        }
        dx.Finish();
        dgamma.Finish();
        dbeta.Finish();
        return {};
      },
      0, workspaceSize, executor);
}
