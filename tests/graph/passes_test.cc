// The other passes over a graph: decomposition, autocast, dead nodes, and what a rewriting keeps.
#include <set>
#include <vector>

#include "core/graph/ops/matmul.h"
#include "core/graph/ops/normalization.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/graph/passes/autocast.h"
#include "core/graph/passes/decompose.h"
#include "gtest/gtest.h"
#include "tests/graph/pass_checks.h"

namespace switchyard {
namespace {

TEST(DecomposeTest, WhatTheBackendHasIsLeftAlone) {
  const Graph source = ForwardGraph(kMicro, 2);
  const Graph copy = Rewrite("copy", source, [](Rewriting&, int) { return std::nullopt; });
  EXPECT_EQ(Decompose(source, Everything).ToText(), copy.ToText());
}

TEST(DecomposeTest, RefusedAttentionBecomesProductsAndSoftmax) {
  const Graph source = ForwardGraph(kMicro, 2);
  const Graph lowered = Decompose(source, AllBut({"attention"}));
  ExpectWellFormed(lowered);
  EXPECT_EQ(Count(lowered, "attention"), 0);
  EXPECT_EQ(Count(lowered, "softmax"), kDepth);
  EXPECT_EQ(Count(lowered, "matmul"), Count(source, "matmul") + 2 * kDepth);
  EXPECT_EQ(Written(lowered), Written(source));
}

TEST(DecomposeTest, ATrainingStepGoesDownToElementaryOps) {
  const std::set<std::string> refused = {"attention",           "attention_backward", "layer_norm",
                                         "layer_norm_backward", "cross_entropy",      "cross_entropy_backward",
                                         "optimizer_update",    "squared_norm",       "softmax"};
  const Graph source = TrainingGraph(kMicro, 2);
  const Graph lowered = Decompose(source, AllBut(refused));
  ExpectWellFormed(lowered);
  for (const std::string& op : refused) EXPECT_EQ(Count(lowered, op), 0) << op;
  EXPECT_EQ(Written(lowered), Written(source));
}

TEST(DecomposeTest, WhatCannotBeRebuiltStaysForTheReference) {
  const Graph lowered = Decompose(ForwardGraph(kMicro, 2), AllBut({"attention", "transpose"}));
  EXPECT_EQ(Count(lowered, "attention"), kDepth);
}

TEST(DecomposeTest, OutputsKeepTheirTypes) {
  const Graph source = Autocast(ForwardGraph(kMicro, 2), DType::kBF16);
  const Graph lowered = Decompose(source, AllBut({"attention", "layer_norm"}));
  std::map<std::string, TensorType> types;
  for (const Node& node : source.nodes()) {
    if (node.op == "matmul") types[node.name] = node.outputs[0];
  }
  for (const Node& node : lowered.nodes()) {
    if (types.contains(node.name)) {
      EXPECT_EQ(node.outputs[0], types[node.name]) << node.name;
    }
  }
}

TEST(AutocastTest, ProductsAreHalfAndParametersAndResultsStayFull) {
  const Graph cast = Autocast(ForwardGraph(kMicro, 2, true), DType::kBF16);
  ExpectWellFormed(cast);
  for (const Node& node : cast.nodes()) {
    if (node.op == "matmul" || node.op == "attention") {
      EXPECT_EQ(node.outputs[0].dtype, DType::kBF16) << node.name;
      EXPECT_EQ(cast.type(node.inputs[0]).dtype, DType::kBF16) << node.name;
    }
    if (node.op == "layer_norm") {
      EXPECT_EQ(node.outputs[1].dtype, DType::kF32) << node.name;
    }
    if (node.op == "input" || node.op == "output") {
      for (const TensorType& type : node.outputs) EXPECT_EQ(type.dtype, DType::kF32) << node.name;
      for (const Ref& input : node.inputs) EXPECT_EQ(cast.type(input).dtype, DType::kF32) << node.name;
    }
  }
}

// What goes from block to block at O1 is f32, or half where that is chosen; norms have f32 parameters and statistics.
TEST(AutocastTest, ResidualStreamsAreHalfWhereThatIsChosen) {
  struct Case {
    ModelOptions model;
    int blocks, sums;  // of each, at least
  };
  for (const Case& c : {Case{kMicro, kDepth, 2}, Case{{.name = "swin_tiny_cifar", .image_size = 32}, 2, 2},
                        Case{{.name = "resnet18", .image_size = 32}, 8, 1}}) {
    SCOPED_TRACE(c.model.name);
    const Graph forward = ForwardGraph(c.model, 2, true);
    for (const bool chosen : {false, true}) {
      const Graph cast = Autocast(forward, {.half = DType::kBF16, .residuals_in_half = chosen});
      ExpectWellFormed(cast);
      int wide_sums = 0, wide_norms = 0, norms = 0;
      for (const Node& node : cast.nodes()) {
        const bool of_norm = node.op == "layer_norm" || node.op == "batch_norm";
        if (node.op == "pointwise" && node.inputs.size() == 2) wide_sums += node.outputs[0].dtype == DType::kF32;
        if (!of_norm) continue;
        ++norms;
        wide_norms += cast.type(node.inputs[0]).dtype == DType::kF32;
        EXPECT_EQ(cast.type(node.inputs[1]).dtype, DType::kF32) << node.name;
        EXPECT_EQ(node.outputs[1].dtype, DType::kF32) << node.name;
      }
      EXPECT_GE(norms, c.blocks * c.sums);
      if (chosen) {
        EXPECT_EQ(wide_sums, 0);
        EXPECT_EQ(wide_norms, 0);
      } else {
        EXPECT_GE(wide_sums, c.blocks * c.sums);
        if (c.model.name != "resnet18") {  // whose norms read convolutions
          EXPECT_GE(wide_norms, c.blocks * c.sums);
        }
      }
      for (const Node& node : cast.nodes()) {  // what leaves the model stays f32
        if (node.op == "output") {
          EXPECT_EQ(cast.type(node.inputs[0]).dtype, DType::kF32);
        }
      }
    }
  }
}

// Behind the last product nothing is on the stream: a loss that is put together from elementwise ops stays f32.
TEST(AutocastTest, LossesBesideHalfStreamsStayFull) {
  Graph forward;
  const Value x = forward.Input("x", {DType::kF32, {8, 16}}, {Role::kBatch});
  const Value t = forward.Input("t", {DType::kF32, {8, 16}}, {Role::kBatch});
  const Value w = forward.Input("w", {DType::kF32, {16, 16}}, {Role::kParameter});
  const Value first = ops::Add(x, ops::Matmul(x, w));
  forward.Output("loss", ops::Sum(ops::Mul(ops::Add(first, ops::Matmul(first, w)), t)));
  const Graph cast = Autocast(forward, {.half = DType::kBF16, .residuals_in_half = true});
  std::vector<DType> sums, products;
  for (const Node& node : cast.nodes()) {
    if (node.op != "pointwise") continue;
    const bool multiplies = node.attributes.as<sy_pointwise_attributes>().instructions[0].op == SY_PW_MUL;
    (multiplies ? products : sums).push_back(node.outputs[0].dtype);
  }
  EXPECT_EQ(sums.at(0), DType::kBF16) << "which a product reads";
  EXPECT_EQ(products, std::vector{DType::kF32});
}

TEST(AutocastTest, AValueThatSeveralProductsReadIsCastOnce) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {4, 8}}, {}), w = graph.Input("w", {DType::kF32, {8, 8}}, {});
  graph.Output("y", ops::Add(ops::Linear(x, w, {}), ops::Linear(ops::Unary(SY_PW_EXP, x), w, {})));
  const Graph cast = Autocast(graph, DType::kBF16);
  int casts = 0;
  for (const Node& node : cast.nodes()) {
    casts += node.op == "pointwise" && cast.node(node.inputs[0].node).name == "w";
  }
  EXPECT_EQ(casts, 1);
}

TEST(AutocastTest, ExponentialsLogarithmsAndPowersAreReadAndWrittenInF32) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {4, 8}}, {}), w = graph.Input("w", {DType::kF32, {8, 8}}, {});
  const Value y = ops::Linear(x, w, {});
  graph.Output("exp", ops::Unary(SY_PW_EXP, y));
  graph.Output("relu", ops::Unary(SY_PW_RELU, y));
  const Graph cast = Autocast(graph, DType::kF16);
  std::map<std::string, DType> results;
  for (const Node& node : cast.nodes()) {
    if (node.op != "pointwise" || node.attributes.as<sy_pointwise_attributes>().instruction_count == 0) continue;
    results[node.name] = node.outputs[0].dtype;
    const bool exponential = node.attributes.as<sy_pointwise_attributes>().instructions[0].op == SY_PW_EXP;
    EXPECT_EQ(node.outputs[0].dtype, exponential ? DType::kF32 : DType::kF16) << node.name;
    EXPECT_EQ(cast.type(node.inputs[0]).dtype, exponential ? DType::kF32 : DType::kF16) << node.name;
  }
  EXPECT_EQ(results.size(), 2u);
}

TEST(DeadNodesTest, OnlyWhatIsReadRemains) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {2}}, {Role::kParameter});
  graph.Input("unread_batch", {DType::kI32, {2}}, {Role::kBatch});
  graph.Input("unread_state", {DType::kI32, {2}}, {Role::kState});
  ops::Unary(SY_PW_EXP, x);
  graph.Output("y", ops::Unary(SY_PW_NEG, x));
  Graph live = RemoveDeadNodes(graph);
  EXPECT_EQ(Count(live, "pointwise"), 1);
  EXPECT_TRUE(live.FindInput("x"));
  EXPECT_TRUE(live.FindInput("unread_state"));
  EXPECT_FALSE(live.FindInput("unread_batch"));
}

TEST(DeadNodesTest, ControlEdgesKeepWhatTheyName) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {2}}, {});
  const Value first = ops::Unary(SY_PW_EXP, x), second = ops::Unary(SY_PW_NEG, x);
  graph.mutable_node(second.ref().node).control = {first.ref().node};
  graph.Output("y", second);
  const Graph live = RemoveDeadNodes(graph);
  ASSERT_EQ(Count(live, "pointwise"), 2);
  for (const Node& node : live.nodes()) {
    if (node.op == "output") {
      EXPECT_EQ(live.node(node.inputs[0].node).control.size(), 1u);
    }
  }
}

TEST(RewriteTest, ANodeWaitsOnceForOneOfSeveralResults) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {2, 4}}, {}), w = graph.Input("w", {DType::kF32, {4}}, {});
  const Value first = ops::LayerNorm(x, w, w, 1e-5f), second = ops::Unary(SY_PW_EXP, x);
  ASSERT_EQ(graph.node(first.ref().node).outputs.size(), 3u);
  graph.mutable_node(second.ref().node).control = {first.ref().node};
  for (int times = 0; times < 2; ++times) graph = Rewrite("copy", graph, [](Rewriting&, int) { return std::nullopt; });
  EXPECT_EQ(graph.nodes().back().control, std::vector<int>{graph.size() - 2});
}

TEST(RewriteTest, ACopyKeepsNamesPhasesLinesAndPairs) {
  const Graph source = TrainingGraph(kMicro, 2);
  const Graph copy = Rewrite("copy", source, [](Rewriting&, int) { return std::nullopt; });
  ASSERT_EQ(copy.size(), source.size());
  std::map<std::string, int> ids;
  for (int id = 0; id < copy.size(); ++id) ids[copy.node(id).name] = id;
  for (const Node& node : source.nodes()) {
    ASSERT_TRUE(ids.contains(node.name)) << node.name;
    const Node& other = copy.node(ids[node.name]);
    EXPECT_EQ(other.op, node.op);
    EXPECT_EQ(other.phase, node.phase) << node.name;
    EXPECT_EQ(other.where.line(), node.where.line()) << node.name;
    ASSERT_EQ(other.forward >= 0, node.forward >= 0) << node.name;
    if (node.forward >= 0) {
      EXPECT_EQ(copy.node(other.forward).name, source.node(node.forward).name);
    }
  }
}

}  // namespace
}  // namespace switchyard
