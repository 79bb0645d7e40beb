#include "tools/conform/op_data.h"

#include <cmath>
#include <limits>

#include "core/base/random.h"

namespace switchyard::conform {
namespace {

sy_dtype DtypeOf(Type type, sy_dtype tested) {
  switch (type) {
    case Type::kTested:
      return tested;
    case Type::kF32:
      return tested == SY_F64 ? SY_F64 : SY_F32;
    case Type::kI32:
      return SY_I32;
    case Type::kI64:
      return SY_I64;
    default:
      return SY_U8;
  }
}

sy_tensor TensorOf(const Operand& operand, sy_dtype tested) {
  sy_tensor tensor = Contiguous(DtypeOf(operand.type, tested), operand.dims);
  if (operand.transposed) {
    tensor.strides[tensor.rank - 1] = tensor.dims[tensor.rank - 2];
    tensor.strides[tensor.rank - 2] = 1;
  }
  return tensor;
}

}  // namespace

std::vector<double> Random(Fill fill, double value, const sy_tensor& tensor, uint64_t key) {
  RandomStream random(key);
  std::vector<double> values(static_cast<size_t>(Elements(tensor)));
  for (size_t i = 0; i < values.size(); ++i) {
    double& v = values[i];
    switch (fill) {
      case Fill::kNormal:
        v = random.Normal();
        break;
      case Fill::kPositive:
      case Fill::kProbability:
        v = random.Uniform(0.5f, 2.0f);
        break;
      case Fill::kIntegers:
        v = static_cast<double>(random.Below(7)) - 3;
        break;
      case Fill::kIndex:
        v = value < 1 ? 0 : random.Below(static_cast<uint32_t>(value));
        break;
      case Fill::kPermutation:
        v = static_cast<double>(i);
        std::swap(v, values[random.Below(static_cast<uint32_t>(i) + 1)]);
        break;
      case Fill::kSignedIndex:
        v = static_cast<double>(random.Below(static_cast<uint32_t>(value) + 2)) - 1;
        break;
      case Fill::kConstant:
        v = value;
        break;
      case Fill::kDrifting:
        v = random.Normal() + value * static_cast<double>(i) / static_cast<double>(values.size());
        break;
      case Fill::kMask:
        v = random.Below(4) == 0 ? -100 : 0;
        break;
      case Fill::kExtreme: {
        constexpr double kInfinity = std::numeric_limits<double>::infinity();
        constexpr double kSpecial[] = {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN(), 1e4, 0};
        const uint32_t which = random.Below(10);
        v = which < std::size(kSpecial) ? kSpecial[which] : random.Normal();
        break;
      }
    }
  }
  if (fill == Fill::kProbability) {
    const size_t row = static_cast<size_t>(tensor.dims[tensor.rank - 1]);
    for (size_t begin = 0; begin < values.size(); begin += row) {
      double sum = 0;
      for (size_t i = 0; i < row; ++i) sum += values[begin + i];
      for (size_t i = 0; i < row; ++i) values[begin + i] /= sum;
    }
  }
  return Rounded(values, tensor.dtype);
}

Problem MakeProblem(const OpCase& one, sy_dtype tested, uint64_t seed) {
  Problem problem;
  problem.op = one.op;
  problem.attributes = one.attributes;
  for (size_t i = 0; i < one.inputs.size(); ++i) {
    const Operand& operand = one.inputs[i];
    problem.inputs.push_back(TensorOf(operand, tested));
    problem.values.emplace_back();
    if (operand.source == Source::kFresh) {
      const uint64_t key = Key(seed, HashName(one.name), HashName(one.op), i);
      // An incoming gradient is normal, whatever the fill of the output that it belongs to.
      const Fill fill = operand.gradient_of >= 0 ? Fill::kNormal : operand.fill;
      problem.values.back() = Random(fill, operand.value, problem.inputs.back(), key);
    }
  }
  for (const Operand& operand : one.outputs) problem.outputs.push_back(TensorOf(operand, tested));
  return problem;
}

Problem InDoubles(const Problem& problem) {
  Problem doubles = problem;
  for (auto* tensors : {&doubles.inputs, &doubles.outputs}) {
    for (sy_tensor& tensor : *tensors) {
      const Dims dims(tensor.dims, tensor.dims + tensor.rank);
      tensor = Contiguous(IsFloat(tensor.dtype) ? SY_F64 : tensor.dtype, dims);
    }
  }
  return doubles;
}

StatusOr<Problem> MakeWholeProblem(const OpCase& one, sy_dtype tested, uint64_t seed, Device& reference) {
  Problem problem = MakeProblem(one, tested, seed);
  if (one.forward < 0) return problem;
  const Problem forward = MakeProblem(OpCases()[static_cast<size_t>(one.forward)], tested, seed);
  auto results = RunOp(reference, InDoubles(forward));
  if (!results.ok()) return Annotate(results.status(), "forward on the reference");
  for (size_t i = 0; i < one.inputs.size(); ++i) {
    const Operand& operand = one.inputs[i];
    if (operand.source == Source::kForwardInput) problem.values[i] = forward.values[operand.index];
    if (operand.source == Source::kForwardOutput) {
      problem.values[i] = Rounded((*results)[operand.index], problem.inputs[i].dtype);
    }
  }
  return problem;
}

}  // namespace switchyard::conform
