// A signal between two micro-steps of an update: the update is ended and saved, and the run that goes on has the bits
// of one that was not interrupted.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "core/graph/ops/layout.h"
#include "core/nn/layers.h"
#include "core/train/trainer.h"
#include "gtest/gtest.h"
#include "tests/train/scratch.h"

namespace switchyard {
namespace {

constexpr int kMicroBatch = 2, kMicroSteps = 4, kImageCount = 32, kSide = 4, kClasses = 3;
constexpr int64_t kNever = -1;

// Grey images. Reading the sample that is asked for as the `signal_at`-th sends this process SIGTERM, and takes so long
// that the training has come to wait for it.
struct Images : Dataset {
  explicit Images(int64_t at) : signal_at(at) {}
  std::string name() const override { return "images"; }
  int64_t size() const override { return kImageCount; }
  int channels() const override { return 1; }
  const std::vector<std::string>& class_names() const override { return names; }
  Status Read(int64_t index, Sample* sample) const override {
    if (reads++ == signal_at) {
      const std::chrono::milliseconds until_it_waits(1000);
      std::this_thread::sleep_for(until_it_waits);
      kill(getpid(), SIGTERM);
      std::this_thread::sleep_for(until_it_waits);
    }
    sample->image.Reshape(kSide, kSide, 1);
    for (int i = 0; i < kSide * kSide; ++i)
      sample->image.bytes[static_cast<size_t>(i)] = static_cast<uint8_t>(i * 13 + index * 37);
    sample->label = static_cast<int>(index % kClasses);
    return OkStatus();
  }
  const int64_t signal_at;
  mutable std::atomic<int64_t> reads = 0;
  const std::vector<std::string> names = {"a", "b", "c"};
};

TrainableModel LinearModel() {
  TrainableModel model;
  model.name = "linear";
  model.architecture = {{"model", "linear"}};
  model.image_size = kSide;
  model.channels = 1;
  model.classes = kClasses;
  model.build = [](nn::Context& context, const Value& images) {
    return nn::Linear(context, "layer", ops::Reshape(images, {images.dim(0), kSide * kSide}), kClasses);
  };
  model.task = MakeClassification;
  return model;
}

using StoppedUpdate = Scratch;

TEST_F(StoppedUpdate, IsEndedAndSavedAndTheRunGoesOnBitForBit) {
  auto world = World::Join({.device = "reference"});
  ASSERT_TRUE(world.ok()) << Message(world.status());
  TrainConfig config;
  config.batch_size = kMicroBatch;
  config.accumulation = kMicroSteps;
  config.epochs = 2;
  config.augmentation = "none";
  config.device = "reference";
  config.workers = 1;
  const Images validation(kNever);
  const auto train = [&](const TrainConfig& c, const Images& data, HostTensors* weights) {
    auto trainer = Trainer::Create(c, LinearModel(), data, validation, **world);
    EXPECT_TRUE(trainer.ok()) << Message(trainer.status());
    if (!trainer.ok()) return TrainingResult();
    const auto result = (*trainer)->Train();
    EXPECT_TRUE(result.ok()) << Message(result.status());
    *weights = (*trainer)->Parameters().value();
    return result.value_or(TrainingResult());
  };
  HostTensors whole, stopped, ended;
  config.output = In("whole");
  const Images undisturbed(kNever);
  EXPECT_EQ(train(config, undisturbed, &whole).updates, 8);
  EXPECT_EQ(undisturbed.reads, 2 * kImageCount) << "reads are those of the batches, in their order";

  // The first sample of the second micro-step of the sixth update.
  config.output = In("parts");
  const Images disturbed((5 * kMicroSteps + 1) * kMicroBatch);
  const TrainingResult part = train(config, disturbed, &stopped);
  EXPECT_TRUE(part.interrupted);
  EXPECT_EQ(part.updates, 6) << "the update that had begun, and no other";

  config.resume = part.run_folder;
  const Images rest(kNever);
  const TrainingResult result = train(config, rest, &ended);
  EXPECT_FALSE(result.interrupted);
  EXPECT_EQ(result.updates, 8);
  ASSERT_EQ(ended.size(), whole.size());
  for (const auto& [name, tensor] : whole) {
    EXPECT_EQ(ended.at(name).values, tensor.values) << name;
    EXPECT_NE(stopped.at(name).values, tensor.values) << name;
  }
}

}  // namespace
}  // namespace switchyard
