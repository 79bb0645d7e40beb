// The 3-D U-Net for volumes (Çiçek et al., "3D U-Net: Learning Dense Volumetric Segmentation from Sparse Annotation",
// MICCAI 2016): each level convolves twice, 3×3×3 with batch norm and ReLU; on the way down a max pool halves the
// extents and the width doubles, on the way up what comes from below is enlarged and joined with what the level had on
// the way down. Thread-safe but for the graph that is built.
//
// Its weights have names of its own, in files as in the graph (convolutions in PyTorch's layout there):
//   encoder.<i>.{conv1, norm1, conv2, norm2}   level i, from 0, the finest
//   decoder.<i>.{conv1, norm1, conv2, norm2}   the same on the way up, for all but the coarsest; its first convolution
//                                              reads (level, from below) in this order
//   decoder.<i>.up.{weight, bias}              up=transposed alone
//   head.{weight, bias}                        1×1×1
// norm<j> is {weight, bias, running_mean, running_var}; convolutions before a norm have no bias.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/nn/context.h"
#include "models/model.h"

namespace switchyard {

struct UNet3dConfig {
  int image_size = 64;  // voxels: of a cube
  int channels = 1;
  int classes = 1;  // channels of the logits
  // Its settings; unet3d.cc says what may stand in them.
  std::vector<std::string> patch_size;  // voxels: depth, height, width; none: a cube of image_size
  int width = 32;                       // channels of the finest level; doubles from level to level
  int levels = 4;
  std::string up = "trilinear";  // or "transposed": a convolution 2×2×2 with stride 2, which halves the width
};

std::vector<ModelInfo> UNets3d();
UNet3dConfig UNet3dConfigOf(const ResolvedModel& model);

// (D, H, W), voxels; empty where patch_size is not three whole numbers from 1 to 8192.
Shape ExtentsOf(const UNet3dConfig& config);

// InvalidArgument for extents that cannot be halved levels − 1 times, and for anything below 1.
Status Check(const UNet3dConfig& config);

// volumes (B, D, H, W, channels) → logits (B, D, H, W, classes). Throws BuildError for other volumes.
Value UNet3d(const UNet3dConfig& config, nn::Context& context, const Value& volumes,
             nn::Where where = nn::Where::current());

}  // namespace switchyard
