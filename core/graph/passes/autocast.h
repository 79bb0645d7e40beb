// Mixed precision by op: matmul, attention and convolution read half-precision copies of their inputs and give
// half-precision results; norms, softmax, losses, exponentials, logarithms and powers compute in f32 (a norm that feeds
// products writes half directly, also through what only selects: a ReLU, a maximum, a part, a concatenation, or a
// resize); the widest type wins elsewhere. What is added inside a product (a bias) stays as it is. Parameters stay f32
// (they are the master weights). Run before the gradients, whose rules then follow the dtypes of the forward nodes.
//
// The levels are those of apex.amp: O1 is the above. O2 makes the model half: what elementwise ops read of parameters
// and of the batch is cast, and norms write half. O3 leaves f32 to the inside of kernels: softmax and losses read
// halves, and so do norms of their parameters, which have only a half's digits.
#pragma once

#include "core/graph/graph.h"

namespace switchyard {

enum class AmpLevel { kO1 = 1, kO2 = 2, kO3 = 3 };

struct AutocastOptions {
  DType half = DType::kBF16;  // or kF16
  AmpLevel level = AmpLevel::kO1;
  bool norms_in_f32 = true;  // parameters of norms keep all digits, at any level
  // O1: the half type wins over a wider one beside it, and norms write it for elementwise ops and other norms too. So
  // sums over blocks (the residual stream), and what norms read of them, are half, as they are at O2 and O3 anyway.
  bool residuals_in_half = false;
};

Graph Autocast(const Graph& forward, const AutocastOptions& options);
inline Graph Autocast(const Graph& forward, DType half) { return Autocast(forward, AutocastOptions{.half = half}); }

}  // namespace switchyard
