// Exact resume of every task: with accumulation, averages of the weights, augmentation and mixing of the task's data,
// and a dynamic loss scale of half models that moves, a run taken up anywhere ends with the bits of one that was not
// interrupted; so does one that was stopped within an update.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

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

// Another dataset, of which reading a sample asks the run to stop.
class AskingToStop : public Dataset {
 public:
  explicit AskingToStop(const Dataset& data) : data_(data) {}
  void AskWithSample(int number) { left_ = number; }  // of those that are read from here on
  std::string name() const override { return data_.name(); }
  int64_t size() const override { return data_.size(); }
  Content content() const override { return data_.content(); }
  int channels() const override { return data_.channels(); }
  const std::vector<std::string>& class_names() const override { return data_.class_names(); }
  StatusOr<Extents> ReadExtents(int64_t index) const override { return data_.ReadExtents(index); }
  std::string Path(int64_t index) const override { return data_.Path(index); }
  Status Read(int64_t index, Sample* sample) const override {
    if (--left_ == 0) {
      kill(getpid(), SIGTERM);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // until it was taken, on a busy machine too
    }
    return data_.Read(index, sample);
  }

 private:
  const Dataset& data_;
  mutable std::atomic<int> left_ = 0;
};

class FamilyStops : public ::testing::TestWithParam<const char*> {};

// Ranks agree on stopping after 1, 2, 4, 8, 16 … micro-steps, or sooner where those take long.
TEST_P(FamilyStops, WithinAnUpdateWhichIsThenMadeAnew) {
  TrainConfig config = FamilyConfig(GetParam());
  SaveEveryUpdate(&config);
  config.accumulation = 48;
  config.steps = 2;
  config.warmup = "1";
  config.train_size = int64_t{2} * config.batch_size * config.accumulation * SharedWorld().size();
  config.validation_size = 4;
  if (std::string(GetParam()) == "deeplab") config.augmentation = "scale_crop";
  config.prefetch = 1;  // so that what is read is trained on soon
  config.suffix = fmt::format("whole_{}", GetParam());
  auto whole = MakeRun(config, SharedWorld());
  ASSERT_TRUE(whole.ok()) << Message(whole.status());
  const auto expected = whole->trainer->Train();
  ASSERT_TRUE(expected.ok()) << Message(expected.status());
  config.suffix = fmt::format("stopped_{}", GetParam());
  for (const int update : {0, 0, 1, 2}) {
    SCOPED_TRACE(fmt::format("after update {}", update));
    TakeTurns();
    auto setup = SettledRun(config, SharedWorld());
    ASSERT_TRUE(setup.ok()) << Message(setup.status());
    AskingToStop train(*setup->train);
    auto trainer = Trainer::Create(setup->config, setup->model, train, *setup->validation, SharedWorld());
    ASSERT_TRUE(trainer.ok()) << Message(trainer.status());
    const int samples = config.batch_size * config.accumulation;  // of a rank, an update
    if (update < 2 && SharedWorld().rank() == SharedWorld().size() - 1) train.AskWithSample(update * samples + 10);
    const auto result = (*trainer)->Train();
    ASSERT_TRUE(result.ok()) << Message(result.status());
    EXPECT_EQ(result->updates, update);
    EXPECT_EQ(result->interrupted, update < 2);
    config.resume = result->run_folder;
    if (update < 2) continue;
    ExpectEqual(*(*trainer)->Parameters(), *whole->trainer->Parameters());
    if (SharedWorld().rank() != 0) continue;
    EXPECT_FALSE(std::filesystem::exists(result->run_folder + "/checkpoints/step-00000000-2")) << "it was there";
    const auto last = [](const TrainingResult& of) { return of.run_folder + "/checkpoints/step-00000002"; };
    ExpectEqualTensors(StateOf(last(*result), setup->model), StateOf(last(*expected), setup->model));
    ExpectEqualBytes(Bytes(last(*result) + "/model.safetensors"), Bytes(last(*expected) + "/model.safetensors"),
                     "the model");
  }
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyStops, testing::ValuesIn(kFamilies));

}  // namespace
}  // namespace switchyard
