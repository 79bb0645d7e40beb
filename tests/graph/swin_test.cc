// The Swin Transformer and what programs of others have of it; tables of positions of another size.
#include "models/swin.h"

#include <cmath>
#include <fstream>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/foreign_format.h"
#include "models/position_tables.h"
#include "models/weights.h"
#include "nlohmann/json.hpp"
#include "tests/graph/fixtures.h"
#include "tests/graph/steps.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

nlohmann::json Names() { return nlohmann::json::parse(std::ifstream(SWITCHYARD_FIXTURES "/swin_names.json")); }

ModelOptions Small() {
  return {.name = "swin_tiny", .image_size = 56, .classes = 10, .own = {{"width", 12}, {"depths", {"2", "2"}}}};
}

std::map<std::string, std::vector<float>> ByNameAndShape(const HostTensors& tensors) {
  std::map<std::string, std::vector<float>> values;
  for (const auto& [name, tensor] : tensors) values[name + " " + ToString(tensor.shape)] = tensor.values;
  return values;
}

TEST(SwinTest, NeighboursOfAWindowOfTwoShareTheirRowsOfTheTable) {
  EXPECT_EQ(RelativePositionIndex(2), (std::vector<int32_t>{4, 3, 1, 0,  //
                                                            5, 4, 2, 1,  //
                                                            7, 6, 4, 3,  //
                                                            8, 7, 5, 4}));
}

TEST(SwinTest, OnlyTheLastWindowsOfAShiftedMapAreMasked) {
  const std::vector<float> mask = ShiftMask(4, 2, 1);  // (4, 4, 4)
  const auto window = [&](int w) { return std::vector<float>(mask.begin() + 16 * w, mask.begin() + 16 * (w + 1)); };
  EXPECT_EQ(window(0), std::vector<float>(16, 0));
  const float x = -100;
  EXPECT_EQ(window(1), (std::vector<float>{0, x, 0, x, x, 0, x, 0, 0, x, 0, x, x, 0, x, 0}));
  EXPECT_EQ(window(2), (std::vector<float>{0, 0, x, x, 0, 0, x, x, x, x, 0, 0, x, x, 0, 0}));
  EXPECT_EQ(window(3), (std::vector<float>{0, x, x, x, x, 0, x, x, x, x, 0, x, x, x, x, 0}));
}

TEST(SwinTest, OddBlocksShiftWhereAStageHasMoreThanOneWindow) {
  const Graph graph = ForwardGraph({.name = "swin_tiny"}, 1);
  EXPECT_EQ(Count(graph, "attention"), 12);
  EXPECT_EQ(Count(graph, "roll"), 2 * 5);  // the last stage is one window
  EXPECT_EQ(graph.Inputs(Role::kConstant).size(), 4u + 3u);
}

TEST(SwinTest, AStageSmallerThanAWindowIsOneWindow) {
  const auto types = ParameterTypes(Resolved({.name = "swin_tiny_cifar", .own = {{"depths", {"1", "1", "1", "1"}}}}));
  const std::string table = "blocks.0.attn.relative_position_bias_table";
  EXPECT_EQ(types.at("layers.2." + table).shape, (Shape{49, 12}));
  EXPECT_EQ(types.at("layers.3." + table).shape, (Shape{9, 24}));  // 2×2 places
}

TEST(SwinTest, NoDecayForVectorsAndBiasTables) {
  Graph graph = ForwardGraph({.name = "swin_tiny_cifar"}, 1);
  for (const int id : graph.Inputs(Role::kParameter)) {
    const Node& node = graph.node(id);
    EXPECT_EQ(node.input->weight_decay,
              node.outputs[0].shape.size() > 1 && !node.name.ends_with("relative_position_bias_table"))
        << node.name;
  }
}

TEST(SwinTest, StochasticDepthRisesOverAllBlocks) {
  const Graph graph = ForwardGraph({.name = "swin_tiny_cifar", .own = {{"drop_path", 0.5f}}}, 1, /*training=*/true);
  std::vector<float> rates;
  for (const Node& node : graph.nodes()) {
    if (node.op == "dropout") rates.push_back(node.attributes.as<sy_dropout_attributes>().p);
  }
  EXPECT_THAT(rates,
              ::testing::Pointwise(::testing::FloatEq(), {0.1f, 0.1f, 0.2f, 0.2f, 0.3f, 0.3f, 0.4f, 0.4f, 0.5f, 0.5f}));
}

TEST(SwinTest, BadOptionsAreExplained) {
  const auto error = [](const ModelOptions& options) { return Message(ResolveModel(options).status()); };
  EXPECT_THAT(error({.name = "swin_tiny", .image_size = 230}), AllOf(HasSubstr("230"), HasSubstr("--image_size=256")));
  EXPECT_THAT(error({.name = "swin_tiny", .image_size = 256}),
              AllOf(HasSubstr("64×64 places of stage 1"), HasSubstr("--image_size=448")));
  EXPECT_EQ(error({.name = "swin_tiny", .image_size = 256, .own = {{"window", 8}}}), "");
  EXPECT_THAT(error({.name = "swin_tiny", .own = {{"depths", {"2", "two"}}}}), HasSubstr("depths: expected"));
  EXPECT_THAT(error({.name = "swin_tiny", .own = {{"width", 100}}}), HasSubstr("--width=102"));
}

TEST(SwinTest, AllNamingsOfTheSameWeightsImportAlike) {
  const ResolvedModel model = Resolved(Small());
  const HostTensors timm = ReadFixture("swin_small_parity.safetensors", "weight/"),
                    other = ReadFixture("swin_small_hf.safetensors");
  const auto ours = ImportWeights(model, timm, false), from_other = ImportWeights(model, other, false);
  ASSERT_TRUE(ours.ok()) << Message(ours.status());
  ASSERT_TRUE(from_other.ok()) << Message(from_other.status());
  EXPECT_EQ(ByNameAndShape(*ours), ByNameAndShape(*from_other));
  EXPECT_EQ(ByNameAndShape(*ExportWeights(model, *ours, "timm")), ByNameAndShape(timm));
  EXPECT_EQ(ByNameAndShape(*ExportWeights(model, *ours, "huggingface")), ByNameAndShape(other));

  HostTensors microsoft = *ExportWeights(model, *ours, "microsoft");
  std::map<std::string, Shape> expected, found;
  const nlohmann::json names = Names();
  for (const auto& [name, shape] : names["microsoft"].items()) expected[name] = shape.get<Shape>();
  for (const auto& [name, tensor] : microsoft) found[name] = tensor.shape;
  EXPECT_EQ(found, expected);
  // As Microsoft's files have them, beside the weights.
  microsoft["layers.0.blocks.1.attn_mask"] = {{4, 49, 49}, std::vector<float>(4 * 49 * 49)};
  microsoft["layers.0.blocks.0.attn.relative_position_index"] = {{49, 49}, std::vector<float>(49 * 49)};
  const auto from_microsoft = ImportWeights(model, microsoft, false);
  ASSERT_TRUE(from_microsoft.ok()) << Message(from_microsoft.status());
  EXPECT_EQ(ByNameAndShape(*ours), ByNameAndShape(*from_microsoft));
}

TEST(SwinTest, AnEncoderWithoutPrefixNeedsANewHead) {
  const ResolvedModel model = Resolved(Small());
  HostTensors encoder;
  for (const auto& [name, tensor] : ReadFixture("swin_small_hf.safetensors")) {
    if (name.starts_with("swin.")) encoder[name.substr(5)] = tensor;
  }
  EXPECT_THAT(Message(ImportWeights(model, encoder, false).status()), HasSubstr("--reset_head"));
  EXPECT_TRUE(ImportWeights(model, encoder, true).ok());
}

// What a config.json says, as the model that it makes.
ResolvedModel ModelOf(const ForeignModel& found) {
  return Resolved({.name = found.name,
                   .image_size = found.image_size,
                   .channels = found.channels,
                   .classes = found.classes,
                   .own = found.own});
}

TEST(SwinTest, TransformersConfigurationIsRead) {
  const auto read = ReadForeignConfig(Names()["hugging_face_config"]);
  ASSERT_TRUE(read.ok()) << Message(read.status());
  EXPECT_EQ(ParameterTypes(ModelOf(*read)), ParameterTypes(Resolved(Small())));
  EXPECT_EQ(ReadForeignConfig({{"model_type", "swin"}})->name, "swin_tiny");
}

TEST(SwinTest, AConfigurationIsReadAsItWasWritten) {
  const ResolvedModel odd = Resolved(
      {.name = "swin_base",
       .image_size = 60,
       .channels = 1,
       .classes = 3,
       .own = {{"patch", 3}, {"width", 30}, {"depths", {"1", "3"}}, {"heads", 5}, {"window", 5}, {"mlp_ratio", 1.5f}}});
  for (const char* format : {"huggingface", "timm"}) {
    const EvaluationTransform transform = {.image_size = 60, .channels = 1};
    const auto files = (*FormatOf(*odd.info->family, format))->write(odd, transform, {"ant", "bee", "cat"});
    const auto read = ReadForeignConfig(nlohmann::json::parse(files->config.dump()));
    ASSERT_TRUE(read.ok()) << Message(read.status());
    const ResolvedModel model = ModelOf(*read);
    EXPECT_EQ(ParameterTypes(model), ParameterTypes(odd)) << format;
    EXPECT_EQ(model.image_size, 60);
    EXPECT_EQ(model.own.at("window"), 5);
    EXPECT_EQ(model.own.at("heads"), 5);
    EXPECT_EQ(read->class_names.at(2), "cat");
  }
}

TEST(SwinTest, AFieldThatIsWrongOrCannotBeIsNamed) {
  const auto error = [&](const char* field, const nlohmann::json& value) {
    nlohmann::json config = Names()["hugging_face_config"];
    config[field] = value;
    return Message(ReadForeignConfig(config).status());
  };
  EXPECT_THAT(error("num_heads", {3, 4}), HasSubstr("num_heads: expected 2 numbers, each twice the one before"));
  EXPECT_THAT(error("depths", {2, 0}), HasSubstr("depths: expected"));
  EXPECT_THAT(error("use_absolute_embeddings", true), HasSubstr("use_absolute_embeddings"));
  EXPECT_THAT(error("layer_norm_eps", 1e-12), HasSubstr("layer_norm_eps"));
  EXPECT_THAT(error("model_type", "swinv2"), HasSubstr("vit or swin"));
  const auto timm = [](const char* architecture) {
    const auto read = ReadForeignConfig({{"architecture", architecture}});
    return read.ok() ? fmt::format("{} {} {}", read->name, read->image_size.value(), read->own.at("window").dump())
                     : Message(read.status());
  };
  EXPECT_EQ(timm("swin_base_patch4_window12_384"), "swin_base 384 12");
  EXPECT_THAT(timm("swin_s3_tiny_224"), HasSubstr("architecture"));
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    largest = std::max(largest, std::abs(double{a[i]} - double{b[i]}));
  return largest;
}

std::vector<float> Symmetric(const std::string& name, int64_t count) {
  RandomStream random(Key(HashName(name)));
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = 2 * random.Uniform() - 1;
  return values;
}

TEST(PositionTables, AreResampledAsTimmAndTorchDo) {
  const HostTensors recorded = ReadFixture("position_tables.safetensors");
  for (const int side : {4, 12}) {
    HostTensors weights;
    weights["pos_embed"] = {{1, 50, 4}, Symmetric("pos_embed", 50 * 4)};
    const Shape shape = {1, 1 + side * side, 4};
    ResamplePositions({{"pos_embed", {DType::kF32, shape}}}, &weights);
    EXPECT_EQ(weights["pos_embed"].shape, shape);
    EXPECT_LT(LargestDifference(weights["pos_embed"].values, recorded.at(fmt::format("positions_{}", side)).values),
              2e-6);  // torch's sums are f32
  }
  for (const int window : {4, 12}) {
    const std::string name = "layers.0.blocks.0.attn.relative_position_bias_table";
    HostTensors weights;
    weights[name] = {{169, 3}, Symmetric("relative_position_bias_table", 169 * 3)};
    const Shape shape = {(2 * window - 1) * (2 * window - 1), 3};
    ResampleBiasTables({{name, {DType::kF32, shape}}}, &weights);
    EXPECT_EQ(weights[name].shape, shape);
    EXPECT_LT(LargestDifference(weights[name].values, recorded.at(fmt::format("biases_{}", window)).values), 2e-6);
  }
}

TEST(PositionTables, WeightsServeOtherImagesAndWindows) {
  const HostTensors swin = ReadFixture("swin_small_parity.safetensors", "weight/");
  ModelOptions larger = Small();
  larger.image_size = 96, larger.own["window"] = 12;
  const auto loaded = ImportWeights(Resolved(larger), swin, false);
  ASSERT_TRUE(loaded.ok()) << Message(loaded.status());
  EXPECT_EQ(loaded->at("layers.1.blocks.1.attn.relative_position_bias_table").shape, (Shape{529, 6}));

  const HostTensors vit = ReadFixture("vit_small_parity.safetensors", "weight/");
  const auto model = [](int image, int patch) {
    return Resolved({.name = "vit_tiny",
                     .image_size = image,
                     .classes = 10,
                     .own = {{"patch", patch}, {"width", 48}, {"depth", 2}, {"heads", 3}}});
  };
  const auto other = ImportWeights(model(56, 8), vit, false);
  ASSERT_TRUE(other.ok()) << Message(other.status());
  EXPECT_EQ(other->at("pos_embed").shape, (Shape{1, 50, 48}));
  EXPECT_THAT(Message(ImportWeights(model(32, 16), vit, false).status()), HasSubstr("patch_embed.proj.weight"));
}

}  // namespace
}  // namespace switchyard
