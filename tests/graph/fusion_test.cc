// What fusion makes of a graph and what it leaves, by what the backend can prepare.
#include "core/graph/passes/fusion.h"

#include <cstring>
#include <functional>
#include <vector>

#include "core/graph/op.h"
#include "core/graph/ops/attention.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/matmul.h"
#include "core/graph/ops/normalization.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "gtest/gtest.h"
#include "tests/graph/pass_checks.h"

namespace switchyard {
namespace {

template <typename Attributes>
int CountWhere(const Graph& graph, const std::string& op, bool (*matches)(const Attributes&)) {
  int count = 0;
  for (const Node& node : graph.nodes()) {
    count += node.op == op && matches(node.attributes.as<Attributes>());
  }
  return count;
}
int Matmuls(const Graph& graph, bool (*matches)(const sy_matmul_attributes&)) {
  return CountWhere<sy_matmul_attributes>(graph, "matmul", matches);
}
int ResidualNorms(const Graph& graph, const std::string& op) {
  return CountWhere<sy_layer_norm_attributes>(graph, op,
                                              [](const sy_layer_norm_attributes& a) { return a.residual == 1; });
}
int NormsWithSums(const Graph& graph) {
  return CountWhere<sy_layer_norm_attributes>(graph, "layer_norm_backward",
                                              [](const sy_layer_norm_attributes& a) { return a.column_sums == 1; });
}
int MatmulsWithSums(const Graph& graph) {
  return Matmuls(graph, [](const sy_matmul_attributes& a) { return a.column_sums == 1; });
}
int BiasGradients(const Graph& graph) {
  return Matmuls(graph, [](const sy_matmul_attributes& a) { return a.bias_gradient == 1; });
}
int ResidualMatmuls(const Graph& graph) {
  return Matmuls(graph, [](const sy_matmul_attributes& a) { return a.residual == 1; });
}
int PlainMatmuls(const Graph& graph) {
  return Matmuls(graph,
                 [](const sy_matmul_attributes& a) { return a.bias_gradient == 0 && a.activation_gradient == 0; });
}

TEST(FusionTest, AForwardPassFusesActivationsAndResidualSums) {
  const Graph fused = Fuse(ForwardGraph(kMicro, 2), Everything);
  ExpectWellFormed(fused);
  EXPECT_EQ(Count(fused, "matmul"), 4 * kDepth + 2);
  EXPECT_EQ(Matmuls(fused, [](const sy_matmul_attributes& a) { return a.activation == SY_ACTIVATION_GELU; }), kDepth);
  EXPECT_EQ(Matmuls(fused, [](const sy_matmul_attributes& a) { return a.save_preactivation != 0; }), 0);
  EXPECT_EQ(Matmuls(fused, [](const sy_matmul_attributes& a) { return a.bias == 1; }), 4 * kDepth + 2);
  // Every residual sum is its product's; the first norm reads tokens + positions.
  EXPECT_EQ(ResidualMatmuls(fused), 2 * kDepth);
  EXPECT_EQ(ResidualNorms(fused, "layer_norm"), 0);
}

TEST(FusionTest, AResidualSumIsTheNormsWhereTheProductTakesNone) {
  const Graph fused = Fuse(ForwardGraph(kMicro, 2), [](const Graph&, const Node& node) {
    return node.op != "matmul" || node.attributes.as<sy_matmul_attributes>().residual == 0;
  });
  ExpectWellFormed(fused);
  EXPECT_EQ(ResidualMatmuls(fused), 0);
  // Every sum but the last, behind which the class token is cut out, feeds a norm.
  EXPECT_EQ(ResidualNorms(fused, "layer_norm"), 2 * kDepth - 1);
}

// y = product + residual, of given dtypes and shapes; y is in f32.
Graph SumBehindProduct(DType product, DType residual, Shape residual_shape, bool read_twice) {
  Graph graph;
  const Value a = graph.Input("a", {DType::kBF16, {6, 5}}, {}), b = graph.Input("b", {DType::kBF16, {5, 4}}, {});
  const Value c = ops::Reshape(ops::MatmulNode({a, b}, {.alpha = 1}, product)[0], {2, 3, 4});
  const Value sum = ops::Add(c, graph.Input("r", {residual, std::move(residual_shape)}, {}));
  graph.Output("y", sum);
  if (read_twice) graph.Output("c", c);
  return graph;
}

TEST(FusionTest, AProductTakesAResidualOfItsOwnDtypeAndShapeThatIsAllThatReadsIt) {
  const auto fused = [](const Graph& graph) { return ResidualMatmuls(Fuse(graph, Everything)); };
  const DType half = DType::kBF16, single = DType::kF32;
  EXPECT_EQ(fused(SumBehindProduct(half, half, {2, 3, 4}, false)), 1);
  EXPECT_EQ(fused(SumBehindProduct(single, single, {2, 3, 4}, false)), 1);
  EXPECT_EQ(fused(SumBehindProduct(half, half, {2, 3, 4}, true)), 0);
  EXPECT_EQ(fused(SumBehindProduct(half, half, {3, 4}, false)), 0);
  EXPECT_EQ(fused(SumBehindProduct(half, single, {2, 3, 4}, false)), 0);
  EXPECT_EQ(fused(SumBehindProduct(single, half, {2, 3, 4}, false)), 0);
}

TEST(FusionTest, AProductThatIsBroadcastIntoASumStaysByItself) {
  Graph graph;
  const Value a = graph.Input("a", {DType::kF32, {2, 5}}, {}), b = graph.Input("b", {DType::kF32, {5, 4}}, {});
  const Value condition = ops::Reshape(ops::MatmulNode({a, b}, {.alpha = 1}, DType::kF32)[0], {2, 1, 4});
  graph.Output("y", ops::Add(graph.Input("x", {DType::kF32, {2, 3, 4}}, {}), condition));
  const Graph fused = Fuse(graph, Everything);
  ExpectWellFormed(fused);
  EXPECT_EQ(ResidualMatmuls(fused), 0);
}

TEST(FusionTest, AProductThatIsBroadcastUnderADerivativeStaysByItself) {
  Graph graph;
  const Value a = graph.Input("a", {DType::kF32, {2, 5}}, {}), b = graph.Input("b", {DType::kF32, {5, 4}}, {});
  const Value slope = ops::Unary(SY_PW_GELU_GRAD, graph.Input("x", {DType::kF32, {3, 2, 4}}, {}));
  graph.Output("y", ops::Mul(ops::Matmul(a, b), slope));
  const Graph fused = Fuse(graph, Everything);
  ExpectWellFormed(fused);
  EXPECT_EQ(PlainMatmuls(fused), 1);
}

// Maps (2, 6, 6, width), rolled and cut into windows of 3×3, and the way back.
Graph WindowsGraph(int64_t width, bool first_is_read) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {2, 6, 6, width}}, {});
  const Value rolled = ops::Roll(x, {0, -1, 2, 0});
  const Value windows = ops::Transpose(ops::Reshape(rolled, {2, 2, 3, 2, 3, width}), {0, 1, 3, 2, 4, 5});
  graph.Output("windows", windows);
  const Value y = graph.Input("y", windows.type(), {});
  const Value map = ops::Reshape(ops::Transpose(y, {0, 1, 3, 2, 4, 5}), x.shape());
  graph.Output("map", ops::Roll(map, {0, 1, -2, 0}));
  if (first_is_read) graph.Output("rolled", rolled);
  return graph;
}
std::vector<int32_t> Elements32(const Graph& graph, Ref ref) {
  const std::vector<std::byte>& content = *graph.node(ref.node).input->content;
  std::vector<int32_t> elements(content.size() / sizeof(int32_t));
  std::memcpy(elements.data(), content.data(), content.size());
  return elements;
}

TEST(FusionTest, RowsThatAreMovedTwiceAreGatheredOnce) {
  const Graph fused = Fuse(WindowsGraph(16, false), Everything);
  ExpectWellFormed(fused);
  EXPECT_EQ(Count(fused, "roll") + Count(fused, "transpose"), 0);
  ASSERT_EQ(Count(fused, "gather"), 2);
  std::vector<std::vector<int32_t>> rows;
  for (const Node& node : fused.nodes()) {
    if (node.op == "gather") rows.push_back(Elements32(fused, node.inputs[1]));
  }
  ASSERT_EQ(rows[0].size(), 72u);
  // Row (i, j) of window (w, v) was at (3w + i + 1, 3v + j − 2), around the edges.
  for (int at = 0; at < 72; ++at) {
    const int image = at / 36, w = at / 18 % 2, v = at / 9 % 2, i = at / 3 % 3, j = at % 3;
    ASSERT_EQ(rows[0][at], image * 36 + (3 * w + i + 1) % 6 * 6 + (3 * v + j + 4) % 6) << at;
    ASSERT_EQ(rows[1][rows[0][at]], at) << "and goes back there";
  }
}

TEST(FusionTest, RowsAreMovedOneByOneWhereAGatherIsNoGain) {
  const auto gathers = [](const Graph& graph, const CanPrepare& can_prepare) {
    return Count(Fuse(graph, can_prepare), "gather");
  };
  EXPECT_EQ(gathers(WindowsGraph(15, false), Everything), 0) << "rows of 60 bytes";
  EXPECT_EQ(gathers(WindowsGraph(16, true), Everything), 1) << "of the first, the rolled map is read besides";
  EXPECT_EQ(gathers(WindowsGraph(16, false), AllBut({"gather"})), 0);
  Graph graph;  // the last axis does not stay where it is
  const Value x = graph.Input("x", {DType::kF32, {4, 32, 16}}, {});
  graph.Output("y", ops::Transpose(ops::Roll(x, {1, 0, 0}), {0, 2, 1}));
  graph.Output("z", ops::Transpose(ops::Roll(x, {0, 0, 1}), {1, 0, 2}));
  EXPECT_EQ(gathers(graph, Everything), 0);
}

// A Swin Transformer of two stages: maps of 14×14 in four windows, the second block's rolled, and of 7×7 in one.
const ModelOptions kSwin = {
    .name = "swin_tiny", .image_size = 56, .own = {{"width", 12}, {"depths", {"2", "2"}}, {"drop_path", 0}}};
// Moves of rows that are left, but for those of the tables of biases.
int Moves(const Graph& graph) {
  int count = 0;
  for (const Node& node : graph.nodes()) {
    const bool map = !node.outputs.empty() && node.outputs[0].shape.size() > 3;
    count += map && (node.op == "transpose" || node.op == "roll" || node.op == "gather");
  }
  return count;
}

TEST(FusionTest, AttentionWithinWindowsTakesTheMovesOfRowsAroundIt) {
  const Graph source = TrainingGraph(kSwin, 3);
  const Graph fused = Fuse(source, Everything);
  ExpectWellFormed(fused);
  EXPECT_EQ(Written(fused), Written(source));
  EXPECT_EQ(Count(fused, "window_attention"), 2);
  EXPECT_EQ(Count(fused, "window_attention_backward"), 2);
  EXPECT_EQ(Count(fused, "attention"), 2) << "of the stage with one window";
  EXPECT_EQ(Count(fused, "attention_backward"), 2);
  EXPECT_EQ(Count(fused, "roll"), 0);
  EXPECT_EQ(Count(source, "roll"), 4);
  // Patches are cut out, and four places of a map are joined into one, forward and backward.
  EXPECT_EQ(Moves(source), 3 + 4 + 2 * 4);
  EXPECT_EQ(Moves(fused), 3);
  EXPECT_EQ(Count(fused, "matmul"), Count(source, "matmul"));
  std::vector<std::vector<int32_t>> rows;
  for (const Node& node : fused.nodes()) {
    if (node.op != "window_attention" && node.op != "window_attention_backward") continue;
    const bool backward = node.op == "window_attention_backward";
    rows.push_back(Elements32(fused, node.inputs[backward ? 4 : 1]));
    ASSERT_EQ(fused.type(node.inputs[backward ? 4 : 1]).shape, (Shape{4, 49}));
    if (backward) {
      EXPECT_EQ(fused.node(node.forward).op, "window_attention");
    }
  }
  ASSERT_EQ(rows.size(), 4u);
  // Backward, the last block comes first. Place (i, j) of window (w, v) is place (7w + i, 7v + j), or three further on.
  for (int at = 0; at < 196; ++at) {
    const int down = at / 98 * 7 + at % 49 / 7, right = at / 49 % 2 * 7 + at % 7;
    ASSERT_EQ(rows[0][at], down * 14 + right);
    ASSERT_EQ(rows[1][at], (down + 3) % 14 * 14 + (right + 3) % 14);
  }
  EXPECT_EQ(rows[2], rows[1]);
  EXPECT_EQ(rows[3], rows[0]);
}

TEST(FusionTest, WindowsStayWhereOneOfTheKernelsIsMissing) {
  const Graph source = TrainingGraph(kSwin, 1);
  for (const char* op : {"window_attention", "window_attention_backward"}) {
    const Graph fused = Fuse(source, AllBut({op}));
    ExpectWellFormed(fused);
    EXPECT_EQ(Count(fused, "window_attention") + Count(fused, "window_attention_backward"), 0) << op;
    EXPECT_EQ(Count(fused, "roll"), Count(source, "roll")) << op;
    EXPECT_EQ(Moves(fused), Moves(source)) << op;
  }
}

// Maps (2, 6, 6, 24), whose qkv with three heads is attended to in windows of 3×3; the products' results in the order
// of windows go through `between`.
Graph WindowAttentionGraph(const std::function<Value(Graph&, const Value&)>& between) {
  Graph graph;
  const auto weight = [&](const char* name, const Shape& shape) { return graph.Input(name, {DType::kF32, shape}, {}); };
  const Value x = graph.Input("x", {DType::kF32, {2, 6, 6, 24}}, {});
  const Value cut = ops::Transpose(ops::Reshape(x, {2, 2, 3, 2, 3, 24}), {0, 1, 3, 2, 4, 5});
  const Value qkv = ops::Linear(ops::Reshape(cut, {8, 9, 24}), weight("qkv", {72, 24}), weight("bias", {72}));
  const Value y = ops::Attention(ops::Reshape(between(graph, qkv), {8, 9, 3, 3, 8}));
  const Value z = ops::Linear(ops::Reshape(y, {8, 9, 24}), weight("proj", {24, 24}), {});
  graph.Output("y", ops::Transpose(ops::Reshape(z, {2, 2, 2, 3, 3, 24}), {0, 1, 3, 2, 4, 5}));
  return graph;
}

TEST(FusionTest, WindowsStayWhereAnotherNodeMindsTheirOrder) {
  const auto folds = [](const std::function<Value(Graph&, const Value&)>& between) {
    const Graph fused = Fuse(WindowAttentionGraph(between), Everything);
    ExpectWellFormed(fused);
    EXPECT_EQ(Count(fused, "transpose"), Count(fused, "window_attention") == 1 ? 0 : 2);
    return Count(fused, "window_attention") == 1;
  };
  EXPECT_TRUE(folds([](Graph&, const Value& qkv) { return qkv; }));
  EXPECT_TRUE(folds([](Graph& graph, const Value& qkv) {  // the same for every row
    return ops::Add(ops::Scale(qkv, 2), graph.Input("c", {DType::kF32, {72}}, {}));
  }));
  EXPECT_FALSE(folds([](Graph& graph, const Value& qkv) {  // another one for each token of a window
    return ops::Add(qkv, graph.Input("c", {DType::kF32, {9, 72}}, {}));
  }));
  EXPECT_FALSE(folds([](Graph& graph, const Value& qkv) { return graph.Output("qkv", qkv), qkv; }));
  EXPECT_FALSE(folds([](Graph&, const Value& qkv) { return ops::Roll(qkv, {1, 0, 0}); }));
  EXPECT_FALSE(folds([](Graph&, const Value& qkv) {
    return ops::Sub(qkv, ops::Reduce(qkv, SY_REDUCE_MAX, 1u << 1, 1, true));  // of each window
  }));
}

TEST(FusionTest, ATrainingStepFusesItsGradientsToo) {
  const Graph source = TrainingGraph(kMicro, 2);
  const Graph fused = Fuse(source, Everything);
  ExpectWellFormed(fused);
  EXPECT_EQ(Written(fused), Written(source));
  EXPECT_EQ(Matmuls(fused, [](const sy_matmul_attributes& a) { return a.save_preactivation == 1; }), kDepth);
  EXPECT_EQ(Matmuls(fused, [](const sy_matmul_attributes& a) { return a.activation_gradient == 1; }), kDepth);
  // Of fc1 beside the activation's gradient; of proj, and of fc2 but the last block's, beside that of the next norm.
  // The others, of qkv, patches and head, stay with the weights'.
  EXPECT_EQ(MatmulsWithSums(fused), kDepth);
  EXPECT_EQ(NormsWithSums(fused), 2 * kDepth - 1);
  EXPECT_EQ(BiasGradients(fused), kDepth + 3);
  EXPECT_EQ(Count(fused, "matmul"), Count(source, "matmul"));
  EXPECT_EQ(ResidualMatmuls(fused), 2 * kDepth);
  EXPECT_EQ(ResidualNorms(fused, "layer_norm"), 0);
  EXPECT_EQ(ResidualNorms(fused, "layer_norm_backward"), 2 * kDepth);
  EXPECT_LT(Count(fused, "pointwise"), Count(source, "pointwise") / 2);
  for (const Node& node : fused.nodes()) {
    if (node.op == "layer_norm_backward" || node.op == "attention_backward") {
      EXPECT_GE(node.forward, 0) << node.name;
    }
  }
}

TEST(FusionTest, BiasGradientsStayWithTheWeightsWhereABackendHasNoOtherSums) {
  const Graph fused = Fuse(TrainingGraph(kMicro, 2), [](const Graph&, const Node& node) {
    if (node.op == "layer_norm_backward") return node.attributes.as<sy_layer_norm_attributes>().column_sums == 0;
    return node.op != "matmul" || node.attributes.as<sy_matmul_attributes>().column_sums == 0;
  });
  ExpectWellFormed(fused);
  EXPECT_EQ(MatmulsWithSums(fused) + NormsWithSums(fused), 0);
  EXPECT_EQ(BiasGradients(fused), 4 * kDepth + 2);
}

TEST(FusionTest, SumsOfRowsStandBesideWhatMakesTheRows) {
  const auto sums = [](const std::function<Value(const Value& dt)>& sum) {
    Graph graph;
    const auto input = [&](const char* name, Shape shape) { return graph.Input(name, {DType::kF32, shape}, {}); };
    sy_matmul_attributes a{.alpha = 1, .activation = SY_ACTIVATION_GELU, .activation_gradient = 1};
    const Value dt = ops::MatmulNode({input("dy", {6, 4}), input("w", {4, 8}), input("t", {6, 8})}, a, DType::kF32)[0];
    graph.Output("dt", dt);
    graph.Output("sum", sum(dt));
    const Graph fused = Fuse(std::move(graph), Everything);
    ExpectWellFormed(fused);
    EXPECT_EQ(MatmulsWithSums(fused) + Count(fused, "reduce"), 1);
    if (MatmulsWithSums(fused) == 1) {
      EXPECT_EQ(Count(fused, "pointwise"), 0) << "a cast that nothing reads";
    }
    return MatmulsWithSums(fused) == 1;
  };
  const auto of_rows = [](const Value& x) { return ops::SumOfRows(x); };
  EXPECT_TRUE(sums(of_rows));
  EXPECT_TRUE(sums([&](const Value& dt) { return of_rows(ops::Reshape(dt, {2, 3, 8})); }));
  EXPECT_TRUE(sums([&](const Value& dt) { return of_rows(ops::Cast(dt, DType::kBF16)); }));
  EXPECT_TRUE(sums([](const Value& dt) { return ops::Reduce(dt, SY_REDUCE_SUM, 1, 1, true); }));
  EXPECT_FALSE(sums([&](const Value& dt) { return of_rows(ops::Reshape(dt, {12, 4})); }));  // other rows
  EXPECT_FALSE(sums([&](const Value& dt) { return of_rows(ops::Scale(dt, 2)); }));
  EXPECT_FALSE(sums([](const Value& dt) { return ops::Reduce(dt, SY_REDUCE_SUM, 2); }));        // of columns
  EXPECT_FALSE(sums([](const Value& dt) { return ops::Reduce(dt, SY_REDUCE_SUM, 1, 0.5f); }));  // a mean
  EXPECT_FALSE(sums([](const Value& dt) { return ops::Reduce(dt, SY_REDUCE_MAX, 1); }));
  EXPECT_FALSE(sums([](const Value& dt) {  // of some of the rows' axes
    return ops::Reduce(ops::Reshape(dt, {2, 3, 8}), SY_REDUCE_SUM, 2);
  }));
}

TEST(FusionTest, NothingIsFusedThatTheBackendRefuses) {
  const Graph source = TrainingGraph(kMicro, 2);
  const Graph plain = Fuse(source, [](const Graph&, const Node& node) {
    if (node.op == "layer_norm" || node.op == "layer_norm_backward") {
      const auto& a = node.attributes.as<sy_layer_norm_attributes>();
      return !a.residual && !a.column_sums;
    }
    if (node.op != "matmul") return node.op != "pointwise";
    const auto& a = node.attributes.as<sy_matmul_attributes>();
    return !a.activation && !a.activation_gradient && !a.bias_gradient && !a.column_sums && !a.residual;
  });
  ExpectWellFormed(plain);
  EXPECT_EQ(PlainMatmuls(plain), Count(source, "matmul"));
  EXPECT_EQ(ResidualNorms(plain, "layer_norm") + ResidualNorms(plain, "layer_norm_backward"), 0);
  EXPECT_EQ(Written(plain), Written(source));
}

int BatchNorms(const Graph& graph, const std::string& op, int activation, int residual) {
  int count = 0;
  for (const Node& node : graph.nodes()) {
    if (node.op != op) continue;
    const auto& a = node.attributes.as<sy_batch_norm_attributes>();
    count += a.activation == activation && a.residual == residual;
  }
  return count;
}

TEST(FusionTest, ABatchNormTakesTheResidualSumAndTheReluBehindIt) {
  const Graph fused = Fuse(ResidualBlocksGraph(true), Everything);
  ExpectWellFormed(fused);
  // Three norms end in relu, of which one adds x first; of the two that are added up the later one adds the other.
  EXPECT_EQ(BatchNorms(fused, "batch_norm", SY_ACTIVATION_RELU, 0), 2);
  EXPECT_EQ(BatchNorms(fused, "batch_norm", SY_ACTIVATION_RELU, 1), 2);
  EXPECT_EQ(BatchNorms(fused, "batch_norm", SY_ACTIVATION_NONE, 0), 1);
  // Backward, each relu's gradient is in the norm before it. Those behind a sum give the other branch its gradient too.
  EXPECT_EQ(BatchNorms(fused, "batch_norm_backward", SY_ACTIVATION_RELU, 0), 2);
  EXPECT_EQ(BatchNorms(fused, "batch_norm_backward", SY_ACTIVATION_RELU, 1), 2);
  EXPECT_EQ(BatchNorms(fused, "batch_norm_backward", SY_ACTIVATION_NONE, 0), 1);
  const Graph evaluated = Fuse(ResidualBlocksGraph(false), Everything);
  EXPECT_EQ(BatchNorms(evaluated, "batch_norm_inference", SY_ACTIVATION_RELU, 1), 2);
  EXPECT_EQ(Count(evaluated, "pointwise"), 0);
}

TEST(FusionTest, ANormWhoseResultIsReadTwiceKeepsIt) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {2, 3}}, {}), c = graph.Input("c", {DType::kF32, {3}}, {});
  const Value y = ops::BatchNormInference(x, c, c, c, c, 1e-5f);
  graph.Output("y", y);
  graph.Output("z", ops::Unary(SY_PW_RELU, y));
  EXPECT_EQ(BatchNorms(Fuse(graph, Everything), "batch_norm_inference", SY_ACTIVATION_NONE, 0), 1);
}

TEST(FusionTest, ChainsOfElementwiseOpsBecomeOneProgram) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {8}}, {}), y = graph.Input("y", {DType::kF32, {8}}, {});
  Value z = ops::Mul(ops::Add(x, y), x);
  z = ops::AddScalar(ops::Unary(SY_PW_EXP, z), 1);
  graph.Output("z", z);
  const Graph fused = Fuse(graph, Everything);
  ASSERT_EQ(Count(fused, "pointwise"), 1);
  for (const Node& node : fused.nodes()) {
    if (node.op != "pointwise") continue;
    const auto& program = node.attributes.as<sy_pointwise_attributes>();
    EXPECT_EQ(program.instruction_count, 5u);
    EXPECT_EQ(node.inputs.size(), 2u);
  }
}

TEST(FusionTest, WhatIsMeantToRoundIsNoPartOfALongerProgram) {
  const auto programs = [](DType between, DType first) {
    Graph graph;
    const Value x = graph.Input("x", {first, {8}}, {});
    graph.Output("y", ops::Cast(ops::Cast(x, between), first));
    return Count(Fuse(graph, Everything), "pointwise");
  };
  EXPECT_EQ(programs(DType::kI32, DType::kF32), 2) << "fractions go";
  EXPECT_EQ(programs(DType::kBF16, DType::kF32), 2) << "digits go";
  EXPECT_EQ(programs(DType::kF16, DType::kBF16), 2) << "some have other digits";
  EXPECT_EQ(programs(DType::kF32, DType::kBF16), 1) << "nothing is lost in between";
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {8}}, {});
  graph.Output("y", ops::Scale(ops::Cast(ops::Scale(x, 2), DType::kI32), 3));
  EXPECT_EQ(Count(Fuse(graph, Everything), "pointwise"), 2);
}

TEST(FusionTest, AValueThatIsReadTwiceStaysWhole) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {8}}, {});
  const Value shared = ops::Unary(SY_PW_EXP, x);
  graph.Output("a", ops::AddScalar(shared, 1));
  graph.Output("b", ops::AddScalar(shared, 2));
  EXPECT_EQ(Count(Fuse(graph, Everything), "pointwise"), 3);
}

// What is computed again reads a product or a norm that is not: the kernel that the first computation became part of
// gives both.
TEST(FusionTest, ASecondComputationTakesWhatTheFirstOneBecameAPartOf) {
  const auto twice = [](const std::function<Value(Graph&)>& source, const std::function<Value(const Value&)>& then) {
    Graph graph;
    const Value made = source(graph);
    const Value first = then(made), second = then(made);
    graph.SetRepeats(second.ref().node, first.ref().node);
    graph.Output("first", first);
    graph.SetPhase(Phase::kBackward);
    graph.Output("second", ops::Unary(SY_PW_RELU_GRAD, second));
    Graph fused = Fuse(graph, Everything);
    ExpectWellFormed(fused);
    const Ref given = fused.node(fused.Find("first")).inputs[0];
    const Ref read = fused.node(fused.node(fused.Find("second")).inputs[0].node).inputs[0];
    EXPECT_EQ(given, read);
    return fused;
  };
  const auto product = [](Graph& graph) {
    return ops::Matmul(graph.Input("a", {DType::kF32, {2, 5}}, {}), graph.Input("b", {DType::kF32, {5, 4}}, {}));
  };
  const auto norm = [](Graph& graph) {
    const auto channels = [&](const char* name) { return graph.Input(name, {DType::kF32, {4}}, {}); };
    const Value x = graph.Input("x", {DType::kF32, {2, 4}}, {});
    return ops::BatchNorm(x, channels("gamma"), channels("beta"), channels("mean"), channels("variance"), 0.1f, 0.1f).y;
  };
  const auto relu = [](const Value& x) { return ops::Unary(SY_PW_RELU, x); };
  const auto sum = [](const Value& x) {
    const Value r = x.graph().FindInput("r");
    return ops::Add(x, r ? r : x.graph().Input("r", x.type(), {}));
  };
  EXPECT_EQ(Matmuls(twice(product, relu), [](const auto& a) { return a.activation == SY_ACTIVATION_RELU; }), 1);
  EXPECT_EQ(ResidualMatmuls(twice(product, sum)), 1);
  EXPECT_EQ(BatchNorms(twice(norm, relu), "batch_norm", SY_ACTIVATION_RELU, 0), 1);
  EXPECT_EQ(BatchNorms(twice(norm, sum), "batch_norm", SY_ACTIVATION_NONE, 1), 1);
}

// So that passes behind see one computation, whoever reads a part of it.
TEST(RewriteTest, WhatReplacesASecondComputationRepeatsWhatReplacesTheFirst) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {4, 2}}, {});
  const Value first = ops::Transpose(x, {1, 0}), second = ops::Transpose(x, {1, 0});
  graph.SetRepeats(second.ref().node, first.ref().node);
  graph.Output("first", first);
  graph.Output("second", second);
  const auto rewritten = [&](bool alike) {
    return Rewrite("test", graph, [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
      const Node& node = graph.node(id);
      if (node.op != "transpose") return std::nullopt;
      const bool longer = alike || node.repeats >= 0;
      const Value table = r.result.FindInput("table")
                              ? r.result.FindInput("table")
                              : r.result.Constant("table", {DType::kF32, {1}}, std::vector{2.f});
      const Value scaled = ops::Mul(r.Map(node.inputs[0]), table);
      return std::vector<Value>{ops::Reshape(longer ? ops::Unary(SY_PW_EXP, scaled) : scaled, {2, 4})};
    });
  };
  const Graph alike = rewritten(true), unlike = rewritten(false);
  ExpectWellFormed(alike);
  int seconds = 0;
  for (const Node& node : alike.nodes()) {
    seconds += node.repeats >= 0;
    if (node.repeats >= 0) {
      EXPECT_EQ(node.op, alike.node(node.repeats).op);
      EXPECT_EQ(node.attributes, alike.node(node.repeats).attributes);
    }
  }
  EXPECT_EQ(seconds, 3);
  for (const Node& node : unlike.nodes()) EXPECT_EQ(node.repeats, -1) << node.name;
}

}  // namespace
}  // namespace switchyard
