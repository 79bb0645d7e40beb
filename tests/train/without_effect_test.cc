// Which settings are said to do nothing, beside which others and for which task. What a run prints of it is in
// tests/cli.
#include "core/train/without_effect.h"

#include <set>

#include "core/train/plans.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

const std::vector<std::string> kOfImages = {"label_smoothing", "color_jitter", "mean", "std", "interpolation"};
const std::vector<std::string> kOfVolumes = {"loss",          "entropy_weight",  "dice_weight",     "window_overlap",
                                             "normalization", "intensity_scale", "intensity_shift", "window_weights"};

TrainConfig Augmented(const std::string& augmentation) {
  TrainConfig config;
  config.model = "m";
  config.augmentation = augmentation;
  return config;
}

// The names of the settings, among those chosen, that are said to do nothing.
std::vector<std::string> Idle(const TrainConfig& config, Content content, const std::set<std::string>& chosen,
                              int ranks = 2, bool batch_norms = true) {
  const RunFacts facts = {
      .updates = 10, .updates_per_epoch = 5, .ranks = ranks, .batch_norms = batch_norms, .content = content};
  std::vector<std::string> names;
  for (const std::string& sentence :
       SettingsWithoutEffect(config, facts, [&](const std::string& name) { return chosen.contains(name); })) {
    EXPECT_THAT(sentence, HasSubstr(" has no effect with "));
    names.push_back(sentence.substr(2, sentence.find(' ') - 2));
  }
  return names;
}

std::vector<std::string> Idle(const TrainConfig& config, Content content, const std::vector<std::string>& chosen) {
  return Idle(config, content, std::set<std::string>(chosen.begin(), chosen.end()));
}

TEST(WithoutEffect, AreSettingsOfImagesWithAModelOfVolumes) {
  const TrainConfig c = Augmented("crop_flip");
  EXPECT_THAT(Idle(c, Content::kMaskedVolumes, kOfImages), testing::UnorderedElementsAreArray(kOfImages));
  EXPECT_THAT(Idle(c, Content::kMaskedImages, kOfImages), IsEmpty());
  EXPECT_THAT(Idle(c, Content::kLabelledImages, kOfImages), IsEmpty());
}

TEST(WithoutEffect, AreSettingsOfVolumesWithAModelOfImages) {
  const TrainConfig c = Augmented("crop_flip");
  EXPECT_THAT(Idle(c, Content::kMaskedVolumes, kOfVolumes), IsEmpty());
  EXPECT_THAT(Idle(c, Content::kLabelledImages, kOfVolumes), testing::UnorderedElementsAreArray(kOfVolumes));
  // Masks of images have a loss too, which without a word is the cross entropy alone.
  EXPECT_THAT(Idle(c, Content::kMaskedImages, kOfVolumes),
              UnorderedElementsAre("entropy_weight", "dice_weight", "window_overlap", "normalization",
                                   "intensity_scale", "intensity_shift", "window_weights"));
}

TEST(WithoutEffect, AreSettingsOfLabelledImagesWithOthers) {
  const TrainConfig c = Augmented("crop_flip");
  const std::vector<std::string> chosen = {"train_interpolation", "crop_ratio"};
  EXPECT_THAT(Idle(c, Content::kLabelledImages, chosen), IsEmpty());
  EXPECT_THAT(Idle(c, Content::kMaskedImages, chosen), UnorderedElementsAre("train_interpolation"))
      << "another --crop_ratio than 1 is refused there";
  EXPECT_THAT(Idle(c, Content::kMaskedVolumes, chosen), UnorderedElementsAre("train_interpolation", "crop_ratio"));
}

TEST(WithoutEffect, AreIntensitiesWithoutTheAugmentationThatChangesThem) {
  const std::vector<std::string> chosen = {"intensity_scale", "intensity_shift"};
  for (const std::string augmentation : {"none", "crop"}) {
    EXPECT_THAT(Idle(Augmented(augmentation), Content::kMaskedVolumes, chosen),
                UnorderedElementsAre("intensity_scale", "intensity_shift"));
  }
  EXPECT_THAT(Idle(Augmented("none"), Content::kMaskedImages, chosen).size(), 2) << "said once each";
}

TEST(WithoutEffect, IsTheWeightOfDiceInALossWithoutIt) {
  TrainConfig c = Augmented("crop");
  const std::vector<std::string> chosen = {"dice_weight", "entropy_weight"};
  c.loss = "dice_ce";
  EXPECT_THAT(Idle(c, Content::kMaskedVolumes, chosen), IsEmpty());
  EXPECT_THAT(Idle(c, Content::kMaskedImages, chosen), IsEmpty());
  c.loss = "ce";
  EXPECT_THAT(Idle(c, Content::kMaskedVolumes, chosen), UnorderedElementsAre("dice_weight"));
  EXPECT_THAT(Idle(c, Content::kMaskedImages, chosen), UnorderedElementsAre("dice_weight", "entropy_weight"));
}

TEST(WithoutEffect, IsWhatIsAboutOtherRanksWhereThereAreNone) {
  TrainConfig c = Augmented("none");
  const std::set<std::string> chosen = {"overlap", "master_addr"};
  EXPECT_THAT(Idle(c, Content::kLabelledImages, chosen, 2), IsEmpty());
  EXPECT_THAT(Idle(c, Content::kLabelledImages, chosen, 1), UnorderedElementsAre("overlap", "master_addr"));
  c.offload = "optimizer";
  EXPECT_THAT(Idle(c, Content::kLabelledImages, chosen, 1), UnorderedElementsAre("master_addr"));
}

TEST(WithoutEffect, IsTheFilterOfTrainingWhereNothingIsResizedAtRandom) {
  const std::vector<std::string> chosen = {"train_interpolation"};
  TrainConfig c = Augmented("none");
  EXPECT_THAT(Idle(c, Content::kLabelledImages, chosen), UnorderedElementsAre("train_interpolation"));
  c.auto_augment = "rand-m9";
  EXPECT_THAT(Idle(c, Content::kLabelledImages, chosen), IsEmpty());
}

TEST(WithoutEffect, IsMeasuringWhereBitsMustBeThoseOfAnotherRank) {
  const std::vector<std::string> chosen = {"kernel_opt"};
  TrainConfig c = Augmented("crop");
  c.kernel_opt = true;
  c.deterministic = false;
  EXPECT_THAT(Idle(c, Content::kLabelledImages, chosen), IsEmpty());
  c.tp = 2;
  EXPECT_THAT(Idle(c, Content::kLabelledImages, chosen), UnorderedElementsAre("kernel_opt"));
  c.tp = 1;
  c.deterministic = true;
  EXPECT_THAT(Idle(c, Content::kLabelledImages, chosen), UnorderedElementsAre("kernel_opt"));
}

TEST(WithoutEffect, AreSettingsOfRanksWithOne) {
  const std::set<std::string> chosen = {"allreduce_dtype", "grad_predivide", "delay_allreduce", "broadcast_buffers"};
  const TrainConfig c = Augmented("crop");
  EXPECT_THAT(Idle(c, Content::kLabelledImages, chosen, 2), IsEmpty());
  EXPECT_THAT(Idle(c, Content::kLabelledImages, chosen, 1), testing::UnorderedElementsAreArray(chosen));
  EXPECT_THAT(Idle(c, Content::kLabelledImages, chosen, 2, false), UnorderedElementsAre("broadcast_buffers"));
}

TEST(WithoutEffect, IsAHierarchyWhereNodesMakeNone) {
  TrainConfig c = Augmented("crop");
  c.hierarchical_allreduce = true;
  const auto sentences = [&](const Mesh& mesh) {
    RunFacts facts = {.updates = 10, .updates_per_epoch = 5, .ranks = mesh.data};
    facts.hierarchy = NodesDivideData(c, mesh);
    return SettingsWithoutEffect(c, facts, [](const std::string& name) { return name == "hierarchical_allreduce"; });
  };
  EXPECT_THAT(sentences({.data = 4}), ElementsAre(HasSubstr("has no effect with these nodes")));
  EXPECT_THAT(sentences({.data = 4, .nodes = {0, 1, 2, 3}}).size(), 1) << "one rank on each";
  EXPECT_THAT(sentences({.data = 2, .tensor = 2, .nodes = {0, 0, 1, 1}}).size(), 1)
      << "the ranks that divide a model share a node, and those that sum gradients share none";
  EXPECT_THAT(sentences({.data = 4, .nodes = {0, 0, 1, 1}}), IsEmpty());
  c.ranks_per_node = 2;
  EXPECT_THAT(sentences({.data = 4}), IsEmpty());
}

TEST(WithoutEffect, IsOffloadingWhereThereIsNothingToOffload) {
  TrainConfig c = Augmented("crop");
  RunFacts facts = {.updates = 10, .updates_per_epoch = 5, .ranks = 2};
  std::set<std::string> chosen = {"offload", "offload_optim_frac"};
  const auto sentences = [&] {
    return SettingsWithoutEffect(c, facts, [&](const std::string& name) { return chosen.contains(name); });
  };
  EXPECT_THAT(sentences(), ElementsAre(HasSubstr("--offload_optim_frac has no effect with --offload=none")));
  c.offload = "optimizer";
  EXPECT_THAT(sentences(), IsEmpty());
  facts.own_memory = false;
  EXPECT_THAT(sentences(), ElementsAre(HasSubstr("--offload has no effect with --device=auto: it belongs to devices "
                                                 "that have memory beside the host's"),
                                       HasSubstr("--offload_optim_frac has no effect with --device=auto")));
  facts.own_memory = true;
  c.optimizer = "sgd";
  c.momentum = 0;
  EXPECT_THAT(sentences(), ElementsAre(HasSubstr("--offload has no effect with --momentum=0")));
  c.offload = "all";
  EXPECT_THAT(sentences(), IsEmpty());
  chosen.insert("offload_param_frac");
  EXPECT_THAT(sentences(), IsEmpty());
  c.offload = "optimizer";
  c.momentum = 0.9f;
  EXPECT_THAT(sentences(), ElementsAre(HasSubstr("--offload_param_frac has no effect with --offload=optimizer")));
}

TEST(WithoutEffect, IsCompressionThatWouldBeginBehindTheLastUpdate) {
  TrainConfig c = Augmented("crop");
  const RunFacts facts = {.updates = 1000, .updates_per_epoch = 5, .ranks = 2};
  std::set<std::string> chosen = {"matrix_approximation_rank", "start_compress_iter"};
  const auto sentences = [&] {
    return SettingsWithoutEffect(c, facts, [&](const std::string& name) { return chosen.contains(name); });
  };
  EXPECT_THAT(sentences(), testing::Each(HasSubstr("it belongs to --powersgd_compression")));
  EXPECT_EQ(sentences().size(), 2u);
  chosen.insert("powersgd_compression");
  c.powersgd_compression = true;
  EXPECT_THAT(sentences(), ElementsAre(HasSubstr("it would begin after 1000 updates (--start_compress_iter)")));
  c.start_compress_iter = 999;
  EXPECT_THAT(sentences(), IsEmpty());
}

TEST(WithoutEffect, IsMeasuringWhereEveryBitIsToRepeat) {
  TrainConfig c = Augmented("crop");
  c.kernel_opt = true;
  EXPECT_THAT(Idle(c, Content::kLabelledImages, std::vector<std::string>{"kernel_opt"}),
              UnorderedElementsAre("kernel_opt"));
  c.deterministic = false;
  EXPECT_THAT(Idle(c, Content::kLabelledImages, std::vector<std::string>{"kernel_opt"}), IsEmpty());
}

TEST(WithoutEffect, IsCountingWhereAnyNumberIsAllowed) {
  TrainConfig c = Augmented("crop");
  c.count_second_choice = true;
  EXPECT_THAT(Idle(c, Content::kLabelledImages, std::vector<std::string>{"count_second_choice"}),
              UnorderedElementsAre("count_second_choice"));
  c.max_fallback = 0;
  EXPECT_THAT(Idle(c, Content::kLabelledImages, std::vector<std::string>{"count_second_choice"}), IsEmpty());
}

TEST(WithoutEffect, IsWhatUpdatesAreMadeOfWhereThereAreNone) {
  const std::set<std::string> typed = {"offload", "lr", "reset_head", "steps", "batch_size", "label_smoothing"};
  EXPECT_THAT(SettingsOfUpdates("eval", [&](const std::string& name) { return typed.contains(name); }),
              UnorderedElementsAre("--offload has no effect with eval: it belongs to train",
                                   "--lr has no effect with eval: it belongs to train",
                                   "--reset_head has no effect with eval: it belongs to train",
                                   "--steps has no effect with eval: it belongs to train"));
  EXPECT_THAT(SettingsOfUpdates("export", [](const std::string& name) { return name.starts_with("offload_"); }),
              testing::SizeIs(3));
}

TEST(WithoutEffect, IsWhatWouldComeBehindTheEnd) {
  TrainConfig c = Augmented("crop");
  const RunFacts facts = {.updates = 12, .updates_per_epoch = 5};
  const auto sentences = [&] {
    return SettingsWithoutEffect(c, facts, [](const std::string& name) {
      return name == "save_every" || name == "eval_every" || name == "milestones" || name == "lr";
    });
  };
  c.schedule = "multistep";
  c.milestones = {"3", "11"};
  c.save_every = 12;
  c.eval_every = 3;
  EXPECT_THAT(sentences(), IsEmpty());
  c.save_every = 13;
  c.eval_every = 4;
  c.milestones = {"3", "12", "20"};
  c.lr = 0;
  EXPECT_THAT(sentences(),
              ElementsAre(HasSubstr("with --lr=0 nothing is learned"),
                          HasSubstr("--save_every=13: the run has 12 updates, and is saved at its end alone"),
                          HasSubstr("--eval_every=4: the run ends in epoch 3, and is evaluated at its end alone"),
                          HasSubstr("--milestones: 2 of 3 have no effect: they lie behind the run's 12 updates")));
  c.milestones = {"12", "20"};
  EXPECT_THAT(sentences().back(), HasSubstr("--milestones has no effect: the rate would first change after 12"));
}

// Of evaluation and prediction: nothing is said of training alone.
TEST(WithoutEffect, InEvaluationAreThoseOfOtherTasks) {
  const auto sentences = SettingsOfOtherTasks(Augmented("none"), Content::kMaskedVolumes, [](const std::string& name) {
    return name == "mean" || name == "momentum";
  });
  EXPECT_THAT(sentences, testing::ElementsAre("--mean has no effect with --model=m: it belongs to models of images"));
}

}  // namespace
}  // namespace switchyard
