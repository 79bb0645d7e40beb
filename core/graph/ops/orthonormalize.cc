// orthonormalize. It has no gradient: what reads it is no part of a loss.
#include "core/graph/ops/orthonormalize.h"

#include "core/graph/ops/families.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/matmul.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"

namespace switchyard {
namespace {

constexpr float kDependent = 1e-10f;  // share of a row's squares below which what is left of it is rounding

bool IsDrawn(const Attributes& attributes) { return attributes.as<sy_orthonormalize_attributes>().drawn != 0; }

std::vector<TensorType> OrthonormalizeTypes(const Signature& call) {
  const int32_t drawn = call.attributes.as<sy_orthonormalize_attributes>().drawn;
  call.Require(drawn == 0 || drawn == 1, "`drawn` is 0 or 1");
  call.Require(!call.inputs.empty(), "there is no matrix");
  call.Require(drawn == 0 || call.inputs.size() % 2 == 0, "each matrix needs one that is drawn for it");
  const size_t count = call.inputs.size() / (drawn ? 2 : 1);
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    call.Require(call.rank(i) == 2 && call[i].dtype == DType::kF32, "matrices are f32 and of rank 2");
    call.Require(i < count || call[i] == call[i - count], "a matrix and what is drawn for it differ in shape");
  }
  return {call.inputs.begin(), call.inputs.begin() + static_cast<std::ptrdiff_t>(count)};
}

// Rows of zeros replaced.
Value WithoutZeros(const Value& a, const Value& drawn) {
  return ops::Select(ops::Reduce(a, SY_REDUCE_SUM_OF_SQUARES, 1u << 1, 1, true), a, drawn);
}

Value RowByRow(const Value& a) {
  const Value one = ops::Full(a.graph(), {1}, 1);
  std::vector<Value> rows;
  for (int64_t i = 0; i < a.dim(0); ++i) {
    const Value given = a.dim(0) > 1 ? ops::Slice(a, 0, i, 1) : a;
    Value row = given;
    if (i > 0) {
      const Value before = rows.size() > 1 ? ops::Concat(rows, 0) : rows[0];
      for (int round = 0; round < 2; ++round)
        row = ops::Sub(row, ops::Matmul(ops::Matmul(row, before, {.transpose_b = true}), before));
    }
    const Value left = ops::SquaredNorm({row});
    const Value depends = ops::Binary(SY_PW_LESS_EQUAL, left, ops::Scale(ops::SquaredNorm({given}), kDependent));
    rows.push_back(
        ops::Mul(row, ops::Select(depends, ops::Scale(left, 0), ops::Div(one, ops::Unary(SY_PW_SQRT, left)))));
  }
  return rows.size() > 1 ? ops::Concat(rows, 0) : rows[0];
}

std::vector<Value> OrthonormalizeDecompose(Graph&, const Node& node, const std::vector<Value>& inputs) {
  std::vector<Value> results;
  for (size_t i = 0; i < node.outputs.size(); ++i)
    results.push_back(
        RowByRow(IsDrawn(node.attributes) ? WithoutZeros(inputs[i], inputs[node.outputs.size() + i]) : inputs[i]));
  return results;
}

// Of a row: two rounds of a product and a subtraction with each one before it, its squares before and after, a scaling.
double OrthonormalizeFlops(const Graph&, const Node& node) {
  double flops = 0;
  for (const TensorType& q : node.outputs) {
    const auto rows = static_cast<double>(q.shape[0]), columns = static_cast<double>(q.shape[1]);
    flops += columns * (4 * rows * (rows - 1) + 5 * rows);
  }
  return flops;
}

}  // namespace

namespace ops {

std::vector<Value> Orthonormalize(const std::vector<Value>& matrices, const std::vector<Value>& drawn, Where where) {
  std::vector<Value> inputs = matrices;
  inputs.insert(inputs.end(), drawn.begin(), drawn.end());
  return matrices.at(0).graph().Add("orthonormalize", inputs,
                                    Attributes(sy_orthonormalize_attributes{drawn.empty() ? 0 : 1}), {}, where);
}

}  // namespace ops

std::vector<OpDefinition> OrthonormalizeOps() {
  return {{.name = "orthonormalize",
           .summary = "rows of many matrices made orthonormal",
           .infer = OrthonormalizeTypes,
           .decompose = OrthonormalizeDecompose,
           .flops = OrthonormalizeFlops,
           .traits = {.precision = Precision::kFull}}};
}

}  // namespace switchyard
