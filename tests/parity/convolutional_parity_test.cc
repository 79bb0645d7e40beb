// Convolutional networks against what torchvision and transformers computed for the same weights and batch: logits of
// training with the batch's statistics and of evaluation with the running ones, loss, the gradient of every parameter,
// and the running statistics after the step (tests/fixtures/README.md).
#include <fstream>

#include "core/graph/ops/layout.h"
#include "core/graph/ops/loss.h"
#include "core/graph/ops/reduction.h"
#include "models/foreign_format.h"
#include "tests/graph/fixtures.h"
#include "tests/graph/steps.h"
#include "tests/parity/step_run.h"

namespace switchyard {
namespace {

constexpr double kTolerance = 1e-4;  // of a tensor's norm
constexpr int64_t kBatch = 4;

// (H, W, C).
Shape ImageShape(const ResolvedModel& model) {
  const auto of_family = model.info->family->input_shape;
  return of_family != nullptr ? of_family(model) : Shape{model.image_size, model.image_size, model.channels};
}

// Logits are (B, …, classes), each row with a label of its own.
Workload WorkloadOf(const ResolvedModel& model) {
  const auto logits = [model](nn::Context& context) {
    Shape shape = ImageShape(model);
    shape.insert(shape.begin(), kBatch);
    const Value images = context.graph.Input("images", {DType::kF32, shape}, {});
    return BuildModel(model, context, images);
  };
  return {model.info->name,
          [logits](nn::Context& context) {
            const Value y = logits(context), rows = ops::Reshape(y, {-1, y.dim(-1)});
            context.graph.Output("logits", y);
            const Value labels = context.graph.Input("labels", {DType::kI32, {rows.dim(0)}}, {});
            return ops::Mean(ops::CrossEntropy(rows, labels, 0));
          },
          [logits](nn::Context& context) { context.graph.Output("eval_logits", logits(context)); }};
}

struct Recorded {
  const char* file;
  const char* images;  // the name from which they are drawn
  ModelOptions model;
  const char* format = "torchvision";  // of the names
  float factor = 0.035f;               // of the weights
  size_t samples = 64;                 // of a large tensor
};

class ConvolutionalNetwork : public ::testing::TestWithParam<std::tuple<const char*, Recorded>> {
 protected:
  // Of a large tensor the fixture holds the norm and some elements.
  void ExpectRecorded(const std::string& name, const std::vector<float>& values) {
    if (recorded_.contains(name)) {
      EXPECT_LE(RelativeError(name, values, recorded_.at(name).values), kTolerance) << name;
      return;
    }
    const size_t slash = std::min(name.find('/'), name.size());
    const std::string kind = name.substr(0, slash), rest = name.substr(slash);
    ASSERT_TRUE(recorded_.contains(kind + "_norm" + rest)) << name;
    double sum = 0;
    for (const float value : values) sum += double{value} * value;
    const double norm = recorded_.at(kind + "_norm" + rest).values[0];
    EXPECT_NEAR(std::sqrt(sum), norm, kTolerance * norm) << name;
    const std::vector<float>& samples = recorded_.at(kind + "_samples" + rest).values;
    const size_t stride = std::max<size_t>(1, values.size() / samples_);
    std::vector<float> ours;
    for (size_t s = 0; s < samples.size(); ++s) ours.push_back(values[s * stride]);
    EXPECT_LE(RelativeError(name, ours, samples), kTolerance) << name << " (samples)";
  }

  HostTensors recorded_;
  size_t samples_ = 0;
};

TEST_P(ConvolutionalNetwork, EqualsTheRecordedOneInTrainingAndEvaluation) {
  const auto& [plugin, recorded] = GetParam();
  const auto test = OpenOrNull(plugin, 2);
  if (test == nullptr) GTEST_SKIP() << "the " << plugin << " plugin is not in this build";
  recorded_ = ReadFixture(recorded.file);
  samples_ = recorded.samples;
  const ResolvedModel model = Resolved(recorded.model);
  const auto run = StepRun::Make(*test, WorkloadOf(model));
  ASSERT_NE(run, nullptr);
  run->SetParameters(FormulaWeights(model, recorded.format, recorded.factor));

  const std::vector<float> images = Symmetric(recorded.images, kBatch * Elements(ImageShape(model)));
  ExpectRecorded("eval_logits", run->Logits(images));
  std::vector<int32_t> labels(run->Elements("labels"));
  for (size_t i = 0; i < labels.size(); ++i)
    labels[i] = static_cast<int32_t>((7 * i + i / 64) % static_cast<size_t>(model.classes));
  EXPECT_NEAR(run->Step(images, labels), recorded_.at("loss").values[0], kTolerance * recorded_.at("loss").values[0]);
  ExpectRecorded("logits", run->Get("output/logits"));

  size_t compared = 0;
  const auto gradients = ExportWeights(model, run->GradientsOfFirstStep(), recorded.format);
  ASSERT_TRUE(gradients.ok()) << Message(gradients.status());
  for (const auto& [name, tensor] : *gradients) {
    ExpectRecorded("grad/" + name, tensor.values);
    ++compared;
  }
  const auto weights = ExportWeights(model, run->Parameters(), recorded.format);
  ASSERT_TRUE(weights.ok()) << Message(weights.status());
  for (const auto& [name, tensor] : *weights) {
    if (!name.ends_with("running_mean") && !name.ends_with("running_var")) continue;
    ExpectRecorded("state/" + name, tensor.values);
    ++compared;
  }
  size_t expected = 0;
  for (const auto& [name, tensor] : recorded_)
    expected += name.starts_with("grad_norm/") || name.starts_with("state_norm/");
  EXPECT_EQ(compared, expected);
}

ModelOptions ResNet(const char* name, int width = 64) {
  return {.name = name, .image_size = 64, .classes = 10, .own = {{"stem", "imagenet"}, {"width", width}}};
}

// The file of weights and the config.json that transformers wrote: from them the network that gives the logits of
// transformers, and back to every name, shape, value and field.
TEST(HuggingFaceResNet, IsReadFromAndWrittenToTheFilesOfTransformers) {
  const auto configs = nlohmann::json::parse(std::ifstream(SWITCHYARD_FIXTURES "/resnet_hf.json"))["config"];
  for (const auto& [name, config] : configs.items()) {
    const auto read = ReadForeignConfig(config);
    ASSERT_TRUE(read.ok()) << Message(read.status());
    SettingValues own = read->own;
    own.insert(read->of_weights.begin(), read->of_weights.end());
    const ResolvedModel model = Resolved({.name = read->name, .image_size = 64, .classes = read->classes, .own = own});
    EXPECT_EQ(ParameterTypes(model), ParameterTypes(Resolved(ResNet(name.c_str(), 2))));
    const auto written = (*FormatOf(*model.info->family, "huggingface"))
                             ->write(model, {.image_size = 64, .channels = 3}, std::vector<std::string>());
    ASSERT_TRUE(written.ok()) << Message(written.status());
    for (const auto& [field, value] : written->config.items()) {
      EXPECT_EQ(value, config.value(field == "torch_dtype" ? "dtype" : field, nlohmann::json())) << field;
    }
  }
  const HostTensors theirs = ReadFixture("resnet18_hf.safetensors");
  const ResolvedModel model = Resolved(ResNet("resnet18", 2));
  const auto weights = ImportWeights(model, theirs, false);
  ASSERT_TRUE(weights.ok()) << Message(weights.status());
  const auto back = ExportWeights(model, *weights, "huggingface");
  ASSERT_TRUE(back.ok()) << Message(back.status());
  ASSERT_EQ(back->size(), theirs.size());
  for (const auto& [name, tensor] : theirs) {
    ASSERT_TRUE(back->contains(name)) << name;
    EXPECT_EQ(back->at(name).shape, tensor.shape) << name;
    EXPECT_EQ(back->at(name).values, tensor.values) << name;
  }
  const auto test = OpenOrNull("cpu", 2);
  if (test == nullptr) GTEST_SKIP() << "the cpu plugin is not in this build";
  const auto run = StepRun::Make(*test, WorkloadOf(model));
  run->SetParameters(*weights);
  const std::vector<float> logits = run->Logits(Symmetric("images_7", kBatch * 64 * 64 * 3));
  const HostTensors recorded = ReadFixture("resnet18_hf_parity.safetensors");
  EXPECT_LE(RelativeError("eval_logits", logits, recorded.at("eval_logits").values), kTolerance);
}

// Narrow, on images so long that behind the backbone every dilation reaches from one place to another.
ModelOptions DeepLabOnLongImages(int output_stride, std::vector<std::string> input_size) {
  return {.name = "deeplabv3plus_resnet50",
          .classes = 5,
          .own = {{"decoder_width", 8},
                  {"dropout", 0},
                  {"width", 2},
                  {"output_stride", output_stride},
                  {"input_size", input_size}}};
}

std::vector<Recorded> All() {
  return {{"resnet18_parity.safetensors", "images_22", ResNet("resnet18")},
          {"resnet50_parity.safetensors", "images_18", ResNet("resnet50")},
          {"resnet18_hf_parity.safetensors", "images_7", ResNet("resnet18", 2), "huggingface", 0.35f},
          {"resnet50_hf_parity.safetensors", "images_16", ResNet("resnet50", 2), "huggingface", 0.35f},
          {"deeplab_parity.safetensors",
           "images_5",
           {.name = "deeplabv3plus_resnet50",
            .image_size = 32,
            .classes = 5,
            .own = {{"decoder_width", 32}, {"dropout", 0}}}},
          {"deeplab_stride16_parity.safetensors", "images_19", DeepLabOnLongImages(16, {"321", "16"}), "torchvision",
           0.35f, 16},
          {"deeplab_stride8_parity.safetensors", "images_56", DeepLabOnLongImages(8, {"16", "321"}), "torchvision",
           0.35f, 16}};
}

INSTANTIATE_TEST_SUITE_P(Plugins, ConvolutionalNetwork,
                         ::testing::Combine(::testing::ValuesIn(TestDevices({"cpu", "reference"})), ::testing::ValuesIn(All())),
                         [](const auto& info) {
                           const std::string file = std::get<1>(info.param).file;
                           return std::string(std::get<0>(info.param)) + "_" + file.substr(0, file.find("_parity"));
                         });

}  // namespace
}  // namespace switchyard
