// Convolution 2-D and 3-D, pooling and resizing, channels last.
#pragma once

#include <array>

#include "core/abi/ops.h"
#include "core/graph/graph.h"

namespace switchyard::ops {

using Where = std::source_location;

struct WindowOptions {  // per spatial axis; equal on all axes
  int stride = 1, dilation = 1, padding = 0, groups = 1;
};
// x (N, spatial, C), weight (K, kernel, C/groups), bias (K) or none → (N, spatial', K)
Value Convolution(const Value& x, const Value& weight, const Value& bias, const WindowOptions& options,
                  Where where = Where::current());
// x (N, spatial, C), weight (C, kernel, K) → (N, spatial', K): the gradient of a convolution for its input, whose
// spatial' = (n − 1)·stride − 2·padding + dilation·(kernel − 1) + 1 + output_padding. One group.
Value TransposedConvolution(const Value& x, const Value& weight, const WindowOptions& options, int output_padding = 0,
                            Where where = Where::current());
struct PoolOptions {
  int kernel = 2, stride = 2, padding = 0;
  bool average = false, count_include_pad = true;
};
// x (N, spatial, C) → (N, spatial', C): the maximum of each window, or its mean, which counts padding as zeros unless
// count_include_pad is false.
Value Pool(const Value& x, const PoolOptions& options, Where where = Where::current());
// x (N, spatial, C) → (N, size, C), as torch.nn.functional.interpolate; mode SY_RESIZE_*
Value Resize(const Value& x, const Shape& size, int mode, bool align_corners, Where where = Where::current());

}  // namespace switchyard::ops
