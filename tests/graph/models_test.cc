#include <zlib.h>

#include <cmath>
#include <fstream>

#include "core/data/transforms.h"
#include "core/graph/gradients.h"
#include "core/graph/op.h"
#include "core/graph/ops/pointwise.h"
#include "core/graph/ops/reduction.h"
#include "core/graph/passes/autocast.h"
#include "core/nn/initialize.h"
#include "core/settings/settings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/foreign_format.h"
#include "models/foreign_json.h"
#include "models/hugging_face.h"
#include "models/model.h"
#include "models/timm.h"
#include "models/vit.h"
#include "models/weights.h"
#include "nlohmann/json.hpp"
#include "tests/graph/fixtures.h"
#include "tests/graph/steps.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
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
  EXPECT_EQ(count("swin_tiny"), 28288354);
  EXPECT_EQ(count("swin_small"), 49606258);
  EXPECT_EQ(count("swin_base"), 87768224);
  EXPECT_EQ(count("swin_large"), 196532476);
}

TEST(ModelTest, ParameterCountsEqualTorchvisions) {
  const auto count = [](const char* name) { return ParameterCount(Resolved({.name = name})); };
  EXPECT_EQ(count("resnet18"), 11689512);
  EXPECT_EQ(count("resnet34"), 21797672);
  EXPECT_EQ(count("resnet50"), 25557032);
  EXPECT_EQ(count("resnet101"), 44549160);
  EXPECT_EQ(count("resnet152"), 60192808);
}

TEST(ModelTest, EveryListedModelBuilds) {
  for (const ModelInfo& info : Models()) {
    const ResolvedModel model = Resolved({.name = info.name});
    Graph graph;
    nn::Context context(graph, true);
    Shape input = InputShape(model);
    input.insert(input.begin(), 2);
    const Value logits = BuildModel(model, context, graph.Input("images", {DType::kF32, input}, {}));
    const bool per_place = info.family->data != Content::kLabelledImages;
    Shape expected = per_place ? Shape(input.begin(), input.end() - 1) : Shape{2};
    expected.push_back(model.classes);
    EXPECT_EQ(logits.shape(), expected) << info.name;
    EXPECT_FALSE(info.help.empty());
  }
}

TEST(ModelTest, WhatTheUserLeavesOpenComesFromTheModel) {
  const ResolvedModel model =
      Resolved({.name = "vit_tiny", .image_size = 32, .classes = 10, .own = {{"patch", 4}, {"dropout", 0.1f}}});
  EXPECT_EQ(model.image_size, 32);
  EXPECT_EQ(model.own.at("width"), 192);
  EXPECT_EQ(model.channels, 3);
  EXPECT_FLOAT_EQ(VisionTransformerConfigOf(model).dropout, 0.1f);
  EXPECT_FLOAT_EQ(VisionTransformerConfigOf(model).drop_path, 0);
  EXPECT_EQ(ParameterTypes(model).at("pos_embed").shape, (Shape{1, 65, 192}));
}

// What a model says of training has to be settings of training, with values that these allow.
TEST(ModelTest, WhatAModelFillsInIsInTheTables) {
  const SettingTable own(ModelSettings());
  for (const ModelInfo& info : Models()) {
    EXPECT_TRUE(info.recipe.contains("global_batch_size")) << info.name << " says no batch for its rates";
    for (const auto& [name, value] : info.own) {
      const Setting* const row = own.Find(name);
      ASSERT_NE(row, nullptr) << name;
      EXPECT_TRUE(ValueFromJson(*row, value, true).ok() && CheckValue(*row, value).ok()) << info.name << " " << name;
    }
    EXPECT_EQ(info.own.size(), info.family->settings().size()) << info.name;
  }
}

// The same weights, told apart from others by the settings that are architecture and by no more.
TEST(ModelTest, DropoutIsNoArchitecture) {
  const nlohmann::json plain = ArchitectureOf(Resolved({.name = "vit_micro"}));
  EXPECT_EQ(plain, ArchitectureOf(Resolved({.name = "vit_micro", .own = {{"dropout", 0.1}, {"drop_path", 0.1}}})));
  EXPECT_NE(plain, ArchitectureOf(Resolved({.name = "vit_micro", .own = {{"heads", 2}}})));
  EXPECT_EQ(plain["patch"], 7);
  EXPECT_FALSE(ArchitectureOf(Resolved({.name = "mlp"})).contains("patch"));
}

TEST(ModelTest, NoDecayForVectorsTokensAndPositions) {
  Graph graph = ForwardGraph({.name = "vit_micro"}, 1);
  for (const int id : graph.Inputs(Role::kParameter)) {
    const Node& node = graph.node(id);
    const bool decays = node.outputs[0].shape.size() > 1 && node.name != "cls_token" && node.name != "pos_embed";
    EXPECT_EQ(node.input->weight_decay, decays) << node.name;
  }
}

TEST(ModelTest, AResNetsStemSuitsTheImages) {
  const auto stem = [](int image_size, const char* chosen) {
    return WeightTypes(Resolved({.name = "resnet18", .image_size = image_size, .own = {{"stem", chosen}}}))
        .at("conv1.weight")
        .shape;
  };
  EXPECT_EQ(stem(32, "auto"), (Shape{64, 3, 3, 3}));
  EXPECT_EQ(stem(224, "auto"), (Shape{64, 7, 7, 3}));
  EXPECT_EQ(stem(32, "imagenet"), (Shape{64, 7, 7, 3}));
  EXPECT_EQ(stem(224, "small"), (Shape{64, 3, 3, 3}));
}

// Forward, and gradients of weights and of what goes in, which the first convolution does not need.
TEST(ModelTest, TrainingAResNetCostsThreeForwardPasses) {
  for (const char* name : {"resnet18", "resnet50"}) {
    const auto flops = [](const Graph& graph) {
      double total = 0;
      for (const Node& node : graph.nodes()) {
        if (node.op.starts_with("convolution") || node.op == "matmul") total += CostOf(graph, node).flops;
      }
      return total;
    };
    const double forward = flops(ForwardGraph({.name = name}, 2, true)), all = flops(TrainingGraph({.name = name}, 2));
    const double first = 2.0 * 2 * 112 * 112 * 64 * 7 * 7 * 3;
    EXPECT_NEAR((all + first) / forward, 3, 0.03) << name;
  }
}

// What torchvision's ResNet and DeepLabV3, timm's ViT and Swin and modules of torch.nn start from.
TEST(ModelTest, ParametersStartAsTheirSourcesStartThem) {
  struct Expected {
    const char *model, *parameter;
    Initializer::Kind kind;
    double value;
  };
  constexpr auto kUniform = Initializer::kUniform, kNormal = Initializer::kNormal,
                 kTruncated = Initializer::kTruncatedNormal, kZeros = Initializer::kZeros;
  for (const Expected& e :
       std::vector<Expected>{{"resnet50", "conv1.weight", kNormal, std::sqrt(2.0 / (64 * 49))},
                             {"resnet50", "layer1.0.conv3.weight", kNormal, std::sqrt(2.0 / 256)},
                             {"resnet50", "fc.weight", kUniform, 1 / std::sqrt(2048.0)},
                             {"resnet50", "fc.bias", kUniform, 1 / std::sqrt(2048.0)},
                             {"resnet18", "fc.bias", kUniform, 1 / std::sqrt(512.0)},
                             {"deeplabv3plus_resnet50", "backbone.conv1.weight", kNormal, std::sqrt(2.0 / (64 * 49))},
                             {"deeplabv3plus_resnet50", "aspp.convs.0.0.weight", kUniform, 1 / std::sqrt(2048.0)},
                             {"deeplabv3plus_resnet50", "aspp.convs.1.0.weight", kUniform, 1 / std::sqrt(2048.0 * 9)},
                             {"deeplabv3plus_resnet50", "aspp.convs.4.1.weight", kUniform, 1 / std::sqrt(2048.0)},
                             {"deeplabv3plus_resnet50", "aspp.project.0.weight", kUniform, 1 / std::sqrt(1280.0)},
                             {"deeplabv3plus_resnet50", "low_level.0.weight", kUniform, 1 / std::sqrt(256.0)},
                             {"deeplabv3plus_resnet50", "decoder.3.weight", kUniform, 1 / std::sqrt(256.0 * 9)},
                             {"deeplabv3plus_resnet50", "classifier.bias", kUniform, 1 / std::sqrt(256.0)},
                             {"unet3d", "encoder.0.conv2.weight", kUniform, 1 / std::sqrt(32.0 * 27)},
                             {"unet3d", "head.bias", kUniform, 1 / std::sqrt(32.0)},
                             {"vit_small", "patch_embed.proj.weight", kUniform, 1 / std::sqrt(768.0)},
                             {"vit_micro", "patch_embed.proj.weight", kUniform, 1 / std::sqrt(49.0)},
                             {"vit_micro", "patch_embed.proj.bias", kUniform, 1 / std::sqrt(49.0)},
                             {"vit_small", "cls_token", kNormal, 1e-6},
                             {"vit_small", "pos_embed", kTruncated, 0.02},
                             {"vit_small", "blocks.0.mlp.fc1.weight", kTruncated, 0.02},
                             {"vit_small", "blocks.0.mlp.fc1.bias", kZeros, 0},
                             {"vit_small", "head.weight", kTruncated, 0.02},
                             {"swin_tiny", "patch_embed.proj.weight", kUniform, 1 / std::sqrt(48.0)},
                             {"swin_tiny", "patch_embed.proj.bias", kUniform, 1 / std::sqrt(48.0)},
                             {"swin_tiny", "layers.0.blocks.0.attn.qkv.weight", kTruncated, 0.02},
                             {"swin_tiny", "layers.0.blocks.0.attn.qkv.bias", kZeros, 0},
                             {"swin_tiny", "layers.0.blocks.0.attn.relative_position_bias_table", kTruncated, 0.02},
                             {"swin_tiny", "layers.1.downsample.reduction.weight", kTruncated, 0.02},
                             {"swin_tiny", "head.fc.bias", kZeros, 0}}) {
    SCOPED_TRACE(fmt::format("{} {}", e.model, e.parameter));
    Graph graph = ForwardGraph({.name = e.model}, 2);
    const Value found = graph.FindInput(e.parameter);
    ASSERT_TRUE(found);
    const Initializer& initializer = graph.node(found.ref().node).input->initializer;
    EXPECT_EQ(initializer.kind, e.kind);
    EXPECT_FLOAT_EQ(initializer.value, static_cast<float>(e.value));
  }
}

// Deviations as those of timm 1.0.31's vit_small_patch16_224 with torch.manual_seed(0), whose means are all nought but
// for chance.
TEST(ModelTest, TheWeightsOfAVisionTransformerAreSpreadAsTimms) {
  const std::vector<std::pair<const char*, double>> recorded = {{"patch_embed.proj.weight", 0.020839},
                                                                {"patch_embed.proj.bias", 0.019707},
                                                                {"cls_token", 9.6416e-7},
                                                                {"pos_embed", 0.019992},
                                                                {"blocks.0.attn.qkv.weight", 0.020005},
                                                                {"blocks.0.mlp.fc1.weight", 0.020006},
                                                                {"head.weight", 0.020035}};
  Graph graph = ForwardGraph({.name = "vit_small"}, 2);
  for (const auto& [name, deviation] : recorded) {
    const Value found = graph.FindInput(name);
    ASSERT_TRUE(found) << name;
    const Node& node = graph.node(found.ref().node);
    const std::vector<float> values = nn::InitialValues(name, node.outputs[0], node.input->initializer, 42);
    const auto count = static_cast<double>(values.size());
    double sum = 0, squares = 0;
    for (const float v : values) sum += v, squares += double{v} * v;
    const double of_chance = deviation / std::sqrt(count);  // of a mean; of a deviation less
    EXPECT_NEAR(sum / count, 0, 4 * of_chance) << name;
    EXPECT_NEAR(std::sqrt(squares / count), deviation, 4 * of_chance) << name;
  }
}

// At O2 and O3 what goes through a ResNet is half from the first convolution to the classifier, forth and back.
TEST(ModelTest, AResNetInHalfHasNoCastBesideItsNorms) {
  for (const AmpLevel level : {AmpLevel::kO2, AmpLevel::kO3}) {
    Graph graph = Autocast(ForwardGraph({.name = "resnet18", .image_size = 32}, 2, true),
                           {.half = DType::kBF16, .level = level, .norms_in_f32 = level == AmpLevel::kO2});
    std::vector<Value> parameters;
    for (const int id : graph.Inputs(Role::kParameter)) parameters.push_back(graph.value({id, 0}));
    const Value logits = graph.value(graph.nodes().back().inputs[0]);
    Gradients(ops::Sum(ops::Cast(logits, DType::kF32)), parameters);
    const auto users = graph.Users();
    int norms = 0;
    for (int id = 0; id < graph.size(); ++id) {
      const Node& node = graph.node(id);
      if (!node.op.starts_with("batch_norm")) continue;
      ++norms;
      SCOPED_TRACE(fmt::format("{} at O{}", node.name, static_cast<int>(level)));
      EXPECT_EQ(node.outputs[0].dtype, DType::kBF16);
      EXPECT_FALSE(ops::IsCast(graph, graph.node(node.inputs[0].node))) << "what it reads";
      for (const int user : users[id])
        EXPECT_FALSE(ops::IsCast(graph, graph.node(user)) && graph.node(user).inputs[0] == (Ref{id, 0}));
    }
    EXPECT_EQ(norms, 40);
  }
}

TEST(ModelTest, BadOptionsAreExplained) {
  const auto error = [](const ModelOptions& options) { return Message(ResolveModel(options).status()); };
  EXPECT_THAT(error({.name = "vit_bas"}),
              AllOf(HasSubstr("unknown model 'vit_bas'"), HasSubstr("did you mean vit_base")));
  EXPECT_THAT(error({.name = "vit_base", .image_size = 225}), AllOf(HasSubstr("225"), HasSubstr("--image_size=240")));
  EXPECT_THAT(error({.name = "vit_base", .own = {{"width", 100}}}),
              AllOf(HasSubstr("12 heads"), HasSubstr("--width=108")));
  EXPECT_THAT(error({.name = "vit_base", .own = {{"depth", -1}}}), HasSubstr("positive"));
  EXPECT_THAT(error({.name = "resnet50", .own = {{"depth", 51}}}), HasSubstr("18, 34, 50, 101 or 152"));
  EXPECT_THAT(error({.name = "deeplabv3plus_resnet50", .own = {{"depth", 34}}}), HasSubstr("50, 101 or 152"));
  EXPECT_THAT(error({.name = "deeplabv3plus_resnet50", .own = {{"output_stride", 12}}}), HasSubstr("16 or 8"));
  EXPECT_THAT(error({.name = "mlp", .own = {{"dropout", 1}}}), HasSubstr("[0, 1)"));
  EXPECT_THAT(error({.name = "mlp", .own = {{"depth", "two"}}}), HasSubstr("depth: \"two\" has the wrong type"));
  EXPECT_THAT(error({.name = "mlp", .own = {{"heads", 2}}}), HasSubstr("it has no --heads; what it has is"));
  EXPECT_TRUE(ResolveModel({.name = "mlp", .own = {{"drop_path", 0}}}).ok()) << "none is none";
  EXPECT_THAT(error({.name = "swin_tiny", .image_size = 4096, .own = {{"window", 512}}}),
              HasSubstr("windows of 512×512 of 1024×1024 places need tables of more than"));
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
  const ResolvedModel small_ = Resolved({.name = "vit_tiny",
                                         .image_size = 32,
                                         .classes = 10,
                                         .own = {{"patch", 8}, {"width", 48}, {"depth", 2}, {"heads", 3}}});
  const HostTensors timm_ = ReadFixture("vit_small_parity.safetensors", "weight/");
  const HostTensors other_ = ReadFixture("vit_small_hf.safetensors");
};

// The config.json that a format writes.
nlohmann::json Written(const std::string& format, const ResolvedModel& model, const std::vector<std::string>& classes,
                       const EvaluationTransform& transform = {.image_size = 40, .channels = 1}) {
  const auto files = (*FormatOf(*model.info->family, format))->write(model, transform, classes);
  return nlohmann::json::parse(files->config.dump());
}

// What a config.json says as a config.
VisionTransformerConfig ConfigOf(const ForeignModel& found) {
  ResolvedModel model = Resolved({.name = found.name});
  model.image_size = found.image_size.value();
  model.channels = found.channels;
  model.classes = found.classes;
  for (const auto& [name, value] : found.own) model.own[name] = value;
  for (const auto& [name, value] : found.of_weights) model.own[name] = value;
  return VisionTransformerConfigOf(model);
}

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

// Sizes, heads and eps that no listed model has, so that a field that is not taken over shows.
ResolvedModel OddModel() {
  return Resolved(
      {.name = "vit_tiny",
       .image_size = 40,
       .channels = 1,
       .classes = 3,
       .own = {
           {"patch", 8}, {"width", 60}, {"depth", 2}, {"heads", 5}, {"mlp_ratio", 1.5f}, {"layer_norm_eps", 0.25f}}});
}

void ExpectSameSizes(const VisionTransformerConfig& found, const VisionTransformerConfig& expected) {
  EXPECT_EQ(found.image_size, expected.image_size);
  EXPECT_EQ(found.channels, expected.channels);
  EXPECT_EQ(found.classes, expected.classes);
  EXPECT_EQ(found.patch, expected.patch);
  EXPECT_EQ(found.width, expected.width);
  EXPECT_EQ(found.depth, expected.depth);
  EXPECT_EQ(found.heads, expected.heads);
  EXPECT_EQ(found.mlp_ratio, expected.mlp_ratio);
}

TEST(HuggingFace, AConfigurationIsReadAsItWasWritten) {
  const std::vector<std::string> names = {"ant", "bee", "cat"};
  const auto read = ReadForeignConfig(Written("huggingface", OddModel(), names));
  ASSERT_TRUE(read.ok()) << Message(read.status());
  ExpectSameSizes(ConfigOf(*read), VisionTransformerConfigOf(OddModel()));
  EXPECT_EQ(ConfigOf(*read).layer_norm_eps, 0.25f);
  EXPECT_EQ(read->class_names, names);
  EXPECT_TRUE(ReadForeignConfig(Written("huggingface", OddModel(), {}))->class_names.empty());  // LABEL_0 is no name
}

TEST(HuggingFace, WhatAConfigurationLeavesOutIsTransformersDefault) {
  const auto read = ReadForeignConfig({{"model_type", "vit"}});
  ASSERT_TRUE(read.ok()) << Message(read.status());
  EXPECT_EQ(ConfigOf(*read).width, 768);
  EXPECT_EQ(ConfigOf(*read).heads, 12);
  EXPECT_EQ(ConfigOf(*read).mlp_ratio, 4);
  EXPECT_EQ(ConfigOf(*read).layer_norm_eps, 1e-12f);
}

TEST(HuggingFace, AFieldThatIsWrongOrCannotBeIsNamed) {
  const nlohmann::json good = Written("huggingface", OddModel(), {"ant", "bee", "cat"});
  const auto error = [&](const char* field, const nlohmann::json& value) {
    nlohmann::json config = good;
    config[field] = value;
    return Message(ReadForeignConfig(config).status());
  };
  EXPECT_THAT(error("model_type", "beit"), AllOf(HasSubstr("model_type: expected vit"), HasSubstr("beit")));
  EXPECT_THAT(error("hidden_act", "gelu_new"), AllOf(HasSubstr("hidden_act: expected gelu"), HasSubstr("gelu_new")));
  EXPECT_THAT(error("qkv_bias", false), HasSubstr("qkv_bias: expected true"));
  EXPECT_THAT(error("hidden_size", "768"), HasSubstr("hidden_size: expected a whole number"));
  EXPECT_THAT(error("num_hidden_layers", 1e300), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(error("num_attention_heads", 18446744073709551615u), HasSubstr("num_attention_heads"));
  EXPECT_THAT(error("image_size", {224, 192}), HasSubstr("image_size: expected the side of a square"));
  EXPECT_THAT(error("patch_size", nlohmann::json::object()), HasSubstr("patch_size"));
  EXPECT_THAT(error("layer_norm_eps", -1), HasSubstr("layer_norm_eps"));
  EXPECT_THAT(error("id2label", {{"0", "ant"}, {"2", "bee"}}), HasSubstr("id2label: expected the numbers 0 to 1"));
  EXPECT_THAT(error("id2label", {{"0", 7}}), HasSubstr("id2label: expected a name for 0"));
  EXPECT_THAT(Message(ReadForeignConfig(nlohmann::json::array()).status()), HasSubstr("expected an object"));
}

const EvaluationTransform kCropped = {.image_size = 40,
                                      .channels = 3,
                                      .resize = 46,
                                      .interpolation = Interpolation::kBicubic,
                                      .mean = {0.485f, 0.456f, 0.406f},
                                      .std = {0.229f, 0.224f, 0.225f}};

TEST(HuggingFace, APreprocessorIsReadAsItWasWritten) {
  EvaluationTransform stretched = kCropped;
  stretched.resize = 0;
  stretched.interpolation = Interpolation::kBilinear;
  EvaluationTransform as_timm = kCropped;
  as_timm.crop_offset = CropOffset::kHalfEven;
  for (const EvaluationTransform& transform : {kCropped, stretched, as_timm}) {
    const auto read = ReadHuggingFacePreprocessor(HuggingFacePreprocessor(transform), 40, 3);
    ASSERT_TRUE(read.ok()) << Message(read.status());
    EXPECT_EQ(*read, transform);
  }
  // As of 2021: a number stands for the side of a square to which the image is stretched.
  const auto old = ReadHuggingFacePreprocessor({{"do_normalize", true}, {"size", 40}, {"resample", 2}}, 40, 3);
  ASSERT_TRUE(old.ok()) << Message(old.status());
  EXPECT_EQ(old->resize, 0);
  EXPECT_EQ(old->mean, std::vector<float>{0.5f});
}

TEST(HuggingFace, APreprocessorMakesTheSamePixelsHereAsThere) {
  const nlohmann::json recorded =
      nlohmann::json::parse(std::ifstream(SWITCHYARD_FIXTURES "/hugging_face.json"))["pixels"];
  ASSERT_EQ(recorded.size(), 35u);
  for (const nlohmann::json& c : recorded) {
    TransformOptions options;
    const int side = c["side"];
    const auto read = ReadHuggingFacePreprocessor(c["preprocessor"], side, 3);
    ASSERT_TRUE(read.ok()) << Message(read.status());
    options.evaluation = *read;
    Image image;
    image.Reshape(c["height"], c["width"], 3);
    for (int y = 0; y < image.height; ++y) {
      for (int x = 0; x < image.width; ++x) {
        for (int k = 0; k < 3; ++k) {
          image.Row(y)[3 * x + k] = static_cast<uint8_t>(7 * x * x + 13 * y + 29 * k + 3 * x * y);
        }
      }
    }
    std::vector<float> out(static_cast<size_t>(side * side * 3));
    Transform::Create(options)->Apply(0, 0, &image, out.data());
    std::vector<uint8_t> bytes;
    for (const float value : out) bytes.push_back(static_cast<uint8_t>(std::lround(value * 255)));
    EXPECT_EQ(crc32(0, bytes.data(), static_cast<uInt>(bytes.size())), c["crc32"].get<uint32_t>()) << c;
  }
}

TEST(HuggingFace, AResNetOf2022IsPreprocessedAsAConvNext) {
  const auto read = ReadHuggingFacePreprocessor(
      {{"feature_extractor_type", "ConvNextFeatureExtractor"}, {"crop_pct", 0.875}, {"size", 224}, {"resample", 3}},
      224, 3);
  ASSERT_TRUE(read.ok()) << Message(read.status());
  EXPECT_EQ(read->resize, 256);
  EXPECT_EQ(read->interpolation, Interpolation::kBicubic);
}

TEST(HuggingFace, ASwinWhoseWindowIsLargerThanAStageHasNoCounterpart) {
  const ResolvedModel model = Resolved({.name = "swin_tiny_cifar", .own = {{"window", 8}}});
  const std::vector<ForeignFormat>& formats = model.info->family->formats();
  const auto format = [&](const char* name) {
    return *std::find_if(formats.begin(), formats.end(),
                         [&](const ForeignFormat& f) { return f.name == std::string(name); });
  };
  EXPECT_THAT(Message(format("huggingface").write(model, {}, {}).status()),
              AllOf(HasSubstr("window 8"), HasSubstr("--names=timm")));
  EXPECT_TRUE(format("timm").write(model, kCropped, {}).ok());
}

TEST(Timm, AnMlpRatioMakesTheHiddenWidthThatIsHere) {
  for (int width = 60; width <= 768; width += 4) {
    for (float ratio = 1.1f; ratio < 5; ratio += 0.1f) {
      const double written = foreign_json::RatioIn(ratio, {width});
      EXPECT_EQ(static_cast<int64_t>(width * written), static_cast<int64_t>(ratio * static_cast<float>(width)))
          << width << " times " << ratio;
    }
  }
  EXPECT_EQ(foreign_json::RatioIn(2.5f, {96, 192, 384}).dump(), "2.5");
}

TEST(HuggingFace, AnMlpIsAsWideAsItSays) {
  for (const int hidden : {1408, 1411, 3072, 4097}) {
    const auto read = ReadForeignConfig(
        {{"model_type", "vit"}, {"hidden_size", 1408}, {"num_attention_heads", 16}, {"intermediate_size", hidden}});
    ASSERT_TRUE(read.ok()) << Message(read.status());
    EXPECT_EQ(static_cast<int>(ConfigOf(*read).mlp_ratio * 1408.0f), hidden);
  }
}

TEST(HuggingFace, APreprocessorThatWeCannotFollowIsRefusedByField) {
  const auto error = [](const char* field, const nlohmann::json& value) {
    nlohmann::json changed = HuggingFacePreprocessor(kCropped);
    changed[field] = value;
    return Message(ReadHuggingFacePreprocessor(changed, 40, 3).status());
  };
  EXPECT_THAT(error("resample", 1), HasSubstr("resample: expected 2 (bilinear) or 3 (bicubic), found 1"));
  EXPECT_THAT(error("crop_size", 32), HasSubstr("crop_size: makes images of 32 pixels, but the model takes 40"));
  EXPECT_THAT(error("size", "large"), HasSubstr("size"));
  EXPECT_THAT(error("rescale_factor", 1), HasSubstr("rescale_factor: expected 1/255"));
  EXPECT_THAT(error("image_mean", {0.5, 0.5}), HasSubstr("image_mean: expected one number or 3"));
  EXPECT_THAT(error("do_center_crop", false), HasSubstr("do_center_crop"));
  EXPECT_THAT(error("do_resize", false), HasSubstr("do_resize"));
  EXPECT_THAT(error("size", {{"height", 46}, {"width", 46}}), HasSubstr("size: expected a shortest_edge"));
  EXPECT_EQ(error("size", {{"height", 40}, {"width", 40}}), "");
}

// Every value of its own, in shapes as WeightTypes says.
HostTensors Numbered(const ResolvedModel& model) {
  HostTensors tensors;
  for (const auto& [name, type] : WeightTypes(model)) {
    HostTensor& tensor = tensors[name] = {type.shape, {}};
    for (int64_t i = 0; i < type.elements(); ++i)
      tensor.values.push_back(static_cast<float>(tensors.size() * 100000 + static_cast<size_t>(i)));
  }
  return tensors;
}

// Those of microsoft/resnet-50.
TEST(HuggingFace, AResNetsWeightsAndConfigurationGoBothWays) {
  for (const char* name : {"resnet18", "resnet50"}) {
    const ResolvedModel model = Resolved({.name = name, .classes = 3, .own = {{"width", 2}, {"stem", "imagenet"}}});
    const HostTensors ours = Numbered(model);
    HostTensors theirs = *ExportWeights(model, ours, "huggingface");
    for (const char* there :
         {"resnet.embedder.embedder.convolution.weight", "resnet.embedder.embedder.normalization.running_var",
          "resnet.encoder.stages.1.layers.0.shortcut.convolution.weight",
          "resnet.encoder.stages.1.layers.0.shortcut.normalization.running_mean",
          "resnet.encoder.stages.3.layers.1.layer.0.convolution.weight",
          "resnet.encoder.stages.3.layers.1.layer.1.normalization.bias", "classifier.1.weight"})
      EXPECT_TRUE(theirs.contains(there)) << there;
    theirs["resnet.embedder.embedder.normalization.num_batches_tracked"] = {{}, {5}};
    const auto back = ImportWeights(model, theirs, false);
    ASSERT_TRUE(back.ok()) << Message(back.status());
    EXPECT_EQ(Values(*back), Values(ours));

    const auto read =
        ReadForeignConfig(Written("huggingface", model, {"ant", "bee", "cat"}, {.image_size = 224, .channels = 3}));
    ASSERT_TRUE(read.ok()) << Message(read.status());
    EXPECT_EQ(read->name, name);
    EXPECT_EQ(read->own.at("width"), 2);
    EXPECT_EQ(read->class_names.at(2), "cat");
  }
  const ResolvedModel small = Resolved({.name = "resnet18", .image_size = 32});
  EXPECT_THAT(Message((*FormatOf(*small.info->family, "huggingface"))->write(small, {}, {}).status()),
              HasSubstr("--stem=small"));
  const auto error = [](const char* field, const nlohmann::json& value) {
    nlohmann::json config = {{"model_type", "resnet"}};
    config[field] = value;
    return Message(ReadForeignConfig(config).status());
  };
  EXPECT_THAT(error("depths", {3, 4, 6}), HasSubstr("depths"));
  EXPECT_THAT(error("layer_type", "other"), HasSubstr("layer_type"));
  EXPECT_THAT(error("hidden_sizes", {256, 512, 1024, 2049}), HasSubstr("hidden_sizes"));
  EXPECT_THAT(error("downsample_in_bottleneck", true), HasSubstr("downsample_in_bottleneck"));
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

TEST(Timm, AConfigurationIsReadAsItWasWritten) {
  EvaluationTransform transform = kCropped;
  transform.crop_offset = CropOffset::kHalfEven;
  for (int resize = 40; resize < 80; ++resize) {  // timm keeps a share of the side and rounds down what follows from it
    transform.resize = resize == 79 ? 0 : resize;
    const nlohmann::json config = Written("timm", OddModel(), {"ant", "bee", "cat"}, transform);
    ASSERT_TRUE(IsTimmConfig(config));
    const auto read = ReadTimmTransform(config, 40, 3);
    ASSERT_TRUE(read.ok()) << Message(read.status());
    EXPECT_EQ(*read, transform);
    const auto model = ReadForeignConfig(config);
    ASSERT_TRUE(model.ok()) << Message(model.status());
    ExpectSameSizes(ConfigOf(*model), VisionTransformerConfigOf(OddModel()));
    EXPECT_TRUE(model->of_weights.empty());  // timm has no field for it
    EXPECT_EQ(model->class_names.at(2), "cat");
  }
}

TEST(Timm, OtherArchitecturesAreRefusedByField) {
  const auto error = [](const char* field, const nlohmann::json& value) {
    nlohmann::json config = {{"architecture", "vit_small_patch32_384"}, {"num_classes", 5}};
    config[field] = value;
    const auto read = ReadForeignConfig(config);
    return read.ok() ? fmt::format("{} {}", ConfigOf(*read).width, ConfigOf(*read).image_size) : Message(read.status());
  };
  EXPECT_EQ(error("global_pool", "token"), "384 384");
  EXPECT_EQ(error("num_classes", 0), "384 384") << "without a classifier";
  EXPECT_THAT(error("global_pool", "avg"), HasSubstr("global_pool"));
  EXPECT_THAT(error("architecture", "vit_base_patch16_clip_224"), HasSubstr("architecture"));
  EXPECT_THAT(error("architecture", 3), HasSubstr("architecture"));
  EXPECT_THAT(error("model_args", {{"class_token", false}}), HasSubstr("class_token"));
  EXPECT_THAT(error("model_args", {{"depth", "many"}}), HasSubstr("depth"));
  EXPECT_THAT(error("label_names", {"ant"}), HasSubstr("label_names: expected 5 names"));
}

// What its save_for_hf makes of models of timm says in model_args what is so anyway.
TEST(Timm, TheFilesThatItWritesAreRead) {
  const auto recorded = nlohmann::json::parse(std::ifstream(SWITCHYARD_FIXTURES "/timm_configs.json"));
  struct Expected {
    const char *config, *name;
    int image_size, channels, classes;
    EvaluationTransform transform;
  };
  const std::vector<float> mean = {0.485f, 0.456f, 0.406f}, std = {0.229f, 0.224f, 0.225f};
  const Interpolation bicubic = Interpolation::kBicubic;
  const CropOffset even = CropOffset::kHalfEven;
  const std::vector<Expected> all = {
      {"resnet18", "resnet18", 224, 1, 7, {224, 1, 235, bicubic, {0.449f}, {0.226f}, even}},
      {"resnet50", "resnet50", 224, 3, 1000, {224, 3, 256, Interpolation::kBilinear, mean, std, even}},
      {"vit", "vit_tiny", 96, 3, 5, {96, 3, 106, bicubic, {0.5f, 0.5f, 0.5f}, {0.5f, 0.5f, 0.5f}, even}},
      {"swin", "swin_tiny", 224, 3, 5, {224, 3, 248, bicubic, mean, std, even}}};
  ASSERT_EQ(recorded["config"].size(), all.size());
  for (const Expected& expected : all) {
    SCOPED_TRACE(expected.config);
    const nlohmann::json& config = recorded["config"][expected.config];
    const auto read = ReadForeignConfig(config);
    ASSERT_TRUE(read.ok()) << Message(read.status());
    EXPECT_EQ(read->name, expected.name);
    EXPECT_EQ(read->image_size, expected.image_size);
    EXPECT_EQ(read->channels, expected.channels);
    EXPECT_EQ(read->classes, expected.classes);
    const auto transform = ReadTimmTransform(config, *read->image_size, read->channels);
    ASSERT_TRUE(transform.ok()) << Message(transform.status());
    EXPECT_EQ(*transform, expected.transform);
    if (!recorded["shapes"].contains(expected.config)) continue;
    // Its weights are those of timm, by name and by shape.
    SettingValues own = read->own;
    own.insert(read->of_weights.begin(), read->of_weights.end());
    const ResolvedModel model =
        Resolved({.name = read->name, .channels = read->channels, .classes = read->classes, .own = own});
    const HostTensors weights = *ExportWeights(model, Numbered(model), "timm");
    nlohmann::json shapes;
    for (const auto& [name, tensor] : weights) shapes[name] = tensor.shape;
    EXPECT_EQ(shapes, recorded["shapes"][expected.config]);
  }
}

TEST(Timm, AResNetsConfigurationIsReadAsItWasWritten) {
  for (const char* name : {"resnet18", "resnet34", "resnet50", "resnet101", "resnet152"}) {
    const ResolvedModel model =
        Resolved({.name = name, .image_size = 40, .channels = 1, .classes = 3, .own = {{"stem", "imagenet"}}});
    const nlohmann::json config = Written("timm", model, {"ant", "bee", "cat"}, kCropped);
    EXPECT_EQ(config["architecture"], name);
    EXPECT_EQ(config["pretrained_cfg"]["fixed_input_size"],
              false);  // or timm gives the network a size, which takes none
    EXPECT_EQ(config["crop_offset"], "down");  // which is not timm's way
    EXPECT_EQ(*ReadTimmTransform(config, 40, kCropped.channels), kCropped);
    const auto read = ReadForeignConfig(config);
    ASSERT_TRUE(read.ok()) << Message(read.status());
    EXPECT_EQ(read->family->name, "resnet");
    EXPECT_EQ(read->name, name);
    EXPECT_EQ(read->image_size, 40);
    EXPECT_EQ(read->channels, 1);
    EXPECT_EQ(read->classes, 3);
    EXPECT_EQ(read->own, (SettingValues{{"depth", model.own.at("depth")}, {"width", 64}}));
    EXPECT_EQ(read->of_weights, (SettingValues{{"stem", "imagenet"}}));
    EXPECT_EQ(read->class_names.at(2), "cat");
  }
}

TEST(Timm, OtherResNetsAreRefusedByField) {
  const auto error = [](const char* field, const nlohmann::json& value) {
    nlohmann::json config = {{"architecture", "resnet50"}, {"num_classes", 5}};
    config[field] = value;
    const auto read = ReadForeignConfig(config);
    return read.ok() ? read->name : Message(read.status());
  };
  EXPECT_EQ(error("global_pool", "avg"), "resnet50");
  EXPECT_EQ(error("num_classes", 0), "resnet50") << "without a classifier";
  EXPECT_EQ(error("architecture", "tv_resnet101"), "resnet101") << "as timm named it once";
  EXPECT_EQ(error("model_args", {{"in_chans", 4}, {"zero_init_last", false}, {"drop_path_rate", 0.1}}), "resnet50");
  for (const char* other : {"resnet26", "resnet50d", "resnet50_gn", "wide_resnet50_2", "resnetv2_50", "seresnet50"}) {
    EXPECT_THAT(error("architecture", other),
                AllOf(HasSubstr("architecture: expected resnet18, resnet34, resnet50, resnet101 or resnet152"),
                      HasSubstr(other)));
  }
  EXPECT_THAT(error("architecture", "resnet50" + std::string(1 << 20, '0')), HasSubstr("architecture"));
  EXPECT_THAT(error("architecture", "convnext_tiny"), HasSubstr("architecture: expected vit or swin or resnet"));
  EXPECT_THAT(error("global_pool", "max"), HasSubstr("global_pool: expected avg"));
  EXPECT_THAT(error("model_args", {{"global_pool", "max"}}), HasSubstr("global_pool: expected avg"));
  EXPECT_THAT(error("model_args", {{"output_stride", 16}}), HasSubstr("output_stride"));
  EXPECT_THAT(error("model_args", 3), HasSubstr("model_args: expected an object"));
  const auto of_input = [&](const nlohmann::json& size) { return error("pretrained_cfg", {{"input_size", size}}); };
  EXPECT_EQ(of_input({3, 96, 96}), "resnet50");
  EXPECT_THAT(of_input({3, 96, 128}), HasSubstr("input_size: expected the side of a square"));
  EXPECT_THAT(of_input({3, 96}), HasSubstr("input_size: expected channels, height and width"));
  EXPECT_THAT(of_input({0, 96, 96}), HasSubstr("channels: expected a whole number"));
}

TEST(Timm, AResNetOfAnotherWidthOrStemHasNoCounterpart) {
  const auto error = [](const ModelOptions& options) {
    const ResolvedModel model = Resolved(options);
    return Message((*FormatOf(*model.info->family, "timm"))->write(model, kCropped, {}).status());
  };
  EXPECT_EQ(error({.name = "resnet18"}), "");
  EXPECT_THAT(error({.name = "resnet18", .image_size = 32}),
              HasSubstr("--stem=small has no counterpart under the names of timm"));
  EXPECT_THAT(error({.name = "resnet18", .own = {{"width", 32}}}), HasSubstr("--width=32 has no counterpart"));
}

}  // namespace
}  // namespace switchyard
