// Gradients of low rank in whole models' programs, all ranks played by one process: several ranks find what one finds
// of the whole batch, and an overflow leaves everywhere what had been left over.
#include <cmath>

#include "core/nn/initialize.h"
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
        const std::vector<float> own = played.Floats(r, fmt::format("power_sgd_error/{}", kWeight));
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

// Five updates of 8 samples, two micro-batches each, of which the last three compress.
struct PlayedUpdates {
  HostTensors start, weights;
  std::vector<float> error;  // the mean over the data ranks, whole
};
PlayedUpdates FiveUpdatesOn(const Mesh& mesh, int rank, Device& reference) {
  TrainConfig config = CompressingConfig("vit", 4 / mesh.data, rank);
  config.accumulation = 2;
  config.tp = mesh.tensor;
  config.pp = mesh.pipeline;
  Played played(config, mesh.size(), reference);
  EXPECT_TRUE(played.status().ok()) << Message(played.status());
  if (!played.status().ok()) return {};
  for (int update = 0; update < 5; ++update) played.Update(update);
  PlayedUpdates found{played.Start(), played.Weights(0), {}};
  ExpectEqual(played.Weights(mesh.size() - 1), found.weights);
  for (int data = 0; data < mesh.data; ++data) {
    const std::vector<float> own =
        played.Together(data * mesh.pipeline * mesh.tensor, fmt::format("power_sgd_error/{}", kWeight));
    found.error.resize(own.size());
    for (size_t i = 0; i < own.size(); ++i) found.error[i] += own[i] / static_cast<float>(mesh.data);
  }
  return found;
}

void ExpectSameUpdates(const PlayedUpdates& found, const PlayedUpdates& expected) {
  EXPECT_LE(DistanceOfMovements(found.weights, expected.weights, expected.start), 1e-4);
  const Shape size = {static_cast<int64_t>(expected.error.size())};
  ExpectClose({{kWeight, {size, found.error}}}, {{kWeight, {size, expected.error}}}, 1e-3);
}

// The rule is one for each parameter: it does not matter which stage has it.
TEST(PlayedPowerSgd, OfStagesIsThatOfOneRank) {
  const auto reference = OneThreadedReference();
  ASSERT_NE(reference, nullptr);
  for (const int rank : {1, 3}) {
    const PlayedUpdates one = FiveUpdatesOn({}, rank, *reference);
    for (const int data : {1, 2, 4}) {
      SCOPED_TRACE(fmt::format("rank {}, {} data ranks", rank, data));
      ExpectSameUpdates(FiveUpdatesOn({.data = data, .pipeline = 2}, rank, *reference), one);
    }
  }
}

// It is one for each part of a divided one: any number of data ranks finds what one of as many tensor ranks does, which
// is not what an undivided model does; stages change nothing.
TEST(PlayedPowerSgd, OfDividedModelsIsThatOfOneDividedModel) {
  const auto reference = OneThreadedReference();
  ASSERT_NE(reference, nullptr);
  const PlayedUpdates undivided = FiveUpdatesOn({}, 1, *reference);
  const PlayedUpdates one = FiveUpdatesOn({.tensor = 2}, 1, *reference);
  EXPECT_GT(DistanceOfMovements(one.weights, undivided.weights, undivided.start), 1e-3);
  for (const int data : {2, 4}) {
    SCOPED_TRACE(fmt::format("{} data ranks", data));
    ExpectSameUpdates(FiveUpdatesOn({.data = data, .tensor = 2}, 1, *reference), one);
  }
  ExpectSameUpdates(FiveUpdatesOn({.data = 2, .pipeline = 2, .tensor = 2}, 1, *reference), one);
}

// Elements [begin, end) along the rows, or the columns, of a matrix.
std::vector<double> PartOfMatrix(const HostTensor& whole, bool rows, int64_t begin, int64_t end) {
  const int64_t n = whole.shape[0], m = whole.shape[1];
  std::vector<double> part;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < m; ++j) {
      const int64_t place = rows ? i : j;
      if (begin <= place && place < end) part.push_back(whole.values[static_cast<size_t>(i * m + j)]);
    }
  }
  return part;
}

std::vector<double> Normalized(std::vector<double> x) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  for (double& value : x) value /= std::sqrt(squares);
  return x;
}

// The first compressed update by hand: with plain SGD a weight moves by −lr·M, where the same run without compression
// moves by −lr·x. Of each half of a divided weight, M is P·Pᵀ·x with P the direction of x·q and q what was drawn.
TEST(PlayedPowerSgd, FindsTheProductOfEachPartOfADividedWeight) {
  const auto reference = OneThreadedReference();
  ASSERT_NE(reference, nullptr);
  TrainConfig config = CompressingConfig("vit", 4, 1), plain = config;
  for (TrainConfig* c : {&config, &plain}) {
    c->tp = 2;
    c->clip = c->momentum = c->weight_decay = 0;
  }
  plain.powersgd_compression = false;
  Played played(config, 4, *reference), without(plain, 4, *reference);
  ASSERT_TRUE(played.status().ok()) << Message(played.status());
  played.Update(2);
  without.Update(2);
  const HostTensors start = played.Start(), moved = played.Weights(0), moved_plainly = without.Weights(0);
  for (const auto& [name, rows] : {std::pair{"blocks.0.mlp.fc1.weight", true}, {"blocks.0.mlp.fc2.weight", false}}) {
    const HostTensor &before = start.at(name), &after = moved.at(name);
    HostTensor x = moved_plainly.at(name), mean = after;
    for (size_t i = 0; i < x.values.size(); ++i) {
      x.values[i] -= before.values[i];
      mean.values[i] -= before.values[i];
    }
    for (const int half : {0, 1}) {
      SCOPED_TRACE(fmt::format("{}, half {}", name, half));
      const int64_t extent = x.shape[rows ? 0 : 1] / 2;
      const auto own = PartOfMatrix(x, rows, half * extent, (half + 1) * extent);
      const auto found = PartOfMatrix(mean, rows, half * extent, (half + 1) * extent);
      const int64_t n = rows ? extent : x.shape[0], m = static_cast<int64_t>(own.size()) / n;
      const auto drawn = nn::InitialValues(std::string("power_sgd_start/") + name, {DType::kF32, {1, m}},
                                           {Initializer::kNormal, 1}, static_cast<uint64_t>(config.seed));
      std::vector<double> p(static_cast<size_t>(n)), q(static_cast<size_t>(m));
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < m; ++j) p[i] += own[i * m + j] * drawn[j];
      }
      p = Normalized(p);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < m; ++j) q[j] += own[i * m + j] * p[i];
      }
      double off = 0, all = 0;
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < m; ++j) {
          off += std::pow(found[i * m + j] - p[i] * q[j], 2);
          all += std::pow(p[i] * q[j], 2);
        }
      }
      EXPECT_LE(std::sqrt(off / all), 1e-3);
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
