#include "models/mlp.h"

#include <cmath>

#include "core/graph/ops/layout.h"
#include "core/nn/layers.h"
#include "fmt/format.h"

namespace switchyard {

Status Check(const MultiLayerPerceptronConfig& c) {
  if (c.image_size < 1 || c.channels < 1 || c.classes < 1 || c.width < 1 || c.depth < 1) {
    return InvalidArgument("image size, channels, classes, width and depth must be positive");
  }
  if (c.dropout < 0 || c.dropout >= 1) return InvalidArgument("dropout {} must lie in [0, 1)", c.dropout);
  return OkStatus();
}

Value MultiLayerPerceptron(const MultiLayerPerceptronConfig& config, nn::Context& context, const Value& images,
                           nn::Where where) {
  const int64_t batch = images.dim(0);
  if (images.shape() != Shape{batch, config.image_size, config.image_size, config.channels}) {
    ThrowBuildError("mlp", fmt::format("images must be (B, {0}, {0}, {1})", config.image_size, config.channels),
                    {images}, where);
  }
  const auto uniform = [](const Value& x) {
    return Initializer{Initializer::kUniform, 1 / std::sqrt(static_cast<float>(x.dim(-1)))};
  };
  Value x = ops::Reshape(images, {batch, -1});
  for (int layer = 1; layer <= config.depth; ++layer) {
    x = nn::Linear(context, fmt::format("fc{}", layer), x, config.width,
                   {.initializer = uniform(x), .activation = SY_ACTIVATION_GELU});
    x = nn::Dropout(context, fmt::format("drop{}", layer), x, config.dropout);
  }
  return nn::Linear(context, "head", x, config.classes, {.initializer = uniform(x)});
}

}  // namespace switchyard
