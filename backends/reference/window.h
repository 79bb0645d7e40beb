// Windows sliding over images and volumes: what convolution and pooling share. Two-dimensional problems are volumes of
// depth 1.
#pragma once

#include <array>

#include "backends/reference/operation.h"

namespace switchyard {

struct Windows {
  using Triple = std::array<int64_t, 3>;
  Triple in, out, kernel, stride, dilation{1, 1, 1}, before, after;

  // From the spatial dims of the image, the output and the window, and the attributes' arrays; dilations may be null.
  Windows(const Dims& image, const Dims& output, const Dims& window, const int32_t* strides, const int32_t* dilations,
          const int32_t* pad_before, const int32_t* pad_after)
      : in(Deep(image, 1)), out(Deep(output, 1)), kernel(Deep(window, 1)) {
    const auto triple = [&](const int32_t* values, int64_t fill) {
      return Deep(Dims(values, values + image.size()), fill);
    };
    stride = triple(strides, 1);
    if (dilations) dilation = triple(dilations, 1);
    before = triple(pad_before, 0);
    after = triple(pad_after, 0);
  }

  // Positive strides and dilations, no negative padding, and the output size that ops.h states.
  bool Valid(Check& check) const {
    for (size_t i = 0; i < 3; ++i) {
      if (!check.Need(stride[i] > 0 && dilation[i] > 0 && kernel[i] > 0 && before[i] >= 0 && after[i] >= 0,
                      "stride, dilation and kernel must be positive, padding not negative")) {
        return false;
      }
      const int64_t room = in[i] + before[i] + after[i] - dilation[i] * (kernel[i] - 1) - 1;
      check.Need(room >= 0, "the window is larger than the padded image");
      check.Need(room < 0 || out[i] == room / stride[i] + 1,
                 Text("expected ", room / stride[i] + 1, " positions along a spatial axis, found ", out[i]));
    }
    return check.ok();
  }

  // f(tap, input position) for the window at an output position, all counted row-major; taps outside the image are left
  // out.
  template <typename F>
  void ForEachTap(int64_t position, F f) const {
    const Triple o = {position / (out[2] * out[1]), position / out[2] % out[1], position % out[2]};
    Triple k;
    for (k[0] = 0; k[0] < kernel[0]; ++k[0]) {
      for (k[1] = 0; k[1] < kernel[1]; ++k[1]) {
        for (k[2] = 0; k[2] < kernel[2]; ++k[2]) {
          Triple i;
          bool inside = true;
          for (size_t axis = 0; axis < 3; ++axis) {
            i[axis] = o[axis] * stride[axis] - before[axis] + k[axis] * dilation[axis];
            inside = inside && i[axis] >= 0 && i[axis] < in[axis];
          }
          if (inside) f((k[0] * kernel[1] + k[1]) * kernel[2] + k[2], (i[0] * in[1] + i[1]) * in[2] + i[2]);
        }
      }
    }
  }

  int64_t Inputs() const { return in[0] * in[1] * in[2]; }
  int64_t Outputs() const { return out[0] * out[1] * out[2]; }
  int64_t Taps() const { return kernel[0] * kernel[1] * kernel[2]; }

 private:
  static Triple Deep(const Dims& dims, int64_t fill) {
    return dims.size() == 3 ? Triple{dims[0], dims[1], dims[2]} : Triple{fill, dims[0], dims[1]};
  }
};

// The spatial dims of (N, spatial, C).
inline Dims Spatial(const Dims& dims) { return Dims(dims.begin() + 1, dims.end() - 1); }

// The attribute's spatial_rank is 2 or 3, and the input has two axes more.
inline bool CheckSpatialRank(Check& check, int32_t spatial_rank, std::initializer_list<size_t> inputs) {
  check.Need(spatial_rank == 2 || spatial_rank == 3, Text("spatial_rank must be 2 or 3, found ", spatial_rank));
  for (const size_t input : inputs) {
    if (check.ok()) check.Rank("images and weights", input, static_cast<size_t>(spatial_rank) + 2);
  }
  return check.ok() &&
         check.Need(check.OutputDims(0).size() == static_cast<size_t>(spatial_rank) + 2,
                    Text("the output must have rank ", spatial_rank + 2, ", found ", ToText(check.OutputDims(0))));
}

}  // namespace switchyard
