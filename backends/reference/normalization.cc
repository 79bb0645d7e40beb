// layer_norm (Ba et al., 2016) over the last axis, group_norm (Wu and He, 2018) over a sample's groups of channels and
// batch_norm (Ioffe and Szegedy, 2015) over all axes but the last, biased variance. Their backwards are dx = rstd·(g −
// mean(g) − x̂·mean(g·x̂)) with g = dy·gamma and x̂ = (x − mean)·rstd.
#include <cmath>

#include "backends/reference/operation.h"

namespace switchyard {
namespace {

bool NeedChannels(Check& check, const char* name) {
  return check.Need(!check.InputDims(0).empty(), Text(name, " must have rank 1 or more"));
}

void CheckLayerNorm(Check& check) {
  const auto& attr = check.attributes<sy_layer_norm_attributes>();
  const bool residual = attr.residual;
  check.Need(!attr.column_sums, "column_sums belongs to the backward");
  if (!check.Operands(residual ? 4 : 3, residual ? 4 : 3) || !check.Floats() || !NeedChannels(check, "x")) return;
  const Dims x = check.InputDims(0), channels = {x.back()}, rows = WithoutLast(x);
  const size_t gamma = residual ? 2 : 1;
  if (residual) check.Input("residual", 1, x) && check.Output("sum", 3, x);
  check.Input("gamma", gamma, channels) && check.Input("beta", gamma + 1, channels) && check.Output("y", 0, x) &&
      check.Output("mean", 1, rows) && check.Output("rstd", 2, rows);
}

void RunLayerNorm(Call& call) {
  const auto& attr = call.attributes<sy_layer_norm_attributes>();
  const Array &gamma = call.input(attr.residual ? 2 : 1), &beta = call.input(attr.residual ? 3 : 2);
  const int64_t c = gamma.size();
  Array h = call.input(0);
  if (attr.residual) {
    for (int64_t at = 0; at < h.size(); ++at) h[at] += call.input(1)[at];
    call.output(3) = h;
    h = call.AsStored(3);  // the norm of the sum that is kept, whether or not the two are fused
  }
  for (int64_t row = 0; row < h.size() / c; ++row) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < c; ++i) mean += h[row * c + i] / static_cast<double>(c);
    for (int64_t i = 0; i < c; ++i) variance += std::pow(h[row * c + i] - mean, 2) / static_cast<double>(c);
    const double rstd = 1 / std::sqrt(variance + double{attr.eps});
    for (int64_t i = 0; i < c; ++i) call.output(0)[row * c + i] = (h[row * c + i] - mean) * rstd * gamma[i] + beta[i];
    call.output(1)[row] = mean;
    call.output(2)[row] = rstd;
  }
}

void CheckLayerNormBackward(Check& check) {
  const auto& attr = check.attributes<sy_layer_norm_attributes>();
  const bool residual = attr.residual;
  if (!check.Operands(residual ? 6 : 5, attr.column_sums ? 4 : 3) || !check.Floats() || !NeedChannels(check, "h"))
    return;
  const Dims h = check.InputDims(0), channels = {h.back()}, rows = WithoutLast(h);
  check.Input("gamma", 1, channels) && check.Input("mean", 2, rows) && check.Input("rstd", 3, rows) &&
      check.Input("dy", 4, h) && check.Output("dh", 0, h) && check.Output("dgamma", 1, channels) &&
      check.Output("dbeta", 2, channels);
  if (residual) check.Input("dsum", 5, h);
  if (attr.column_sums) check.Output("column_sums", 3, channels);
}

void RunLayerNormBackward(Call& call) {
  const Array &h = call.input(0), &gamma = call.input(1), &mean = call.input(2), &rstd = call.input(3),
              &dy = call.input(4);
  const int64_t c = gamma.size();
  const bool column_sums = call.attributes<sy_layer_norm_attributes>().column_sums;
  for (int64_t row = 0; row < h.size() / c; ++row) {
    const auto normal = [&](int64_t i) { return (h[row * c + i] - mean[row]) * rstd[row]; };
    const auto g = [&](int64_t i) { return dy[row * c + i] * gamma[i]; };
    double mean_g = 0, mean_gx = 0;
    for (int64_t i = 0; i < c; ++i) {
      mean_g += g(i) / static_cast<double>(c);
      mean_gx += g(i) * normal(i) / static_cast<double>(c);
      call.output(1)[i] += dy[row * c + i] * normal(i);
      call.output(2)[i] += dy[row * c + i];
    }
    for (int64_t i = 0; i < c; ++i) {
      double dh = rstd[row] * (g(i) - mean_g - normal(i) * mean_gx);
      if (call.input_count() == 6) dh += call.input(5)[row * c + i];
      call.output(0)[row * c + i] = dh;
      if (column_sums) call.output(3)[i] += dh;
    }
  }
}

// What both directions share: x (N, …, C), gamma (C), and groups that divide C.
bool NeedGroups(Check& check) {
  const int64_t groups = check.attributes<sy_group_norm_attributes>().groups;
  const Dims x = check.InputDims(0);
  return check.Need(x.size() >= 2, Text("x must be (N, …, C), found ", ToText(x))) &&
         check.Need(groups >= 1 && x.back() % groups == 0,
                    Text(groups, " groups do not divide ", x.back(), " channels")) &&
         check.Input("gamma", 1, {x.back()});
}

Dims GroupStatistics(Check& check) {
  return {check.InputDims(0).front(), check.attributes<sy_group_norm_attributes>().groups};
}

void CheckGroupNorm(Check& check) {
  if (!check.Operands(3, 3) || !check.Floats() || !NeedGroups(check)) return;
  check.Input("beta", 2, check.InputDims(1)) && check.Output("y", 0, check.InputDims(0)) &&
      check.Output("mean", 1, GroupStatistics(check)) && check.Output("rstd", 2, GroupStatistics(check));
}

// f(element, channel) over the elements of group `at` = sample·groups + group.
template <typename F>
void ForGroup(const Array& x, int64_t groups, int64_t at, F f) {
  const int64_t c = x.dims.back(), places = x.size() / (x.dims.front() * c), width = c / groups;
  for (int64_t row = at / groups * places; row < (at / groups + 1) * places; ++row) {
    for (int64_t channel = at % groups * width; channel < (at % groups + 1) * width; ++channel)
      f(row * c + channel, channel);
  }
}

void RunGroupNorm(Call& call) {
  const auto& attr = call.attributes<sy_group_norm_attributes>();
  const Array &x = call.input(0), &gamma = call.input(1), &beta = call.input(2);
  Array &y = call.output(0), &mean = call.output(1), &rstd = call.output(2);
  const double count = static_cast<double>(x.size() / mean.size());
  for (int64_t at = 0; at < mean.size(); ++at) {
    double variance = 0;
    ForGroup(x, attr.groups, at, [&](int64_t i, int64_t) { mean[at] += x[i] / count; });
    ForGroup(x, attr.groups, at, [&](int64_t i, int64_t) { variance += std::pow(x[i] - mean[at], 2) / count; });
    rstd[at] = 1 / std::sqrt(variance + double{attr.eps});
    ForGroup(x, attr.groups, at,
             [&](int64_t i, int64_t c) { y[i] = (x[i] - mean[at]) * rstd[at] * gamma[c] + beta[c]; });
  }
}

void CheckGroupNormBackward(Check& check) {
  if (!check.Operands(5, 3) || !check.Floats() || !NeedGroups(check)) return;
  const Dims x = check.InputDims(0), channels = {x.back()}, statistics = GroupStatistics(check);
  check.Input("mean", 2, statistics) && check.Input("rstd", 3, statistics) && check.Input("dy", 4, x) &&
      check.Output("dx", 0, x) && check.Output("dgamma", 1, channels) && check.Output("dbeta", 2, channels);
}

void RunGroupNormBackward(Call& call) {
  const int64_t groups = call.attributes<sy_group_norm_attributes>().groups;
  const Array &x = call.input(0), &gamma = call.input(1), &mean = call.input(2), &rstd = call.input(3),
              &dy = call.input(4);
  const double count = static_cast<double>(x.size() / mean.size());
  for (int64_t at = 0; at < mean.size(); ++at) {
    const auto normal = [&](int64_t i) { return (x[i] - mean[at]) * rstd[at]; };
    double mean_g = 0, mean_gx = 0;
    ForGroup(x, groups, at, [&](int64_t i, int64_t c) {
      mean_g += dy[i] * gamma[c] / count;
      mean_gx += dy[i] * gamma[c] * normal(i) / count;
      call.output(1)[c] += dy[i] * normal(i);
      call.output(2)[c] += dy[i];
    });
    ForGroup(x, groups, at, [&](int64_t i, int64_t c) {
      call.output(0)[i] = rstd[at] * (dy[i] * gamma[c] - mean_g - normal(i) * mean_gx);
    });
  }
}

// The attributes are known, and there are `inputs` of them with a residual (…, C) behind, if any.
bool CheckBatchNormInputs(Check& check, size_t outputs) {
  const auto& a = check.attributes<sy_batch_norm_attributes>();
  if (!check.Knows(a.activation == SY_ACTIVATION_NONE || a.activation == SY_ACTIVATION_RELU, "unknown activation"))
    return false;
  if (!check.Operands(a.residual ? 6 : 5, outputs) || !check.Floats() || !NeedChannels(check, "x")) return false;
  const Dims channels = {check.InputDims(0).back()};
  return check.Input("gamma", 1, channels) && check.Input("beta", 2, channels) &&
         check.Input("running_mean", 3, channels) && check.Input("running_var", 4, channels) &&
         (!a.residual || check.Input("residual", 5, check.InputDims(0))) &&
         check.Output("y", 0, check.InputDims(0));
}

// act(normal·gamma + beta [+ residual]) at element `at`.
double Normalised(const Call& call, int64_t at, double normal) {
  const auto& a = call.attributes<sy_batch_norm_attributes>();
  const int64_t i = at % call.input(1).size();
  const double y = normal * call.input(1)[i] + call.input(2)[i] + (a.residual ? call.input(5)[at] : 0);
  return a.activation == SY_ACTIVATION_RELU && y < 0 ? 0 : y;
}

void CheckBatchNorm(Check& check) {
  if (!CheckBatchNormInputs(check, 5)) return;
  const Dims channels = {check.InputDims(0).back()};
  check.Output("mean", 1, channels) && check.Output("rstd", 2, channels) &&
      check.Output("running_mean'", 3, channels) && check.Output("running_var'", 4, channels);
}

void RunBatchNorm(Call& call) {
  const auto& attr = call.attributes<sy_batch_norm_attributes>();
  const Array& x = call.input(0);
  const int64_t c = call.input(1).size(), n = x.size() / c;
  const double momentum = attr.momentum, count = static_cast<double>(n);
  for (int64_t i = 0; i < c; ++i) {
    double mean = 0, variance = 0;
    for (int64_t row = 0; row < n; ++row) mean += x[row * c + i] / count;
    for (int64_t row = 0; row < n; ++row) variance += std::pow(x[row * c + i] - mean, 2) / count;
    const double rstd = 1 / std::sqrt(variance + double{attr.eps});
    for (int64_t at = i; at < x.size(); at += c) call.output(0)[at] = Normalised(call, at, (x[at] - mean) * rstd);
    const double unbiased = n > 1 ? variance * count / (count - 1) : variance;
    call.output(1)[i] = mean;
    call.output(2)[i] = rstd;
    call.output(3)[i] = (1 - momentum) * call.input(3)[i] + momentum * mean;
    call.output(4)[i] = (1 - momentum) * call.input(4)[i] + momentum * unbiased;
  }
}

// Outputs 3 and 4 are the next running statistics.
int BatchNormUpdates(const Problem&, size_t o) { return o == 0 ? 0 : o >= 3 ? static_cast<int>(o) : -1; }

void CheckBatchNormInference(Check& check) { CheckBatchNormInputs(check, 1); }

void RunBatchNormInference(Call& call) {
  const double eps = call.attributes<sy_batch_norm_attributes>().eps;
  const Array &x = call.input(0), &mean = call.input(3), &variance = call.input(4);
  for (int64_t at = 0; at < x.size(); ++at) {
    const int64_t i = at % mean.size();
    call.output(0)[at] = Normalised(call, at, (x[at] - mean[i]) / std::sqrt(variance[i] + eps));
  }
}

void CheckBatchNormBackward(Check& check) {
  const auto& a = check.attributes<sy_batch_norm_attributes>();
  if (!check.Knows(a.activation == SY_ACTIVATION_NONE || a.activation == SY_ACTIVATION_RELU, "unknown activation"))
    return;
  if (!check.Operands(a.activation ? 6 : 5, a.residual ? 4 : 3) || !check.Floats() || !NeedChannels(check, "x")) return;
  const Dims x = check.InputDims(0), channels = {x.back()};
  check.Input("gamma", 1, channels) && check.Input("mean", 2, channels) && check.Input("rstd", 3, channels) &&
      check.Input("dy", 4, x) && (!a.activation || check.Input("y", 5, x)) && check.Output("dx", 0, x) &&
      check.Output("dgamma", 1, channels) && check.Output("dbeta", 2, channels) &&
      (!a.residual || check.Output("dresidual", 3, x));
}

void RunBatchNormBackward(Call& call) {
  const auto& a = call.attributes<sy_batch_norm_attributes>();
  const Array &x = call.input(0), &gamma = call.input(1), &mean = call.input(2), &rstd = call.input(3);
  Array &dgamma = call.output(1), &dbeta = call.output(2);
  const int64_t c = gamma.size();
  const double count = static_cast<double>(x.size() / c);
  const auto gradient = [&](int64_t at) { return a.activation && !(call.input(5)[at] > 0) ? 0 : call.input(4)[at]; };
  const auto normal = [&](int64_t at) { return (x[at] - mean[at % c]) * rstd[at % c]; };
  for (int64_t at = 0; at < x.size(); ++at) {
    dgamma[at % c] += gradient(at) * normal(at);
    dbeta[at % c] += gradient(at);
  }
  for (int64_t at = 0; at < x.size(); ++at) {
    const int64_t i = at % c;
    call.output(0)[at] = rstd[i] * gamma[i] * (gradient(at) - dbeta[i] / count - normal(at) * dgamma[i] / count);
    if (a.residual) call.output(3)[at] = gradient(at);
  }
}

const Operation kLayerNorm{"layer_norm", sizeof(sy_layer_norm_attributes), CheckLayerNorm, RunLayerNorm};
const Operation kLayerNormBackward{"layer_norm_backward", sizeof(sy_layer_norm_attributes), CheckLayerNormBackward,
                                   RunLayerNormBackward};
const Operation kGroupNorm{"group_norm", sizeof(sy_group_norm_attributes), CheckGroupNorm, RunGroupNorm};
const Operation kGroupNormBackward{"group_norm_backward", sizeof(sy_group_norm_attributes), CheckGroupNormBackward,
                                   RunGroupNormBackward};
const Operation kBatchNorm{"batch_norm", sizeof(sy_batch_norm_attributes), CheckBatchNorm, RunBatchNorm,
                           BatchNormUpdates};
const Operation kBatchNormInference{"batch_norm_inference", sizeof(sy_batch_norm_attributes), CheckBatchNormInference,
                                    RunBatchNormInference};
const Operation kBatchNormBackward{"batch_norm_backward", sizeof(sy_batch_norm_attributes), CheckBatchNormBackward,
                                   RunBatchNormBackward};

}  // namespace
}  // namespace switchyard
