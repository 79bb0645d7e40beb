// Matrix products, with what GPUs and oneDNN can do in the same kernel (core/abi/ops.h: matmul).
#pragma once

#include "core/abi/ops.h"
#include "core/graph/graph.h"

namespace switchyard::ops {

using Where = std::source_location;

struct MatmulOptions {
  bool transpose_a = false, transpose_b = false;
  float alpha = 1;
  Value bias;  // (N)
};
// a (…, M, K), b (…, K, N), equal leading axes → (…, M, N)
Value Matmul(const Value& a, const Value& b, const MatmulOptions& options = {}, Where where = Where::current());
// x (…, K), weight (N, K), bias (N) or none → (…, N): x·weightᵀ + bias, as torch.nn.functional.linear
Value Linear(const Value& x, const Value& weight, const Value& bias, Where where = Where::current());

// Any matmul node, with a result of this dtype: inputs in the order of core/abi/ops.h. Used by rewriting passes.
std::vector<Value> MatmulNode(const std::vector<Value>& inputs, sy_matmul_attributes attributes, DType dtype,
                              Where where = Where::current(), const std::string& name = "");

}  // namespace switchyard::ops
