// What evaluation of a classifier counts.
#include "core/train/classification.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

TEST(Classification, CountsTheLossAndTheSamplesWhoseClassIsAmongTheHighest) {
  TrainableModel model;
  model.image_size = 4;
  model.classes = 7;
  const auto options = Classification::OptionsOf(TrainConfig(), model);
  ASSERT_TRUE(options.ok()) << Message(options.status());
  const Classification task(TrainConfig(), model, *options);
  std::vector<double> sums(static_cast<size_t>(task.sums()));
  const struct {
    float loss;
    int32_t above;  // classes that score above the true one
  } samples[] = {{0.5f, 0}, {1, 4}, {1.5f, 5}, {3, 1}};
  for (const auto& sample : samples) {
    const void* const rows[] = {&sample.loss, &sample.above};
    task.Count(rows, sums);
  }
  EXPECT_THAT(task.Metrics(sums, 4), testing::ElementsAre(1.5, 0.25, 0.75));
  EXPECT_EQ(task.metrics().size(), 3u);
}

TEST(Classification, MixesOnADeviceThatHasKernelsForItAlone) {
  TrainableModel model;
  model.image_size = 4;
  model.classes = 7;
  TrainConfig config;
  config.device = "abacus";
  config.batch_size = 2;
  config.mix_on = "device";
  const CanPrepare no_gather = [](const Graph&, const Node& node) { return node.op != "gather"; };
  EXPECT_TRUE(MakeClassification(config, model, no_gather).ok()) << "nothing is mixed";
  config.cutmix = 1;
  EXPECT_EQ(MakeClassification(config, model, [](const Graph&, const Node&) { return true; }).value()->tensors().size(),
            7u);
  EXPECT_THAT(Message(MakeClassification(config, model, no_gather).status()),
              testing::AllOf(testing::HasSubstr("--mix_on=device: device abacus"), testing::HasSubstr("the loader")));
}

// As FlipsBytes says of the device; a batch that the loader mixes has to be flipped before it.
TEST(Classification, FlipsOnADeviceThatHasKernelsForItUnlessTheLoaderMixes) {
  TrainableModel model;
  model.image_size = 4;
  model.classes = 7;
  TrainConfig config;
  config.batch_size = 2;
  const auto flips = [&](const CanPrepare& can_prepare) {
    const auto task = MakeClassification(config, model, can_prepare);
    EXPECT_TRUE(task.ok()) << Message(task.status());
    const std::vector<SampleTensor> tensors = (*task)->tensors();
    return std::any_of(tensors.begin(), tensors.end(), [](const SampleTensor& t) { return t.name == "flips"; });
  };
  const CanPrepare everything = [](const Graph&, const Node&) { return true; };
  EXPECT_FALSE(flips(everything)) << "the dataset may say so, and the loader does it";
  config.augmentation = "crop";
  EXPECT_FALSE(flips(everything));
  for (const char* augmentation : {"crop_flip", "resized_crop"}) {
    config.augmentation = augmentation;
    EXPECT_TRUE(flips(everything));
    EXPECT_FALSE(flips([](const Graph&, const Node& node) { return node.op != "flip"; }));
    EXPECT_FALSE(
        flips([](const Graph& graph, const Node& node) { return graph.type(node.inputs.at(0)).dtype != DType::kU8; }));
  }
  config.cutmix = 1;
  EXPECT_FALSE(flips(everything));
  config.mix_on = "device";
  EXPECT_TRUE(flips(everything));
}

}  // namespace
}  // namespace switchyard
