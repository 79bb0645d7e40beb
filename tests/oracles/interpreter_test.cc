// One process plays the 64 ranks of whole models' programs, on the reference plugin: they compute what one rank
// computes of the whole batch, an update that begins from the state of another equals going straight on, recomputation
// and a static scale change no bit, and an overflow on one rank leaves the update out on all.
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
  if (level.half() && std::string(family) != "vit") {  // batch norms: as families_test says
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
                         testing::Combine(testing::Values("vit", "unet3d"),
                                          testing::Values(kLevels[0], kLevels[2], kLevels[3])),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param).name);
                         });

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
    if (zero == 3 && config.precision != "fp32") continue;  // not there
    SCOPED_TRACE(zero);
    config.zero = zero;
    config.shard_param_frac = zero == 3 ? 0.5f : 1.0f;
    Played shared(config, kRanks, *reference_);
    shared.Update(0);
    shared.Update(1);
    for (const int rank : {0, 31, 63}) ExpectEqual(shared.Weights(rank), expected);
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
