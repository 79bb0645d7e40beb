// Weights by the names of timm and of transformers: in, out, and files that differ or are broken.

#include "models/weights.h"

#include "core/data/transforms.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/foreign_format.h"
#include "models/foreign_json.h"
#include "models/model.h"
#include "nlohmann/json.hpp"
#include "tests/graph/fixtures.h"
#include "tests/graph/foreign_files.h"
#include "tests/graph/steps.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WeightsTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(timm_.empty() || other_.empty()); }
  const ResolvedModel small_ = Resolved({.name = "vit_tiny",
                                         .image_size = 32,
                                         .classes = 10,
                                         .own = {{"patch", 8}, {"width", 48}, {"depth", 2}, {"heads", 3}}});
  const HostTensors timm_ = ReadFixture("vit_small_parity.safetensors", "weight/");
  const HostTensors other_ = ReadFixture("vit_small_hf.safetensors");
};

TEST_F(WeightsTest, BothStylesOfTheSameWeightsImportAlike) {
  const auto from_timm = ImportWeights(small_, timm_, false), from_other = ImportWeights(small_, other_, false);
  ASSERT_TRUE(from_timm.ok()) << Message(from_timm.status());
  ASSERT_TRUE(from_other.ok()) << Message(from_other.status());
  EXPECT_EQ(Values(*from_timm), Values(*from_other));
}

TEST_F(WeightsTest, ExportUndoesImport) {
  const HostTensors ours = *ImportWeights(small_, timm_, false);
  EXPECT_EQ(Values(*ExportWeights(small_, ours, "timm")), Values(timm_));
  EXPECT_EQ(Values(*ExportWeights(small_, ours, "huggingface")), Values(other_));
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
  const ResolvedModel larger = Resolved({.name = "vit_tiny",
                                         .image_size = 32,
                                         .classes = 12,
                                         .own = {{"patch", 8}, {"width", 48}, {"depth", 2}, {"heads", 3}}});
  EXPECT_THAT(Message(ImportWeights(larger, timm_, false).status()),
              AllOf(HasSubstr("head.weight: expected (12, 48), found (10, 48)"), HasSubstr("--reset_head")));
  EXPECT_TRUE(ImportWeights(larger, timm_, true).ok());
}

TEST(ForeignModelTest, RatiosOfTheSameHiddenWidthsAreOneModel) {
  const auto disagreements = [](const ResolvedModel& model, const nlohmann::json& config) {
    const auto read = ReadForeignConfig(config);
    EXPECT_TRUE(read.ok()) << Message(read.status());
    return read.ok() ? Disagreements(model, *read) : "";
  };
  const ResolvedModel vit =
      Resolved({.name = "vit_tiny",
                .image_size = 8,
                .own = {{"patch", 4}, {"width", 12}, {"depth", 1}, {"heads", 2}, {"mlp_ratio", 2.7}}});
  nlohmann::json config = {{"model_type", "vit"},      {"hidden_size", 12},     {"num_hidden_layers", 1},
                           {"num_attention_heads", 2}, {"image_size", 8},       {"patch_size", 4},
                           {"intermediate_size", 32},  {"layer_norm_eps", 1e-6}};
  EXPECT_EQ(disagreements(vit, config), "");
  config["intermediate_size"] = 33;
  EXPECT_EQ(disagreements(vit, config), "--mlp_ratio=2.7 where the file has 2.75");

  const ResolvedModel swin = Resolved(
      {.name = "swin_tiny",
       .image_size = 16,
       .own = {{"patch", 4}, {"width", 12}, {"depths", {"1", "1"}}, {"heads", 2}, {"window", 2}, {"mlp_ratio", 2.7}}});
  config = {{"model_type", "swin"}, {"embed_dim", 12},  {"depths", {1, 1}}, {"num_heads", {2, 4}},
            {"window_size", 2},     {"image_size", 16}, {"patch_size", 4},  {"mlp_ratio", 2.69}};
  EXPECT_EQ(disagreements(swin, config), "");  // 32 and 64
  config["mlp_ratio"] = 2.75;                  // 33 and 66
  EXPECT_THAT(disagreements(swin, config), HasSubstr("--mlp_ratio"));
}

TEST_F(WeightsTest, NamesThatTransformers5HasInMemoryAloneAreRefusedWithAWayOut) {
  HostTensors wrong;
  wrong["vit.layers.0.attention.q_proj.weight"] = {{48, 48}, std::vector<float>(48 * 48)};
  EXPECT_THAT(Message(ImportWeights(small_, wrong, false).status()),
              AllOf(HasSubstr("layers.0.attention.q_proj.weight"), HasSubstr("save_pretrained()")));
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
  const nlohmann::json config = Written("huggingface", small_, {"angular_leaf_spot", "bean_rust"});
  EXPECT_EQ(config["architectures"][0], "ViTForImageClassification");
  EXPECT_EQ(config["hidden_size"], 48);
  EXPECT_EQ(config["intermediate_size"], 192);
  EXPECT_EQ(config["patch_size"], 8);
  EXPECT_EQ(config["layer_norm_eps"], 1e-6);
  EXPECT_EQ(config["id2label"]["1"], "bean_rust");
  EXPECT_EQ(config["id2label"]["9"], "LABEL_9");
  EXPECT_EQ(config["label2id"]["bean_rust"], 1);
  EXPECT_THAT(Message(FormatOf(*Resolved({.name = "mlp"}).info->family, "huggingface").status()),
              HasSubstr("a multi-layer perceptron has no counterpart"));
}

TEST(ResNet, TheStemIsThatOfTheWeights) {
  const ResolvedModel model =
      Resolved({.name = "resnet18", .image_size = 64, .own = {{"width", 2}, {"stem", "imagenet"}}});
  for (const char* format : {"torchvision", "huggingface"}) {
    const HostTensors file = *ExportWeights(model, Numbered(model), format);
    const auto shape = [&](const std::string& name) -> std::optional<Shape> {
      const auto found = file.find(name);
      return found != file.end() ? std::optional(found->second.shape) : std::nullopt;
    };
    EXPECT_EQ(ImpliedByWeights(*model.info->family, shape), (SettingValues{{"stem", "imagenet"}})) << format;
    EXPECT_TRUE(ImpliedByWeights(*Resolved({.name = "vit_tiny"}).info->family, shape).empty());
    for (const char* stem : {"small", "auto"}) {
      ResolvedModel other = model;
      other.own["stem"] = stem;
      EXPECT_THAT(Message(ImportWeights(other, file, false).status()),
                  HasSubstr("these are weights of a model with --stem=imagenet"));
    }
  }
  ResolvedModel small = model;
  small.own["stem"] = "small";
  EXPECT_THAT(Message(ImportWeights(model, *ExportWeights(small, Numbered(small), "torchvision"), false).status()),
              HasSubstr("--stem=small"));
}

TEST(DeepLab, WeightsOfAResidualNetworkAloneAreItsBackbones) {
  const ResolvedModel resnet = Resolved({.name = "resnet50", .own = {{"width", 2}}});
  const ResolvedModel model = Resolved({.name = "deeplabv3plus_resnet50", .own = {{"width", 2}, {"decoder_width", 4}}});
  const HostTensors ours = Numbered(resnet);
  std::map<std::string, std::vector<float>> expected;
  for (const auto& [name, tensor] : ours) {
    if (!name.starts_with("fc.")) expected["backbone." + name] = tensor.values;
  }
  for (const char* format : {"torchvision", "huggingface"}) {
    for (const bool head : {true, false}) {
      HostTensors file = *ExportWeights(resnet, ours, format);
      for (const char* of_head : {"fc.weight", "fc.bias", "classifier.1.weight", "classifier.1.bias"}) {
        if (!head) file.erase(of_head);
      }
      const auto read = ImportWeights(model, file, true);
      ASSERT_TRUE(read.ok()) << Message(read.status());
      std::map<std::string, std::vector<float>> found;
      for (const auto& [name, tensor] : *read) found[name] = tensor.values;
      EXPECT_EQ(found, expected) << format;
      std::vector<std::string> names;
      for (const auto& [name, tensor] : file) names.push_back(name);
      EXPECT_THAT(PartsBesideBackbone(model, names), ElementsAre("aspp", "classifier", "decoder", "low_level"));
      EXPECT_THAT(Message(ImportWeights(model, file, false).status()), HasSubstr("its backbone alone"));
    }
  }
  // Where one of the backbone's is missing, or the rest is there too, nothing starts afresh in silence.
  HostTensors file = *ExportWeights(resnet, ours, "torchvision");
  file.erase("layer3.2.conv2.weight");
  EXPECT_THAT(Message(ImportWeights(model, file, true).status()), HasSubstr("backbone.layer3.2.conv2.weight"));
  file = *ExportWeights(model, Numbered(model), "torchvision");
  EXPECT_EQ(ImportWeights(model, file, false)->size(), WeightTypes(model).size());
  file.erase("aspp.project.0.weight");
  EXPECT_THAT(Message(ImportWeights(model, file, true).status()), HasSubstr("aspp.project.0.weight"));
}

// The names of torchvision's deeplabv3_resnet50, whose head has no counterpart.
TEST(DeepLab, OfTorchvisionsDeepLabV3OnlyTheBackboneIsTaken) {
  const ResolvedModel model = Resolved({.name = "deeplabv3plus_resnet50", .own = {{"width", 2}, {"decoder_width", 4}}});
  HostTensors file = *ExportWeights(model, Numbered(model), "torchvision");
  std::erase_if(file, [](const auto& entry) { return !entry.first.starts_with("backbone."); });
  const size_t of_backbone = file.size();
  for (const char* name : {"classifier.0.convs.0.0.weight", "classifier.4.weight", "classifier.4.bias",
                           "aux_classifier.0.weight", "aux_classifier.4.bias"})
    file[name] = {.shape = {1}, .values = {0}};
  EXPECT_THAT(Message(ImportWeights(model, file, false).status()),
              HasSubstr("these are weights of DeepLabV3, as torchvision has it, which is not V3+: train "
                        "--pretrained=… --reset_head starts from their backbone"));
  const auto read = ImportWeights(model, file, true);
  ASSERT_TRUE(read.ok()) << Message(read.status());
  EXPECT_EQ(read->size(), of_backbone);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : file) names.push_back(name);
  EXPECT_THAT(PartsBesideBackbone(model, names), ElementsAre("aspp", "classifier", "decoder", "low_level"));
  EXPECT_THAT((*FormatOf(*model.info->family, "torchvision"))->words, HasSubstr("not V3+"));
}

}  // namespace
}  // namespace switchyard
