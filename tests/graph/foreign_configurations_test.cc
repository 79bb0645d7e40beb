// The configurations that transformers and timm write beside their weights: read, written, refused by field.
#include <zlib.h>

#include <fstream>

#include "core/data/transforms.h"
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
#include "tests/graph/foreign_files.h"
#include "tests/graph/steps.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
              false);                          // or timm gives the network a size, which takes none
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
