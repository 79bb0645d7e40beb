// The reference ops against values worked out by hand or quoted from PyTorch's documented behaviour.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/backends/backend.h"

namespace switchyard::test {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::Pointwise;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

MATCHER_P(Near, expected, "") {
  return testing::ExplainMatchResult(Pointwise(DoubleNear(1e-6), expected), arg, result_listener);
}

class ReferenceOps : public testing::Test {
 protected:
  std::vector<Tensor> Run(const Op& op, const std::vector<Tensor>& inputs, std::vector<Tensor> outputs) {
    Result result = backend_.Run(op, inputs, std::move(outputs));
    EXPECT_EQ(result.status, SY_OK) << result.message;
    return result.outputs;
  }
  std::vector<double> First(const Op& op, const std::vector<Tensor>& inputs, Tensor output) {
    const auto outputs = Run(op, inputs, {std::move(output)});
    return outputs[0].values;
  }
  Backend backend_{"reference"};
};

TEST_F(ReferenceOps, MatmulMultipliesWithEitherSideTransposed) {
  const std::vector<double> expected = {58, 64, 139, 154};
  const Tensor a = F32({2, 3}, {1, 2, 3, 4, 5, 6}), b = F32({3, 2}, {7, 8, 9, 10, 11, 12});
  const Tensor at = F32({3, 2}, {1, 4, 2, 5, 3, 6}), bt = F32({2, 3}, {7, 9, 11, 8, 10, 12});
  EXPECT_EQ(First(Op("matmul", sy_matmul_attributes{.alpha = 1}), {a, b}, F32({2, 2})), expected);
  EXPECT_EQ(First(Op("matmul", sy_matmul_attributes{.transpose_a = 1, .alpha = 1}), {at, b}, F32({2, 2})), expected);
  EXPECT_EQ(First(Op("matmul", sy_matmul_attributes{.transpose_b = 1, .alpha = 1}), {a, bt}, F32({2, 2})), expected);
  EXPECT_EQ(
      First(Op("matmul", sy_matmul_attributes{.transpose_a = 1, .transpose_b = 1, .alpha = 1}), {at, bt}, F32({2, 2})),
      expected);
}

TEST_F(ReferenceOps, MatmulEpiloguesApplyInOrder) {
  const Tensor a = F32({1, 1}, {2}), b = F32({1, 2}, {1, -3}), bias = F32({2}, {1, 1}),
               residual = F32({1, 2}, {10, 20});
  const sy_matmul_attributes attributes{
      .alpha = 0.5f, .bias = 1, .activation = SY_ACTIVATION_RELU, .save_preactivation = 1, .residual = 1};
  const auto outputs = Run(Op("matmul", attributes), {a, b, bias, residual}, {F32({1, 2}), F32({1, 2})});
  EXPECT_THAT(outputs[0].values, ElementsAre(12, 20));
  EXPECT_THAT(outputs[1].values, ElementsAre(2, -2));
}

TEST_F(ReferenceOps, AttentionOfEqualScoresIsTheMeanAndAMaskSelects) {
  // q = 0: all scores are equal. v of the two tokens is 2 and 6.
  const Tensor qkv = F32({1, 2, 3, 1, 1}, {0, 5, 2, 0, 7, 6});
  const auto plain =
      Run(Op("attention", sy_attention_attributes{.scale = 1}), {qkv}, {F32({1, 2, 1, 1}), F32({1, 1, 2})});
  EXPECT_THAT(plain[0].values, Near(std::vector<double>{4, 4}));
  EXPECT_THAT(plain[1].values, Near(std::vector<double>{std::log(2), std::log(2)}));
  const Tensor mask = F32({1, 2, 2}, {0, -kInf, -kInf, 0});
  const auto masked = Run(Op("attention", sy_attention_attributes{.scale = 1, .mask = 1}), {qkv, mask},
                          {F32({1, 2, 1, 1}), F32({1, 1, 2})});
  EXPECT_THAT(masked[0].values, ElementsAre(2, 6));
}

TEST_F(ReferenceOps, AttentionMasksRepeatOverTheBatch) {
  // Four images of one token; the mask only shifts the score, which logsumexp shows.
  const Tensor qkv = F32({4, 1, 3, 1, 1}, std::vector<double>(12, 0.0)), mask = F32({2, 1, 1}, {3, 5});
  const auto outputs = Run(Op("attention", sy_attention_attributes{.scale = 1, .mask = 1}), {qkv, mask},
                           {F32({4, 1, 1, 1}), F32({4, 1, 1})});
  EXPECT_THAT(outputs[1].values, ElementsAre(3, 5, 3, 5));
}

TEST_F(ReferenceOps, LayerNormNormalisesTheSum) {
  const Tensor x = F32({1, 2}, {1, 2}), residual = F32({1, 2}, {0, 1}), gamma = F32({2}, {2, 2}),
               beta = F32({2}, {1, 1});
  const auto outputs = Run(Op("layer_norm", sy_layer_norm_attributes{.eps = 0, .residual = 1}),
                           {x, residual, gamma, beta}, {F32({1, 2}), F32({1}), F32({1}), F32({1, 2})});
  EXPECT_THAT(outputs[0].values, ElementsAre(-1, 3));
  EXPECT_THAT(outputs[1].values, ElementsAre(2));
  EXPECT_THAT(outputs[2].values, ElementsAre(1));
  EXPECT_THAT(outputs[3].values, ElementsAre(1, 3));
}

TEST_F(ReferenceOps, SoftmaxSurvivesLargeValues) {
  EXPECT_THAT(First(Op("softmax"), {F32({2, 2}, {1000, 1000, 0, std::log(3)})}, F32({2, 2})),
              Near(std::vector<double>{0.5, 0.5, 0.25, 0.75}));
}

TEST_F(ReferenceOps, CrossEntropySmoothsIgnoresAndTakesSoftTargets) {
  const Tensor logits = F32({3, 2}, {0, 0, 0, std::log(3), 0, 0});
  const auto hard = Run(Op("cross_entropy", sy_cross_entropy_attributes{.label_smoothing = 0.5f, .ignore_index = 1}),
                        {logits, I32({3}, {0, 0, 1})}, {F32({3}), F32({3})});
  const double p0 = std::log(0.25), p1 = std::log(0.75);
  EXPECT_THAT(hard[0].values, Near(std::vector<double>{std::log(2), -0.75 * p0 - 0.25 * p1, 0}));
  EXPECT_THAT(hard[1].values, Near(std::vector<double>{std::log(2), std::log(4), std::log(2)}));
  const auto soft = Run(Op("cross_entropy", sy_cross_entropy_attributes{.soft_targets = 1}),
                        {F32({1, 2}, {0, std::log(3)}), F32({1, 2}, {0.25, 0.75})}, {F32({1}), F32({1})});
  EXPECT_THAT(soft[0].values, Near(std::vector<double>{-0.25 * p0 - 0.75 * p1}));
}

TEST_F(ReferenceOps, CrossEntropyIgnoresEveryNegativeLabel) {
  const sy_cross_entropy_attributes attributes{.label_smoothing = 0.5f, .ignore_index = 255};
  const auto outputs =
      Run(Op("cross_entropy", attributes), {F32({2, 2}, {0, 0, 0, 0}), I32({2}, {-7, 255})}, {F32({2}), F32({2})});
  EXPECT_THAT(outputs[0].values, ElementsAre(0, 0));
  const Tensor ones = F32({2}, {1, 1});
  EXPECT_THAT(First(Op("cross_entropy_backward", attributes),
                    {F32({2, 2}, {0, 0, 0, 0}), I32({2}, {-7, 255}), ones, ones}, F32({2, 2})),
              ElementsAre(0, 0, 0, 0));
}

TEST_F(ReferenceOps, CrossEntropyOfALabelBeyondTheClassesIsNan) {
  const auto outputs = Run(Op("cross_entropy", sy_cross_entropy_attributes{.ignore_index = -100}),
                           {F32({1, 2}, {0, 0}), I32({1}, {2})}, {F32({1}), F32({1})});
  EXPECT_TRUE(std::isnan(outputs[0].values[0]));
}

TEST_F(ReferenceOps, LabelRankBreaksTiesByIndexAndNeverRewardsNan) {
  const Tensor logits = F32({5, 3}, {1, 3, 2, 5, 5, 5, 1, 2, 3, 1, 2, 3, kNan, kNan, kNan});
  EXPECT_THAT(First(Op("label_rank"), {logits, I32({5}, {2, 2, -1, 3, 0})}, I32({5})), ElementsAre(1, 2, 3, 3, 2));
}

TEST_F(ReferenceOps, PointwiseRunsAProgramOverBroadcastInputs) {
  // o0 = (a + b)·0.5, o1 = a < b ? a : b with a (2, 1) and b (3)
  sy_pointwise_attributes program{.instruction_count = 5, .output_count = 2, .outputs = {4, 6}};
  program.instructions[0] = {SY_PW_ADD, 0, 1};
  program.instructions[1] = {SY_PW_CONSTANT, 0, 0, 0, 0.5f};
  program.instructions[2] = {SY_PW_MUL, 2, 3};
  program.instructions[3] = {SY_PW_LESS, 0, 1};
  program.instructions[4] = {SY_PW_SELECT, 5, 0, 1};
  const auto outputs =
      Run(Op("pointwise", program), {F32({2, 1}, {1, 10}), F32({3}, {0, 2, 20})}, {F32({2, 3}), F32({2, 3})});
  EXPECT_THAT(outputs[0].values, ElementsAre(0.5, 1.5, 10.5, 5, 6, 15));
  EXPECT_THAT(outputs[1].values, ElementsAre(0, 1, 1, 0, 2, 10));
}

TEST_F(ReferenceOps, PointwiseArithmeticIsF32) {
  sy_pointwise_attributes program{.instruction_count = 2, .output_count = 2, .outputs = {1, 2}};
  program.instructions[0] = {SY_PW_MUL, 0, 0};
  program.instructions[1] = {SY_PW_IS_FINITE, 1};
  const auto outputs = Run(Op("pointwise", program), {F32({2}, {1e30, 3})}, {F32({2}), F32({2})});
  EXPECT_THAT(outputs[0].values, ElementsAre(kInf, 9));
  EXPECT_THAT(outputs[1].values, ElementsAre(0, 1));
}

TEST_F(ReferenceOps, PointwiseFunctionsHaveTheirValues) {
  const auto apply = [&](int32_t op, double a, double b = 0) {
    sy_pointwise_attributes program{
        .instruction_count = 1, .output_count = 1, .outputs = {2}, .instructions = {{op, 0, 1, 0}}};
    return First(Op("pointwise", program), {F64({1}, {a}), F64({1}, {b})}, F64({1}))[0];
  };
  EXPECT_DOUBLE_EQ(apply(SY_PW_SUB, 5, 3), 2);
  EXPECT_DOUBLE_EQ(apply(SY_PW_DIV, 1, 4), 0.25);
  EXPECT_DOUBLE_EQ(apply(SY_PW_MAX, -1, 4), 4);
  EXPECT_DOUBLE_EQ(apply(SY_PW_MIN, -1, 4), -1);
  EXPECT_TRUE(std::isnan(apply(SY_PW_MAX, 1, kNan)));
  EXPECT_TRUE(std::isnan(apply(SY_PW_MIN, kNan, 1)));
  EXPECT_DOUBLE_EQ(apply(SY_PW_POW, 2, 10), 1024);
  EXPECT_DOUBLE_EQ(apply(SY_PW_NEG, 2), -2);
  EXPECT_DOUBLE_EQ(apply(SY_PW_ABS, -2), 2);
  EXPECT_DOUBLE_EQ(apply(SY_PW_EXP, 1), M_E);
  EXPECT_DOUBLE_EQ(apply(SY_PW_LOG, M_E), 1);
  EXPECT_DOUBLE_EQ(apply(SY_PW_SQRT, 9), 3);
  EXPECT_DOUBLE_EQ(apply(SY_PW_RSQRT, 4), 0.5);
  EXPECT_DOUBLE_EQ(apply(SY_PW_RECIPROCAL, 4), 0.25);
  EXPECT_DOUBLE_EQ(apply(SY_PW_TANH, 0.5), std::tanh(0.5));
  EXPECT_DOUBLE_EQ(apply(SY_PW_SIGMOID, 0), 0.5);
  EXPECT_DOUBLE_EQ(apply(SY_PW_ERF, 0.5), std::erf(0.5));
  EXPECT_DOUBLE_EQ(apply(SY_PW_FLOOR, -1.5), -2);
  EXPECT_DOUBLE_EQ(apply(SY_PW_RELU, -1), 0);
  EXPECT_NEAR(apply(SY_PW_GELU, 1), 0.8413447460685429, 1e-12);
  EXPECT_NEAR(apply(SY_PW_GELU_TANH, 1), 0.8411919906082768, 1e-12);
  EXPECT_NEAR(apply(SY_PW_SILU, 1), 0.7310585786300049, 1e-12);
  EXPECT_DOUBLE_EQ(apply(SY_PW_LESS_EQUAL, 2, 2), 1);
  EXPECT_DOUBLE_EQ(apply(SY_PW_EQUAL, 2, 3), 0);
}

TEST_F(ReferenceOps, ReduceKeepsOrDropsAxesAndScales) {
  const Tensor x = F32({2, 3}, {1, -2, 3, 4, 5, -6});
  const auto reduce = [&](int32_t reduction, uint32_t axes, std::vector<int64_t> dims, float scale = 1) {
    return First(Op("reduce", sy_reduce_attributes{.reduction = reduction, .axes = axes, .scale = scale}), {x},
                 F32(std::move(dims)));
  };
  EXPECT_THAT(reduce(SY_REDUCE_SUM, 0b01, {3}), ElementsAre(5, 3, -3));
  EXPECT_THAT(reduce(SY_REDUCE_SUM, 0b10, {2, 1}, 0.5f), ElementsAre(1, 1.5));
  EXPECT_THAT(reduce(SY_REDUCE_MAX, 0b10, {2}), ElementsAre(3, 5));
  EXPECT_THAT(reduce(SY_REDUCE_MIN, 0b11, {}), ElementsAre(-6));
  EXPECT_THAT(reduce(SY_REDUCE_SUM_OF_SQUARES, 0b11, {1, 1}), ElementsAre(91));
}

TEST_F(ReferenceOps, ReduceKeepsNan) {
  for (const int32_t reduction : {SY_REDUCE_SUM, SY_REDUCE_MAX, SY_REDUCE_MIN, SY_REDUCE_SUM_OF_SQUARES}) {
    const Op op("reduce", sy_reduce_attributes{.reduction = reduction, .axes = 1, .scale = 1});
    EXPECT_TRUE(std::isnan(First(op, {F32({3}, {1, kNan, 2})}, F32({1}))[0])) << reduction;
  }
}

TEST_F(ReferenceOps, SquaredNormCoversAllTensorsAndShowsInfinity) {
  EXPECT_THAT(First(Op("squared_norm"), {F32({2}, {1, 2}), F32({1, 2}, {3, 4})}, F32({1})), ElementsAre(30));
  EXPECT_THAT(First(Op("squared_norm"), {F32({2}, {1, kInf})}, F32({})), ElementsAre(kInf));
}

TEST_F(ReferenceOps, LayoutOpsMoveElements) {
  const Tensor x = F32({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(First(Op("transpose", sy_axes_attributes{.values = {1, 0}}), {x}, F32({3, 2})),
              ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_THAT(First(Op("slice", sy_slice_attributes{.start = {1, 2}, .step = {1, -2}}), {x}, F32({1, 2})),
              ElementsAre(6, 4));
  EXPECT_THAT(First(Op("pad", sy_pad_attributes{.before = {0, 1}, .after = {1, 0}, .value = 9}), {x}, F32({3, 4})),
              ElementsAre(9, 1, 2, 3, 9, 4, 5, 6, 9, 9, 9, 9));
  EXPECT_THAT(First(Op("roll", sy_axes_attributes{.values = {1, -1}}), {x}, F32({2, 3})),
              ElementsAre(5, 6, 4, 2, 3, 1));
  EXPECT_THAT(First(Op("concat", sy_axes_attributes{.values = {1}}), {x, F32({2, 1}, {7, 8})}, F32({2, 4})),
              ElementsAre(1, 2, 3, 7, 4, 5, 6, 8));
}

TEST_F(ReferenceOps, GatherClampsAndScatterAddSums) {
  const Tensor table = F32({3, 2}, {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(First(Op("gather"), {table, I32({4}, {2, 0, -3, 7})}, F32({4, 2})), ElementsAre(5, 6, 1, 2, 1, 2, 5, 6));
  EXPECT_THAT(First(Op("scatter_add"), {I32({3}, {1, 1, 0}), F32({3, 1}, {10, 20, 5})}, F32({3, 1})),
              ElementsAre(5, 30, 0));
}

// The first words of Philox4x32-10 with an all-zero counter and key are 6627e8d5 e169c58d bc57ac4c 9b00dbd8
// (Random123's kat_vectors).
TEST_F(ReferenceOps, DropoutDrawsPhiloxWords) {
  const Tensor x = F32({1, 4}, {1, 1, 1, 1}), ids = I32({1}, {0}), step = I32({2}, {0, 0});
  const double uniform[] = {0x6627e8 * 0x1p-24, 0xe169c5 * 0x1p-24, 0xbc57ac * 0x1p-24, 0x9b00db * 0x1p-24};
  for (size_t i = 0; i < 4; ++i) {
    const auto p = static_cast<float>(uniform[i]);  // exact: 24 bits
    EXPECT_GT(First(Op("dropout", sy_dropout_attributes{.p = p}), {x, ids, step}, F32({1, 4}))[i], 0)
        << "kept where the draw equals p";
    EXPECT_EQ(First(Op("dropout", sy_dropout_attributes{.p = std::nextafter(p, 1.0f)}), {x, ids, step}, F32({1, 4}))[i],
              0);
  }
  EXPECT_THAT(First(Op("dropout", sy_dropout_attributes{.p = 0.5f}), {x, ids, step}, F32({1, 4})),
              ElementsAre(0, 2, 2, 2));
  EXPECT_THAT(First(Op("dropout", sy_dropout_attributes{.p = 0.5f, .per_sample = 1}), {x, ids, step}, F32({1, 4})),
              ElementsAre(0, 0, 0, 0));
}

TEST_F(ReferenceOps, DropoutOfASampleDependsOnItsIdAlone) {
  Tensor x = F32({2, 8}, std::vector<double>(16, 1.0));
  const Tensor step = I32({2}, {3, 1});
  const Op op("dropout", sy_dropout_attributes{.key = 0x1234567890abcdef, .p = 0.5f});
  const auto both = First(op, {x, I32({2}, {40, 41}), step}, F32({2, 8}));
  x.dims = {1, 8};
  x.values.resize(8);
  EXPECT_THAT(First(op, {x, I32({1}, {41}), step}, F32({1, 8})), ElementsAreArray(both.begin() + 8, both.end()));
}

class Optimizer : public ReferenceOps {
 protected:
  std::vector<Tensor> Update(const sy_optimizer_attributes& attributes, double update, double finite,
                             std::vector<Tensor> states, double g = 4, double scale = 0.5) {
    std::vector<Tensor> inputs = {F32({1}, {0.1}),    F32({1}, {update}), F32({1}, {scale}),
                                  F32({1}, {finite}), F32({1}, {1}),      F32({1}, {g})};
    inputs.insert(inputs.end(), states.begin(), states.end());
    return Run(Op("optimizer_update", attributes), inputs, std::vector<Tensor>(1 + states.size(), F32({1})));
  }
};

TEST_F(Optimizer, SgdDecaysAndKeepsMomentum) {
  const sy_optimizer_attributes plain{.kind = SY_OPTIMIZER_SGD, .weight_decay = 0.5f};
  EXPECT_THAT(Update(plain, 0, 1, {})[0].values, Near(std::vector<double>{1 - 0.1 * 2.5}));
  sy_optimizer_attributes momentum{.kind = SY_OPTIMIZER_SGD, .momentum = 0.9f, .dampening = 0.5f};
  EXPECT_THAT(Update(momentum, 0, 1, {F32({1}, {7})})[1].values, Near(std::vector<double>{2}))
      << "m = g at the first update";
  const auto later = Update(momentum, 1, 1, {F32({1}, {3})});
  EXPECT_THAT(later[1].values, Near(std::vector<double>{3.7}));
  EXPECT_THAT(later[0].values, Near(std::vector<double>{1 - 0.37}));
  momentum.nesterov = 1;
  EXPECT_THAT(Update(momentum, 1, 1, {F32({1}, {3})})[0].values, Near(std::vector<double>{1 - 0.1 * (2 + 0.9 * 3.7)}));
}

TEST_F(Optimizer, FirstAdamStepIsTheLearningRate) {
  sy_optimizer_attributes attributes{.kind = SY_OPTIMIZER_ADAM, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 0};
  const auto adam = Update(attributes, 0, 1, {F32({1}, {0}), F32({1}, {0})});
  EXPECT_THAT(adam[0].values, Near(std::vector<double>{0.9}));
  EXPECT_THAT(adam[1].values, Near(std::vector<double>{0.2}));
  EXPECT_THAT(adam[2].values, Near(std::vector<double>{0.004}));
  attributes.kind = SY_OPTIMIZER_ADAMW;
  attributes.weight_decay = 0.5f;
  EXPECT_THAT(Update(attributes, 0, 1, {F32({1}, {0}), F32({1}, {0})})[0].values, Near(std::vector<double>{0.85}));
}

TEST_F(Optimizer, NothingChangesWhereTheGradientsAreNotFinite) {
  const sy_optimizer_attributes attributes{
      .kind = SY_OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.999f, .weight_decay = 0.5f};
  const auto outputs = Update(attributes, 3, 0, {F32({1}, {5}), F32({1}, {6})}, kNan);
  EXPECT_THAT(outputs[0].values, ElementsAre(1));
  EXPECT_THAT(outputs[1].values, ElementsAre(5));
  EXPECT_THAT(outputs[2].values, ElementsAre(6));
}

TEST_F(ReferenceOps, ConvolutionCorrelates) {
  // 3 × 3 image, 2 × 2 window, bias 100.
  const Tensor x = F32({1, 3, 3, 1}, {1, 2, 3, 4, 5, 6, 7, 8, 9}), w = F32({1, 2, 2, 1}, {1, 0, 0, 10});
  const sy_convolution_attributes attributes{
      .spatial_rank = 2, .stride = {1, 1}, .dilation = {1, 1}, .groups = 1, .bias = 1};
  EXPECT_THAT(First(Op("convolution", attributes), {x, w, F32({1}, {100})}, F32({1, 2, 2, 1})),
              ElementsAre(151, 162, 184, 195));
}

TEST_F(ReferenceOps, ConvolutionStepsDilatesAndGroups) {
  // Two channels, each its own group; window of 2 with a hole, stride 2, one zero before.
  const Tensor x = F32({1, 1, 4, 2}, {1, 10, 2, 20, 3, 30, 4, 40}), w = F32({2, 1, 2, 1}, {1, 5, 1, 1});
  const sy_convolution_attributes attributes{
      .spatial_rank = 2, .stride = {1, 2}, .dilation = {1, 2}, .before = {0, 1}, .groups = 2};
  EXPECT_THAT(First(Op("convolution", attributes), {x, w}, F32({1, 1, 2, 2})), ElementsAre(10, 20, 22, 60));
}

TEST_F(ReferenceOps, PoolingTakesTheFirstMaximumAndCountsPaddingOnRequest) {
  sy_pool_attributes attributes{.spatial_rank = 2, .kernel = {2, 2}, .stride = {2, 2}, .before = {1, 1}};
  const Tensor x = F32({1, 3, 3, 1}, {1, 2, 2, 4, 8, 8, 7, 8, 8});
  EXPECT_THAT(First(Op("pool", attributes), {x}, F32({1, 2, 2, 1})), ElementsAre(1, 2, 7, 8));
  EXPECT_THAT(First(Op("pool_backward", attributes), {x, F32({1, 2, 2, 1}, {1, 2, 3, 4})}, F32({1, 3, 3, 1})),
              ElementsAre(1, 2, 0, 0, 4, 0, 3, 0, 0));
  attributes.average = 1;
  EXPECT_THAT(First(Op("pool", attributes), {x}, F32({1, 2, 2, 1})), ElementsAre(1, 2, 5.5, 8));
  attributes.count_include_pad = 1;
  EXPECT_THAT(First(Op("pool", attributes), {x}, F32({1, 2, 2, 1})), ElementsAre(0.25, 1, 2.75, 8));
}

TEST_F(ReferenceOps, BatchNormNormalisesByBiasedAndRemembersUnbiasedVariance) {
  const Tensor x = F32({2, 1}, {1, 3}), gamma = F32({1}, {2}), beta = F32({1}, {1}), mean = F32({1}, {10}),
               variance = F32({1}, {20});
  const sy_batch_norm_attributes attributes{.eps = 0, .momentum = 0.5f};
  const auto outputs = Run(Op("batch_norm", attributes), {x, gamma, beta, mean, variance},
                           {F32({2, 1}), F32({1}), F32({1}), F32({1}), F32({1})});
  EXPECT_THAT(outputs[0].values, ElementsAre(-1, 3));
  EXPECT_THAT(outputs[1].values, ElementsAre(2));
  EXPECT_THAT(outputs[2].values, ElementsAre(1));
  EXPECT_THAT(outputs[3].values, ElementsAre(6));
  EXPECT_THAT(outputs[4].values, ElementsAre(11));
  EXPECT_THAT(
      First(Op("batch_norm_inference", attributes), {x, gamma, beta, F32({1}, {1}), F32({1}, {4})}, F32({2, 1})),
      ElementsAre(1, 3));
}

TEST_F(ReferenceOps, ResizeAsTorchInterpolate) {
  const Tensor x = F32({1, 1, 4, 1}, {0, 1, 2, 3});
  const auto resize = [&](int32_t mode, int32_t align, int64_t width) {
    return First(Op("resize", sy_resize_attributes{.spatial_rank = 2, .mode = mode, .align_corners = align}), {x},
                 F32({1, 1, width, 1}));
  };
  EXPECT_THAT(resize(SY_RESIZE_NEAREST, 0, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(resize(SY_RESIZE_NEAREST, 0, 6), ElementsAre(0, 0, 1, 2, 2, 3));
  EXPECT_THAT(resize(SY_RESIZE_LINEAR, 0, 2), ElementsAre(0.5, 2.5));
  EXPECT_THAT(resize(SY_RESIZE_LINEAR, 0, 8), ElementsAre(0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3));
  EXPECT_THAT(resize(SY_RESIZE_LINEAR, 1, 7), ElementsAre(0, 0.5, 1, 1.5, 2, 2.5, 3));
}

}  // namespace
}  // namespace switchyard::test
