// Every backward op of the reference against central differences of its forward, all in f64.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "tests/backends/backend.h"

namespace switchyard::test {
namespace {

using Values = std::vector<double>;
using Dims = std::vector<int64_t>;

class Gradient : public testing::Test {
 protected:
  // Normal values. No two are equal, so a maximum has no ties.
  Tensor Random(const Dims& dims, double scale = 1) {
    Tensor tensor = F64(dims);
    std::normal_distribution<double> normal(0, scale);
    for (int64_t i = 0; i < Count(dims); ++i) tensor.values.push_back(normal(random_));
    return tensor;
  }

  std::vector<Tensor> Run(const Op& op, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs) {
    Result result = backend_.Run(op, inputs, outputs);
    EXPECT_EQ(result.status, SY_OK) << result.message;
    return result.outputs;
  }

  // The gradient of Σ outputs·cotangents with respect to input `which`, by central differences.
  Values Differences(const Op& op, std::vector<Tensor> inputs, size_t which, const std::vector<Tensor>& outputs,
                     const std::vector<Tensor>& cotangents) {
    const auto loss = [&] {
      const std::vector<Tensor> results = Run(op, inputs, outputs);
      double sum = 0;
      for (size_t o = 0; o < cotangents.size(); ++o) {
        for (size_t i = 0; i < cotangents[o].values.size(); ++i) sum += results[o].values[i] * cotangents[o].values[i];
      }
      return sum;
    };
    Values gradient;
    for (double& value : inputs[which].values) {
      const double original = value, step = 1e-5;
      value = original + step;
      const double above = loss();
      value = original - step;
      gradient.push_back((above - loss()) / (2 * step));
      value = original;
    }
    return gradient;
  }

  static void ExpectClose(const Values& actual, const Values& expected) {
    EXPECT_THAT(actual, testing::Pointwise(testing::DoubleNear(2e-8), expected));
  }

  Backend backend_{"reference"};
  std::mt19937 random_{7};
};

TEST_F(Gradient, MatmulWithBiasAndEveryActivation) {
  const Tensor x = Random({2, 5, 3}), w = Random({2, 3, 4}), bias = Random({4}), dy = Random({2, 5, 4});
  for (const int32_t activation :
       {SY_ACTIVATION_NONE, SY_ACTIVATION_GELU, SY_ACTIVATION_GELU_TANH, SY_ACTIVATION_RELU, SY_ACTIVATION_SILU}) {
    const Op forward("matmul",
                     sy_matmul_attributes{.alpha = 0.5f, .bias = 1, .activation = activation, .save_preactivation = 1});
    const std::vector<Tensor> inputs = {x, w, bias}, outputs = {F64({2, 5, 4}), F64({2, 5, 4})};
    const Tensor preactivation = Run(forward, inputs, outputs)[1];

    // dy·act'(preactivation) by way of a product with the identity.
    Tensor identity = F64({2, 4, 4}, Values(32, 0.0));
    for (size_t i = 0; i < 32; i += 16) {
      for (size_t j = 0; j < 4; ++j) identity.values[i + j * 5] = 1;
    }
    const Op derivative("matmul", sy_matmul_attributes{.alpha = 1, .activation = activation, .activation_gradient = 1});
    const Tensor g = Run(derivative, {dy, identity, preactivation}, {F64({2, 5, 4})})[0];
    const Op dx("matmul", sy_matmul_attributes{.transpose_b = 1, .alpha = 0.5f});
    ExpectClose(Run(dx, {g, w}, {F64({2, 5, 3})})[0].values, Differences(forward, inputs, 0, outputs, {dy}));
    const Op dw("matmul", sy_matmul_attributes{.transpose_a = 1, .alpha = 0.5f});
    ExpectClose(Run(dw, {x, g}, {F64({2, 3, 4})})[0].values, Differences(forward, inputs, 1, outputs, {dy}));
    const Op db("matmul", sy_matmul_attributes{.transpose_a = 1, .alpha = 1, .bias_gradient = 1});
    ExpectClose(Run(db, {g, x}, {F64({2, 4, 3}), F64({4})})[1].values, Differences(forward, inputs, 2, outputs, {dy}));
  }
}

TEST_F(Gradient, AttentionWithBiasAndMask) {
  const Tensor qkv = Random({4, 3, 3, 2, 5}), bias = Random({2, 3, 3}), mask = Random({2, 3, 3}),
               dout = Random({4, 3, 2, 5});
  const sy_attention_attributes attributes{.scale = 0.7f, .bias = 1, .mask = 1};
  const Op forward("attention", attributes), backward("attention_backward", attributes);
  const std::vector<Tensor> inputs = {qkv, bias, mask}, outputs = {F64({4, 3, 2, 5}), F64({4, 2, 3})};
  const auto saved = Run(forward, inputs, outputs);
  const auto gradients = Run(backward, {qkv, saved[0], saved[1], dout, bias, mask}, {F64(qkv.dims), F64(bias.dims)});
  ExpectClose(gradients[0].values, Differences(forward, inputs, 0, outputs, {dout}));
  ExpectClose(gradients[1].values, Differences(forward, inputs, 1, outputs, {dout}));
}

TEST_F(Gradient, LayerNorm) {
  const Tensor x = Random({2, 3, 5}), gamma = Random({5}), beta = Random({5}), dy = Random({2, 3, 5});
  const sy_layer_norm_attributes attributes{.eps = 1e-3f};
  const Op forward("layer_norm", attributes), backward("layer_norm_backward", attributes);
  const std::vector<Tensor> inputs = {x, gamma, beta}, outputs = {F64({2, 3, 5}), F64({2, 3}), F64({2, 3})};
  const auto saved = Run(forward, inputs, outputs);
  const auto gradients = Run(backward, {x, gamma, saved[1], saved[2], dy}, {F64({2, 3, 5}), F64({5}), F64({5})});
  for (size_t i = 0; i < 3; ++i) ExpectClose(gradients[i].values, Differences(forward, inputs, i, outputs, {dy}));
}

TEST_F(Gradient, LayerNormWithResidual) {
  const Tensor x = Random({4, 5}), residual = Random({4, 5}), gamma = Random({5}), beta = Random({5}),
               dy = Random({4, 5});
  const Tensor dsum = Random({4, 5}), none = F64({4}, Values(4, 0.0));
  const sy_layer_norm_attributes attributes{.eps = 1e-3f, .residual = 1};
  const Op forward("layer_norm", attributes), backward("layer_norm_backward", attributes);
  const std::vector<Tensor> inputs = {x, residual, gamma, beta},
                            outputs = {F64({4, 5}), F64({4}), F64({4}), F64({4, 5})};
  const auto saved = Run(forward, inputs, outputs);
  const auto gradients =
      Run(backward, {saved[3], gamma, saved[1], saved[2], dy, dsum}, {F64({4, 5}), F64({5}), F64({5})});
  const std::vector<Tensor> cotangents = {dy, none, none, dsum};
  ExpectClose(gradients[0].values, Differences(forward, inputs, 0, outputs, cotangents));
  ExpectClose(gradients[0].values, Differences(forward, inputs, 1, outputs, cotangents));
  ExpectClose(gradients[1].values, Differences(forward, inputs, 2, outputs, cotangents));
  ExpectClose(gradients[2].values, Differences(forward, inputs, 3, outputs, cotangents));
}

TEST_F(Gradient, BatchNorm) {
  const Tensor x = Random({2, 3, 2, 4}), gamma = Random({4}), beta = Random({4}), dy = Random({2, 3, 2, 4});
  const sy_batch_norm_attributes attributes{.eps = 1e-3f, .momentum = 0.1f};
  const Op forward("batch_norm", attributes), backward("batch_norm_backward", attributes);
  const std::vector<Tensor> inputs = {x, gamma, beta, Random({4}), Random({4})};
  const std::vector<Tensor> outputs = {F64(x.dims), F64({4}), F64({4}), F64({4}), F64({4})};
  const auto saved = Run(forward, inputs, outputs);
  const auto gradients = Run(backward, {x, gamma, saved[1], saved[2], dy}, {F64(x.dims), F64({4}), F64({4})});
  for (size_t i = 0; i < 3; ++i) ExpectClose(gradients[i].values, Differences(forward, inputs, i, outputs, {dy}));
}

TEST_F(Gradient, Softmax) {
  const Tensor x = Random({3, 2, 5}), dy = Random({3, 2, 5});
  const auto y = Run(Op("softmax"), {x}, {F64(x.dims)});
  const auto dx = Run(Op("softmax_backward"), {y[0], dy}, {F64(x.dims)});
  ExpectClose(dx[0].values, Differences(Op("softmax"), {x}, 0, {F64(x.dims)}, {dy}));
}

TEST_F(Gradient, CrossEntropyOfLabelsAndOfSoftTargets) {
  const Tensor logits = Random({4, 5}), dloss = Random({4});
  Tensor soft = Random({4, 5});
  for (double& value : soft.values) value = std::abs(value);
  for (const bool is_soft : {false, true}) {
    const sy_cross_entropy_attributes attributes{.label_smoothing = 0.1f, .ignore_index = 3, .soft_targets = is_soft};
    const Op forward("cross_entropy", attributes), backward("cross_entropy_backward", attributes);
    const std::vector<Tensor> inputs = {logits, is_soft ? soft : I32({4}, {2, -1, 3, 0})},
                              outputs = {F64({4}), F64({4})};
    const auto saved = Run(forward, inputs, outputs);
    const auto gradient = Run(backward, {logits, inputs[1], saved[1], dloss}, {F64({4, 5})});
    ExpectClose(gradient[0].values, Differences(forward, inputs, 0, outputs, {dloss}));
  }
}

TEST_F(Gradient, PointwiseDerivatives) {
  const Tensor x = Random({50}, 2), ones = F64({50}, Values(50, 1.0));
  const std::pair<int32_t, int32_t> pairs[] = {{SY_PW_RELU, SY_PW_RELU_GRAD},
                                               {SY_PW_GELU, SY_PW_GELU_GRAD},
                                               {SY_PW_GELU_TANH, SY_PW_GELU_TANH_GRAD},
                                               {SY_PW_SILU, SY_PW_SILU_GRAD}};
  for (const auto& [function, derivative] : pairs) {
    sy_pointwise_attributes attributes{
        .instruction_count = 1, .output_count = 1, .outputs = {1}, .instructions = {{function}}};
    const Op forward("pointwise", attributes);
    attributes.instructions[0].op = derivative;
    ExpectClose(Run(Op("pointwise", attributes), {x}, {F64({50})})[0].values,
                Differences(forward, {x}, 0, {F64({50})}, {ones}));
  }
}

TEST_F(Gradient, GatherIsTheTransposeOfScatterAdd) {
  const Tensor table = Random({4, 3}), indices = I32({2, 3}, {0, 3, 3, 1, -5, 9}), dy = Random({2, 3, 3});
  const auto dtable = Run(Op("scatter_add"), {indices, dy}, {F64({4, 3})});
  ExpectClose(dtable[0].values, Differences(Op("gather"), {table, indices}, 0, {F64({2, 3, 3})}, {dy}));
}

TEST_F(Gradient, DropoutIsItsOwn) {
  const Tensor x = Random({3, 8}), dy = Random({3, 8}), ids = I32({3}, {5, 6, 9}), step = I32({2}, {4, 1});
  for (const int32_t per_sample : {0, 1}) {
    const Op op("dropout", sy_dropout_attributes{.key = 77, .p = 0.4f, .per_sample = per_sample});
    ExpectClose(Run(op, {dy, ids, step}, {F64({3, 8})})[0].values,
                Differences(op, {x, ids, step}, 0, {F64({3, 8})}, {dy}));
  }
}

struct ConvolutionCase {
  Dims x, w, y;
  sy_convolution_attributes attributes;
};

TEST_F(Gradient, ConvolutionGroupedStridedDilatedAndInThreeDimensions) {
  const ConvolutionCase cases[] = {
      {{2, 5, 4, 2},
       {3, 3, 2, 2},
       {2, 5, 4, 3},
       {.spatial_rank = 2, .stride = {1, 1}, .dilation = {1, 1}, .before = {1, 0}, .after = {1, 1}, .groups = 1}},
      {{1, 7, 6, 4},
       {4, 3, 3, 2},
       {1, 3, 2, 4},
       {.spatial_rank = 2, .stride = {2, 3}, .dilation = {2, 1}, .before = {1, 1}, .after = {2, 0}, .groups = 2}},
      {{1, 3, 4, 3, 2},
       {2, 2, 3, 1, 1},
       {1, 3, 2, 3, 2},
       {.spatial_rank = 3,
        .stride = {1, 2, 1},
        .dilation = {1, 1, 1},
        .before = {1, 1, 0},
        .after = {0, 0, 0},
        .groups = 2}}};
  for (const ConvolutionCase& test : cases) {
    const Tensor x = Random(test.x), w = Random(test.w), dy = Random(test.y);
    const Op forward("convolution", test.attributes);
    const std::vector<Tensor> outputs = {F64(test.y)};
    const auto dx = Run(Op("convolution_backward_data", test.attributes), {dy, w}, {F64(test.x)});
    const auto dw = Run(Op("convolution_backward_weights", test.attributes), {x, dy}, {F64(test.w)});
    ExpectClose(dx[0].values, Differences(forward, {x, w}, 0, outputs, {dy}));
    ExpectClose(dw[0].values, Differences(forward, {x, w}, 1, outputs, {dy}));
  }
}

TEST_F(Gradient, PoolingOfEveryKind) {
  sy_pool_attributes flat{.spatial_rank = 2, .kernel = {3, 2}, .stride = {2, 1}, .before = {1, 1}, .after = {1, 0}};
  const Tensor x = Random({2, 5, 4, 3}), dy = Random({2, 3, 4, 3});
  for (const auto& [average, include_pad] : {std::pair{0, 0}, {1, 0}, {1, 1}}) {
    flat.average = average;
    flat.count_include_pad = include_pad;
    const auto dx = Run(Op("pool_backward", flat), {x, dy}, {F64(x.dims)});
    ExpectClose(dx[0].values, Differences(Op("pool", flat), {x}, 0, {F64(dy.dims)}, {dy}));
  }
  const sy_pool_attributes deep{.spatial_rank = 3, .kernel = {2, 2, 2}, .stride = {2, 2, 2}};
  const Tensor volume = Random({1, 4, 2, 4, 2}), dvolume = Random({1, 2, 1, 2, 2});
  const auto dx = Run(Op("pool_backward", deep), {volume, dvolume}, {F64(volume.dims)});
  ExpectClose(dx[0].values, Differences(Op("pool", deep), {volume}, 0, {F64(dvolume.dims)}, {dvolume}));
}

TEST_F(Gradient, ResizeOfEveryMode) {
  for (const auto& [mode, align] : {std::pair{SY_RESIZE_NEAREST, 0}, {SY_RESIZE_LINEAR, 0}, {SY_RESIZE_LINEAR, 1}}) {
    const Op forward("resize", sy_resize_attributes{.spatial_rank = 2, .mode = mode, .align_corners = align});
    Op backward = forward;
    backward.name = "resize_backward";
    const Tensor x = Random({2, 3, 4, 2}), dy = Random({2, 5, 3, 2});
    const auto dx = Run(backward, {dy}, {F64(x.dims)});
    ExpectClose(dx[0].values, Differences(forward, {x}, 0, {F64(dy.dims)}, {dy}));
  }
  const Op deep("resize", sy_resize_attributes{.spatial_rank = 3, .mode = SY_RESIZE_LINEAR, .align_corners = 1});
  Op backward = deep;
  backward.name = "resize_backward";
  const Tensor volume = Random({1, 2, 2, 3, 2}), dvolume = Random({1, 4, 3, 6, 2});
  ExpectClose(Run(backward, {dvolume}, {F64(volume.dims)})[0].values,
              Differences(deep, {volume}, 0, {F64(dvolume.dims)}, {dvolume}));
}

}  // namespace
}  // namespace switchyard::test
