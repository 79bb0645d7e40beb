#include "core/graph/gradients.h"

#include "core/graph/op.h"
#include "core/graph/ops/attention.h"
#include "core/graph/ops/convolution.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/loss.h"
#include "core/graph/ops/matmul.h"
#include "core/graph/ops/normalization.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/graph/steps.h"

namespace switchyard {
namespace {

struct Differentiated {
  Graph graph;
  std::vector<Value> parameters, gradients;
};

std::unique_ptr<Differentiated> Differentiate(const ModelOptions& options) {
  auto result = std::make_unique<Differentiated>();
  Graph& graph = result->graph;
  const ResolvedModel model = Resolved(options);
  nn::Context context(graph, true);
  const int size = model.image_size;
  const Value images = graph.Input("images", {DType::kF32, {2, size, size, model.channels}}, {});
  const Value labels = graph.Input("labels", {DType::kI32, {2}}, {});
  const Value loss = ops::Mean(ops::CrossEntropy(BuildModel(model, context, images), labels));
  for (const int id : graph.Inputs(Role::kParameter)) result->parameters.push_back(graph.value({id, 0}));
  result->gradients = Gradients(loss, result->parameters);
  return result;
}

TEST(GradientsTest, EveryParameterHasAGradientOfItsTypeInTheBackwardPhase) {
  for (const char* name : {"vit_micro", "mlp"}) {
    const auto step = Differentiate({.name = name, .own = {{"dropout", 0.1f}}});
    for (size_t i = 0; i < step->parameters.size(); ++i) {
      const std::string& parameter = step->graph.node(step->parameters[i].ref().node).name;
      ASSERT_TRUE(step->gradients[i]) << parameter;
      EXPECT_EQ(step->gradients[i].type(), step->parameters[i].type()) << parameter;
      EXPECT_EQ(step->graph.node(step->gradients[i].ref().node).phase, Phase::kBackward) << parameter;
    }
  }
}

TEST(GradientsTest, LastLayersFinishFirst) {
  const auto step = Differentiate({.name = "vit_micro", .own = {{"depth", 3}}});
  std::map<std::string, int> position;
  for (size_t i = 0; i < step->parameters.size(); ++i) {
    position[step->graph.node(step->parameters[i].ref().node).name] = step->gradients[i].ref().node;
  }
  EXPECT_LT(position["head.weight"], position["blocks.2.mlp.fc2.weight"]);
  EXPECT_LT(position["blocks.2.attn.qkv.weight"], position["blocks.1.mlp.fc2.weight"]);
  EXPECT_LT(position["blocks.0.attn.qkv.weight"], position["patch_embed.proj.weight"]);
}

TEST(GradientsTest, BackwardNodesPointAtTheirForwardNodes) {
  const auto step = Differentiate({.name = "vit_micro", .own = {{"depth", 3}}});
  int paired = 0;
  for (const Node& node : step->graph.nodes()) {
    if (node.op != "attention_backward" && node.op != "layer_norm_backward") continue;
    ASSERT_GE(node.forward, 0) << node.name;
    EXPECT_EQ(step->graph.node(node.forward).op + "_backward", node.op);
    ++paired;
  }
  EXPECT_EQ(paired, 3 + 7);
}

TEST(GradientsTest, ImagesNeedNone) {
  // The patch projection's input gradient would be the one matmul more.
  const auto step = Differentiate({.name = "vit_micro", .own = {{"depth", 1}}});
  const int forward = 4 + 2, weights = 4 + 2, inputs = 4 + 1;
  EXPECT_EQ(Count(step->graph, "matmul"), forward + weights + inputs);
}

TEST(GradientsTest, AValueThatTheLossDoesNotReadHasNone) {
  Graph graph;
  const Value used = graph.Input("used", {DType::kF32, {3}}, {}),
              unused = graph.Input("unused", {DType::kF32, {3}}, {});
  const auto gradients = Gradients(ops::Sum(ops::Mul(used, used)), {used, unused});
  EXPECT_TRUE(gradients[0]);
  EXPECT_FALSE(gradients[1]);
}

TEST(GradientsTest, ABroadcastInputsGradientIsSummedToItsShape) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {4, 5, 6}}, {}), b = graph.Input("b", {DType::kF32, {5, 1}}, {});
  const auto gradients = Gradients(ops::Sum(ops::Mul(x, b)), {x, b});
  EXPECT_EQ(gradients[0].shape(), (Shape{4, 5, 6}));
  EXPECT_EQ(gradients[1].shape(), (Shape{5, 1}));
}

TEST(GradientsTest, AHalfOpsF32BiasHasAnF32GradientAndAHalfOneAHalfGradient) {
  const auto half = [](const Shape& shape) { return TensorType{DType::kBF16, shape}; };
  Graph graph;
  const Value wide = graph.Input("wide", {DType::kF32, {3}}, {}), narrow = graph.Input("narrow", half({2, 4, 4}), {});
  const Value y =
      ops::Convolution(graph.Input("x", half({1, 4, 4, 2}), {}), graph.Input("w", half({3, 1, 1, 2}), {}), wide, {});
  const Value z = ops::Attention(graph.Input("qkv", half({1, 4, 3, 2, 8}), {}), narrow);
  const Value sum = graph.Input("sum", half({2, 3}), {});
  const Value wide_sum =
      graph.Add("reduce", {sum}, Attributes(sy_reduce_attributes{SY_REDUCE_SUM, 1, 1}), {.dtypes = {DType::kF32}})[0];
  const Value loss = ops::Add(ops::Add(ops::Sum(y), ops::Sum(z)), ops::Sum(wide_sum));
  const std::vector<Value> inputs = {wide, narrow, sum}, gradients = Gradients(loss, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) EXPECT_EQ(gradients[i].type(), inputs[i].type()) << i;
}

TEST(GradientsTest, RunningStatisticsHandNoGradientOn) {
  Graph graph;
  const auto channels = [&](const char* name) { return graph.Input(name, {DType::kF32, {4}}, {}); };
  const Value x = graph.Input("x", {DType::kF32, {3, 4}}, {});
  const auto norm =
      ops::BatchNorm(x, channels("gamma"), channels("beta"), channels("mean"), channels("var"), 0.1f, 0.1f);
  EXPECT_FALSE(Gradients(ops::Sum(norm.running_mean), {x})[0]);
}

TEST(GradientsTest, AScalarHasAScalarGradient) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {}}, {});
  const Value y = ops::Scale(ops::Select(ops::Unary(SY_PW_ABS, x), ops::AddScalar(x, 2), x), 3);
  const Value loss = ops::Add(ops::SquaredNorm({x}), ops::Reshape(y, {1}));
  EXPECT_EQ(Gradients(loss, {x})[0].type(), x.type());
}

TEST(GradientsTest, AnOpWithoutARuleIsNamed) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {2, 4}}, {}), c = graph.Input("c", {DType::kF32, {4}}, {});
  const Value y = ops::BatchNormInference(x, c, c, c, c, 1e-5f);
  try {
    Gradients(ops::Sum(y), {x});
    FAIL() << "no error";
  } catch (const BuildError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("batch_norm_inference: no gradient rule"));
  }
}

// What is learned through such an input would be missing from its gradient without a word.
TEST(GradientsTest, WhereAnInputHasNoneItIsSaid) {
  const auto told = [](const auto& build) -> std::string {
    Graph graph;
    const Value w = graph.Input("w", {DType::kF32, {1, 4, 4}}, {Role::kParameter, {}, true});
    try {
      Gradients(build(graph, w), {w});
    } catch (const BuildError& error) {
      return error.what();
    }
    return "";
  };
  const auto attention = [](bool as_bias) {
    return [as_bias](Graph& graph, const Value& w) {
      const Value qkv = graph.Input("qkv", {DType::kF32, {1, 4, 3, 1, 8}}, {});
      return ops::Mean(ops::Attention(qkv, as_bias ? w : Value(), as_bias ? Value() : w, 1));
    };
  };
  EXPECT_THAT(told(attention(false)), testing::HasSubstr("attention: a mask has no gradient"));
  EXPECT_EQ(told(attention(true)), "");
  EXPECT_THAT(told([](Graph& graph, const Value& w) {
                const Value logits = graph.Input("logits", {DType::kF32, {4, 4}}, {});
                return ops::Mean(ops::CrossEntropy(logits, ops::Reshape(w, {4, 4}), 0));
              }),
              testing::HasSubstr("cross_entropy: targets have no gradient"));
}

}  // namespace
}  // namespace switchyard
