// What ops over spatial axes have in common. Private to core/graph/ops.
#pragma once

#include "core/graph/op.h"

namespace switchyard {

inline int64_t WindowExtent(int64_t n, int64_t kernel, int stride, int dilation, int before, int after) {
  return (n + before + after - int64_t{dilation} * (kernel - 1) - 1) / stride + 1;
}

inline void CheckSpatialRank(const Signature& call, int spatial_rank, int rank) {
  call.Require((spatial_rank == 2 || spatial_rank == 3) && rank == spatial_rank + 2,
               "the input must be (N, H, W, C) or (N, D, H, W, C)");
}

namespace ops {

// Spatial axes of a builder's input.
inline int SpatialRank(const char* op, const Value& x, std::source_location where) {
  const int spatial = x.rank() - 2;
  if (spatial != 2 && spatial != 3)
    ThrowBuildError(op, "the input must be (N, H, W, C) or (N, D, H, W, C)", {x}, where);
  return spatial;
}

}  // namespace ops
}  // namespace switchyard
