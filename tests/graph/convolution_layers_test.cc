// Layers of convolutional networks: shapes, names, starting values and refusals, and how weights lie in files.
#include <cmath>

#include "core/graph/gradients.h"
#include "core/graph/ops/reduction.h"
#include "core/nn/convolution.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/convolution_weights.h"
#include "tests/graph/steps.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

class ConvolutionLayers : public ::testing::Test {
 protected:
  const Node& Input(const std::string& name) {
    const Value value = graph_.FindInput(name);
    if (!value) throw std::runtime_error("no input " + name);
    return graph_.node(value.ref().node);
  }
  Value Images(const Shape& shape) { return graph_.Input("x", {DType::kF32, shape}, {}); }
  Graph graph_;
  nn::Context context_{graph_, true, 42};
};

TEST_F(ConvolutionLayers, AConvolutionKeepsTheExtentsUnlessToldOtherwise) {
  const Value x = Images({2, 9, 7, 6});
  EXPECT_EQ(nn::Convolution(context_, "same", x, 4).shape(), (Shape{2, 9, 7, 4}));
  EXPECT_EQ(nn::Convolution(context_, "dilated", x, 4, {.dilation = 2}).shape(), (Shape{2, 9, 7, 4}));
  EXPECT_EQ(nn::Convolution(context_, "strided", x, 4, {.kernel = 7, .stride = 2}).shape(), (Shape{2, 5, 4, 4}));
  EXPECT_EQ(nn::Convolution(context_, "valid", x, 4, {.groups = 2, .padding = 0, .bias = true}).shape(),
            (Shape{2, 7, 5, 4}));
  EXPECT_EQ(Input("valid.weight").outputs[0].shape, (Shape{4, 3, 3, 3}));
  EXPECT_EQ(Input("valid.bias").outputs[0].shape, (Shape{4}));
  EXPECT_TRUE(Input("valid.weight").input->weight_decay);
  EXPECT_FALSE(Input("valid.bias").input->weight_decay);
}

// torch.nn.init: kaiming_normal_(mode="fan_out", nonlinearity="relu"), and what Conv2d and ConvTranspose2d begin with.
TEST_F(ConvolutionLayers, WeightsStartAsPyTorchs) {
  const Value x = Images({2, 9, 7, 6});
  nn::Convolution(context_, "he", x, 8);
  EXPECT_EQ(Input("he.weight").input->initializer.kind, Initializer::kNormal);
  EXPECT_FLOAT_EQ(Input("he.weight").input->initializer.value, std::sqrt(2.0f / (8 * 9)));
  nn::Convolution(context_, "torch", x, 8, {.bias = true, .start = nn::ConvolutionStart::kTorch});
  for (const char* name : {"torch.weight", "torch.bias"}) {
    EXPECT_EQ(Input(name).input->initializer.kind, Initializer::kUniform);
    EXPECT_FLOAT_EQ(Input(name).input->initializer.value, 1 / std::sqrt(6.0f * 9));
  }
  nn::TransposedConvolution(context_, "up", x, 5);
  EXPECT_FLOAT_EQ(Input("up.weight").input->initializer.value, 1 / std::sqrt(5.0f * 4));
}

TEST_F(ConvolutionLayers, ATransposedConvolutionUndoesTheExtentsOfAStride) {
  const Value volume = Images({2, 3, 4, 5, 6});
  const Value y = nn::TransposedConvolution(context_, "up", volume, 3);
  EXPECT_EQ(y.shape(), (Shape{2, 6, 8, 10, 3}));
  EXPECT_EQ(Input("up.weight").outputs[0].shape, (Shape{6, 2, 2, 2, 3}));
  EXPECT_EQ(nn::TransposedConvolution(context_, "odd", volume, 3,
                                      {.kernel = 3, .padding = 1, .output_padding = 1, .bias = false})
                .shape(),
            (Shape{2, 6, 8, 10, 3}));
  EXPECT_FALSE(graph_.FindInput("odd.bias"));
  const Value weight = graph_.FindInput("up.weight");
  EXPECT_EQ(Gradients(ops::Sum(y), {weight})[0].shape(), weight.shape());
}

TEST_F(ConvolutionLayers, ABatchNormKeepsRunningStatisticsInTrainingAndReadsThemElsewhere) {
  const Value x = Images({2, 3, 3, 6});
  nn::BatchNorm(context_, "bn", x, {.zero = true});
  EXPECT_EQ(Input("bn.weight").input->initializer.kind, Initializer::kZeros);
  EXPECT_FALSE(Input("bn.weight").input->weight_decay);
  for (const auto& [name, start] : {std::pair{"bn.running_mean", 0.0f}, {"bn.running_var", 1.0f}}) {
    const Node& state = Input(name);
    EXPECT_EQ(state.input->role, Role::kState);
    EXPECT_TRUE(state.input->of_model);
    EXPECT_EQ(state.input->initializer.value, start);
    EXPECT_EQ(state.outputs[0].shape, Shape{6});
  }
  EXPECT_EQ(Count(graph_, "assign"), 2);

  Graph other;
  nn::Context evaluation(other, false);
  nn::BatchNorm(evaluation, "bn", other.Input("x", x.type(), {}));
  EXPECT_EQ(Count(other, "batch_norm"), 0);
  EXPECT_EQ(Count(other, "batch_norm_inference"), 1);
  EXPECT_EQ(Count(other, "assign"), 0);
}

TEST_F(ConvolutionLayers, PoolingAndResizing) {
  const Value x = Images({2, 9, 7, 6});
  EXPECT_EQ(nn::MaxPool(x, 3, 2, 1).shape(), (Shape{2, 5, 4, 6}));
  EXPECT_EQ(nn::GlobalAveragePool(x).shape(), (Shape{2, 6}));
  EXPECT_EQ(nn::ResizeLinear(x, {18, 10}).shape(), (Shape{2, 18, 10, 6}));
}

TEST_F(ConvolutionLayers, WhatDoesNotFitIsRefused) {
  const Value x = Images({2, 9, 7, 6});
  EXPECT_THAT(ErrorOf([&] { nn::Convolution(context_, "c", x, 4, {.groups = 4}); }), HasSubstr("4 groups must divide"));
  EXPECT_THAT(ErrorOf([&] { nn::Convolution(context_, "c", x, 4, {.stride = 0}); }), HasSubstr("1 or more"));
  const Value rows = graph_.Input("rows", {DType::kF32, {2, 6}}, {});
  EXPECT_THAT(ErrorOf([&] { nn::GlobalAveragePool(rows); }), HasSubstr("(N, H, W, C)"));
  EXPECT_THAT(ErrorOf([&] { nn::TransposedConvolution(context_, "t", x, 4, {.output_padding = 2}); }),
              HasSubstr("output_padding less than the stride"));
}

TEST(ConvolutionWeights, LieInFilesAsPyTorchHasThem) {
  HostTensors file;  // (K, C, h, w) with k·1000 + c·100 + h·10 + w
  HostTensor& weight = file["conv.weight"];
  weight.shape = {2, 3, 4, 5};
  for (int i = 0; i < 120; ++i)
    weight.values.push_back(static_cast<float>(i / 60 * 1000 + i / 20 % 3 * 100 + i / 5 % 4 * 10 + i % 5));
  file["fc.weight"] = {{2, 3}, {1, 2, 3, 4, 5, 6}};
  file["bn.num_batches_tracked"] = {{}, {7}};
  const HostTensors ours = ConvolutionWeightsFromFile(file);
  EXPECT_FALSE(ours.contains("bn.num_batches_tracked"));
  EXPECT_EQ(ours.at("conv.weight").shape, (Shape{2, 4, 5, 3}));
  EXPECT_EQ(ours.at("conv.weight").values[((1 * 4 + 2) * 5 + 3) * 3 + 1], 1123);
  EXPECT_EQ(ours.at("fc.weight").values, file.at("fc.weight").values);
  const HostTensors back = ConvolutionWeightsToFile(ours);
  EXPECT_EQ(back.at("conv.weight").shape, weight.shape);
  EXPECT_EQ(back.at("conv.weight").values, weight.values);
}

}  // namespace
}  // namespace switchyard
