// Layers of convolutional networks, as functions of values: convolution, batch norm, pooling and resizing over images
// (N, H, W, C) or volumes (N, D, H, W, C). Parameters are named as torch.nn names them (<name>.weight, <name>.bias,
// <name>.running_mean, <name>.running_var). The graph holds a convolution's weight as (K, kernel, C/groups), files hold
// it as (K, C/groups, kernel): models/convolution_weights.h permutes it.
//
// Not thread-safe. Wrong shapes throw BuildError with the line that called the layer.
#pragma once

#include <optional>
#include <string>

#include "core/abi/ops.h"
#include "core/nn/context.h"

namespace switchyard::nn {

// How a convolution's weight starts.
enum class ConvolutionStart {
  // Normal with deviation √(2 / (K·kernel elements)): He et al. 2015, for what goes out into a ReLU;
  // torchvision's ResNet.
  kHeFanOut,
  // Uniform within ±1/√(kernel elements · C/groups), the bias too: torch.nn.Conv2d's own.
  kTorch,
};

struct ConvolutionOptions {  // equal along all spatial axes
  int kernel = 3, stride = 1, dilation = 1, groups = 1;
  std::optional<int> padding;  // on each side; none: dilation·(kernel − 1)/2, which keeps the extent at stride 1
  bool bias = false;
  ConvolutionStart start = ConvolutionStart::kHeFanOut;
};
// x (N, spatial, C) → (N, spatial', out). Parameters weight (out, kernel, C/groups), bias (out).
Value Convolution(Context& context, const std::string& name, const Value& x, int64_t out,
                  const ConvolutionOptions& options = {}, Where where = Where::current());

struct TransposedConvolutionOptions {
  int kernel = 2, stride = 2, padding = 0, output_padding = 0;
  bool bias = true;
};
// x (N, spatial, C) → (N, spatial', out) with spatial' = (n − 1)·stride − 2·padding + kernel + output_padding: the
// gradient of a convolution for its input, as torch.nn.ConvTranspose2d. Parameters weight (C, kernel, out), bias (out),
// which start as there.
Value TransposedConvolution(Context& context, const std::string& name, const Value& x, int64_t out,
                            const TransposedConvolutionOptions& options = {}, Where where = Where::current());

struct BatchNormOptions {
  float eps = 1e-5f;
  float momentum = 0.1f;  // share of the new in running statistics
  bool zero = false;      // weight starts at 0: a residual branch that ends in it starts as nothing (Goyal et al. 2017)
};
// x (…, C) → the same shape (Ioffe and Szegedy 2015): in training with the batch's statistics, else with the running
// ones. Parameters weight (C) from 1, bias (C) from 0, without weight decay; state running_mean (C) from 0, running_var
// (C) from 1, which every micro-batch of training moves, whether or not the update is skipped.
Value BatchNorm(Context& context, const std::string& name, const Value& x, const BatchNormOptions& options = {},
                Where where = Where::current());

// relu(norm(convolution(x))), each under its own name. The fusion pass joins what the backend can.
Value ConvolutionNormReLU(Context& context, const std::string& convolution, const std::string& norm, const Value& x,
                          int64_t out, const ConvolutionOptions& options = {},
                          const BatchNormOptions& norm_options = {}, Where where = Where::current());

Value ReLU(const Value& x, Where where = Where::current());
// x (N, spatial, C) → (N, spatial', C)
Value MaxPool(const Value& x, int kernel, int stride, int padding = 0, Where where = Where::current());
// x (N, spatial, C) → (N, C): the mean over all places.
Value GlobalAveragePool(const Value& x, Where where = Where::current());
// x (N, spatial, C) → (N, size, C): bilinear, trilinear; the pixels' centres do not move (align_corners = False).
Value ResizeLinear(const Value& x, const Shape& size, Where where = Where::current());

}  // namespace switchyard::nn
