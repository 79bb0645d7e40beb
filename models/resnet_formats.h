// The residual networks of other programs: torchvision's and timm's (our own names, layouts as in
// models/convolution_weights.h) and Hugging Face's ResNetForImageClassification. Thread-safe: pure functions.
#pragma once

#include <vector>

#include "models/foreign_format.h"

namespace switchyard {

const std::vector<ForeignFormat>& ResNetFormats();

// Under torchvision's, timm's or Hugging Face's names → ours.
HostTensors ResNetWeightsFromFile(HostTensors tensors);

}  // namespace switchyard
