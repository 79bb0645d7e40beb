// The residual network (He et al., "Deep residual learning for image recognition", CVPR 2016) with the names and the
// arithmetic of torchvision, "v1.5": a bottleneck's stride is on its 3×3 convolution. Basic blocks for 18 and 34
// layers, bottlenecks for 50 and more. Thread-safe but for the graph that is built.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/nn/context.h"
#include "models/model.h"

namespace switchyard {

struct ResNetConfig {
  int image_size = 224;  // pixels, height and width
  int channels = 3;
  int classes = 1000;
  // Its settings; resnet.cc says what may stand in them.
  int depth = 50;             // layers with weights: 18, 34, 50, 101 or 152
  int width = 64;             // channels behind the stem; a stage has 1, 2, 4 and 8 times as many inside its blocks
  std::string stem = "auto";  // "imagenet": 7×7 with stride 2, then a max pool; "small": 3×3, which keeps the
                              // extents; "auto": small for images up to kSmallImage pixels
  bool zero_init_residual = false;  // each block's last norm starts at 0
};
inline constexpr int kSmallImage = 64;

// The variants with their recipes, and the config of one of them.
std::vector<ModelInfo> ResNets();
ResNetConfig ResNetConfigOf(const ResolvedModel& model);
SettingValues OwnSettings(const ResNetConfig& config);
SettingValues ImageNetPreprocessing();  // ModelInfo::preprocessing with the mean and std of ImageNet

// InvalidArgument for another depth or stem, and for anything below 1.
Status Check(const ResNetConfig& config);
bool HasSmallStem(const ResNetConfig& config);
bool HasBottlenecks(const ResNetConfig& config);
std::array<int, 4> BlocksOf(const ResNetConfig& config);  // of each stage

// images (B, H, W, C) → the results of the four stages, (B, h, w, channels), whose strides are 4, 8, 16 and 32 behind
// the stem of ImageNet. output_stride 16 or 8: the last stages keep the extents and dilate their 3×3 convolutions
// instead, as torchvision's replace_stride_with_dilation (bottlenecks only). Parameters and state: conv1, bn1,
// layer<1…4>.<i>.{conv<j>, bn<j>, downsample.0, downsample.1}.
std::array<Value, 4> ResNetStages(const ResNetConfig& config, nn::Context& context, const Value& images,
                                  int output_stride = 32);

// images (B, image_size, image_size, channels) → logits (B, classes). The same, and fc. Throws BuildError for other
// images.
Value ResNet(const ResNetConfig& config, nn::Context& context, const Value& images,
             nn::Where where = nn::Where::current());

}  // namespace switchyard
