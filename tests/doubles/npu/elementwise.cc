// Elementwise operators, with numpy's broadcasting.
#include <algorithm>
#include <cmath>

#include "tests/doubles/npu/operator.h"

namespace simulator {
namespace {

constexpr double kPi = 3.14159265358979323846;

// out = f(self)
template <typename F>
aclnnStatus Unary(const char* name, const aclTensor* self, const aclTensor* out, F f, uint64_t* workspaceSize,
                  aclOpExecutor** executor) {
  Planner plan(name);
  plan.Floats({self}).Takes({out});
  if (plan.ok()) plan.Shape(out, self->dims);
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [name, a = *self, to = *out, f] {
        const Read<float> x(a, to.dims);
        Write y(to);
        if (!x.valid() || !y.valid()) return LostMemory(name);
        const int64_t count = Count(to.dims);
        for (int64_t i = 0; i < count; ++i) y[i] = static_cast<float>(f(x[i]));
        y.Finish();
        return Outcome{};
      },
      0, workspaceSize, executor);
}

// out = f(self, other); operands of one dtype, read as T.
template <typename T, typename F>
aclnnStatus Binary(const char* name, const aclTensor* self, const aclTensor* other, const aclTensor* out, F f,
                   uint64_t* workspaceSize, aclOpExecutor** executor) {
  Planner plan(name);
  plan.Takes({self, other, out}).SameDtype({self, other});
  Dims dims;
  if (plan.ok()) plan.Need(Broadcast(self->dims, other->dims, &dims), "its operands do not broadcast").Shape(out, dims);
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [name, a = *self, b = *other, to = *out, f] {
        const Read<T> x(a, to.dims), z(b, to.dims);
        Write y(to);
        if (!x.valid() || !z.valid() || !y.valid()) return LostMemory(name);
        const int64_t count = Count(to.dims);
        for (int64_t i = 0; i < count; ++i) y[i] = static_cast<float>(f(x[i], z[i]));
        y.Finish();
        return Outcome{};
      },
      0, workspaceSize, executor);
}

double GeluOf(double x, bool tanh) {
  return tanh ? x / 2 * (1 + std::tanh(std::sqrt(2 / kPi) * (x + 0.044715 * x * x * x)))
              : x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
}

double GeluSlope(double x, bool tanh) {
  if (!tanh) return (1 + std::erf(x / std::sqrt(2.0))) / 2 + x * std::exp(-x * x / 2) / std::sqrt(2 * kPi);
  const double factor = std::sqrt(2 / kPi), t = std::tanh(factor * (x + 0.044715 * x * x * x));
  return (1 + t) / 2 + x / 2 * (1 - t * t) * factor * (1 + 3 * 0.044715 * x * x);
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// NaN in either operand makes NaN, as in the frameworks that call these operators.
float Larger(float a, float b) { return std::isnan(a) || a > b ? a : b; }
float Smaller(float a, float b) { return std::isnan(a) || a < b ? a : b; }

}  // namespace
}  // namespace simulator

using namespace simulator;

#define SIMULATE_UNARY(name, expression)                                                                               \
  NPU_EXPORT aclnnStatus aclnn##name##GetWorkspaceSize(const aclTensor* self, aclTensor* out, uint64_t* workspaceSize, \
                                                       aclOpExecutor** executor) {                                     \
    return Unary(                                                                                                      \
        "aclnn" #name, self, out, [](float x) { return expression; }, workspaceSize, executor);                        \
  }
SIMULATE_UNARY(Neg, -x)
SIMULATE_UNARY(Abs, std::fabs(x))
SIMULATE_UNARY(Exp, std::exp(x))
SIMULATE_UNARY(Log, std::log(x))
SIMULATE_UNARY(Sqrt, std::sqrt(x))
SIMULATE_UNARY(Rsqrt, 1 / std::sqrt(x))
SIMULATE_UNARY(Reciprocal, 1 / x)
SIMULATE_UNARY(Tanh, std::tanh(x))
SIMULATE_UNARY(Erf, std::erf(x))
SIMULATE_UNARY(Floor, std::floor(x))
SIMULATE_UNARY(Sigmoid, Sigmoid(x))
SIMULATE_UNARY(Relu, x < 0 ? 0 : x)
SIMULATE_UNARY(Silu, x* Sigmoid(x))

NPU_EXPORT aclnnStatus aclnnIsFiniteGetWorkspaceSize(const aclTensor* self, aclTensor* out, uint64_t* workspaceSize,
                                                     aclOpExecutor** executor) {
  if (out != nullptr && out->dtype != ACL_BOOL) return Fail(kInvalid, "aclnnIsFinite: out must be BOOL");
  return Unary(
      "aclnnIsFinite", self, out, [](float x) { return std::isfinite(x); }, workspaceSize, executor);
}

NPU_EXPORT aclnnStatus aclnnGeluV2GetWorkspaceSize(const aclTensor* x, int64_t approximate, aclTensor* y,
                                                   uint64_t* workspaceSize, aclOpExecutor** executor) {
  const bool tanh = approximate == 1;
  return Unary(
      "aclnnGeluV2", x, y, [tanh](double value) { return GeluOf(value, tanh); }, workspaceSize, executor);
}

#define SIMULATE_BINARY(name, T, expression)                                                                          \
  NPU_EXPORT aclnnStatus aclnn##name##GetWorkspaceSize(const aclTensor* self, const aclTensor* other, aclTensor* out, \
                                                       uint64_t* workspaceSize, aclOpExecutor** executor) {           \
    return Binary<T>(                                                                                                 \
        "aclnn" #name, self, other, out, [](T a, T b) { return expression; }, workspaceSize, executor);               \
  }
SIMULATE_BINARY(Div, float, a / b)
SIMULATE_BINARY(Maximum, float, Larger(a, b))
SIMULATE_BINARY(Minimum, float, Smaller(a, b))
SIMULATE_BINARY(PowTensorTensor, float, std::pow(a, b))
SIMULATE_BINARY(LtTensor, double, a < b)
SIMULATE_BINARY(LeTensor, double, a <= b)
SIMULATE_BINARY(EqTensor, double, a == b)

NPU_EXPORT aclnnStatus aclnnMulGetWorkspaceSize(const aclTensor* self, const aclTensor* other, aclTensor* out,
                                                uint64_t* workspaceSize, aclOpExecutor** executor) {
  if (self != nullptr && self->dtype == ACL_INT64)
    return IntegerBinary(
        "aclnnMul", self, other, out, [](int64_t a, int64_t b) { return a * b; }, workspaceSize, executor);
  return Binary<float>(
      "aclnnMul", self, other, out, [](float a, float b) { return a * b; }, workspaceSize, executor);
}
NPU_EXPORT aclnnStatus aclnnAddGetWorkspaceSize(const aclTensor* self, const aclTensor* other, const aclScalar* alpha,
                                                aclTensor* out, uint64_t* workspaceSize, aclOpExecutor** executor) {
  if (self != nullptr && self->dtype == ACL_INT64) {
    if (alpha->value != 1) return Fail(kInvalid, "aclnnAdd: simulated on INT64 with alpha 1");
    return IntegerBinary(
        "aclnnAdd", self, other, out, [](int64_t a, int64_t b) { return a + b; }, workspaceSize, executor);
  }
  const auto factor = static_cast<float>(alpha->value);
  return Binary<float>(
      "aclnnAdd", self, other, out, [factor](float a, float b) { return a + factor * b; }, workspaceSize, executor);
}
NPU_EXPORT aclnnStatus aclnnSubGetWorkspaceSize(const aclTensor* self, const aclTensor* other, const aclScalar* alpha,
                                                aclTensor* out, uint64_t* workspaceSize, aclOpExecutor** executor) {
  const auto factor = static_cast<float>(alpha->value);
  return Binary<float>(
      "aclnnSub", self, other, out, [factor](float a, float b) { return a - factor * b; }, workspaceSize, executor);
}
NPU_EXPORT aclnnStatus aclnnAddsGetWorkspaceSize(const aclTensor* self, const aclScalar* other, const aclScalar* alpha,
                                                 aclTensor* out, uint64_t* workspaceSize, aclOpExecutor** executor) {
  const auto term = static_cast<float>(other->value * alpha->value);
  return Unary(
      "aclnnAdds", self, out, [term](float x) { return x + term; }, workspaceSize, executor);
}
NPU_EXPORT aclnnStatus aclnnMulsGetWorkspaceSize(const aclTensor* self, const aclScalar* other, aclTensor* out,
                                                 uint64_t* workspaceSize, aclOpExecutor** executor) {
  const auto factor = static_cast<float>(other->value);
  return Unary(
      "aclnnMuls", self, out, [factor](float x) { return x * factor; }, workspaceSize, executor);
}

NPU_EXPORT aclnnStatus aclnnGeluBackwardV2GetWorkspaceSize(const aclTensor* gradOutput, const aclTensor* self,
                                                           char* approximate, aclTensor* gradInput,
                                                           uint64_t* workspaceSize, aclOpExecutor** executor) {
  const bool tanh = std::string(approximate) == "tanh";
  if (!tanh && std::string(approximate) != "none")
    return Fail(kInvalid, "aclnnGeluBackwardV2: approximate must be none or tanh");
  return Binary<float>(
      "aclnnGeluBackwardV2", gradOutput, self, gradInput,
      [tanh](double dy, double x) { return dy * GeluSlope(x, tanh); }, workspaceSize, executor);
}
NPU_EXPORT aclnnStatus aclnnSiluBackwardGetWorkspaceSize(const aclTensor* gradOutput, const aclTensor* self,
                                                         aclTensor* gradInput, uint64_t* workspaceSize,
                                                         aclOpExecutor** executor) {
  return Binary<float>(
      "aclnnSiluBackward", gradOutput, self, gradInput,
      [](double dy, double x) { return dy * Sigmoid(x) * (1 + x * (1 - Sigmoid(x))); }, workspaceSize, executor);
}
NPU_EXPORT aclnnStatus aclnnThresholdBackwardGetWorkspaceSize(const aclTensor* gradOutput, const aclTensor* self,
                                                              const aclScalar* threshold, aclTensor* out,
                                                              uint64_t* workspaceSize, aclOpExecutor** executor) {
  return Binary<float>(
      "aclnnThresholdBackward", gradOutput, self, out,
      [limit = threshold->value](double dy, double x) { return x > limit ? dy : 0; }, workspaceSize, executor);
}

NPU_EXPORT aclnnStatus aclnnSWhereGetWorkspaceSize(const aclTensor* condition, const aclTensor* self,
                                                   const aclTensor* other, aclTensor* out, uint64_t* workspaceSize,
                                                   aclOpExecutor** executor) {
  Planner plan("aclnnSWhere");
  plan.Takes({condition, self, other, out}).SameDtype({self, other, out});
  if (plan.ok())
    plan.Need(condition->dtype == ACL_BOOL || condition->dtype == ACL_UINT8, "condition must be BOOL or UINT8");
  Dims values, dims;
  if (plan.ok()) {
    plan.Need(Broadcast(self->dims, other->dims, &values) && Broadcast(values, condition->dims, &dims),
              "its operands do not broadcast");
  }
  if (plan.ok()) plan.Shape(out, dims);
  if (!plan.ok()) return plan.code();
  return plan.Give(
      [c = *condition, a = *self, b = *other, to = *out] {
        const Read<float> holds(c, to.dims), x(a, to.dims), z(b, to.dims);
        Write y(to);
        if (!holds.valid() || !x.valid() || !z.valid() || !y.valid()) return LostMemory("aclnnSWhere");
        const int64_t count = Count(to.dims);
        for (int64_t i = 0; i < count; ++i) y[i] = holds[i] != 0 ? x[i] : z[i];
        y.Finish();
        return Outcome{};
      },
      0, workspaceSize, executor);
}
