// What must hold for every family of models at every level of precision, on any number of ranks: recomputation, one
// update for each tensor and a static scale of 2^k change no bit, and W ranks × B are one rank × WB.
#include "tests/oracles/families.h"

#include <cmath>
#include <map>

#include "core/graph/op.h"
#include "core/train/plans.h"
#include "gtest/gtest.h"

namespace switchyard {
namespace {

class Family : public ::testing::TestWithParam<std::tuple<const char*, Level>> {
 protected:
  static std::string family() { return std::get<0>(GetParam()); }
  static const Level& level() { return std::get<1>(GetParam()); }
  static bool HasBatchNorms() { return family() != "vit" && family() != "swin"; }
  static TrainConfig Config() {
    TrainConfig config = FamilyConfig(family());
    Use(level(), &config);
    config.accumulation = 2;
    config.clip = 0.5f;
    config.bucket_mb = 0.02;
    return config;
  }
  // What the others must equal; trained once.
  static const Trained& Plain() {
    static auto& kept = *new std::map<std::string, Trained>;
    const auto [at, absent] = kept.try_emplace(family() + level().name);
    if (absent) at->second = TrainOn(Config(), SharedWorld(), kUpdates);
    return at->second;
  }
  static constexpr int64_t kUpdates = 2;
  void SetUp() override {
    const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
    if (!test.starts_with("ManyRanks") && !IsTriedHere(level())) GTEST_SKIP() << kTriedElsewhere;
  }
};

TEST_P(Family, RecomputationChangesNoBit) {
  TrainConfig config = Config();
  config.recompute = "blocks";
  ExpectSameTraining(TrainOn(config, SharedWorld(), kUpdates), Plain());
  ExpectEqualOnAllRanks(Plain().parameters);
}

// What a step runs for the first time, by op and types, and how often. A relu that ends a block hands its gradient on
// by itself where the block is computed again, so that its result need not lie beside the second computation, and else
// within the gradient of the batch norm before it: either way it is dy or 0, so both count as that norm's.
std::map<std::string, int> FirstComputations(const TrainConfig& config, bool has_batch_norms) {
  std::map<std::string, int> counts;
  World& world = SharedWorld();
  const auto setup = SettledRun(config, world);
  EXPECT_TRUE(setup.ok()) << Message(setup.status());
  if (!setup.ok()) return counts;
  TrainingPlans plans;
  const Status compiled =
      plans.CompileRun(setup->config, setup->model, world.mesh, world.rank(), 1, *world.device, world.reference.get());
  EXPECT_TRUE(compiled.ok()) << Message(compiled);
  if (!compiled.ok()) return counts;
  const Graph& graph = plans.Main().graph();
  for (const Node& node : graph.nodes()) {
    if (IsStructural(node.op) || node.repeats >= 0) continue;
    const bool of_norms = node.op == "batch_norm_backward";
    if (has_batch_norms && node.op == "pointwise" && node.phase == Phase::kBackward) continue;
    std::string text = node.op;
    for (const Ref& input : node.inputs) text += of_norms ? "" : " " + ToString(graph.type(input));
    const size_t first = node.op == "region" ? node.outputs.size() - 1 : 0;  // what is kept of a region's inside varies
    for (size_t i = first; i < (of_norms ? 1 : node.outputs.size()); ++i) text += " -> " + ToString(node.outputs[i]);
    ++counts[text];
  }
  return counts;
}

// Bits that are equal where they are compared may differ on another device if other kernels give them.
TEST_P(Family, RecomputationFusesWhatIsFusedWithoutIt) {
  TrainConfig config = Config();
  std::map<std::string, int> expected = FirstComputations(config, HasBatchNorms());
  ASSERT_GT(expected.size(), 20u);
  config.recompute = "blocks";
  for (const auto& [text, count] : FirstComputations(config, HasBatchNorms())) {
    EXPECT_EQ(count, expected[text]) << text;
    expected.erase(text);
  }
  for (const auto& [text, count] : expected) ADD_FAILURE() << text << " is run " << count << " times without alone";
}

TEST_P(Family, OneUpdateForEachTensorChangesNoBit) {
  TrainConfig config = Config();
  config.fused_optimizer = false;
  ExpectSameTraining(TrainOn(config, SharedWorld(), kUpdates), Plain());
}

// f32 and bf16 have room above and below. In fp16 small gradients lose bits at another scale, so there a dynamic scale
// that stands at the static one changes nothing.
TEST_P(Family, ALossScaleChangesNoBit) {
  TrainConfig config = Config();
  if (level().fp16()) {
    config.init_scale = std::stof(*config.loss_scale);
    config.loss_scale = "dynamic";
    config.scaler_preset = "default";
  } else {
    config.loss_scale = "4096";
  }
  ExpectSameTraining(TrainOn(config, SharedWorld(), kUpdates), Plain());
}

// Samples, dropout and batch norms are those of the whole batch, and so are gradients, but for their rounding: in f32
// of sums in another order, which batch norms over few values make more of. In a half type weights' gradients are
// rounded on both sides; behind batch norms, whose statistics are sums in another order, so is all that is computed:
// each side lies as far from f32 as rounding goes, in a direction of its own.
TEST_P(Family, ManyRanksEqualOneRankWithTheWholeBatch) {
  TrainConfig config = FamilyConfig(family());
  Use(level(), &config);
  const Trained found = TrainOn(config, SharedWorld(), 1);
  ExpectEqualOnAllRanks(found.parameters);
  if (SharedWorld().rank() != 0) return;  // the others wait in the next test
  TrainConfig whole = config;
  whole.batch_size = config.batch_size * SharedWorld().size();
  const Trained expected = TrainOn(whole, *LoneWorld(), 1);
  const double distance = DistanceOfMovements(found.parameters, expected.parameters, expected.start);
  double allowed = 1e-5;
  if (!level().half() && HasBatchNorms() && distance > allowed) {  // how far a device's own rounding goes
    const Trained exact = TrainOn(whole, *LoneWorld(kNoMemoryLimit, "reference"), 1);
    allowed = std::sqrt(2.0) * DistanceOfMovements(expected.parameters, exact.parameters, exact.start);
  }
  if (level().half()) {
    allowed = 2 * std::pow(2.0, -level().bits);
    if (HasBatchNorms()) {
      Use(kLevels[0], &whole);
      const Trained exact = TrainOn(whole, *LoneWorld(), 1);
      allowed = std::sqrt(2.0) * DistanceOfMovements(expected.parameters, exact.parameters, exact.start);
    }
  }
  EXPECT_LE(distance, allowed);
}

// The same of pairs of ranks that divide the model, with dropout, drop path, class tokens and packed projections; their
// partial sums are rounded to the half type before they are added.
TEST_P(Family, ManyRanksThatDivideTheModelEqualOneRank) {
  if (family() != "vit" && family() != "swin") GTEST_SKIP() << "no pass divides its layers";
  World& world = SharedWorld();
  if (world.size() % 2 != 0) GTEST_SKIP() << "an odd number of ranks";
  TrainConfig config = FamilyConfig(family());
  Use(level(), &config);
  TrainConfig whole = config;
  whole.batch_size = config.batch_size * world.size() / 2;
  const auto expected = world.rank() == 0 ? TrainOn(whole, *LoneWorld(), 1) : Trained();
  config.tp = 2;
  world.mesh = {.data = world.size() / 2, .tensor = 2};
  for (const bool sequence : {false, true}) {
    config.sp = sequence;
    const Trained found = TrainOn(config, world, 1);
    ExpectEqualOnAllRanks(found.parameters);
    if (world.rank() != 0) continue;
    const double distance = DistanceOfMovements(found.parameters, expected.parameters, expected.start);
    EXPECT_LE(distance, level().half() ? 4 * std::pow(2.0, -level().bits) : 1e-5) << "--sp=" << sequence;
  }
  world.mesh = {.data = world.size()};
}

std::string NameOfFamily(const testing::TestParamInfo<std::tuple<const char*, Level>>& info) {
  return fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param).name);
}
INSTANTIATE_TEST_SUITE_P(Families, Family, testing::Combine(testing::ValuesIn(kFamilies), testing::ValuesIn(kLevels)),
                         NameOfFamily);

}  // namespace
}  // namespace switchyard
