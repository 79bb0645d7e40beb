#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "models/weights.h"
#include "nlohmann/json.hpp"
#include "tests/graph/fixtures.h"
#include "tests/graph/steps.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ModelTest, ParameterCountsEqualTimms) {
  const auto count = [](const char* name) { return ParameterCount(Resolved({.name = name})); };
  EXPECT_EQ(count("vit_tiny"), 5717416);
  EXPECT_EQ(count("vit_small"), 22050664);
  EXPECT_EQ(count("vit_base"), 86567656);
  EXPECT_EQ(count("vit_large"), 304326632);
  EXPECT_EQ(count("vit_small_patch32"), 22878952);
  EXPECT_EQ(count("vit_base_patch32"), 88224232);
}

TEST(ModelTest, EveryListedModelBuilds) {
  for (const ModelInfo& info : Models()) {
    const ResolvedModel model = Resolved({.name = info.name});
    Graph graph;
    nn::Context context(graph, true);
    const int size = model.options.image_size;
    const Value images = graph.Input("images", {DType::kF32, {2, size, size, model.options.channels}}, {});
    EXPECT_EQ(BuildModel(model, context, images).shape(), (Shape{2, model.options.classes})) << info.name;
    EXPECT_FALSE(info.help.empty());
  }
}

TEST(ModelTest, WhatTheUserLeavesOpenComesFromTheModel) {
  const ResolvedModel model =
      Resolved({.name = "vit_tiny", .image_size = 32, .classes = 10, .patch = 4, .dropout = 0.1f});
  EXPECT_EQ(model.options.image_size, 32);
  EXPECT_EQ(model.options.width, 192);
  EXPECT_EQ(model.options.channels, 3);
  EXPECT_FLOAT_EQ(model.options.dropout, 0.1f);
  EXPECT_FLOAT_EQ(model.options.drop_path, 0);
  EXPECT_EQ(ParameterTypes(model).at("pos_embed").shape, (Shape{1, 65, 192}));
}

TEST(ModelTest, NoDecayForVectorsTokensAndPositions) {
  Graph graph = ForwardGraph({.name = "vit_micro"}, 1);
  for (const int id : graph.Inputs(Role::kParameter)) {
    const Node& node = graph.node(id);
    const bool decays = node.outputs[0].shape.size() > 1 && node.name != "cls_token" && node.name != "pos_embed";
    EXPECT_EQ(node.input->weight_decay, decays) << node.name;
  }
}

TEST(ModelTest, BadOptionsAreExplained) {
  const auto error = [](const ModelOptions& options) { return Message(ResolveModel(options).status()); };
  EXPECT_THAT(error({.name = "vit_bas"}),
              AllOf(HasSubstr("unknown model 'vit_bas'"), HasSubstr("did you mean vit_base")));
  EXPECT_THAT(error({.name = "vit_base", .image_size = 225}), AllOf(HasSubstr("225"), HasSubstr("--image_size=240")));
  EXPECT_THAT(error({.name = "vit_base", .width = 100}), AllOf(HasSubstr("12 heads"), HasSubstr("--width=108")));
  EXPECT_THAT(error({.name = "vit_base", .depth = -1}), HasSubstr("positive"));
  EXPECT_THAT(error({.name = "mlp", .dropout = 1}), HasSubstr("[0, 1)"));
}

TEST(ModelTest, OtherImagesAreRefusedWithBothShapes) {
  const ResolvedModel model = Resolved({.name = "vit_micro"});
  Graph graph;
  nn::Context context(graph);
  try {
    BuildModel(model, context, graph.Input("images", {DType::kF32, {2, 32, 32, 1}}, {}));
    FAIL() << "no error";
  } catch (const BuildError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("(B, 28, 28, 1)"), HasSubstr("f32(2, 32, 32, 1)")));
  }
}

class WeightsTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(timm_.empty() || other_.empty()); }
  const ResolvedModel small_ =
      Resolved({.name = "vit_tiny", .image_size = 32, .classes = 10, .patch = 8, .width = 48, .depth = 2, .heads = 3});
  const HostTensors timm_ = ReadFixture("vit_small_parity.safetensors", "weight/");
  const HostTensors other_ = ReadFixture("vit_small_hf.safetensors");
};

std::map<std::string, std::vector<float>> Values(const HostTensors& tensors) {
  std::map<std::string, std::vector<float>> values;
  for (const auto& [name, tensor] : tensors) {
    std::string shaped = name + " ";
    shaped += ToString(tensor.shape);
    values[shaped] = tensor.values;
  }
  return values;
}

TEST_F(WeightsTest, BothStylesOfTheSameWeightsImportAlike) {
  const auto from_timm = ImportWeights(small_, timm_, false), from_other = ImportWeights(small_, other_, false);
  ASSERT_TRUE(from_timm.ok()) << Message(from_timm.status());
  ASSERT_TRUE(from_other.ok()) << Message(from_other.status());
  EXPECT_EQ(Values(*from_timm), Values(*from_other));
}

TEST_F(WeightsTest, ExportUndoesImport) {
  const HostTensors ours = *ImportWeights(small_, timm_, false);
  EXPECT_EQ(Values(*ExportWeights(small_, ours, WeightStyle::kTimm)), Values(timm_));
  EXPECT_EQ(Values(*ExportWeights(small_, ours, WeightStyle::kHuggingFace)), Values(other_));
}

TEST_F(WeightsTest, ThePatchProjectionChangesItsLayout) {
  const HostTensor& file = timm_.at("patch_embed.proj.weight");  // (D, C, p, p)
  const HostTensor ours = ImportWeights(small_, timm_, false)->at("patch_embed.proj.weight");
  EXPECT_EQ(file.shape, (Shape{48, 3, 8, 8}));
  EXPECT_EQ(ours.shape, (Shape{48, 8, 8, 3}));
  const size_t d = 5, c = 2, y = 3, x = 6;
  EXPECT_EQ(ours.values[((d * 8 + y) * 8 + x) * 3 + c], file.values[((d * 3 + c) * 8 + y) * 8 + x]);
}

TEST_F(WeightsTest, AnEncoderWithPoolerAndWithoutPrefixNeedsANewHead) {
  HostTensors encoder;
  for (const auto& [name, tensor] : other_) {
    if (name.starts_with("vit.")) encoder[name.substr(4)] = tensor;
  }
  encoder["pooler.dense.weight"] = {{2, 2}, {1, 2, 3, 4}};
  EXPECT_THAT(Message(ImportWeights(small_, encoder, false).status()), HasSubstr("--reset_head"));
  const auto loaded = ImportWeights(small_, encoder, true);
  ASSERT_TRUE(loaded.ok()) << Message(loaded.status());
  EXPECT_FALSE(loaded->contains("head.weight"));
  EXPECT_TRUE(loaded->contains("blocks.1.attn.qkv.bias"));
}

TEST_F(WeightsTest, AnotherHeadSizeLoadsOnlyWithResetHead) {
  const ResolvedModel larger =
      Resolved({.name = "vit_tiny", .image_size = 32, .classes = 12, .patch = 8, .width = 48, .depth = 2, .heads = 3});
  EXPECT_THAT(Message(ImportWeights(larger, timm_, false).status()),
              AllOf(HasSubstr("head.weight: expected (12, 48), found (10, 48)"), HasSubstr("--reset_head")));
  EXPECT_TRUE(ImportWeights(larger, timm_, true).ok());
}

TEST_F(WeightsTest, EveryOtherDifferenceIsListed) {
  HostTensors wrong = timm_;
  wrong.erase("blocks.0.norm1.weight");
  wrong["blocks.2.norm1.weight"] = {{48}, std::vector<float>(48)};
  wrong["norm.bias"] = {{47}, std::vector<float>(47)};
  const std::string text = Message(ImportWeights(small_, wrong, true).status());
  EXPECT_THAT(text, AllOf(HasSubstr("blocks.0.norm1.weight: expected (48), not in the file"),
                          HasSubstr("blocks.2.norm1.weight: the model has none, found (48)"),
                          HasSubstr("norm.bias: expected (48), found (47)"), Not(HasSubstr("--reset_head"))));
}

TEST_F(WeightsTest, BrokenTensorsAreRefused) {
  HostTensors wrong = other_;
  wrong["vit.layernorm.bias"].values.pop_back();
  EXPECT_THAT(Message(ImportWeights(small_, wrong, false).status()), HasSubstr("vit.layernorm.bias: 47 values"));
  wrong = other_;
  wrong.erase("vit.encoder.layer.1.attention.attention.key.weight");
  EXPECT_THAT(Message(ImportWeights(small_, wrong, false).status()),
              HasSubstr("blocks.1.attn.qkv.weight: expected (144, 48), not in the file"));
  wrong = other_;
  wrong["vit.encoder.layer.1.attention.attention.query.weight"].shape = {};
  EXPECT_FALSE(ImportWeights(small_, wrong, false).ok());
}

TEST_F(WeightsTest, TheConfigurationNamesClassesAndSizes) {
  const auto text = HuggingFaceConfig(small_, {"angular_leaf_spot", "bean_rust"});
  ASSERT_TRUE(text.ok());
  const auto config = nlohmann::json::parse(*text);
  EXPECT_EQ(config["architectures"][0], "ViTForImageClassification");
  EXPECT_EQ(config["hidden_size"], 48);
  EXPECT_EQ(config["intermediate_size"], 192);
  EXPECT_EQ(config["patch_size"], 8);
  EXPECT_EQ(config["id2label"]["1"], "bean_rust");
  EXPECT_EQ(config["id2label"]["9"], "LABEL_9");
  EXPECT_EQ(config["label2id"]["bean_rust"], 1);
  EXPECT_FALSE(HuggingFaceConfig(Resolved({.name = "mlp"}), {}).ok());
}

}  // namespace
}  // namespace switchyard
