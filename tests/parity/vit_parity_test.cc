// A small Vision Transformer against what PyTorch, timm and Hugging Face transformers computed for the same weights and
// batches: logits, loss, the gradient of every parameter, and the parameters after five AdamW steps
// (tests/fixtures/README.md).
#include <cmath>
#include <fstream>

#include "nlohmann/json.hpp"
#include "tests/graph/fixtures.h"
#include "tests/graph/steps.h"
#include "tests/parity/step_run.h"

namespace switchyard {
namespace {

constexpr double kTolerance = 1e-4, kAfterFiveSteps = 1e-3;  // of a tensor's norm
constexpr const char* kSmallFile = "vit_small_parity.safetensors";

ResolvedModel SmallModel() {
  return Resolved({.name = "vit_tiny",
                   .image_size = 32,
                   .classes = 10,
                   .own = {{"patch", 8}, {"width", 48}, {"depth", 2}, {"heads", 3}}});
}

void ExpectClose(const HostTensors& found, const HostTensors& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_LE(RelativeError(name, found.at(name).values, tensor.values), tolerance) << name;
  }
}

class SmallVit : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    test_ = OpenOrNull(GetParam());
    if (test_ == nullptr) GTEST_SKIP() << "the " << GetParam() << " plugin is not in this build";
    run_ = StepRun::Make(*test_, model_, 4);
    ASSERT_NE(run_, nullptr);
    run_->SetParameters(Recorded("weight/"));
    images_ = ReadFixture(kSmallFile).at("images_nhwc").values;
    labels_ = ReadLabels(kSmallFile, "labels");
  }
  // The recorded tensors called prefix + NAME, in our names and layout.
  HostTensors Recorded(const std::string& prefix) const {
    return *ImportWeights(model_, ReadFixture(kSmallFile, prefix), false);
  }

  const ResolvedModel model_ = SmallModel();
  std::unique_ptr<TestDevice> test_;
  std::unique_ptr<StepRun> run_;
  std::vector<float> images_;
  std::vector<int32_t> labels_;
};

TEST_P(SmallVit, LogitsEqualTheRecordedOnes) {
  EXPECT_LE(RelativeError("logits", run_->Logits(images_), ReadFixture(kSmallFile).at("logits").values), kTolerance);
}

TEST_P(SmallVit, WeightsUnderHuggingFaceNamesGiveTheSameLogits) {
  const auto weights = ImportWeights(model_, ReadFixture("vit_small_hf.safetensors"), false);
  ASSERT_TRUE(weights.ok()) << Message(weights.status());
  const std::vector<float> before = run_->Logits(images_);
  run_->SetParameters(*weights);
  EXPECT_EQ(run_->Logits(images_), before);
}

TEST_P(SmallVit, TheEpsOfTheLayerNormsIsTheArchitectures) {
  const nlohmann::json recorded = nlohmann::json::parse(std::ifstream(SWITCHYARD_FIXTURES "/hugging_face.json"))["eps"];
  ResolvedModel model = model_;
  model.own["layer_norm_eps"] = recorded["layer_norm_eps"];
  const auto run = StepRun::Make(*test_, model, 4);
  ASSERT_NE(run, nullptr);
  run->SetParameters(Recorded("weight/"));
  const auto expected = recorded["logits"].get<std::vector<float>>();
  EXPECT_LE(RelativeError("logits", run->Logits(images_), expected), kTolerance);
  EXPECT_GT(RelativeError("logits", run_->Logits(images_), expected), 100 * kTolerance);  // with eps 1e-6
}

TEST_P(SmallVit, EveryGradientEqualsTheRecordedOne) {
  EXPECT_NEAR(run_->Step(images_, labels_), ReadFixture(kSmallFile).at("losses").values[0], kTolerance);
  ExpectClose(run_->GradientsOfFirstStep(), Recorded("grad/"), kTolerance);
}

TEST_P(SmallVit, FiveAdamWStepsEndAtTheRecordedParameters) {
  const std::vector<float> losses = ReadFixture(kSmallFile).at("losses").values;
  for (const float expected : losses) EXPECT_NEAR(run_->Step(images_, labels_), expected, kTolerance * expected);
  ExpectClose(run_->Parameters(), Recorded("after/"), kAfterFiveSteps);
}

INSTANTIATE_TEST_SUITE_P(Plugins, SmallVit, ::testing::ValuesIn(TestDevices({"cpu", "reference", "null"})),
                         [](const auto& info) { return std::string(info.param); });

TEST(SmallVitInBf16, LossAndGradientsStayNearThoseOfF32) {
  const auto test = OpenOrNull("cpu");
  if (test == nullptr) GTEST_SKIP() << "the cpu plugin is not in this build";
  const ResolvedModel model = SmallModel();
  const auto run = StepRun::Make(*test, model, 4, DType::kBF16);
  ASSERT_NE(run, nullptr);
  run->SetParameters(*ImportWeights(model, ReadFixture(kSmallFile, "weight/"), false));
  EXPECT_NEAR(run->Step(ReadFixture(kSmallFile).at("images_nhwc").values, ReadLabels(kSmallFile, "labels")),
              ReadFixture(kSmallFile).at("losses").values[0], 2e-2);
  const HostTensors expected = *ImportWeights(model, ReadFixture(kSmallFile, "grad/"), false);
  for (const auto& [name, tensor] : run->GradientsOfFirstStep()) {
    const std::vector<float>& other = expected.at(name).values;
    double dot = 0, norm = 0, other_norm = 0;
    for (size_t i = 0; i < other.size(); ++i) {
      dot += double{tensor.values[i]} * other[i];
      norm += double{tensor.values[i]} * tensor.values[i];
      other_norm += double{other[i]} * other[i];
    }
    EXPECT_GT(dot / std::sqrt(norm * other_norm), 0.99) << name;
  }
}

}  // namespace
}  // namespace switchyard
