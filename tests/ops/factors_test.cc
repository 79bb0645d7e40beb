// What an op says of its factors is true: every case of the table is split along each of its axes, both parts run on
// the reference plugin in f64, and their results, put together as the factors say, are those of the whole.
#include "core/graph/factors.h"

#include <cmath>
#include <numeric>
#include <set>

#include "core/graph/factor_lines.h"
#include "core/graph/op.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/graph/steps.h"
#include "tests/ops/case_graph.h"
#include "tools/conform/op_data.h"

namespace switchyard {
namespace {

using conform::OpCase;
using conform::Problem;
using Indices = std::vector<int64_t>;
using Values = std::vector<double>;
using ::testing::HasSubstr;

constexpr double kTolerance = 1e-11;  // of a result's norm: f64, added in another order

// The elements whose index along the axis is one of `indices`, and where each lies in the whole tensor.
std::vector<size_t> PositionsOf(const Shape& shape, const AxisPlace& place, const Indices& indices) {
  int64_t before = place.outer, after = place.inner;
  const int64_t extent = shape[place.dimension] / place.outer / place.inner;
  for (int d = 0; d < place.dimension; ++d) before *= shape[d];
  for (size_t d = place.dimension + 1; d < shape.size(); ++d) after *= shape[d];
  std::vector<size_t> positions;
  for (int64_t b = 0; b < before; ++b) {
    for (const int64_t index : indices) {
      for (int64_t a = 0; a < after; ++a) positions.push_back((b * extent + index) * after + a);
    }
  }
  return positions;
}

Values Take(const Values& whole, const std::vector<size_t>& positions) {
  Values part;
  for (const size_t position : positions) part.push_back(whole[position]);
  return part;
}

Shape ShapeOf(const sy_tensor& tensor) { return {tensor.dims, tensor.dims + tensor.rank}; }

// Halves, and every second index: an axis may be cut anywhere.
std::vector<std::vector<Indices>> CutsOf(int64_t extent) {
  Indices all(static_cast<size_t>(extent));
  std::iota(all.begin(), all.end(), 0);
  std::vector<Indices> halves(2), turns(2);
  for (const int64_t i : all) {
    halves[i < extent / 2 ? 0 : 1].push_back(i);
    turns[static_cast<size_t>(i % 2)].push_back(i);
  }
  return {halves, turns};
}

class OpFactors : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = TestDevice::Open("reference", 1);
    ASSERT_TRUE(opened.ok()) << Message(opened.status());
    test_ = std::move(*opened);
  }
  std::vector<Values> Run(const Problem& problem) {
    auto results = conform::RunOp(*test_->device, problem);
    EXPECT_TRUE(results.ok()) << Message(results.status());
    return results.ok() ? std::move(*results) : std::vector<Values>(problem.outputs.size());
  }
  // The share of part `part` of two, where `axis` is split at these indices.
  Problem PartOf(const Problem& whole, const Factors& factors, int axis, const Indices& indices, int part);
  // The number of axes along which it was split.
  int Check(const OpCase& one, const Factors& factors);

  std::unique_ptr<TestDevice> test_;
};

Problem OpFactors::PartOf(const Problem& whole, const Factors& factors, int axis, const Indices& indices, int part) {
  Problem share = whole;
  const bool leaves_sums = std::any_of(factors.outputs.begin(), factors.outputs.end(),
                                       [&](const auto& output) { return IsPartial(factors, output, axis); });
  const auto shrink = [&](sy_tensor& tensor, const AxisPlace& place) {
    const sy_tensor before = tensor;
    Shape dims = ShapeOf(before);
    dims[place.dimension] = place.outer * place.inner * static_cast<int64_t>(indices.size());
    tensor = conform::Contiguous(static_cast<sy_dtype>(before.dtype), {dims.begin(), dims.end()});
  };
  for (size_t i = 0; i < share.inputs.size(); ++i) {
    if (const auto place = PlaceOf(factors, factors.inputs[i], axis)) {
      share.values[i] = Take(whole.values[i], PositionsOf(ShapeOf(whole.inputs[i]), *place, indices));
      shrink(share.inputs[i], *place);
    } else if (factors.inputs[i].added && leaves_sums && part > 0) {
      std::fill(share.values[i].begin(), share.values[i].end(), 0);
    }
  }
  for (size_t o = 0; o < share.outputs.size(); ++o) {
    if (const auto place = PlaceOf(factors, factors.outputs[o], axis)) shrink(share.outputs[o], *place);
  }
  return share;
}

void ExpectClose(const Values& found, const Values& expected) {
  ASSERT_EQ(found.size(), expected.size());
  double error = 0, squares = 0;
  for (size_t e = 0; e < found.size(); ++e) {
    if (!std::isfinite(expected[e])) {
      ASSERT_TRUE(found[e] == expected[e] || (std::isnan(found[e]) && std::isnan(expected[e]))) << "element " << e;
      continue;
    }
    error += std::pow(found[e] - expected[e], 2);
    squares += std::pow(expected[e], 2);
  }
  EXPECT_LE(std::sqrt(error), kTolerance * std::sqrt(squares));
}

int OpFactors::Check(const OpCase& one, const Factors& factors) {
  const auto problem = conform::MakeWholeProblem(one, SY_F32, 5, *test_->device);
  EXPECT_TRUE(problem.ok()) << Message(problem.status());
  if (!problem.ok()) return 0;
  const Problem whole = conform::InDoubles(*problem);
  const std::vector<Values> expected = Run(whole);
  int axes = 0;
  for (int axis = 0; axis < static_cast<int>(factors.axes.size()); ++axis) {
    const Factors::Axis& a = factors.axes[axis];
    if (a.whole() || a.extent < 2) continue;
    SCOPED_TRACE("split along " + a.name);
    ++axes;
    for (const std::vector<Indices>& cut : CutsOf(a.extent)) {
      std::vector<Values> joined(expected.size());
      for (int part = 0; part < 2; ++part) {
        const std::vector<Values> results = Run(PartOf(whole, factors, axis, cut[part], part));
        for (size_t o = 0; o < results.size(); ++o) {
          Values& into = joined[o];
          into.resize(expected[o].size());
          if (const auto place = PlaceOf(factors, factors.outputs[o], axis)) {
            const auto positions = PositionsOf(ShapeOf(whole.outputs[o]), *place, cut[part]);
            EXPECT_EQ(results[o].size(), positions.size());
            for (size_t e = 0; e < positions.size() && e < results[o].size(); ++e) into[positions[e]] = results[o][e];
          } else if (IsPartial(factors, factors.outputs[o], axis)) {
            for (size_t e = 0; e < into.size(); ++e) into[e] += results[o][e];
          } else {
            ExpectClose(results[o], expected[o]);
            into = results[o];
          }
        }
      }
      for (size_t o = 0; o < expected.size(); ++o) {
        SCOPED_TRACE("result " + std::to_string(o));
        ExpectClose(joined[o], expected[o]);
      }
    }
  }
  return axes;
}

TEST_F(OpFactors, PartsPutTogetherAreTheWhole) {
  std::map<std::string, int> axes;  // of every op: how many splits were checked
  for (const OpCase& one : conform::OpCases()) {
    SCOPED_TRACE(one.id());
    Graph graph;
    const CaseNode node = AddCase(graph, one);
    const auto factors = FactorsOf(graph, graph.node(node.results[0].ref().node));
    if (factors) axes[one.op] += Check(one, *factors);
  }
  // A view and what has no results of its own; theirs are below.
  const std::set<std::string> without_cases = {"reshape", "accumulate", "assign", "store", "fetch"};
  std::set<std::string> without_factors;
  for (const auto& [name, op] : AllOps()) {
    if (!op.factors) without_factors.insert(name);
    if (op.factors && !without_cases.contains(name)) {
      EXPECT_GT(axes[name], 0) << name << " was never split";
    }
  }
  // Each row of what is made orthonormal hangs together with all before it, and with all columns.
  EXPECT_EQ(without_factors, (std::set<std::string>{"all_gather", "all_reduce", "all_to_all", "broadcast", "input",
                                                    "orthonormalize", "output", "receive", "reduce_scatter", "send"}));
}

TEST(FactorsOfReshape, KeepTheOrderOfElements) {
  const std::vector<std::pair<Shape, Shape>> changes = {{{8, 197, 384}, {1576, 384}},
                                                        {{2, 5, 24}, {2, 5, 3, 4, 2}},
                                                        {{6, 4}, {2, 12}},
                                                        {{4, 3}, {3, 4}},
                                                        {{2, 1, 7}, {2, 7}},
                                                        {{2, 7}, {1, 2, 7, 1}},
                                                        {{12, 5}, {2, 30}},
                                                        {{6, 5}, {2, 5, 3}},
                                                        {{1}, {1, 1}},
                                                        {{}, {1}},
                                                        {{4, 6, 5}, {4, 5, 6}},
                                                        {{9, 4, 2}, {6, 6, 2}},
                                                        {{3, 2, 2, 5}, {2, 6, 5}},
                                                        {{30}, {5, 6}},
                                                        {{5, 6}, {30}},
                                                        {{2, 3, 4}, {2, 3, 4}}};
  int splits = 0;
  for (const auto& [from, to] : changes) {
    SCOPED_TRACE(ToString(from) + " to " + ToString(to) + ": " + ReshapeLine(from, to));
    const Factors factors = ParseFactors(ReshapeLine(from, to), {from}, {to});
    Values elements(static_cast<size_t>(Elements(from)));
    std::iota(elements.begin(), elements.end(), 0);
    for (int axis = 0; axis < static_cast<int>(factors.axes.size()); ++axis) {
      const int64_t extent = factors.axes[axis].extent;
      if (factors.axes[axis].whole() || extent < 2) continue;
      const auto in = PlaceOf(factors, factors.inputs[0], axis), out = PlaceOf(factors, factors.outputs[0], axis);
      ASSERT_TRUE(in && out);
      ++splits;
      for (const auto& cut : CutsOf(extent)) {
        for (const Indices& part : cut)
          EXPECT_EQ(Take(elements, PositionsOf(from, *in, part)), Take(elements, PositionsOf(to, *out, part)));
      }
    }
  }
  EXPECT_EQ(splits, 29);
}

TEST(FactorsOfLines, AreReadAsWritten) {
  const Factors packed = ParseFactors("b (p h _) -> b h _, p =*", {{2, 24}}, {{2, 4, 2}, {3}});
  ASSERT_EQ(packed.axes.size(), 5u);
  EXPECT_EQ(packed.axes[1].extent, 3);
  EXPECT_EQ(packed.axes[2].extent, 4);
  const auto h = PlaceOf(packed, packed.inputs[0], 2);
  ASSERT_TRUE(h);
  EXPECT_EQ(h->dimension, 1);
  EXPECT_EQ(h->outer, 3);
  EXPECT_EQ(h->inner, 2);
  EXPECT_TRUE(IsPartial(packed, packed.outputs[0], 1));   // p
  EXPECT_FALSE(IsPartial(packed, packed.outputs[0], 2));  // h: split
  EXPECT_FALSE(IsPartial(packed, packed.outputs[1], 2));  // h: the same in all parts
  const Factors rows = ParseFactors("... _, _ -> ... _, ...", {{4, 5, 6}, {6}}, {{4, 5, 6}, {4, 5}});
  EXPECT_EQ(rows.outputs[1].dimensions, (std::vector<Factors::Dimension>{{0}, {1}}));
  EXPECT_TRUE(ParseFactors("m k, k n, +n -> m n", {{2, 3}, {3, 4}, {4}}, {{2, 4}}).inputs[2].added);
}

TEST(FactorsOfLines, ThatDoNotFitAreRefused) {
  const auto error = [](const std::string& line, const std::vector<Shape>& inputs, const std::vector<Shape>& outputs) {
    return ErrorOf([&] { ParseFactors(line, inputs, outputs); });
  };
  EXPECT_THAT(error("m k, k n", {{2, 3}, {3, 4}}, {{2, 4}}), HasSubstr("expected inputs -> outputs"));
  EXPECT_THAT(error("m k -> m", {{2, 3}, {3, 4}}, {{2}}), HasSubstr("1 operands for 2 tensors"));
  EXPECT_THAT(error("m k -> m", {{2, 3, 4}}, {{2}}), HasSubstr("\"m k \" stands for a tensor of (2, 3, 4)"));
  EXPECT_THAT(error("m k, k -> m", {{2, 3}, {4}}, {{2}}), HasSubstr("do not give a dimension of 4"));
  EXPECT_THAT(error("(m k) -> (k m)", {{6}}, {{6}}), HasSubstr("the extent of m is open"));
}

}  // namespace
}  // namespace switchyard
