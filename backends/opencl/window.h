// Windows that slide over images and volumes (N, spatial, C): what convolution, pooling and resizing share.
#pragma once

#include "backends/opencl/kernel.h"

namespace switchyard {

// As in window.cl. Two-dimensional problems have depth 1.
struct Window {
  int32_t in[3] = {1, 1, 1}, out[3] = {1, 1, 1}, kernel[3] = {1, 1, 1}, stride[3] = {1, 1, 1}, dilation[3] = {1, 1, 1},
          before[3] = {0, 0, 0};

  int64_t Inputs() const { return int64_t{in[0]} * in[1] * in[2]; }
  int64_t Outputs() const { return int64_t{out[0]} * out[1] * out[2]; }
  int64_t Taps() const { return int64_t{kernel[0]} * kernel[1] * kernel[2]; }
};

// Fills in and out from x (N, spatial, C) and y (N, spatial', C'). False, with a message, unless both have spatial_rank
// + 2 axes and equally many images.
bool SetExtents(const Request& r, int32_t spatial_rank, const sy_tensor& x, const sy_tensor& y, Window* window);
// False, with a message, unless the window's sizes are positive and y is as large as ops.h says. `after`: spatial_rank
// values.
bool CheckExtents(const Request& r, int32_t spatial_rank, const Window& window, const int32_t* after);
// Sets spatial_rank values of a field from the attribute's array.
inline void SetAxes(int32_t spatial_rank, const int32_t* values, int32_t* field) {
  for (int i = 0; i < spatial_rank; ++i) field[3 - spatial_rank + i] = values[i];
}

}  // namespace switchyard
