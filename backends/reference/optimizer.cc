// optimizer_update: SGD with momentum (Sutskever et al., 2013), Adam (Kingma and Ba, 2014) and AdamW (Loshchilov and
// Hutter, 2017) on many tensors at once.
#include <cmath>

#include "backends/reference/operation.h"

namespace switchyard {
namespace {

constexpr size_t kScalars = 4;  // lr, update, gradient_scale, finite

// States per tensor: m, or m and v.
size_t StateCount(const sy_optimizer_attributes& attr) {
  return attr.kind != SY_OPTIMIZER_SGD ? 2 : attr.momentum != 0 ? 1 : 0;
}

void CheckOptimizerUpdate(Check& check) {
  const auto& attr = check.attributes<sy_optimizer_attributes>();
  if (!check.Knows(attr.kind >= SY_OPTIMIZER_SGD && attr.kind <= SY_OPTIMIZER_ADAMW, "unknown kind of optimizer"))
    return;
  const size_t states = StateCount(attr), given = check.input_count();
  if (!check.Need(given > kScalars && (given - kScalars) % (2 + states) == 0,
                  Text("expected 4 scalars and ", 2 + states, " inputs per tensor, found ", given, " inputs"))) {
    return;
  }
  const size_t tensors = (given - kScalars) / (2 + states);
  if (!check.Operands(given, tensors * (1 + states)) || !check.FloatsExcept({1})) return;
  const char* scalars[] = {"lr", "update", "gradient_scale", "finite"};
  for (size_t i = 0; i < kScalars; ++i) check.OneElement(scalars[i], check.problem().inputs[i]);
  for (size_t k = 0; k < tensors; ++k) {
    const size_t in = kScalars + k * (2 + states), out = k * (1 + states);
    const Dims p = check.InputDims(in);
    for (size_t i = 1; i < 2 + states; ++i) check.Input("g, m and v", in + i, p);
    for (size_t o = 0; o < 1 + states; ++o) check.Output("p', m' and v'", out + o, p);
  }
}

void RunOptimizerUpdate(Call& call) {
  const auto& attr = call.attributes<sy_optimizer_attributes>();
  const size_t states = StateCount(attr);
  const double lr = call.input(0)[0], t = call.input(1)[0] + 1, gradient_scale = call.input(2)[0],
               decay = attr.weight_decay;
  const double beta1 = attr.beta1, beta2 = attr.beta2, momentum = attr.momentum;
  const bool finite = call.input(3)[0] != 0;

  for (size_t in = kScalars, out = 0; in < call.input_count(); in += 2 + states, out += 1 + states) {
    for (int64_t at = 0; at < call.input(in).size(); ++at) {
      double p = call.input(in)[at], g = call.input(in + 1)[at] * gradient_scale;
      double m = states >= 1 ? call.input(in + 2)[at] : 0, v = states >= 2 ? call.input(in + 3)[at] : 0;
      if (finite && attr.kind == SY_OPTIMIZER_SGD) {
        g += decay * p;
        if (states) {
          m = t == 1 ? g : momentum * m + (1 - double{attr.dampening}) * g;
          g = attr.nesterov ? g + momentum * m : m;
        }
        p -= lr * g;
      } else if (finite) {
        if (attr.kind == SY_OPTIMIZER_ADAM) g += decay * p;
        if (attr.kind == SY_OPTIMIZER_ADAMW) p -= lr * decay * p;
        m = beta1 * m + (1 - beta1) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        p -= lr * (m / (1 - std::pow(beta1, t))) / (std::sqrt(v / (1 - std::pow(beta2, t))) + double{attr.eps});
      }
      call.output(out)[at] = p;
      if (states >= 1) call.output(out + 1)[at] = m;
      if (states >= 2) call.output(out + 2)[at] = v;
    }
  }
}

// p' updates p, m' updates m, v' updates v; the gradient lies between.
int OptimizerUpdates(const Problem& problem, size_t o) {
  const size_t states = StateCount(problem.As<sy_optimizer_attributes>());
  const size_t tensor = o / (1 + states), which = o % (1 + states);
  return static_cast<int>(kScalars + tensor * (2 + states) + (which == 0 ? 0 : which + 1));
}

const Operation kOptimizerUpdate{"optimizer_update", sizeof(sy_optimizer_attributes), CheckOptimizerUpdate,
                                 RunOptimizerUpdate, OptimizerUpdates};

}  // namespace
}  // namespace switchyard
