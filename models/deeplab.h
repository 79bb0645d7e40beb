// DeepLabV3+ (Chen et al., "Encoder-decoder with atrous separable convolution", ECCV 2018) over a residual network, for
// segmentation: logits for every pixel. The backbone and the pyramid of dilated convolutions have the arithmetic of
// torchvision's DeepLabV3, whose convolutions are not separable. Thread-safe but for the graph that is built.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/nn/context.h"
#include "models/model.h"

namespace switchyard {

struct DeepLabConfig {
  int image_size = 513;  // pixels: of a square
  int channels = 3;
  int classes = 21;
  // Its settings; deeplab.cc says what may stand in them.
  std::vector<std::string> input_size;  // pixels: height and width; none: a square of image_size
  int depth = 50;                       // of the backbone: 50, 101 or 152
  int width = 64;                       // of the backbone behind its stem
  int output_stride = 16;               // of the backbone: 16, or 8 with doubled rates
  int decoder_width = 256;              // channels of the pyramid and of the decoder
  float dropout = 0.5f;                 // behind the pyramid
};

std::vector<ModelInfo> DeepLabs();
DeepLabConfig DeepLabConfigOf(const ResolvedModel& model);

// (H, W), pixels; empty where input_size is not two whole numbers from 1 to 8192.
Shape ExtentsOf(const DeepLabConfig& config);

// InvalidArgument for another depth, output stride or input_size, and for anything below 1.
Status Check(const DeepLabConfig& config);

// images (B, H, W, channels) → logits (B, H, W, classes), (H, W) as ExtentsOf says. Parameters and state:
// backbone.*, as a ResNet's without fc; aspp.convs.<0…4> and aspp.project, a pyramid of a 1×1 convolution, dilated ones
// at rates 6, 12 and 18, and the image's mean; low_level, the 48 channels taken from the first stage; decoder, two 3×3
// convolutions; classifier. Names below these count modules as torch.nn.Sequential does. Throws BuildError for other
// images.
Value DeepLab(const DeepLabConfig& config, nn::Context& context, const Value& images,
              nn::Where where = nn::Where::current());

}  // namespace switchyard
