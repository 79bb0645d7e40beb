// A multi-layer perceptron for quick checks: the image's rows, flattened as (H, W, C), through `depth` hidden layers
// with exact GELU. Thread-safe but for the graph that is built.
#pragma once

#include "core/base/status.h"
#include "core/nn/context.h"
#include "models/model.h"

namespace switchyard {

struct MultiLayerPerceptronConfig {
  int image_size = 28;  // pixels, height and width
  int channels = 1;
  int classes = 10;
  // Its settings; mlp.cc says what may stand in them.
  int width = 256;    // of every hidden layer
  int depth = 2;      // hidden layers
  float dropout = 0;  // behind every hidden layer
};

std::vector<ModelInfo> MultiLayerPerceptrons();

// InvalidArgument for anything below 1, and for a dropout outside [0, 1).
Status Check(const MultiLayerPerceptronConfig& config);

// images (B, H, W, C) → logits (B, classes). Parameters fc1 … fc<depth>, head; weights start uniform in ±1/√K, as
// torch.nn.Linear's.
Value MultiLayerPerceptron(const MultiLayerPerceptronConfig& config, nn::Context& context, const Value& images,
                           nn::Where where = nn::Where::current());

}  // namespace switchyard
