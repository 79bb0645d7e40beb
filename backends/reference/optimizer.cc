// optimizer_update: SGD with momentum (Sutskever et al., 2013), Adam (Kingma and Ba, 2014), AdamW (Loshchilov and
// Hutter, 2017), LAMB (You et al., 2019) and LARS (You et al., 2017) on many tensors at once.
#include <cmath>
#include <vector>

#include "backends/reference/operation.h"

namespace switchyard {
namespace {

constexpr size_t kScalars = 4;  // lr, update, gradient_scale, finite

// States per tensor: none, m, or m and v.
size_t StateCount(const sy_optimizer_attributes& attr) {
  if (attr.kind == SY_OPTIMIZER_SGD || attr.kind == SY_OPTIMIZER_LARS) return attr.momentum != 0 ? 1 : 0;
  return 2;
}

// Results per tensor: p', the states, and h' where it is asked for.
size_t ResultCount(const sy_optimizer_attributes& attr) { return 1 + StateCount(attr) + (attr.half_copies ? 1 : 0); }

void CheckOptimizerUpdate(Check& check) {
  const auto& attr = check.attributes<sy_optimizer_attributes>();
  if (!check.Knows(attr.kind >= SY_OPTIMIZER_SGD && attr.kind <= SY_OPTIMIZER_LARS, "unknown kind of optimizer"))
    return;
  const size_t states = StateCount(attr), results = ResultCount(attr), given = check.input_count();
  if (!check.Need(given > kScalars && (given - kScalars) % (2 + states) == 0,
                  Text("expected 4 scalars and ", 2 + states, " inputs per tensor, found ", given, " inputs"))) {
    return;
  }
  const size_t tensors = (given - kScalars) / (2 + states);
  if (!check.Operands(given, tensors * results) || !check.Floats()) return;
  const char* scalars[] = {"lr", "update", "gradient_scale", "finite"};
  for (size_t i = 0; i < kScalars; ++i) check.OneElement(scalars[i], check.problem().inputs[i]);
  for (size_t k = 0; k < tensors; ++k) {
    const size_t in = kScalars + k * (2 + states), out = k * results;
    const Dims p = check.InputDims(in);
    for (size_t i = 1; i < 2 + states; ++i) check.Input("g, m and v", in + i, p);
    for (size_t o = 0; o < results; ++o) check.Output("p', m', v' and h'", out + o, p);
  }
}

// One tensor, and what all of them share.
struct Tensor {
  std::vector<double> p, g, m, v;  // g is scaled already; m and v: empty where the kind has none
};
struct Rates {
  double lr, t, decay;
};

double Norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double e : x) sum += e * e;
  return std::sqrt(sum);
}

void Sgd(const sy_optimizer_attributes& attr, const Rates& r, Tensor& x) {
  for (size_t i = 0; i < x.p.size(); ++i) {
    double g = x.g[i] + r.decay * x.p[i];
    if (!x.m.empty()) {
      x.m[i] = r.t == 1 ? g : double{attr.momentum} * x.m[i] + (1 - double{attr.dampening}) * g;
      g = attr.nesterov ? g + double{attr.momentum} * x.m[i] : x.m[i];
    }
    x.p[i] -= r.lr * g;
  }
}

void Lars(const sy_optimizer_attributes& attr, const Rates& r, Tensor& x) {
  const double weight = Norm(x.p), gradient = Norm(x.g), momentum = attr.momentum;
  const double ratio = weight != 0 && gradient != 0 && r.decay != 0
                           ? double{attr.trust_coefficient} * weight / (gradient + r.decay * weight + attr.eps)
                           : 1;
  for (size_t i = 0; i < x.p.size(); ++i) {
    double step = r.lr * ratio * (x.g[i] + r.decay * x.p[i]);
    if (!x.m.empty()) {
      x.m[i] = r.t == 1 ? step : momentum * x.m[i] + step;
      step = attr.nesterov ? momentum * x.m[i] + step : x.m[i];
    }
    x.p[i] -= step;
  }
}

// Adam, AdamW and LAMB.
void Adaptive(const sy_optimizer_attributes& attr, const Rates& r, Tensor& x) {
  const bool lamb = attr.kind == SY_OPTIMIZER_LAMB;
  const bool coupled = attr.kind == SY_OPTIMIZER_ADAM || (lamb && !attr.adam_w_mode);
  const double beta1 = attr.beta1, beta2 = attr.beta2, beta3 = lamb && !attr.grad_averaging ? 1 : 1 - beta1;
  std::vector<double> u(x.p.size());
  for (size_t i = 0; i < u.size(); ++i) {
    const double g = x.g[i] + (coupled ? r.decay * x.p[i] : 0);
    x.m[i] = beta1 * x.m[i] + beta3 * g;
    x.v[i] = beta2 * x.v[i] + (1 - beta2) * g * g;
    u[i] = x.m[i] / (1 - std::pow(beta1, r.t)) / (std::sqrt(x.v[i] / (1 - std::pow(beta2, r.t))) + double{attr.eps});
    if (!coupled) u[i] += r.decay * x.p[i];  // AdamW: p −= lr·wd·p
  }
  double ratio = 1;
  if (lamb && (r.decay != 0 || attr.use_nvlamb)) {
    const double weight = Norm(x.p), step = Norm(u);
    if (weight != 0 && step != 0) ratio = weight / step;
  }
  for (size_t i = 0; i < u.size(); ++i) x.p[i] -= r.lr * ratio * u[i];
}

void RunOptimizerUpdate(Call& call) {
  const auto& attr = call.attributes<sy_optimizer_attributes>();
  const size_t states = StateCount(attr), results = ResultCount(attr);
  const Rates rates = {call.input(0)[0], call.input(1)[0] + 1, attr.weight_decay};
  const double gradient_scale = call.input(2)[0];
  const bool finite = call.input(3)[0] != 0;
  for (size_t in = kScalars, out = 0; in < call.input_count(); in += 2 + states, out += results) {
    Tensor x{call.input(in).values, call.input(in + 1).values, {}, {}};
    for (double& g : x.g) g *= gradient_scale;
    if (states >= 1) x.m = call.input(in + 2).values;
    if (states >= 2) x.v = call.input(in + 3).values;
    if (finite && attr.kind == SY_OPTIMIZER_SGD) Sgd(attr, rates, x);
    if (finite && attr.kind == SY_OPTIMIZER_LARS) Lars(attr, rates, x);
    if (finite && states == 2) Adaptive(attr, rates, x);
    call.output(out).values = x.p;
    if (states >= 1) call.output(out + 1).values = x.m;
    if (states >= 2) call.output(out + 2).values = x.v;
    // Of p' as it is stored: h' does not round what p' has not.
    if (attr.half_copies) call.output(out + 1 + states) = call.AsStored(out);
  }
}

// p' updates p, m' updates m, v' updates v; the gradient lies between. h' updates nothing.
int OptimizerUpdates(const Problem& problem, size_t o) {
  const auto& attr = problem.As<sy_optimizer_attributes>();
  const size_t states = StateCount(attr), results = ResultCount(attr);
  const size_t tensor = o / results, which = o % results;
  if (which > states) return -1;
  return static_cast<int>(kScalars + tensor * (2 + states) + (which == 0 ? 0 : which + 1));
}

const Operation kOptimizerUpdate{"optimizer_update", sizeof(sy_optimizer_attributes), CheckOptimizerUpdate,
                                 RunOptimizerUpdate, OptimizerUpdates};

}  // namespace
}  // namespace switchyard
