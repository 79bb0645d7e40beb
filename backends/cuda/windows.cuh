// Images and volumes, channels last, as pooling and resizing see them: two-dimensional ones are volumes of depth 1.
#pragma once

#include "backends/cuda/views.h"

namespace switchyard {

struct Triple {
  int32_t d = 1, h = 1, w = 1;
  __host__ __device__ int64_t Count() const { return int64_t{d} * h * w; }
};

// The spatial extents of x (N, spatial, C), or of an attribute's array; a missing depth is `depth`.
inline Triple SpatialOf(const sy_tensor& x) {
  const int64_t* dims = x.dims + x.rank - 4;  // … h, w, C
  return {x.rank == 5 ? static_cast<int32_t>(dims[0]) : 1, static_cast<int32_t>(dims[1]),
          static_cast<int32_t>(dims[2])};
}
inline Triple TripleOf(const int32_t* values, int spatial_rank, int32_t depth) {
  return spatial_rank == 3 ? Triple{values[0], values[1], values[2]} : Triple{depth, values[0], values[1]};
}

// One of the elements (N, spatial, C), N consecutive channels of it.
struct Place {
  int64_t image, channel;
  Triple at;
};
__device__ __forceinline__ Place PlaceOf(int64_t index, const Triple& extents, int64_t channels) {
  Place place;
  place.channel = index % channels;
  index /= channels;
  place.at.w = static_cast<int32_t>(index % extents.w);
  index /= extents.w;
  place.at.h = static_cast<int32_t>(index % extents.h);
  index /= extents.h;
  place.at.d = static_cast<int32_t>(index % extents.d);
  place.image = index / extents.d;
  return place;
}
__device__ __forceinline__ int64_t IndexOf(int64_t image, int32_t d, int32_t h, int32_t w, int64_t channel,
                                           const Triple& extents, int64_t channels) {
  return (((image * extents.d + d) * extents.h + h) * extents.w + w) * channels + channel;
}

// Both tensors are floats (N, spatial, C) with as many images and channels, no extent beyond 31 bits.
inline bool CheckImages(const Request& r, int32_t spatial_rank, const sy_tensor& x, const sy_tensor& y) {
  const auto complain = [&](const char* what) { return SY_FAIL(r.error, SY_UNSUPPORTED, "%s: %s", r.op, what), false; };
  if (spatial_rank != 2 && spatial_rank != 3) return complain("spatial_rank is neither 2 nor 3");
  if (x.rank != spatial_rank + 2 || y.rank != x.rank) return complain("a tensor is not (N, spatial, C)");
  if (x.dims[0] != y.dims[0] || x.dims[x.rank - 1] != y.dims[y.rank - 1])
    return complain("input and output differ in images or channels");
  for (int i = 0; i < x.rank; ++i) {
    if (x.dims[i] > kMostIndices || y.dims[i] > kMostIndices) return complain("an extent of more than 2³¹ − 1");
  }
  if (r.Accumulates()) return complain("cannot accumulate");
  return r.RequireFloat(x, "an image") && r.RequireFloat(y, "an image");
}

}  // namespace switchyard
