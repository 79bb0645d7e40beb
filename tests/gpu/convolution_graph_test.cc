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

TEST_F(ConvolutionGraphs, TakeABiasAlong) {
  for (const AbsentDevice& gpu : kAbsentDevices)
    for (const sy_dtype dtype : {SY_F32, SY_BF16})
      for (const int rank : {2, 3})
        EXPECT_GT(Engines(gpu, dtype, Direction::kForward, rank, 1, true), 0)
            << gpu.name << ", dtype " << dtype << ", rank " << rank;
}

}  // namespace
}  // namespace switchyard
