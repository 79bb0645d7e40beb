#include <bit>
#include <cmath>
#include <numbers>
#include <numeric>
#include <set>

#include "core/base/random.h"
#include "core/nn/initialize.h"
#include "core/nn/layers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/graph/steps.h"

namespace switchyard {
namespace {

using ::testing::HasSubstr;

class LayerTest : public ::testing::Test {
 protected:
  const Node& Input(const std::string& name) {
    const Value value = graph_.FindInput(name);
    if (!value) throw std::runtime_error("no input " + name);
    return graph_.node(value.ref().node);
  }
  Value Tokens() { return graph_.Input("x", {DType::kF32, {4, 5, 12}}, {}); }
  Graph graph_;
  nn::Context context_{graph_, true, 42};
};

TEST_F(LayerTest, ParametersAreNamedByScopeAndKnowTheirDecay) {
  const Value y = nn::Mlp(context_, "mlp", nn::LayerNorm(context_, "norm", Tokens(), 1e-6f), 20, 0);
  EXPECT_EQ(y.shape(), (Shape{4, 5, 12}));
  EXPECT_EQ(Input("mlp.fc1.weight").outputs[0].shape, (Shape{20, 12}));
  EXPECT_EQ(Input("mlp.fc2.bias").outputs[0].shape, (Shape{12}));
  EXPECT_TRUE(Input("mlp.fc1.weight").input->weight_decay);
  EXPECT_FALSE(Input("mlp.fc1.bias").input->weight_decay);
  EXPECT_FALSE(Input("norm.weight").input->weight_decay);
  EXPECT_EQ(Input("norm.weight").input->initializer.value, 1);
}

TEST_F(LayerTest, AParameterUsedTwiceIsShared) {
  const Value x = Tokens();
  nn::Linear(context_, "tied", x, 12);
  const size_t before = graph_.Inputs(Role::kParameter).size();
  nn::Linear(context_, "tied", x, 12);
  EXPECT_EQ(graph_.Inputs(Role::kParameter).size(), before);
  EXPECT_THROW(nn::Linear(context_, "tied", x, 13), BuildError);
}

TEST_F(LayerTest, PatchesAreRowsOfTheGrid) {
  const Value images = graph_.Input("images", {DType::kF32, {2, 28, 28, 3}}, {});
  EXPECT_EQ(nn::PatchEmbed(context_, "patch_embed", images, 7, 10).shape(), (Shape{2, 16, 10}));
  EXPECT_EQ(Input("patch_embed.proj.weight").outputs[0].shape, (Shape{10, 7, 7, 3}));
}

TEST_F(LayerTest, WrongShapesNameTheCallersLine) {
  const Value images = graph_.Input("images", {DType::kF32, {2, 28, 28, 3}}, {});
  const int line = __LINE__ + 2;
  try {
    nn::PatchEmbed(context_, "patch_embed", images, 8, 10);
    FAIL() << "no error";
  } catch (const BuildError& error) {
    EXPECT_THAT(error.what(), HasSubstr("multiples of 8"));
    EXPECT_THAT(error.what(), HasSubstr("nn_test.cc:" + std::to_string(line)));
  }
  EXPECT_THROW(nn::Attention(context_, "attn", Tokens(), 5, 0), BuildError);
}

TEST_F(LayerTest, DropoutMakesItsInputsAtTheRootOnceAndOnlyInTraining) {
  const Value x = Tokens();
  EXPECT_EQ(nn::Dropout(context_, "drop", x, 0).ref(), x.ref());
  EXPECT_FALSE(context_.step);
  {
    const Graph::Scope scope(graph_, "blocks.0");
    nn::Dropout(context_, "drop", x, 0.5f);
    nn::DropPath(context_, "path", x, 0.5f);
  }
  EXPECT_EQ(Input("sample_ids").outputs[0], (TensorType{DType::kI32, {4}}));
  EXPECT_EQ(Input("step").outputs[0], (TensorType{DType::kI32, {2}}));
  EXPECT_EQ(graph_.Inputs(Role::kBatch).size(), 3u);

  nn::Context evaluation(graph_, false);
  EXPECT_EQ(nn::Dropout(evaluation, "drop", x, 0.5f).ref(), x.ref());
}

TEST_F(LayerTest, EveryDropoutHasItsOwnKeyFromSeedAndName) {
  const auto keys = [](uint64_t seed) {
    const ResolvedModel model =
        Resolved({.name = "vit_micro", .own = {{"depth", 3}, {"dropout", 0.1f}, {"drop_path", 0.1f}}});
    Graph graph;
    nn::Context context(graph, true, seed);
    BuildModel(model, context, graph.Input("images", {DType::kF32, {2, 28, 28, 1}}, {}));
    std::map<std::string, uint64_t> result;
    for (const Node& node : graph.nodes()) {
      if (node.op == "dropout") result[node.name] = node.attributes.as<sy_dropout_attributes>().key;
    }
    return result;
  };
  const auto first = keys(42), other = keys(43);
  // Positions; projection and two in the MLP for each of 3 blocks; two drop paths in each block but the first, whose
  // rate is 0.
  EXPECT_EQ(first.size(), 1u + 3 * 3 + 2 * 2);
  std::set<uint64_t> distinct;
  for (const auto& [name, key] : first) {
    EXPECT_EQ(key, Key(42, HashName(name))) << name;
    EXPECT_NE(key, other.at(name));
    distinct.insert(key);
  }
  EXPECT_EQ(distinct.size(), first.size());
}

TEST(InitialValuesTest, DependOnSeedAndNameAlone) {
  const TensorType type = {DType::kF32, {8, 9}};
  const auto first = nn::InitialValues("head.weight", type, nn::kTransformerWeights, 42);
  EXPECT_EQ(first, nn::InitialValues("head.weight", {DType::kF32, {72}}, nn::kTransformerWeights, 42));
  EXPECT_NE(first, nn::InitialValues("head.weight", type, nn::kTransformerWeights, 43));
  EXPECT_NE(first, nn::InitialValues("norm.weight", type, nn::kTransformerWeights, 42));
}

// However they are drawn, the weights that a seed stands for stay the same to the last bit.
TEST(InitialValuesTest, NormalDrawsAreThoseOfTheFormulaBitForBit) {
  const uint64_t key = Key(uint64_t{7}, HashName("blocks.3.mlp.weight"));
  const auto lane_of = [&](uint32_t block, uint32_t attempt, int lane) {
    const std::array<uint32_t, 4> words = Philox(key, {block, 0, attempt, 0});
    const int pair = lane / 2 * 2;
    const float radius = std::sqrt(-2 * std::log(1 - UnitFloat(words[pair])));
    const float angle = 2 * std::numbers::pi_v<float> * UnitFloat(words[pair + 1]);
    return lane % 2 == 0 ? radius * std::cos(angle) : radius * std::sin(angle);
  };
  for (const int64_t count : {1, 5, 1023, 1024, 1025, 5003}) {
    const auto values =
        nn::InitialValues("blocks.3.mlp.weight", {DType::kF32, {count}}, {Initializer::kTruncatedNormal, 1.5f}, 7);
    ASSERT_EQ(static_cast<int64_t>(values.size()), count);
    for (int64_t i = 0; i < count; ++i) {
      const auto block = static_cast<uint32_t>(i / 4);
      float expected = 1.5f * lane_of(block, 0, static_cast<int>(i % 4));
      for (uint32_t attempt = 1; std::fabs(expected) > 2; ++attempt)
        expected = 1.5f * lane_of(block, attempt, static_cast<int>(i % 4));
      ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected)) << i << " of " << count;
    }
  }
}

// A rank that holds a part of a tensor draws that part alone: rows, columns, pieces of parts, and whatever straddles
// the blocks in which numbers are drawn.
TEST(InitialValuesTest, OfPartsAreTheElementsOfTheWhole) {
  const Shape shape = {37, 129};
  const int64_t elements = Elements(shape);
  std::vector<Part> parts;
  for (int i = 0; i < 3; ++i) {
    const Part columns = PartOf(shape, {.dimension = 1, .outer = 3, .extent = 43, .inner = 1}, i, 3);
    parts.push_back(columns);
    Part piece = PartOf(ShapeOf(columns), {DividedAxis::kAllElements, 1, Elements(ShapeOf(columns)), 1}, i, 3);
    piece.of = std::make_shared<Part>(columns);
    parts.push_back(piece);
    parts.push_back(PartOf(shape, {.dimension = 0, .outer = 1, .extent = 37, .inner = 1}, i, 3));
    parts.push_back(PartOf(shape, {DividedAxis::kAllElements, 1, elements, 1}, i, 3));
  }
  for (const auto kind : {Initializer::kZeros, Initializer::kConstant, Initializer::kNormal,
                          Initializer::kTruncatedNormal, Initializer::kUniform}) {
    const Initializer initializer = {kind, 1.5f};
    const auto whole = nn::InitialValues("w", {DType::kF32, shape}, initializer, 7);
    for (const Part& part : parts) {
      std::vector<float> expected(static_cast<size_t>(Elements(ShapeOf(part))));
      CutPart(part, sizeof(float), reinterpret_cast<const std::byte*>(whole.data()),
              reinterpret_cast<std::byte*>(expected.data()));
      EXPECT_EQ(nn::InitialElements("w", RunsOf(part), initializer, 7), expected) << "kind " << kind;
    }
  }
  EXPECT_TRUE(nn::InitialElements("w", {}, {Initializer::kNormal, 1}, 7).empty());
}

TEST(InitialValuesTest, UniformDrawsAreTheWordsInOrder) {
  RandomStream stream(Key(uint64_t{7}, HashName("w")));
  for (const float value : nn::InitialValues("w", {DType::kF32, {5003}}, {Initializer::kUniform, 0.3f}, 7))
    ASSERT_EQ(value, stream.Uniform(-0.3f, 0.3f));
}

TEST(InitialValuesTest, ConstantsAreConstant) {
  EXPECT_THAT(nn::InitialValues("a", {DType::kF32, {3}}, {Initializer::kZeros}, 1), ::testing::Each(0));
  EXPECT_THAT(nn::InitialValues("a", {DType::kF32, {3}}, {Initializer::kConstant, 1}, 1), ::testing::Each(1));
  EXPECT_TRUE(nn::InitialValues("a", {DType::kF32, {0}}, {Initializer::kNormal, 1}, 1).empty());
}

struct Moments {
  double mean = 0, deviation = 0, kurtosis = 0, largest = 0;
};
Moments Measure(const std::vector<float>& values) {
  Moments m;
  const auto n = static_cast<double>(values.size());
  for (const float v : values) m.mean += v / n;
  double second = 0, fourth = 0;
  for (const float v : values) {
    const double d = v - m.mean;
    second += d * d / n;
    fourth += d * d * d * d / n;
    m.largest = std::max(m.largest, std::fabs(static_cast<double>(v)));
  }
  m.deviation = std::sqrt(second);
  m.kurtosis = fourth / (second * second);
  return m;
}

TEST(InitialValuesTest, DrawsHaveTheMomentsOfTheirDistribution) {
  const TensorType type = {DType::kF32, {400000}};
  const Moments normal = Measure(nn::InitialValues("w", type, {Initializer::kNormal, 0.02f}, 42));
  EXPECT_NEAR(normal.mean, 0, 2e-4);
  EXPECT_NEAR(normal.deviation, 0.02, 2e-4);
  EXPECT_NEAR(normal.kurtosis, 3, 0.05);
  const Moments uniform = Measure(nn::InitialValues("w", type, {Initializer::kUniform, 0.5f}, 42));
  EXPECT_NEAR(uniform.deviation, 0.5 / std::sqrt(3.0), 1e-3);
  EXPECT_LE(uniform.largest, 0.5);
  // Standard normal cut at ±2: variance 1 − 4φ(2)/(Φ(2) − Φ(−2)) = 0.7737.
  const Moments cut = Measure(nn::InitialValues("w", type, {Initializer::kTruncatedNormal, 1}, 42));
  EXPECT_LE(cut.largest, 2);
  EXPECT_NEAR(cut.deviation, std::sqrt(0.7737), 2e-3);
}

}  // namespace
}  // namespace switchyard
