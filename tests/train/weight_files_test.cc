#include "core/train/weight_files.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "tests/train/scratch.h"

namespace switchyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WeightSourceTest : public Scratch {
 protected:
  // One tensor of the dtype under its own name, with these raw elements.
  template <typename T>
  void Write(const std::string& file, const std::string& name, const std::string& dtype, const std::vector<T>& raw) {
    std::filesystem::create_directories(std::filesystem::path(In(file)).parent_path());
    const auto written = WriteTensorFile(In(file), {{name, dtype, {static_cast<int64_t>(raw.size())}, raw.data()}});
    ASSERT_TRUE(written.ok()) << written.status();
  }
  void WriteOne(const std::string& file, const std::string& name, float value) {
    Write(file, name, "F32", std::vector<float>{value});
  }
  std::vector<float> Read(const std::string& path, const std::string& name) const {
    const auto source = WeightSource::Open(In(path));
    EXPECT_TRUE(source.ok()) << source.status();
    if (!source.ok()) return {};
    const auto tensors = source->Read();
    EXPECT_TRUE(tensors.ok()) << tensors.status();
    return tensors.ok() && tensors->contains(name) ? tensors->at(name).values : std::vector<float>();
  }
  std::string Refusal(const std::string& path) const { return Message(WeightSource::Open(In(path)).status()); }
};

TEST_F(WeightSourceTest, EveryFloatingTypeIsReadExactly) {
  Write<uint16_t>("half.safetensors", "w", "F16",
                  {0x3C00, 0xC000, 0x0001, 0x83FF, 0x7BFF, 0x7C00, 0xFC00, 0x8000, 0x3555});
  const std::vector<float> halves = Read("half.safetensors", "w");
  EXPECT_THAT(halves, ElementsAre(1.0f, -2.0f, std::ldexp(1.0f, -24), -1023 * std::ldexp(1.0f, -24), 65504.0f, INFINITY,
                                  -INFINITY, 0.0f, 0.333251953125f));
  EXPECT_TRUE(std::signbit(halves[7]));
  Write<uint16_t>("nan.safetensors", "w", "F16", {0x7E00});
  EXPECT_TRUE(std::isnan(Read("nan.safetensors", "w")[0]));
  Write<uint16_t>("bfloat.safetensors", "w", "BF16", {0x3F80, 0xC040});
  EXPECT_THAT(Read("bfloat.safetensors", "w"), ElementsAre(1.0f, -3.0f));
  Write<double>("double.safetensors", "w", "F64", {0.1, -7});
  EXPECT_THAT(Read("double.safetensors", "w"), ElementsAre(0.1f, -7.0f));
  Write<int64_t>("whole.safetensors", "w", "I64", {3});  // what lies beside weights: a norm's count of batches
  EXPECT_THAT(Read("whole.safetensors", "w"), ElementsAre(3.0f));
  Write<uint8_t>("bytes.safetensors", "w", "U8", {1});
  EXPECT_THAT(Message(WeightSource::Open(In("bytes.safetensors"))->Read().status()),
              AllOf(HasSubstr("bytes.safetensors: tensor w has dtype U8"), HasSubstr("F16")));
}

TEST_F(WeightSourceTest, AFolderIsItsModelFileAndWhatLiesBesideIt) {
  WriteOne("hub/model.safetensors", "a", 1);
  WriteOne("hub/other.safetensors", "a", 2);
  WriteText(In("hub/config.json"), R"({"model_type": "vit"})");
  EXPECT_THAT(Read("hub", "a"), ElementsAre(1.0f));
  EXPECT_THAT(Read("hub/", "a"), ElementsAre(1.0f));
  EXPECT_THAT(Read("hub/other.safetensors", "a"), ElementsAre(2.0f));
  for (const char* path : {"hub", "hub/model.safetensors"}) {
    const auto source = WeightSource::Open(In(path));
    ASSERT_TRUE(source.ok());
    EXPECT_EQ(source->config()["model_type"], "vit") << path;
    EXPECT_TRUE(source->preprocessor().is_null());
    EXPECT_EQ(source->checkpoint(), nullptr);
    ASSERT_NE(source->Find("a"), nullptr);
    EXPECT_EQ(source->Find("b"), nullptr);
  }
  WriteOne("one/anything.safetensors", "a", 3);
  EXPECT_THAT(Read("one", "a"), ElementsAre(3.0f));
  WriteOne("one/second.safetensors", "a", 4);
  EXPECT_THAT(Refusal("one"), HasSubstr("2 .safetensors files and no model.safetensors"));
}

TEST_F(WeightSourceTest, AnIndexNamesTheFileOfEachTensor) {
  WriteOne("hub/model-00001-of-00002.safetensors", "a", 1);
  WriteOne("hub/model-00002-of-00002.safetensors", "b", 2);
  const std::string index = In("hub/model.safetensors.index.json");
  WriteText(index, R"({"metadata": {"total_size": 8}, "weight_map": {
      "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})");
  for (const char* path : {"hub", "hub/model.safetensors.index.json"}) {
    EXPECT_THAT(Read(path, "a"), ElementsAre(1.0f)) << path;
    EXPECT_THAT(Read(path, "b"), ElementsAre(2.0f)) << path;
  }
  WriteText(index, R"({"weight_map": {"b": "model-00001-of-00002.safetensors"}})");
  EXPECT_THAT(Refusal("hub"), HasSubstr("b should be in model-00001-of-00002.safetensors, which does not have it"));
  WriteText(index, R"({"weight_map": {"a": "model-00003-of-00003.safetensors"}})");
  EXPECT_THAT(Refusal("hub"), HasSubstr("model-00003-of-00003.safetensors"));
  WriteOne("secret.safetensors", "a", 5);
  for (const char* file : {R"("../secret.safetensors")", R"("/etc/secret.safetensors")", R"(".safetensors")", "7",
                           "null", R"("model.bin")", "\"\""}) {
    WriteText(index, fmt::format(R"({{"weight_map": {{"a": {}}}}})", file));
    EXPECT_THAT(Refusal("hub"), HasSubstr("expected the name of a .safetensors file beside the index")) << file;
  }
  for (const char* text : {"[]", "{}", R"({"weight_map": []})", R"({"weight_map": {}})", "{", ""}) {
    WriteText(index, text);
    EXPECT_THAT(Refusal("hub"), HasSubstr("model.safetensors.index.json")) << text;
  }
}

TEST_F(WeightSourceTest, ACheckpointComesWithItsRecord) {
  const float value = 4;
  CheckpointContents contents;
  contents.step = 3;
  contents.weights = {{"a", "F32", {1}, &value}};
  contents.record = {{"arch", "small"}};
  contents.config = {{"model_type", "vit"}};
  contents.preprocessor = {{"size", 28}};
  ASSERT_TRUE(SaveCheckpoint(In("run"), contents, {.best = true}).ok());
  for (const char* path : {"run", "run/best", "run/checkpoints/step-00000003"}) {
    EXPECT_THAT(Read(path, "a"), ElementsAre(4.0f)) << path;
    const auto source = WeightSource::Open(In(path));
    ASSERT_TRUE(source.ok()) << path;
    ASSERT_NE(source->checkpoint(), nullptr) << path;
    EXPECT_EQ(source->checkpoint()->record["arch"], "small");
    EXPECT_EQ(source->config()["model_type"], "vit");
    EXPECT_EQ(source->preprocessor()["size"], 28);
  }
}

// As a run of before named its weights in files; averages in pieces have the names of the graph, and whoever reads them
// another naming of files today.
TEST_F(WeightSourceTest, AveragesTakeThePlaceOfWeightsUnderWhateverName) {
  const float weight = 4, average = 3, variance = 2;
  CheckpointContents contents;
  contents.step = 3;
  contents.weights = {{"before.w", "F32", {1}, &weight}, {"variance", "F32", {1}, &variance}};
  SharedWriting& shared = contents.shared.emplace();
  shared.files = 1;
  shared.own = {{{"ema/w", "F32", {1}, &average}, {1}, std::nullopt}};
  shared.begin = [](const std::string&) { return OkStatus(); };
  shared.wait = []() -> StatusOr<std::vector<TensorFileSummary>> { return std::vector<TensorFileSummary>(); };
  contents.record = {{"arch", "small"}};
  ASSERT_TRUE(SaveCheckpoint(In("run"), contents, {}).ok());
  const auto renamed = [](HostTensors tensors, const char* from, const char* to) {
    if (auto node = tensors.extract(from); !node.empty()) {
      node.key() = to;
      tensors.insert(std::move(node));
    }
    return tensors;
  };
  const auto read = WeightSource::Open(In("run"))->ReadAverages(
      [&](HostTensors tensors) { return renamed(std::move(tensors), "before.w", "w"); },
      [&](HostTensors tensors) { return renamed(std::move(tensors), "w", "today.w"); });
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 2u);
  EXPECT_THAT(read->at("today.w").values, ElementsAre(3.0f));
  EXPECT_THAT(read->at("variance").values, ElementsAre(2.0f));
}

TEST_F(WeightSourceTest, PickledWeightsAreRefusedWithTheWayToConvertThem) {
  WriteText(In("vit.pth"), "PK");
  EXPECT_THAT(Refusal("vit.pth"),
              AllOf(HasSubstr("vit.pth: pickled weights"), HasSubstr("weights_only=True"), HasSubstr("save_file")));
  std::filesystem::create_directories(In("hub"));
  WriteText(In("hub/pytorch_model.bin"), "PK");
  EXPECT_THAT(Refusal("hub"), HasSubstr("hub/pytorch_model.bin: pickled weights"));
  WriteOne("hub/model.safetensors", "a", 1);
  EXPECT_THAT(Read("hub", "a"), ElementsAre(1.0f));
}

TEST_F(WeightSourceTest, WhatHoldsNoWeightsSaysWhatWasExpected) {
  EXPECT_THAT(Refusal("nowhere"), HasSubstr("no checkpoint at "));
  EXPECT_THAT(Refusal("none.safetensors"), HasSubstr("none.safetensors: No such file"));
  std::filesystem::create_directories(In("empty"));
  EXPECT_THAT(Refusal("empty"), HasSubstr("expected model.safetensors or model.safetensors.index.json in it"));
  WriteText(In("notes.txt"), "no weights");
  EXPECT_THAT(Refusal("notes.txt"), HasSubstr("notes.txt: expected a run, a checkpoint, a .safetensors file"));
}

TEST_F(WeightSourceTest, JsonBesideTheWeightsIsNotTrusted) {
  WriteOne("hub/model.safetensors", "a", 1);
  const std::string deep(100000, '[');
  for (const std::string& text : {std::string("{"), std::string("[1]"), std::string("3"), deep, "{\"a\":" + deep}) {
    WriteText(In("hub/config.json"), text);
    EXPECT_THAT(Refusal("hub"), HasSubstr("hub/config.json: ")) << text.substr(0, 20);
  }
  // An object in memory takes twenty times its text.
  WriteText(In("hub/config.json"), "{}" + std::string((8 << 20) - 2, ' '));
  EXPECT_TRUE(WeightSource::Open(In("hub")).ok());
  WriteText(In("hub/config.json"), "{}" + std::string(8 << 20, ' '));
  EXPECT_THAT(Refusal("hub"), HasSubstr("hub/config.json has 8388610 bytes, expected at most 8388608"));
  std::filesystem::remove(In("hub/config.json"));
  WriteText(In("hub/preprocessor_config.json"), "true");
  EXPECT_THAT(Refusal("hub"), HasSubstr("hub/preprocessor_config.json: expected a JSON object, found boolean"));
}

}  // namespace
}  // namespace switchyard
