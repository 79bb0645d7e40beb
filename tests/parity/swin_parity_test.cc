// A small Swin Transformer against what timm and Hugging Face transformers computed for the same weights and batch:
// logits, loss and the gradient of every parameter (tests/fixtures/README.md). Its first stage has four windows, which
// the second block shifts and masks.
#include "tests/graph/fixtures.h"
#include "tests/graph/steps.h"
#include "tests/parity/step_run.h"

namespace switchyard {
namespace {

constexpr double kTolerance = 1e-4;  // of a tensor's norm
constexpr const char* kSmallFile = "swin_small_parity.safetensors";

class SmallSwin : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    test_ = OpenOrNull(GetParam());
    if (test_ == nullptr) GTEST_SKIP() << "the " << GetParam() << " plugin is not in this build";
    run_ = StepRun::Make(*test_, model_, 3);
    ASSERT_NE(run_, nullptr);
    run_->SetParameters(*ImportWeights(model_, ReadFixture(kSmallFile, "weight/"), false));
  }
  const ResolvedModel model_ = Resolved({.name = "swin_tiny",
                                         .image_size = 56,
                                         .classes = 10,
                                         .own = {{"width", 12}, {"depths", {"2", "2"}}, {"drop_path", 0}}});
  const std::vector<float> images_ = Symmetric("images", 3 * 56 * 56 * 3);
  std::unique_ptr<TestDevice> test_;
  std::unique_ptr<StepRun> run_;
};

TEST_P(SmallSwin, LogitsEqualTheRecordedOnes) {
  EXPECT_LE(RelativeError("logits", run_->Logits(images_), ReadFixture(kSmallFile).at("logits").values), kTolerance);
}

TEST_P(SmallSwin, WeightsUnderHuggingFaceNamesGiveTheSameLogits) {
  const auto weights = ImportWeights(model_, ReadFixture("swin_small_hf.safetensors"), false);
  ASSERT_TRUE(weights.ok()) << Message(weights.status());
  const std::vector<float> before = run_->Logits(images_);
  run_->SetParameters(*weights);
  EXPECT_EQ(run_->Logits(images_), before);
}

TEST_P(SmallSwin, EveryGradientEqualsTheRecordedOne) {
  const double loss = ReadFixture(kSmallFile).at("loss").values[0];
  EXPECT_NEAR(run_->Step(images_, ReadLabels(kSmallFile, "labels")), loss, kTolerance * loss);
  const HostTensors expected = *ImportWeights(model_, ReadFixture(kSmallFile, "grad/"), false);
  const HostTensors found = run_->GradientsOfFirstStep();
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected)
    EXPECT_LE(RelativeError(name, found.at(name).values, tensor.values), kTolerance) << name;
}

INSTANTIATE_TEST_SUITE_P(Plugins, SmallSwin, ::testing::ValuesIn(TestDevices({"cpu", "reference", "null"})),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace switchyard
