// What the op table promises: types are inferred, never taken on trust; Verify finds every way in which a pass may
// break a graph; passes go by traits; ops from outside the tree are as good as ours.
#include <functional>

#include "core/graph/gradients.h"
#include "core/graph/op.h"
#include "core/graph/ops/collective.h"
#include "core/graph/ops/convolution.h"
#include "core/graph/ops/layout.h"
#include "core/graph/ops/loss.h"
#include "core/graph/ops/matmul.h"
#include "core/graph/ops/normalization.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/graph/passes/autocast.h"
#include "core/graph/passes/decompose.h"
#include "core/graph/passes/rewrite.h"
#include "core/graph/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/graph/steps.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class OpTableTest : public ::testing::Test {
 protected:
  Value Input(DType dtype, const Shape& shape) {
    return graph_.Input("x" + std::to_string(graph_.size()), {dtype, shape}, {});
  }
  Value F32(const Shape& shape) { return Input(DType::kF32, shape); }
  std::string ErrorOfAdd(const std::string& op, const std::vector<Value>& inputs, const Attributes& attributes = {},
                         const Wanted& wanted = {}) {
    return ErrorOf([&] { graph_.Add(op, inputs, attributes, wanted); });
  }
  Graph graph_;
};

TEST_F(OpTableTest, EveryOpHasATypeRuleAndASummary) {
  for (const auto& [name, op] : AllOps()) {
    EXPECT_TRUE(op.infer) << name;
    EXPECT_FALSE(op.summary.empty()) << name;
    // No rule looks at inputs that are not there.
    if (name == "input" || name == "output" || name == "pointwise") continue;
    EXPECT_NE(ErrorOfAdd(name, {}), "no error") << name;
  }
}

TEST_F(OpTableTest, AMistypedOpIsAnErrorWithASuggestion) {
  EXPECT_THAT(ErrorOfAdd("matmull", {}), AllOf(HasSubstr("no op of this name"), HasSubstr("did you mean matmul?")));
}

TEST_F(OpTableTest, AttributesOfAnotherOpAreRefused) {
  EXPECT_THAT(ErrorOfAdd("matmul", {F32({2, 3}), F32({3, 4})}, Attributes(sy_pad_attributes{})),
              HasSubstr("attributes of another op"));
}

TEST_F(OpTableTest, WhatIsAskedForIsCheckedWhereTheOpCanGiveIt) {
  const Value x = F32({2, 6}), half = Input(DType::kBF16, {2, 6});
  sy_matmul_attributes product{};
  product.alpha = 1;
  product.transpose_b = 1;
  EXPECT_EQ(graph_.Add("matmul", {half, half}, Attributes(product))[0].dtype(), DType::kBF16);
  EXPECT_EQ(graph_.Add("matmul", {half, half}, Attributes(product), {.dtypes = {DType::kF32}})[0].dtype(), DType::kF32);
  EXPECT_THAT(ErrorOfAdd("matmul", {x, x}, Attributes(product), {.dtypes = {DType::kI32}}), HasSubstr("floating"));
  EXPECT_THAT(ErrorOfAdd("reshape", {x}), HasSubstr("must be given"));
  EXPECT_THAT(ErrorOfAdd("reshape", {x}, {}, {.shape = Shape{5, 2}}), HasSubstr("another number of elements"));
  sy_reduce_attributes rows{};
  rows.axes = 1;
  EXPECT_EQ(graph_.Add("reduce", {x}, Attributes(rows))[0].shape(), (Shape{6}));
  EXPECT_EQ(graph_.Add("reduce", {x}, Attributes(rows), {.shape = Shape{1, 6}})[0].shape(), (Shape{1, 6}));
  EXPECT_THAT(ErrorOfAdd("reduce", {x}, Attributes(rows), {.shape = Shape{6, 1}}),
              HasSubstr("no result of these axes"));
  sy_pointwise_attributes copy{};
  copy.output_count = 1;
  EXPECT_THAT(ErrorOfAdd("pointwise", {x}, Attributes(copy), {.shape = Shape{2, 5}}), HasSubstr("does not broadcast"));
}

TEST_F(OpTableTest, GradientsOfConvolutionsTakeOnlyShapesThatGiveTheirDy) {
  const Value x = F32({2, 9, 9, 4}), w = F32({8, 3, 3, 4});
  const Value y = ops::Convolution(x, w, {}, {.stride = 2, .padding = 1});
  const Attributes a = graph_.node(y.ref().node).attributes;
  EXPECT_EQ(graph_.Add("convolution_backward_data", {y, w}, a, {.shape = Shape{2, 9, 9, 4}})[0].shape(), x.shape());
  EXPECT_EQ(graph_.Add("convolution_backward_data", {y, w}, a, {.shape = Shape{2, 10, 9, 4}})[0].dim(1), 10);
  EXPECT_THAT(ErrorOfAdd("convolution_backward_data", {y, w}, a, {.shape = Shape{2, 11, 9, 4}}),
              HasSubstr("dy's shape"));
  EXPECT_THAT(ErrorOfAdd("convolution_backward_weights", {x, y}, a, {.shape = Shape{8, 5, 5, 4}}),
              HasSubstr("dy's shape"));
}

TEST_F(OpTableTest, PartsOfAGroupDivideTheWhole) {
  const Attributes a(sy_collective_attributes{});
  EXPECT_EQ(graph_.Add("reduce_scatter", {F32({12, 2})}, a, {.shape = Shape{3, 2}})[0].shape(), (Shape{3, 2}));
  EXPECT_EQ(graph_.Add("all_gather", {F32({3, 2})}, a, {.shape = Shape{12, 2}})[0].shape(), (Shape{12, 2}));
  EXPECT_THAT(ErrorOfAdd("reduce_scatter", {F32({12, 2})}, a, {.shape = Shape{5, 2}}), HasSubstr("multiple"));
  EXPECT_THAT(ErrorOfAdd("all_gather", {F32({3, 2})}, a, {.shape = Shape{6, 4}}), HasSubstr("outermost axis"));
  EXPECT_THAT(ErrorOfAdd("all_gather", {F32({3, 2})}, a), HasSubstr("must be given"));
}

TEST_F(OpTableTest, BackwardOpsCheckTheirInputs) {
  const Value rows = F32({6}), logits = F32({6, 10});
  const Value labels = Input(DType::kI32, {6});
  EXPECT_THAT(
      ErrorOfAdd("cross_entropy_backward", {logits, labels, rows, F32({5})}, Attributes(sy_cross_entropy_attributes{})),
      HasSubstr("logsumexp (N) and dloss (N)"));
  EXPECT_THAT(ErrorOfAdd("layer_norm_backward", {logits, F32({10}), rows, F32({7}), logits},
                         Attributes(sy_layer_norm_attributes{})),
              HasSubstr("one element a row"));
  sy_optimizer_attributes adam{};
  adam.kind = SY_OPTIMIZER_ADAM;
  const Value one = F32({1});
  EXPECT_THAT(ErrorOfAdd("optimizer_update", {one, one, one, one, rows, rows, rows}, Attributes(adam)),
              HasSubstr("4 inputs a tensor"));
  EXPECT_THAT(ErrorOfAdd("optimizer_update", {one, one, one, one, rows, rows, rows, logits}, Attributes(adam)),
              HasSubstr("moment differ"));
}

// Each breaks a good graph in one way, as a pass with a defect would.
struct Fault {
  const char* name;
  std::function<void(Graph&)> plant;
  const char* found;
};

class VerifyTest : public ::testing::TestWithParam<Fault> {};

Graph GoodGraph() {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {4, 8}}, {}), w = graph.Input("w", {DType::kF32, {3, 8}}, {});
  const Value s = graph.Input("s", {DType::kF32, {4, 3}}, {Role::kState, {}, false});
  const Value y = ops::Linear(x, w, {});
  graph.Assign(s, ops::Add(y, s));
  graph.Output("y", y);
  return graph;
}

int IdOf(const Graph& graph, const std::string& op) {
  for (int id = 0; id < graph.size(); ++id) {
    if (graph.node(id).op == op) return id;
  }
  return -1;
}
Node& NodeOf(Graph& graph, const std::string& op) { return graph.mutable_node(IdOf(graph, op)); }

TEST_P(VerifyTest, FindsIt) {
  Graph graph = GoodGraph();
  EXPECT_NO_THROW(Verify(graph, "nothing"));
  GetParam().plant(graph);
  EXPECT_THAT(ErrorOf([&] { Verify(graph, "a pass"); }), AllOf(HasSubstr("after a pass"), HasSubstr(GetParam().found)));
}

INSTANTIATE_TEST_SUITE_P(
    Faults, VerifyTest,
    ::testing::Values(
        Fault{"dtype", [](Graph& g) { NodeOf(g, "pointwise").outputs[0].dtype = DType::kBF16; }, "differ in type"},
        Fault{"shape",
              [](Graph& g) {
                NodeOf(g, "matmul").outputs[0].shape = {4, 4};
              },
              "the op gives f32(4, 3)"},
        Fault{"count", [](Graph& g) { NodeOf(g, "matmul").outputs.emplace_back(); },
              "it has 2 results, the op gives 1"},
        Fault{"order", [](Graph& g) { NodeOf(g, "matmul").inputs[0].node = g.size() - 1; }, "does not come before it"},
        Fault{"result", [](Graph& g) { NodeOf(g, "output").inputs[0].output = 1; }, "it reads result 1 of matmul"},
        Fault{"control", [](Graph& g) { NodeOf(g, "matmul").control = {g.size() - 1}; }, "control edge"},
        Fault{"pair", [](Graph& g) { NodeOf(g, "matmul").forward = g.size(); }, "forward node"},
        Fault{"name", [](Graph& g) { NodeOf(g, "matmul").name = "x"; }, "another node has its name"},
        Fault{"role", [](Graph& g) { NodeOf(g, "matmul").input = InputInfo{}; }, "only inputs have a role"},
        Fault{"attributes", [](Graph& g) { NodeOf(g, "matmul").attributes = {}; }, "attributes of another op"},
        Fault{"target", [](Graph& g) { NodeOf(g, "assign").inputs[0] = NodeOf(g, "assign").inputs[1]; },
              "not a named input"},
        Fault{"twice", [](Graph& g) { g.Assign(g.FindInput("s"), g.FindInput("s")); }, "second assignment"}),
    [](const auto& info) { return info.param.name; });

TEST(VerifyTest, ABrokenPassIsNamedByItsOwnName) {
  const Graph source = GoodGraph();
  const auto breaks = [&](Rewriting& r, int id) -> std::optional<std::vector<Value>> {
    if (source.node(id).op != "matmul") return std::nullopt;
    const auto copy = r.result.Clone(source.node(id), r.Map(source.node(id).inputs));
    r.result.mutable_node(copy[0].ref().node).attributes = Attributes(sy_matmul_attributes{});
    return copy;
  };
  EXPECT_THAT(ErrorOf([&] { Rewrite("a careless pass", source, breaks); }), HasSubstr("after a careless pass"));
}

TEST(AutocastTraits, PoolingAndResizingKeepTheHalfThatComes) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {2, 8, 8, 4}}, {}),
              w = graph.Input("w", {DType::kF32, {4, 3, 3, 4}}, {});
  const Value pooled = ops::Pool(ops::Convolution(x, w, {}, {.padding = 1}), {.kernel = 2, .stride = 2});
  graph.Output("y", ops::Resize(pooled, {8, 8}, SY_RESIZE_LINEAR, false));
  const Graph half = Autocast(graph, DType::kBF16);
  for (const char* op : {"convolution", "pool", "resize"}) {
    EXPECT_EQ(half.node(IdOf(half, op)).outputs[0].dtype, DType::kBF16) << op;
  }
  EXPECT_EQ(half.type(half.nodes().back().inputs[0]).dtype, DType::kF32);  // outputs stay what they were
}

TEST(AutocastTraits, ATransposedConvolutionIsAProduct) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {2, 8, 8, 4}}, {}),
              w = graph.Input("w", {DType::kF32, {4, 2, 2, 3}}, {Role::kParameter, {}, true});
  graph.Output("y", ops::TransposedConvolution(x, w, {.stride = 2}, 0));
  Graph half = Autocast(graph, DType::kF16);
  const int id = IdOf(half, "convolution_backward_data");
  for (const Ref& input : half.node(id).inputs) EXPECT_EQ(half.type(input).dtype, DType::kF16);
  EXPECT_EQ(half.node(id).outputs[0].dtype, DType::kF16);
  const Value gradient = Gradients(ops::Sum(ops::Cast(half.value({id, 0}), DType::kF32)), {half.FindInput("w")})[0];
  EXPECT_EQ(gradient.dtype(), DType::kF32) << "of the master weight";
}

// Batch norms read halves and compute in f32, and are half in a half model, in training and in evaluation; what they
// keep for each channel is f32 at every level.
TEST(AutocastTraits, BatchNormReadsHalvesAndKeepsItsStatisticsInF32) {
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {2, 8, 8, 4}}, {}),
              w = graph.Input("w", {DType::kF32, {4, 3, 3, 4}}, {Role::kParameter, {}, true});
  const Value gamma = graph.Input("gamma", {DType::kF32, {4}}, {Role::kParameter, {}, false}),
              mean = graph.Input("mean", {DType::kF32, {4}}, {Role::kState, {}, false});
  const Value y = ops::Convolution(x, w, {}, {.padding = 1});
  graph.Output("train", ops::BatchNorm(y, gamma, gamma, mean, mean, 1e-5f, 0.1f).y);
  graph.Output("evaluate", ops::BatchNormInference(y, gamma, gamma, mean, mean, 1e-5f));
  for (const AmpLevel level : {AmpLevel::kO1, AmpLevel::kO2, AmpLevel::kO3}) {
    const Graph half = Autocast(graph, {.half = DType::kBF16, .level = level, .norms_in_f32 = level != AmpLevel::kO3});
    for (const char* op : {"batch_norm", "batch_norm_inference"}) {
      SCOPED_TRACE(fmt::format("{} at O{}", op, static_cast<int>(level)));
      const Node& node = half.node(IdOf(half, op));
      EXPECT_EQ(half.node(node.inputs[0].node).op, "convolution") << "no cast before it";
      EXPECT_EQ(half.type(node.inputs[0]).dtype, DType::kBF16);
      for (size_t i = 1; i < node.inputs.size(); ++i) EXPECT_EQ(half.type(node.inputs[i]).dtype, DType::kF32) << i;
      EXPECT_EQ(node.outputs[0].dtype, level == AmpLevel::kO1 ? DType::kF32 : DType::kBF16);
      for (size_t o = 1; o < node.outputs.size(); ++o) EXPECT_EQ(node.outputs[o].dtype, DType::kF32) << o;
    }
  }
}

// A block of a U-Net: a norm, a ReLU, and from there down through a pool or a resize and over to a concatenation. All
// that it gives on is half, uncast; what adds or averages on the way wants the norm's f32, and a part of an f32 sum is
// cut before it is cast.
TEST(AutocastTraits, NormsWriteHalvesThroughWhatOnlySelects) {
  struct Case {
    const char* what;
    bool average, resizes, adds;
    DType expected;
  };
  for (const Case& c :
       {Case{"selects", false, false, false, DType::kBF16}, Case{"resizes", false, true, false, DType::kBF16},
        Case{"averages", true, false, false, DType::kF32}, Case{"adds", false, false, true, DType::kF32}}) {
    SCOPED_TRACE(c.what);
    Graph graph;
    const Value x = graph.Input("x", {DType::kF32, {2, 8, 8, 4}}, {});
    const auto weight = [&](const char* name, Shape shape) {
      return graph.Input(name, {DType::kF32, std::move(shape)}, {Role::kParameter, {}, true});
    };
    const Value w = weight("w", {4, 3, 3, 4}), up = weight("up", {4, 2, 2, 4}), joined = weight("joined", {4, 1, 1, 8}),
                gamma = weight("gamma", {4});
    const Value mean = graph.Input("mean", {DType::kF32, {4}}, {Role::kState, {}, false});
    const auto norm = ops::BatchNorm(ops::Convolution(x, w, {}, {.padding = 1}), gamma, gamma, mean, mean, 1e-5f, 0.1f);
    graph.Assign(mean, norm.running_mean);
    const Value y = ops::Unary(SY_PW_RELU, norm.y);
    const Value down =
        c.resizes ? ops::Resize(y, {4, 4}, SY_RESIZE_LINEAR, false) : ops::Pool(y, {.average = c.average});
    const Value small = ops::Convolution(down, w, {}, {.padding = 1});
    const Value over = ops::Concat({ops::TransposedConvolution(small, up, {.stride = 2}, 0), y}, 3);
    graph.Output("y", ops::Convolution(over, joined, {}, {}));
    if (c.adds) graph.Output("sum", ops::Add(y, y));
    const Graph half = Autocast(graph, DType::kBF16);
    EXPECT_EQ(half.node(IdOf(half, "batch_norm")).outputs[0].dtype, c.expected);
    EXPECT_EQ(half.node(IdOf(half, "concat")).outputs[0].dtype, DType::kBF16) << "one of its inputs is";
    if (c.expected == DType::kBF16) {
      EXPECT_EQ(half.node(IdOf(half, c.resizes ? "resize" : "pool")).outputs[0].dtype, DType::kBF16);
    }
  }
  Graph enlarged;  // what a loss reads keeps the norm's digits
  const Value scores = enlarged.Input("scores", {DType::kF32, {1, 4, 4, 3}}, {});
  const Value kernel = enlarged.Input("kernel", {DType::kF32, {3, 1, 1, 3}}, {}),
              ones = enlarged.Input("ones", {DType::kF32, {3}}, {});
  const Value normed = ops::BatchNormInference(ops::Convolution(scores, kernel, {}, {}), ones, ones, ones, ones, 1e-5f);
  enlarged.Output("loss", ops::Resize(normed, {8, 8}, SY_RESIZE_LINEAR, false));
  const Graph read = Autocast(enlarged, DType::kBF16);
  EXPECT_EQ(read.node(IdOf(read, "resize")).outputs[0].dtype, DType::kF32);
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {8, 16}}, {}), w = graph.Input("w", {DType::kF32, {16, 16}}, {});
  graph.Output("y", ops::Matmul(ops::Slice(ops::Add(x, ops::Matmul(x, w)), 0, 0, 1), w));
  const Graph half = Autocast(graph, DType::kBF16);
  EXPECT_EQ(half.node(IdOf(half, "slice")).outputs[0].dtype, DType::kF32);
}

// y = x², by an op that the tree does not have.
OpDefinition Square() {
  return {.name = "test_square",
          .summary = "x times x",
          .infer =
              [](const Signature& call) {
                call.RequireInputs(1);
                return std::vector<TensorType>{call[0]};
              },
          .gradient =
              [](Graph& graph, int id, const std::vector<Value>& dy, const std::vector<bool>&) {
                const Value x = graph.value(graph.node(id).inputs[0]);
                return std::vector<Value>{ops::Scale(ops::Mul(dy[0], x), 2)};
              },
          .decompose = [](Graph&, const Node&, const std::vector<Value>& inputs) -> std::vector<Value> {
            return {ops::Mul(inputs[0], inputs[0])};
          },
          .traits = {.precision = Precision::kHalf, .half_inputs = 1}};
}

TEST(OutsideOps, AnOpOfAUserHasTypesAGradientADecompositionAndAPrecisionClass) {
  RegisterOp(Square());
  EXPECT_THAT(ErrorOf([] { RegisterOp(Square()); }), HasSubstr("test_square: the name is taken"));
  EXPECT_THAT(ErrorOf([] { RegisterOp({.name = "test_untyped", .summary = "", .infer = nullptr}); }),
              HasSubstr("no type rule"));
  Graph graph;
  const Value x = graph.Input("x", {DType::kF32, {3}}, {});
  const Value y = graph.Add("test_square", {x})[0];
  EXPECT_EQ(Gradients(ops::Sum(y), {x})[0].type(), x.type());
  graph.Output("y", y);
  const Graph half = Autocast(graph, DType::kBF16);
  EXPECT_EQ(half.node(IdOf(half, "test_square")).outputs[0].dtype, DType::kBF16);
  const Graph lowered = Decompose(graph, [](const Graph&, const Node& node) { return node.op != "test_square"; });
  EXPECT_EQ(Count(lowered, "test_square"), 0);
  // A device without any kernel: the parts are left to the reference plugin, which lacks the op.
  const Graph parts = Decompose(graph, [](const Graph&, const Node&) { return false; });
  EXPECT_EQ(Count(parts, "test_square"), 0);
  EXPECT_EQ(Count(parts, "pointwise"), 1);
}

}  // namespace
}  // namespace switchyard
