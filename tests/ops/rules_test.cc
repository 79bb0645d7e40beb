// Gradient rules and decompositions of the graph on every case of the table, run on the reference plugin: a gradient
// rule against central differences of the node's own results, a decomposition against the kernel that it stands for.
#include <cmath>
#include <random>
#include <set>

#include "core/base/random.h"
#include "core/graph/op.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/passes/decompose.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/graph/steps.h"
#include "tests/ops/case_graph.h"
#include "tools/conform/op_data.h"

namespace switchyard {
namespace {

using conform::OpCase;

constexpr uint64_t kSeed = 5;
constexpr double kStep = 1.25e-4;             // of inputs whose elements are of size 1: short, for the kinks of max
constexpr double kSlopeTolerance = 4e-3;      // of the gradient's norm: truncation, and f32 between the nodes
constexpr double kDecomposeTolerance = 2e-5;  // of a result's norm

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

class OpRules : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = TestDevice::Open("reference", 1);
    ASSERT_TRUE(opened.ok()) << Message(opened.status());
    test_ = std::move(*opened);
  }
  // The case's inputs i0, i1, …
  NamedValues InputsOf(const OpCase& one) {
    const auto problem = conform::MakeWholeProblem(one, SY_F32, kSeed, *test_->device);
    EXPECT_TRUE(problem.ok()) << Message(problem.status());
    NamedValues values;
    for (size_t i = 0; problem.ok() && i < problem->values.size(); ++i)
      values[NameOf('i', static_cast<int>(i))] = problem->values[i];
    return values;
  }
  std::vector<double> Normal(size_t count) {
    std::vector<double> values(count);
    for (double& v : values) v = static_cast<float>(normal_(generator_));
    return values;
  }
  void CheckGradient(const OpCase& one);

  std::unique_ptr<TestDevice> test_;
  std::mt19937 generator_;
  std::normal_distribution<double> normal_;
};

// Whether finite differences and a gradient rule can be asked for: numbers are finite and there is a first derivative.
bool IsDifferentiable(const OpCase& one) {
  for (const conform::Operand& input : one.inputs) {
    if (input.fill == conform::Fill::kExtreme) return false;
    if (input.fill == conform::Fill::kConstant && input.value > 1e4) return false;  // kStep is lost in its rounding
  }
  if (one.op == "cross_entropy" && one.name == "labels_beyond") return false;  // NaN
  return one.op != "matmul" || !AttributesOf(one).as<sy_matmul_attributes>().activation_gradient;
}

void OpRules::CheckGradient(const OpCase& one) {
  generator_.seed(static_cast<uint32_t>(HashName(one.id())));  // other cases may come and go
  normal_.reset();
  Graph graph;
  const CaseNode node = AddCase(graph, one);
  const Differentiated by = DifferentiatedBy(one);
  NamedValues values = InputsOf(one);
  for (const int o : by.results) {
    values[NameOf('g', o)] = Normal(static_cast<size_t>(node.results[o].type().elements()));
    graph.Output(NameOf('o', o), node.results[o]);
  }
  const std::vector<bool> given = AddGradients(graph, node, by);
  // None is zero almost everywhere: the rule of a comparison or of floor.
  if (one.op != "pointwise" || by.named) {
    EXPECT_THAT(given, ::testing::Each(true));
  }
  std::vector<NamedValues> inputs = {values};
  std::vector<std::vector<double>> directions;
  for (const int i : by.inputs) {
    directions.push_back(Normal(values[NameOf('i', i)].size()));
    for (const double step : {kStep, -kStep}) {
      std::vector<double>& moved = inputs.emplace_back(values)[NameOf('i', i)];
      for (size_t e = 0; e < moved.size(); ++e) moved[e] += step * directions.back()[e];
    }
  }
  const std::vector<NamedValues> runs = RunGraph(graph, *test_, inputs);
  ASSERT_EQ(runs.size(), inputs.size());
  for (size_t k = 0; k < by.inputs.size(); ++k) {
    if (!given[k]) continue;
    double slope = 0, noise = 0;
    for (const int o : by.results) {
      const std::vector<double>&above = runs[1 + 2 * k].at(NameOf('o', o)), &below = runs[2 + 2 * k].at(NameOf('o', o)),
            &dy = values[NameOf('g', o)];
      slope += (Dot(above, dy) - Dot(below, dy)) / (2 * kStep);
      for (size_t e = 0; e < dy.size(); ++e) noise += std::pow(above[e] * dy[e] * 1e-7 / kStep, 2);
    }
    const std::vector<double>& gradient = runs[0].at(NameOf('d', by.inputs[k]));
    const double limit = kSlopeTolerance * std::sqrt(Dot(gradient, gradient)) + 4 * std::sqrt(noise) + 1e-6;
    EXPECT_NEAR(Dot(gradient, directions[k]), slope, limit) << "by input " << by.inputs[k];
  }
}

TEST_F(OpRules, GradientsAreTheSlopes) {
  int checked = 0;
  for (const OpCase& one : conform::OpCases()) {
    if (one.forward >= 0 || !IsDifferentiable(one) || !FindOp(one.op)->gradient) continue;
    SCOPED_TRACE(one.id());
    CheckGradient(one);
    ++checked;
  }
  EXPECT_GT(checked, 60);
}

TEST_F(OpRules, WhatHasGradientCasesHasAGradientRule) {
  for (const OpCase& one : conform::OpCases()) {
    if (one.forward < 0) continue;
    EXPECT_TRUE(FindOp(conform::OpCases()[one.forward].op)->gradient) << one.id();
  }
}

// What mixed precision counts on (Precision::kSelects).
TEST_F(OpRules, WhatSelectsGivesTheSameRoundedBeforeAndAfter) {
  std::set<std::string> checked;
  for (const OpCase& one : conform::OpCases()) {
    Graph after, before;
    const CaseNode node = AddCase(after, one);
    const Node& made = after.node(node.results[0].ref().node);
    if (PrecisionOf(made) != Precision::kSelects) continue;
    SCOPED_TRACE(one.id());
    std::vector<Value> rounded;
    for (const Value& input : AddCase(before, one).inputs) {
      rounded.push_back(IsFloating(input.dtype()) ? ops::Cast(input, DType::kBF16) : input);
    }
    const Value of_rounded = before.Add(one.op, rounded, made.attributes, WantedOf(one, DType::kBF16))[0];
    EXPECT_EQ(of_rounded.dtype(), DType::kBF16);
    after.Output("y", ops::Cast(ops::Cast(node.results[0], DType::kBF16), DType::kF32));
    before.Output("y", ops::Cast(of_rounded, DType::kF32));
    const NamedValues values = InputsOf(one);
    const auto expected = RunGraph(after, *test_, {values}), found = RunGraph(before, *test_, {values});
    ASSERT_TRUE(expected.size() == 1 && found.size() == 1);
    EXPECT_EQ(found[0].at("y"), expected[0].at("y"));
    checked.insert(one.op);
  }
  EXPECT_THAT(checked,
              ::testing::ElementsAre("concat", "pad", "pointwise", "pool", "resize", "roll", "slice", "transpose"));
}

TEST_F(OpRules, DecompositionsEqualTheirKernels) {
  int checked = 0;
  for (const OpCase& one : conform::OpCases()) {
    if (!FindOp(one.op)->decompose) continue;
    SCOPED_TRACE(one.id());
    Graph graph;
    const CaseNode node = AddCase(graph, one);
    for (size_t o = 0; o < node.results.size(); ++o) graph.Output(NameOf('o', static_cast<int>(o)), node.results[o]);
    const Graph lowered = Decompose(graph, [&](const Graph&, const Node& n) { return n.op != one.op; });
    if (Count(lowered, one.op) > 0) continue;  // elementary with these attributes
    const NamedValues values = InputsOf(one);
    const auto whole = RunGraph(graph, *test_, {values}), parts = RunGraph(lowered, *test_, {values});
    ASSERT_TRUE(whole.size() == 1 && parts.size() == 1);
    for (const auto& [name, expected] : whole[0]) {
      double error = 0, squares = 0;
      for (size_t e = 0; e < expected.size(); ++e) {
        const double found = parts[0].at(name)[e];
        if (!std::isfinite(expected[e])) {
          EXPECT_FALSE(std::isfinite(found)) << name << ", element " << e;
          continue;
        }
        error += std::pow(found - expected[e], 2);
        squares += std::pow(expected[e], 2);
      }
      EXPECT_LE(std::sqrt(error), kDecomposeTolerance * (std::sqrt(squares) + 1e-3)) << name;
    }
    ++checked;
  }
  EXPECT_GT(checked, 30);
}

}  // namespace
}  // namespace switchyard
