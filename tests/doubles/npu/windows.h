// Windows over images and volumes, for convolutions and pooling: channels last inside, an image as a volume of depth 1.
#pragma once

#include "tests/doubles/npu/operator.h"

namespace simulator {

struct Windows {
  int64_t in[3] = {1, 1, 1}, kernel[3] = {1, 1, 1}, stride[3] = {1, 1, 1}, dilation[3] = {1, 1, 1},
          padding[3] = {0, 0, 0}, out[3] = {1, 1, 1};
  int64_t Inputs() const { return in[0] * in[1] * in[2]; }
  int64_t Outputs() const { return out[0] * out[1] * out[2]; }
  int64_t Taps() const { return kernel[0] * kernel[1] * kernel[2]; }
};

// Puts the values of a shape's or an array's last axes into the last places of `to`.
inline void SetLast(int64_t (&to)[3], const Dims& values) {
  for (size_t i = 0; i < values.size(); ++i) to[3 - values.size() + i] = values[i];
}
inline Dims SpatialOf(const aclTensor& tensor) { return Dims(tensor.dims.begin() + 2, tensor.dims.end()); }

// (N, C, spatial) as (N, spatial, C).
inline aclTensor ChannelsLast(aclTensor tensor) {
  for (Dims* each : {&tensor.dims, &tensor.strides}) {
    each->push_back((*each)[1]);
    each->erase(each->begin() + 1);
  }
  return tensor;
}

// f(output position, tap, input position, or −1 in the padding), outputs outermost, in row-major order.
template <typename F>
void ForEachTap(const Windows& w, F f) {
  for (int64_t o = 0; o < w.Outputs(); ++o) {
    const int64_t at[3] = {o / (w.out[1] * w.out[2]), o / w.out[2] % w.out[1], o % w.out[2]};
    for (int64_t tap = 0; tap < w.Taps(); ++tap) {
      const int64_t step[3] = {tap / (w.kernel[1] * w.kernel[2]), tap / w.kernel[2] % w.kernel[1], tap % w.kernel[2]};
      int64_t from = 0;
      bool inside = true;
      for (int i = 0; i < 3; ++i) {
        const int64_t place = at[i] * w.stride[i] - w.padding[i] + step[i] * w.dilation[i];
        inside = inside && place >= 0 && place < w.in[i];
        from = from * w.in[i] + place;
      }
      f(o, tap, inside ? from : int64_t{-1});
    }
  }
}

}  // namespace simulator
