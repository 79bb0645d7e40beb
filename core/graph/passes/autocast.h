// Mixed precision by op: matmul, attention and convolution read half-precision copies of their inputs and
// give half-precision results; norms, softmax and losses compute in f32 (a norm that feeds a matmul writes half
// directly); the widest type wins elsewhere. Parameters stay f32 (they are the master weights). Run before the
// gradients, whose rules then follow the dtypes of the forward nodes.
#pragma once

#include "core/graph/graph.h"

namespace switchyard {

// half: kBF16 or kF16.
Graph Autocast(const Graph& forward, DType half);

}  // namespace switchyard
