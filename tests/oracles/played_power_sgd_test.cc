// Gradients of low rank in whole models' programs, all ranks played by one process: several ranks find what one finds
// of the whole batch, and an overflow leaves everywhere what had been left over.
#include <cmath>

#include "core/parallel/power_sgd.h"
#include "gtest/gtest.h"
#include "tests/oracles/played.h"

namespace switchyard {
namespace {

constexpr char kWeight[] = "blocks.0.mlp.fc1.weight";

TrainConfig CompressingConfig(const char* family, int batch, int rank) {
  TrainConfig config = FamilyConfig(family);
  config.batch_size = batch;
  config.bucket_mb = 0.02;
  config.clip = 1;
  config.powersgd_compression = true;
  config.start_compress_iter = 2;
  config.matrix_approximation_rank = rank;
  return config;
}

TEST(PlayedPowerSgd, OfTwoAndFourRanksIsThatOfOne) {
  const auto reference = OneThreadedReference();
  ASSERT_NE(reference, nullptr);
  for (const int rank : {1, 3}) {
    HostTensors start, expected;
    std::vector<float> error;
    for (const int ranks : {1, 2, 4}) {
      SCOPED_TRACE(fmt::format("{} ranks, rank {}", ranks, rank));
      TrainConfig config = CompressingConfig("vit", 8 / ranks, rank), plain = config;
      plain.powersgd_compression = false;
      Played played(config, ranks, *reference), without(plain, ranks, *reference);
      ASSERT_TRUE(played.status().ok()) << Message(played.status());
      for (int update = 0; update < 5; ++update) {
        played.Update(update);
        without.Update(update);
        if (update == 1) ExpectEqual(played.Weights(0), without.Weights(0));
      }
      const HostTensors found = played.Weights(0);
      ExpectEqual(played.Weights(ranks - 1), found);
      std::vector<float> mean;
      for (int r = 0; r < ranks; ++r) {
        const std::vector<float> own = played.Floats(r, std::string("power_sgd_error/") + kWeight);
        mean.resize(own.size());
        for (size_t i = 0; i < own.size(); ++i) mean[i] += own[i] / static_cast<float>(ranks);
      }
      if (ranks == 1) {
        start = played.Start();
        expected = found;
        error = mean;
        EXPECT_GT(DistanceOfMovements(without.Weights(0), expected, start), 1e-2) << "it compresses";
        continue;
      }
      EXPECT_LE(DistanceOfMovements(found, expected, start), 1e-4);
      ExpectClose({{kWeight, {{static_cast<int64_t>(mean.size())}, mean}}},
                  {{kWeight, {{static_cast<int64_t>(error.size())}, error}}}, 1e-3);
    }
  }
}

// What a rank has left over, and the factors, of all that is compressed.
std::map<std::string, std::vector<float>> LowRankStates(const Played& played, int rank, int approximation) {
  std::map<std::string, std::vector<float>> states;
  for (const auto& [name, tensor] : played.Weights(rank)) {
    if (!IsCompressed(tensor.shape, approximation)) continue;
    for (const char* kind : {"power_sgd_error/", "power_sgd_factor/"})
      states[kind + name] = played.Floats(rank, kind + name);
  }
  return states;
}

TEST(PlayedPowerSgd, KeepsWhatIsLeftOverWhereAnUpdateIsLeftOut) {
  const auto reference = OneThreadedReference();
  ASSERT_NE(reference, nullptr);
  for (const Level& level : {kLevels[1], kLevels[2]}) {
    SCOPED_TRACE(level.name);
    TrainConfig config = CompressingConfig("unet3d", 2, 1);
    Use(level, &config);
    config.loss_scale = "dynamic";
    config.scaler_preset = "default";
    config.init_scale = 1024;
    config.hysteresis = 1;
    Played played(config, 2, *reference);
    ASSERT_TRUE(played.status().ok()) << Message(played.status());
    played.Update(2);
    const HostTensors weights = played.Weights(0);
    const auto zero = LowRankStates(played, 0, 1), one = LowRankStates(played, 1, 1);
    ASSERT_GT(zero.size(), 8u);
    for (const auto& [name, values] : zero) {
      EXPECT_EQ(values == one.at(name), name.starts_with("power_sgd_factor/")) << name;
      EXPECT_NE(values, std::vector<float>(values.size(), 0)) << name;
    }
    played.Update(3, 1);
    for (const int rank : {0, 1}) {
      EXPECT_FALSE(std::isfinite(played.Scalar(rank, "grad_norm")));
      EXPECT_EQ(played.Scalar(rank, "loss_scale"), 512);
      ExpectEqual(played.Weights(rank), weights);
      EXPECT_TRUE(LowRankStates(played, rank, 1) == (rank == 0 ? zero : one)) << "of rank " << rank;
    }
    played.Update(4);
    EXPECT_TRUE(std::isfinite(played.Scalar(0, "grad_norm")));
    EXPECT_FALSE(LowRankStates(played, 0, 1) == zero);
  }
}

}  // namespace
}  // namespace switchyard
