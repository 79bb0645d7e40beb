// What evaluation of a classifier counts.
#include "core/train/classification.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

TEST(Classification, CountsTheLossAndTheSamplesWhoseClassIsAmongTheHighest) {
  TrainableModel model;
  model.image_size = 4;
  model.classes = 7;
  const auto task = Classification::Create(TrainConfig(), model, DType::kF32);
  ASSERT_TRUE(task.ok()) << Message(task.status());
  std::vector<double> sums(static_cast<size_t>((*task)->sums()));
  const struct {
    float loss;
    int32_t above;  // classes that score above the true one
  } samples[] = {{0.5f, 0}, {1, 4}, {1.5f, 5}, {3, 1}};
  for (const auto& sample : samples) {
    const void* const rows[] = {&sample.loss, &sample.above};
    (*task)->Count(rows, sums);
  }
  EXPECT_THAT((*task)->Metrics(sums, 4), testing::ElementsAre(1.5, 0.25, 0.75));
  EXPECT_EQ((*task)->metrics().size(), 3u);
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

}  // namespace
}  // namespace switchyard
