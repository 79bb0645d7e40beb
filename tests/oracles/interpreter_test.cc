// One process plays the 64 ranks of whole models' programs, on the reference plugin: they compute what one rank
// computes of the whole batch, an update that begins from the state of another equals going straight on, recomputation,
// one update for each tensor and a static scale change no bit, and an overflow on one rank leaves the update out on
// all.
#include <cmath>

#include "gtest/gtest.h"
#include "tests/oracles/played.h"

namespace switchyard {
namespace {

constexpr int kRanks = 64;

class PlayedFamily : public ::testing::TestWithParam<std::tuple<const char*, Level>> {
 protected:
  void SetUp() override {
    reference_ = OneThreadedReference();
    ASSERT_NE(reference_, nullptr);
  }
  static TrainConfig Config() {
    TrainConfig config = FamilyConfig(std::get<0>(GetParam()));
    Use(std::get<1>(GetParam()), &config);
    config.batch_size = 1;
    return config;
  }
  std::unique_ptr<Device> reference_;
};

TEST_P(PlayedFamily, SixtyFourRanksEqualOneAndThemselves) {
  const auto& [family, level] = GetParam();
  const TrainConfig config = Config();
  Played plain(config, kRanks, *reference_), resumed(config, kRanks, *reference_);
  plain.Update(0);
  const HostTensors first = plain.Weights(0);
  for (const int rank : {31, 63}) ExpectEqual(plain.Weights(rank), first);

  TrainConfig again = config;
  again.recompute = "blocks";
  again.fused_optimizer = false;
  if (!level.fp16()) again.loss_scale = "4096";
  Played other(again, kRanks, *reference_);
  other.Update(0);
  ExpectEqual(other.Weights(0), first);

  TrainConfig whole = config;
  whole.batch_size = kRanks;
  Played one(whole, 1, *reference_);
  one.Update(0);
  const HostTensors start = plain.Start(), expected = one.Weights(0);
  double allowed = 2 * std::pow(2.0, -level.bits);
  if (!level.half()) allowed = 1e-5;
  const bool batch_norms = std::string(family) != "vit" && std::string(family) != "swin";
  if (level.half() && batch_norms) {  // as families_test says
    Use(kLevels[0], &whole);
    Played exact(whole, 1, *reference_);
    exact.Update(0);
    allowed = std::sqrt(2.0) * DistanceOfMovements(expected, exact.Weights(0), start);
  }
  EXPECT_LE(DistanceOfMovements(first, expected, start), allowed);

  resumed.TakeUp(plain);
  plain.Update(1);
  resumed.Update(1);
  const HostTensors second = plain.Weights(63);
  ExpectEqual(resumed.Weights(63), second);
  EXPECT_GT(DistanceOfMovements(second, start, first), 0.1) << "the second update moved nothing";
}

INSTANTIATE_TEST_SUITE_P(Families, PlayedFamily,
                         testing::Combine(testing::Values("vit", "swin", "resnet", "unet3d"),
                                          testing::Values(kLevels[0], kLevels[2], kLevels[3])),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param).name);
                         });

INSTANTIATE_TEST_SUITE_P(OtherLevels, PlayedFamily,
                         testing::Combine(testing::Values("vit"), testing::Values(kLevels[1], kLevels[4])),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param).name);
                         });

INSTANTIATE_TEST_SUITE_P(SlowFamily, PlayedFamily, testing::Values(std::tuple("deeplab", kLevels[0])),
                         [](const auto&) { return "deeplab_f32"; });

// Played ranks add in the same order whether they reduce a bucket or their part of it.
TEST_P(PlayedFamily, SixtyFourRanksThatShareTheUpdateEqualThoseThatDoNot) {
  TrainConfig config = Config();
  config.clip = 0;
  config.bucket_mb = 0.02;
  Played whole(config, kRanks, *reference_);
  whole.Update(0);
  whole.Update(1);
  const HostTensors expected = whole.Weights(0);
  for (const int zero : {1, 2, 3}) {
    SCOPED_TRACE(zero);
    config.zero = zero;
    config.shard_param_frac = zero == 3 ? 0.5f : 1.0f;
    Played shared(config, kRanks, *reference_);
    shared.Update(0);
    shared.Update(1);
    for (const int rank : {0, 31, 63}) ExpectEqual(shared.Weights(rank), expected);
  }
}

class PlayedEvaluation : public PlayedFamily {};

// Sums of the metrics are those of one rank, whether ranks have a sample, several or none.
TEST_P(PlayedEvaluation, CountsEverySampleOnce) {
  TrainConfig config = Config(), whole = config;
  whole.batch_size = 4;
  Played many(config, kRanks, *reference_), one(whole, 1, *reference_);
  for (const Played* played : {&many, &one}) ASSERT_TRUE(played->status().ok()) << Message(played->status());
  for (const int64_t size : {1, 63, 70}) {
    SCOPED_TRACE(size);
    config.validation_size = size;
    const auto run = SettledRun(config, SharedWorld());
    ASSERT_TRUE(run.ok()) << Message(run.status());
    const EvaluationResult found = many.Evaluate(*run->validation), expected = one.Evaluate(*run->validation);
    EXPECT_EQ(found.count, size);
    EXPECT_EQ(expected.count, size);
    ASSERT_FALSE(expected.metrics.empty());
    for (const auto& [name, value] : expected.metrics)
      EXPECT_NEAR(found.metrics.at(name), value, 1e-12 * std::abs(value)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PlayedEvaluation,
                         testing::Combine(testing::Values("vit", "swin", "resnet", "deeplab", "unet3d"),
                                          testing::Values(kLevels[0])),
                         [](const auto& info) { return std::get<0>(info.param); });

struct PlayedMesh {
  const char* name;
  int pipeline, tensor, chunks, zero;
  bool sequence;
  float clip;  // 0 lets gradients of another size be seen, 1 norms that count a part twice
  const Level& level;
};

class PlayedMeshes : public ::testing::TestWithParam<PlayedMesh> {};

// Stages of divided models, of which as many as there are places train on samples of their own.
TEST_P(PlayedMeshes, OfSixtyFourRanksTrainAsOneRank) {
  const auto reference = OneThreadedReference();
  ASSERT_NE(reference, nullptr);
  const PlayedMesh& mesh = GetParam();
  TrainConfig config = FamilyConfig("vit");
  Use(mesh.level, &config);
  config.own["depth"] = mesh.pipeline * mesh.chunks;
  config.own["heads"] = 4;
  config.accumulation = 4;
  config.bucket_mb = 0.02;  // several
  config.clip = mesh.clip;
  config.batch_size = kRanks;
  Played one(config, 1, *reference);

  const int data_ranks = kRanks / (mesh.pipeline * mesh.tensor);
  config.pp = mesh.pipeline;
  config.pp_interleave = mesh.chunks;
  config.tp = mesh.tensor;
  config.sp = mesh.sequence;
  config.zero = mesh.zero;
  config.batch_size = kRanks / data_ranks;
  Played many(config, kRanks, *reference);
  for (Played* played : {&one, &many}) {
    ASSERT_TRUE(played->status().ok()) << Message(played->status());
    played->Update(0);
    played->Update(1);
  }
  const HostTensors found = many.Weights(0);
  ExpectEqual(many.Weights(kRanks - 1), found);
  EXPECT_LE(DistanceOfMovements(found, one.Weights(0), one.Start()), mesh.level.half() ? 3e-2 : 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Meshes, PlayedMeshes,
                         testing::Values(PlayedMesh{"dp16_pp2_tp2_zero1", 2, 2, 1, 1, false, 1, kLevels[0]},
                                         PlayedMesh{"dp4_pp4_tp4_sp", 4, 4, 1, 0, true, 0, kLevels[0]},
                                         PlayedMesh{"dp8_pp2_tp4_interleaved", 2, 4, 2, 0, false, 0, kLevels[3]},
                                         PlayedMesh{"dp16_tp4_sp_zero3", 1, 4, 1, 3, true, 1, kLevels[2]}),
                         [](const auto& info) { return std::string(info.param.name); });

// With clipping, averages and two micro-batches: stages 2 and 3 add in one order, stage 1 in that of ranks that share
// nothing. An update that begins from what a checkpoint of another stage holds goes on as if it had not.
TEST(PlayedShares, HaveTheBitsOfEachOtherInEveryPrecision) {
  const auto reference = OneThreadedReference();
  ASSERT_NE(reference, nullptr);
  for (const int ranks : {2, 4, 8}) {
    for (const Level& level : kLevels) {
      TrainConfig config = FamilyConfig("vit");
      config.optimizer = "adamw";
      config.eps = 1e-2f;
      config.clip = 1;
      config.ema_decay = 0.5f;
      config.batch_size = 1;
      config.accumulation = 2;
      config.bucket_mb = 0.02;
      Use(level, &config);
      std::map<int, HostTensors> weights;
      std::map<int, std::vector<float>> averages;
      for (const int zero : {0, 1, 2, 3}) {
        SCOPED_TRACE(fmt::format("{} ranks, {}, zero {}", ranks, level.name, zero));
        config.zero = zero;
        Played played(config, ranks, *reference);
        ASSERT_TRUE(played.status().ok()) << Message(played.status());
        played.Update(0);
        played.Update(1);
        weights[zero] = played.Weights(0);
        averages[zero] = played.Whole("ema/blocks.0.mlp.fc1.weight");
        ExpectEqual(played.Weights(ranks - 1), weights[zero]);
        if (zero == 1) ExpectEqual(weights[1], weights[0]);
        if (zero == 3) ExpectEqual(weights[3], weights[2]);
      }
      EXPECT_EQ(averages[1], averages[0]);
      EXPECT_EQ(averages[3], averages[2]);
      ExpectClose(weights[2], weights[0], level.half() ? 1e-3 : 1e-6);
    }
  }
}

// Nodes of equal size, where parts of buckets go within nodes first and so not by rank, and of unequal size.
TEST(PlayedShares, TrainNodeByNodeAsAtOnce) {
  const auto reference = OneThreadedReference();
  ASSERT_NE(reference, nullptr);
  for (const Level& level : {kLevels[0], kLevels[2]}) {
    TrainConfig config = FamilyConfig("vit");
    Use(level, &config);
    config.batch_size = 1;
    config.bucket_mb = 0.02;
    config.momentum = 0.9f;
    const auto trained = [&] {
      Played played(config, 8, *reference);
      EXPECT_TRUE(played.status().ok()) << Message(played.status());
      if (!played.status().ok()) return HostTensors();
      played.Update(0);
      played.Update(1);
      const HostTensors weights = played.Weights(0);
      for (const int rank : {1, 6}) ExpectEqual(played.Weights(rank), weights);
      return weights;
    };
    const HostTensors at_once = trained();
    config.hierarchical_allreduce = true;
    for (const int ranks : {2, 3, 4}) {
      std::map<int, HostTensors> weights;
      for (const int zero : {1, 2, 3}) {
        SCOPED_TRACE(fmt::format("{}, {} ranks a node, zero {}", level.name, ranks, zero));
        config.ranks_per_node = ranks;
        config.zero = zero;
        weights[zero] = trained();
        ExpectClose(weights[zero], at_once, level.half() ? 1e-3 : 1e-6);
        ExpectEqual(weights[zero], weights[1]);
      }
    }
    config.hierarchical_allreduce = false;
  }
}

// Nobody moves on where one cannot, whatever it has of the weights.
TEST(PlayedShares, LeaveAnUpdateOutTogether) {
  const auto reference = OneThreadedReference();
  ASSERT_NE(reference, nullptr);
  for (const Level& level : {kLevels[1], kLevels[2]}) {
    for (const int zero : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{}, zero {}", level.name, zero));
      TrainConfig config = FamilyConfig("unet3d");
      Use(level, &config);
      config.batch_size = 1;
      config.bucket_mb = 0.02;
      config.loss_scale = "dynamic";
      config.scaler_preset = "default";
      config.init_scale = 1024;
      config.hysteresis = 1;
      config.zero = zero;
      Played skips(config, 4, *reference), straight(config, 4, *reference);
      skips.Update(0, 3);
      for (const int rank : {0, 3}) {
        EXPECT_EQ(skips.Scalar(rank, "loss_scale"), 512);
        for (const auto& [name, tensor] : skips.Weights(rank))
          EXPECT_EQ(tensor.values, skips.Start().at(name).values) << name;
      }
      // Half copies, too, are those of the start: the next update reads them.
      straight.TakeUp(skips);
      skips.Update(1);
      straight.Update(1);
      ExpectEqual(skips.Weights(0), straight.Weights(0));
      EXPECT_TRUE(std::isfinite(skips.Scalar(0, "grad_norm")));
    }
  }
}

class PlayedOverflow : public PlayedFamily {};

TEST_P(PlayedOverflow, OnOneOfSixtyFourRanksLeavesTheUpdateOutOnAll) {
  TrainConfig config = Config();
  config.loss_scale = "dynamic";
  config.scaler_preset = "default";
  config.init_scale = 1024;
  config.hysteresis = 1;
  Played ranks(config, kRanks, *reference_);
  ranks.Update(0, 63);
  const HostTensors start = ranks.Start();
  for (const int rank : {0, 31, 63}) {
    EXPECT_FALSE(std::isfinite(ranks.Scalar(rank, "grad_norm")));
    EXPECT_EQ(ranks.Scalar(rank, "loss_scale"), 512);
    for (const auto& [name, tensor] : ranks.Weights(rank)) EXPECT_EQ(tensor.values, start.at(name).values) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PlayedOverflow,
                         testing::Combine(testing::Values("unet3d"), testing::Values(kLevels[1], kLevels[2])),
                         [](const auto& info) { return std::string(std::get<1>(info.param).name); });

}  // namespace
}  // namespace switchyard
