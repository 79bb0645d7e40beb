// Models as they are listed: sizes, initial values, names, costs, and options that cannot be.
#include <cmath>

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
#include "models/model.h"
#include "models/vit.h"
#include "models/weights.h"
#include "nlohmann/json.hpp"
#include "tests/graph/steps.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace switchyard
