// Exact resume of every task: with accumulation, averages of the weights, augmentation and mixing of the task's data,
// and a dynamic loss scale of half models that moves, a run taken up anywhere ends with the bits of one that was not
// interrupted.
#include <set>

#include "core/train/checkpoint.h"
#include "gtest/gtest.h"
#include "tests/oracles/families.h"

namespace switchyard {
namespace {

class FamilyResume : public ::testing::TestWithParam<std::tuple<const char*, Level>> {};

TEST_P(FamilyResume, AnywhereEqualsTheUninterruptedRun) {
  const auto& [family, level] = GetParam();
  if (!IsTriedHere(level)) GTEST_SKIP() << kTriedElsewhere;
  TrainConfig config = FamilyConfig(family);
  Use(level, &config);
  if (level.fp16()) {  // overflows at first, falls at each of them, and grows after two updates
    config.loss_scale = "dynamic";
    config.scaler_preset = "default";
    config.init_scale = 16777216;
    config.backoff_factor = 0.001f;
    config.hysteresis = 1;
    config.growth_interval = 2;
  }
  config.accumulation = 2;
  SaveEveryUpdate(&config);
  if (std::string(family) == "deeplab") {
    config.augmentation = "scale_crop";
    config.auto_augment = "rand-m9-mstd0.5-inc1";
    config.erase_prob = 0.25f;
  }
  if (std::string(family) == "vit" || std::string(family) == "swin" || std::string(family) == "resnet") {
    config.auto_augment = "rand-m9-mstd0.5-inc1";
    config.erase_prob = 0.25f;
    config.mixup = 0.8f;
    config.cutmix = 1;
    config.label_smoothing = 0.1f;
    if (std::string(family) == "resnet") config.mix_on = "device";
  }
  config.validation_size = 4;
  config.suffix = fmt::format("resume_{}_{}", family, level.name);
  ExpectToGoOnAnywhere(config);
  if (!level.fp16() || SharedWorld().rank() != 0) return;
  std::set<float> scales;
  for (int step = 1; step <= *config.steps; ++step) {
    const auto checkpoint = LoadCheckpoint(fmt::format("{}/{}/{}/{}/run/checkpoints/step-{:08}", config.output,
                                                       config.model, config.dataset, *config.suffix, step));
    ASSERT_TRUE(checkpoint.ok()) << Message(checkpoint.status());
    float scale = 0;
    ASSERT_TRUE(checkpoint->state.Read(*checkpoint->state.Find("loss_scale"), &scale).ok());
    scales.insert(scale);
  }
  EXPECT_GE(scales.size(), 3u) << "it fell and grew";
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyResume,
                         testing::Combine(testing::ValuesIn(kFamilies), testing::ValuesIn(kLevels)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param).name);
                         });

}  // namespace
}  // namespace switchyard
