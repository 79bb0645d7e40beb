// Layer normalisation over the last axis, by the formulas of the operators' pages.
#include <cmath>

#include "tests/doubles/npu/operator.h"

using namespace simulator;

NPU_EXPORT aclnnStatus aclnnLayerNormGetWorkspaceSize(const aclTensor* input, const aclIntArray* normalizedShape,
                                                      const aclTensor* weightOptional, const aclTensor* biasOptional,
                                                      double eps, aclTensor* out, aclTensor* meanOutOptional,
                                                      aclTensor* rstdOutOptional, uint64_t* workspaceSize,
                                                      aclOpExecutor** executor) {
  Planner plan("aclnnLayerNorm");
  plan.Floats({input, weightOptional, biasOptional, out, meanOutOptional, rstdOutOptional}).SameDtype({input, out});
  if (plan.ok()) {
    const Dims channels = {input->dims.back()};
    Dims rows = input->dims;
    rows.back() = 1;
    plan.Need(normalizedShape->values == channels, "simulated over the last axis")
        .Shape(weightOptional, channels)
        .Shape(biasOptional, channels)
        .Shape(out, input->dims)
        .Shape(meanOutOptional, rows)
        .Shape(rstdOutOptional, rows);
  }
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [from = *input, weight = *weightOptional, bias = *biasOptional, eps, to = *out, mean_to = *meanOutOptional,
       rstd_to = *rstdOutOptional]() -> Outcome {
        const Read<float> x(from, from.dims), gamma(weight, weight.dims), beta(bias, bias.dims);
        Write y(to), means(mean_to), rstds(rstd_to);
        if (!x.valid() || !gamma.valid() || !beta.valid() || !y.valid() || !means.valid() || !rstds.valid())
          return LostMemory("aclnnLayerNorm");
        const int64_t c = from.dims.back(), rows = Count(from.dims) / c;
        for (int64_t row = 0; row < rows; ++row) {
          const float* values = x.data() + row * c;
          double mean = 0, variance = 0;
          for (int64_t i = 0; i < c; ++i) mean += double{values[i]};
          mean /= static_cast<double>(c);
          for (int64_t i = 0; i < c; ++i) variance += (double{values[i]} - mean) * (double{values[i]} - mean);
          const double rstd = 1 / std::sqrt(variance / static_cast<double>(c) + eps);
          for (int64_t i = 0; i < c; ++i) {
            y[row * c + i] = static_cast<float>((double{values[i]} - mean) * rstd * double{gamma[i]} + double{beta[i]});
          }
          means[row] = static_cast<float>(mean);
          rstds[row] = static_cast<float>(rstd);
        }
        y.Finish();
        means.Finish();
        rstds.Finish();
        return {};
      },
      0, workspaceSize, executor);
}

NPU_EXPORT aclnnStatus aclnnLayerNormBackwardGetWorkspaceSize(const aclTensor* gradOut, const aclTensor* input,
                                                              const aclIntArray* normalizedShape, const aclTensor* mean,
                                                              const aclTensor* rstd, const aclTensor* weightOptional,
                                                              const aclTensor*, const aclBoolArray* outputMask,
                                                              aclTensor* gradInputOut, aclTensor* gradWeightOut,
                                                              aclTensor* gradBiasOut, uint64_t* workspaceSize,
                                                              aclOpExecutor** executor) {
  Planner plan("aclnnLayerNormBackward");
  plan.Floats({gradOut, input, mean, rstd, weightOptional, gradInputOut, gradWeightOut, gradBiasOut})
      .SameDtype({gradOut, input, gradInputOut});
  if (plan.ok()) {
    const Dims channels = {input->dims.back()};
    Dims rows = input->dims;
    rows.back() = 1;
    plan.Need(normalizedShape->values == channels, "simulated over the last axis")
        .Need(outputMask->values == std::vector<bool>{true, true, true}, "simulated with all outputs")
        .Shape(gradOut, input->dims)
        .Shape(mean, rows)
        .Shape(rstd, rows)
        .Shape(weightOptional, channels)
        .Shape(gradInputOut, input->dims)
        .Shape(gradWeightOut, channels)
        .Shape(gradBiasOut, channels);
  }
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [dy_from = *gradOut, x_from = *input, mean_from = *mean, rstd_from = *rstd, weight = *weightOptional,
       dx_to = *gradInputOut, dgamma_to = *gradWeightOut, dbeta_to = *gradBiasOut]() -> Outcome {
        const Read<float> dy(dy_from, dy_from.dims), x(x_from, x_from.dims), means(mean_from, mean_from.dims),
            rstds(rstd_from, rstd_from.dims), gamma(weight, weight.dims);
        Write dx(dx_to), dgamma(dgamma_to), dbeta(dbeta_to);
        if (!dy.valid() || !x.valid() || !means.valid() || !rstds.valid() || !gamma.valid() || !dx.valid() ||
            !dgamma.valid() || !dbeta.valid()) {
          return LostMemory("aclnnLayerNormBackward");
        }
        const int64_t c = x_from.dims.back(), rows = Count(x_from.dims) / c;
        std::vector<double> weights(static_cast<size_t>(c)), biases(static_cast<size_t>(c));
        for (int64_t row = 0; row < rows; ++row) {
          const auto at = row * c;
          const auto normal = [&](int64_t i) { return (double{x[at + i]} - double{means[row]}) * double{rstds[row]}; };
          double sum = 0, product = 0;
          for (int64_t i = 0; i < c; ++i) {
            const double g = double{dy[at + i]} * double{gamma[i]};
            sum += g;
            product += g * normal(i);
            weights[static_cast<size_t>(i)] += double{dy[at + i]} * normal(i);
            biases[static_cast<size_t>(i)] += double{dy[at + i]};
          }
          sum /= static_cast<double>(c);
          product /= static_cast<double>(c);
          for (int64_t i = 0; i < c; ++i) {
            const double g = double{dy[at + i]} * double{gamma[i]};
            dx[at + i] = static_cast<float>(double{rstds[row]} * (g - sum - normal(i) * product));
          }
        }
        for (int64_t i = 0; i < c; ++i) {
          dgamma[i] = static_cast<float>(weights[static_cast<size_t>(i)]);
          dbeta[i] = static_cast<float>(biases[static_cast<size_t>(i)]);
        }
        dx.Finish();
        dgamma.Finish();
        dbeta.Finish();
        return {};
      },
      0, workspaceSize, executor);
}
