// The convolution graphs against the installed cuDNN: it has engines for each, in strict f32 too.
#define PrepareConvolution PrepareConvolutionAgain
#define PrepareConvolutionBackwardData PrepareConvolutionBackwardDataAgain
#define PrepareConvolutionBackwardWeights PrepareConvolutionBackwardWeightsAgain
#include "backends/cuda/convolution.cc"
#include "tests/gpu/absent_device.h"

namespace switchyard {
namespace {

class ConvolutionGraphs : public CudnnGraphs {
 protected:
  int64_t Engines(const AbsentDevice& gpu, sy_dtype dtype, Direction direction, int rank, int groups, bool bias) {
    sy_convolution_attributes t{};
    t.spatial_rank = rank;
    t.groups = groups;
    t.bias = bias;
    std::vector<int64_t> x = {4}, w = {64}, y = {4};
    for (int i = 0; i < rank; ++i) {
      t.stride[i] = t.dilation[i] = t.before[i] = t.after[i] = 1;
      x.push_back(14);
      w.push_back(3);
      y.push_back(14);
    }
    x.push_back(32);
    w.push_back(32 / groups);
    y.push_back(64);
    const sy_tensor image = TensorOf(dtype, x), weights = TensorOf(dtype, w), result = TensorOf(dtype, y);
    std::vector<sy_tensor> inputs = {image, weights}, outputs = {result};
    if (bias) inputs.push_back(TensorOf(SY_F32, {64}));
    if (direction == Direction::kData) inputs = {result, weights}, outputs = {image};
    if (direction == Direction::kWeights) inputs = {image, result}, outputs = {weights};
    const Convolution kernel(Asking(inputs, outputs, true), t, direction);
    return PermittedEngines(*kernel.Describe(bias), gpu, true, dtype == SY_F32);
  }
};

// What the models do with images and volumes, bf16: the patches of ViT-B/16 and Swin-B, ResNet-50 and the 3-D U-Net.
TEST_F(ConvolutionGraphs, ArePlannedForTheModelsThatUseThem) {
  struct Layer {
    const char* what;
    int rank;
    int64_t batch, extent, channels, filters;
    int kernel, stride, padding;
  };
  constexpr Layer kLayers[] = {{"vit_base patches", 2, 256, 224, 3, 768, 16, 16, 0},
                               {"swin_base patches", 2, 128, 224, 3, 128, 4, 4, 0},
                               {"resnet50 stem", 2, 128, 224, 3, 64, 7, 2, 3},
                               {"resnet50 1x1 of 56", 2, 128, 56, 64, 256, 1, 1, 0},
                               {"resnet50 3x3 of 28", 2, 128, 28, 128, 128, 3, 1, 1},
                               {"resnet50 3x3/2 of 28", 2, 128, 28, 256, 256, 3, 2, 1},
                               {"resnet50 1x1/2 of 14", 2, 128, 14, 1024, 2048, 1, 2, 0},
                               {"resnet50 3x3 of 7", 2, 128, 7, 512, 512, 3, 1, 1},
                               {"unet3d first", 3, 2, 64, 1, 32, 3, 1, 1},
                               {"unet3d finest", 3, 2, 64, 32, 32, 3, 1, 1},
                               {"unet3d down", 3, 2, 64, 32, 64, 2, 2, 0}};
  constexpr const char* kDirections[] = {"", " gradient of x", " gradient of w"};
  for (const AbsentDevice& gpu : kAbsentDevices)
    for (const Layer& layer : kLayers)
      for (const Direction direction : {Direction::kForward, Direction::kData, Direction::kWeights}) {
        sy_convolution_attributes t{};
        t.spatial_rank = layer.rank;
        t.groups = 1;
        const int64_t end = (layer.extent + 2 * layer.padding - layer.kernel) / layer.stride + 1;
        std::vector<int64_t> x = {layer.batch}, w = {layer.filters}, y = {layer.batch};
        for (int i = 0; i < layer.rank; ++i) {
          t.stride[i] = layer.stride;
          t.dilation[i] = 1;
          t.before[i] = t.after[i] = layer.padding;
          x.push_back(layer.extent);
          w.push_back(layer.kernel);
          y.push_back(end);
        }
        x.push_back(layer.channels);
        w.push_back(layer.channels);
        y.push_back(layer.filters);
        const sy_tensor image = TensorOf(SY_BF16, x), weights = TensorOf(SY_BF16, w), result = TensorOf(SY_BF16, y);
        std::vector<sy_tensor> inputs = {image, weights}, outputs = {result};
        if (direction == Direction::kData) inputs = {result, weights}, outputs = {image};
        if (direction == Direction::kWeights) inputs = {image, result}, outputs = {weights};
        const Convolution kernel(Asking(inputs, outputs, true), t, direction);
        ExpectPlan(*kernel.Describe(false), gpu, layer.what + std::string(kDirections[static_cast<int>(direction)]),
                   true, false);
      }
  ExpectNoneIsLeft([](const std::string& line) { return !IsOfAttention(line) && !IsOfGelu(line); });
}

TEST_F(ConvolutionGraphs, HaveEnginesInEveryDirectionRankAndDtype) {
  for (const AbsentDevice& gpu : kAbsentDevices)
    for (const sy_dtype dtype : {SY_F32, SY_BF16, SY_F16})
      for (const Direction direction : {Direction::kForward, Direction::kData, Direction::kWeights})
        for (const int rank : {2, 3})
          for (const int groups : {1, 2})
            EXPECT_GT(Engines(gpu, dtype, direction, rank, groups, false), 0)
                << gpu.name << ", dtype " << dtype << ", direction " << static_cast<int>(direction) << ", rank " << rank
                << ", groups " << groups;
}

// cuDNN computes the extents of y itself, and refuses others: so that each attribute reaches it as what it is shows
// where strides, dilations and the two paddings of two axes all differ.
TEST_F(ConvolutionGraphs, HaveTheExtentsThatTheirAttributesSay) {
  sy_convolution_attributes t{};
  t.spatial_rank = 2;
  t.groups = 1;
  const int32_t stride[] = {2, 1}, dilation[] = {2, 1}, before[] = {1, 2}, after[] = {4, 0};
  for (int i = 0; i < 2; ++i)
    t.stride[i] = stride[i], t.dilation[i] = dilation[i], t.before[i] = before[i], t.after[i] = after[i];
  const auto describe = [&](Direction direction, int64_t height, int64_t width) {
    const sy_tensor image = TensorOf(SY_BF16, {4, 15, 12, 32}), weights = TensorOf(SY_BF16, {64, 3, 4, 32}),
                    result = TensorOf(SY_BF16, {4, height, width, 64});
    std::vector<sy_tensor> inputs = {image, weights}, outputs = {result};
    if (direction == Direction::kData) inputs = {result, weights}, outputs = {image};
    if (direction == Direction::kWeights) inputs = {image, result}, outputs = {weights};
    Convolution(Asking(inputs, outputs, true), t, direction).Describe(false);
  };
  const int64_t height = (15 + 1 + 4 - 5) / 2 + 1, width = 12 + 2 + 0 - 4 + 1;
  for (const Direction direction : {Direction::kForward, Direction::kData, Direction::kWeights}) {
    EXPECT_NO_THROW(describe(direction, height, width)) << static_cast<int>(direction);
    EXPECT_THROW(describe(direction, height - 1, width), CudnnError) << static_cast<int>(direction);
    EXPECT_THROW(describe(direction, height, width + 1), CudnnError) << static_cast<int>(direction);
  }
}

TEST_F(ConvolutionGraphs, TakeABiasAlong) {
  for (const AbsentDevice& gpu : kAbsentDevices)
    for (const sy_dtype dtype : {SY_F32, SY_BF16})
      for (const int rank : {2, 3})
        EXPECT_GT(Engines(gpu, dtype, Direction::kForward, rank, 1, true), 0)
            << gpu.name << ", dtype " << dtype << ", rank " << rank;
}

}  // namespace
}  // namespace switchyard
