// Ranks that share the optimizer's update (--zero=1), the sums of gradients (--zero=2) and parameters (--zero=3) end
// with the bits of ranks that each have all, or within rounding of them, hold their share of what they share alone, and
// save it whole.
#include "core/base/environment.h"
#include "core/train/plans.h"
#include "gtest/gtest.h"
#include "tests/oracles/runs.h"

namespace switchyard {
namespace {

struct Ended {
  HostTensors parameters;
  std::string folder;
  TrainableModel model;
  uint64_t bytes = 0;  // planned
};

// Six updates, all saved.
TrainConfig ZeroConfig(const std::string& optimizer) {
  TrainConfig config = SmallConfig();
  config.optimizer = optimizer;
  config.momentum = 0.9f;
  config.lr = optimizer == "sgd" ? 0.05f : 1e-3f;
  config.clip = 1;
  config.layer_decay = 0.8f;
  config.batch_size = 2;
  config.train_size = int64_t{8} * SharedWorld().size();
  config.steps = 6;
  config.save_every = 1;
  config.keep = 0;
  config.bucket_mb = 0.02;    // several gathers
  config.tensorboard = true;  // its pictures are computed by all ranks where these share parameters
  return config;
}

Ended Train(TrainConfig config, int zero, const std::string& from = "") {
  Ended ended;
  config.zero = zero;
  if (!from.empty()) config.resume = from;
  auto run = MakeRun(config, SharedWorld());
  EXPECT_TRUE(run.ok()) << Message(run.status());
  if (!run.ok()) return ended;
  ended.bytes = run->trainer->planned_bytes();
  ended.model = run->setup.model;
  const auto result = run->trainer->Train();
  EXPECT_TRUE(result.ok()) << Message(result.status());
  if (!result.ok()) return ended;
  ended.folder = result->run_folder;
  ended.parameters = *run->trainer->Parameters();
  ExpectEqualOnAllRanks(ended.parameters);
  if (SharedWorld().communicator) {
    EXPECT_TRUE(SharedWorld().communicator->Barrier("turns").ok());
  }
  return ended;
}

std::string Step(const Ended& run, int step) { return fmt::format("{}/checkpoints/step-{:08}", run.folder, step); }

// The tensors of two checkpoints are the same bytes, whoever wrote them.
void ExpectSameState(const Ended& found, const Ended& expected, int step) {
  if (SharedWorld().rank() != 0) return;
  ExpectEqualTensors(StateOf(Step(found, step), found.model), StateOf(Step(expected, step), expected.model));
}

// Two ranks have two numbers to add; more add a reduced part and a reduced whole in orders of their own.
void ExpectSame(const Ended& found, const Ended& expected, int zero, int model_ranks = 1, int step = 6) {
  if (zero >= 2 && SharedWorld().size() / model_ranks > 2)
    return ExpectClose(found.parameters, expected.parameters, 1e-6);
  ExpectEqual(found.parameters, expected.parameters);
  ExpectSameState(found, expected, step);
}

// The optimizer and the stage.
class SharedUpdates : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(SharedUpdates, HaveTheBitsOfWholeOnes) {
  const auto& [optimizer, zero] = GetParam();
  TrainConfig config = ZeroConfig(optimizer);
  if (zero >= 2) config.clip = 0;  // the norm's squares are summed in another order
  const Ended whole = Train(config, 0), shared = Train(config, zero);
  ExpectSame(shared, whole, zero);
  // Taken up by ranks that share, from those that did not, and the other way round.
  ExpectSame(Train(config, zero, Step(whole, 3)), whole, zero);
  ExpectSame(Train(config, 0, Step(shared, 4)), whole, zero);
  // And by ranks that share in the other stage.
  ExpectClose(Train(config, zero % 3 + 1, Step(shared, 5)).parameters, whole.parameters, 1e-6);
}

TEST_P(SharedUpdates, HaveTheBitsOfWholeOnesWithAveragesAndHalves) {
  const auto& [optimizer, zero] = GetParam();
  if (optimizer != "adamw") GTEST_SKIP() << "for one optimizer";
  TrainConfig config = ZeroConfig(optimizer);
  if (zero >= 2) config.clip = 0;
  config.ema_decay = 0.9f;
  for (const auto& [precision, amp] : {std::pair("bf16", "O2"), std::pair("fp16", "O1"), std::pair("fp16", "O2")}) {
    SCOPED_TRACE(fmt::format("{} {}", precision, amp));
    config.precision = precision;
    config.amp = amp;
    config.accumulation = zero == 1 ? 2 : 1;
    config.train_size = int64_t{8} * config.accumulation * SharedWorld().size();
    ExpectSame(Train(config, zero), Train(config, 0), zero);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, SharedUpdates,
                         ::testing::Combine(::testing::Values("sgd", "adam", "adamw"), ::testing::Values(1, 2, 3)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param));
                         });

// What ranks that share sums add up in another order: squares of the norm, micro-batches.
TEST(SharedSums, ClipAndAccumulateAsWholeOnes) {
  TrainConfig config = ZeroConfig("sgd");
  config.clip = 0.1f;
  config.accumulation = 3;
  config.train_size = int64_t{24} * SharedWorld().size();
  config.ema_decay = 0.9f;
  config.recompute = "blocks";
  const Ended whole = Train(config, 0);
  for (const int zero : {2, 3}) ExpectClose(Train(config, zero).parameters, whole.parameters, 1e-6);
}

// LAMB's and LARS's steps go by norms of whole tensors.
TEST(SharedUpdate, HasTheTrustRatiosOfWholeTensors) {
  for (const char* optimizer : {"lamb", "lars"}) {
    TrainConfig config = ZeroConfig(optimizer);
    config.clip = 0;
    config.weight_decay = 0.05f;
    config.eps = 1e-3f;  // keys have no gradient by their bias: no step out of rounding noise
    const Ended whole = Train(config, 0);
    for (const int zero : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} {}", optimizer, zero));
      ExpectClose(Train(config, zero).parameters, whole.parameters, 1e-5);
    }
  }
}

// Two ranks share each model, and the others beside them the update.
class SharedUpdatesOfSharedModels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedWorld().size() % 2 != 0) GTEST_SKIP() << "a mesh of 2 x 2 ranks, or 1 x 2, or 4 x 2";
  }
  void TearDown() override { SharedWorld().mesh = {.data = SharedWorld().size()}; }
  static Ended TrainOn(TrainConfig config, int tensor, int zero, const std::string& from = "") {
    const int size = SharedWorld().size();
    tensor = std::min(tensor, size);
    SharedWorld().mesh = {.data = size / tensor, .tensor = tensor};
    config.tp = tensor;
    config.batch_size = 8 * tensor / size;
    config.train_size = 64;
    return Train(config, zero, from);
  }
};

TEST_F(SharedUpdatesOfSharedModels, HaveTheBitsOfWholeOnesInEveryPrecision) {
  TrainConfig config = ZeroConfig("adamw");
  config.clip = 0;
  config.steps = 4;
  config.save_every = 4;
  for (const auto& [precision, amp] :
       {std::pair("fp32", "O0"), std::pair("bf16", "O2"), std::pair("fp16", "O1"), std::pair("fp16", "O2")}) {
    config.precision = precision;
    config.amp = amp;
    const Ended whole = TrainOn(config, 2, 0);
    for (const int zero : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} {} zero {}", precision, amp, zero));
      const Ended shared = TrainOn(config, 2, zero);
      ExpectSame(shared, whole, zero, 2, 4);
    }
  }
}

TEST_F(SharedUpdatesOfSharedModels, GoOnOnAnyMeshInAnyStage) {
  TrainConfig config = ZeroConfig("sgd");
  config.ema_decay = 0.9f;
  const Ended expected = TrainOn(config, 1, 0), shared = TrainOn(config, 2, 2), other = TrainOn(config, 1, 1);
  ExpectClose(shared.parameters, expected.parameters, 1e-5);
  ExpectClose(TrainOn(config, 4, 0, Step(shared, 3)).parameters, expected.parameters, 1e-5);
  ExpectClose(TrainOn(config, 1, 2, Step(shared, 4)).parameters, expected.parameters, 1e-5);
  ExpectClose(TrainOn(config, 2, 1, Step(other, 2)).parameters, expected.parameters, 1e-5);
  const Ended sharded = TrainOn(config, 2, 3, Step(other, 2));
  ExpectClose(sharded.parameters, expected.parameters, 1e-5);
  ExpectClose(TrainOn(config, 1, 3, Step(sharded, 4)).parameters, expected.parameters, 1e-5);
  ExpectClose(TrainOn(config, 2, 2, Step(expected, 5)).parameters, expected.parameters, 1e-5);
}

// Half copies follow from the f32 weights that a checkpoint holds whole, whoever has pieces of which.
TEST_F(SharedUpdatesOfSharedModels, GoOnInHalvesOnAnotherNumberOfRanks) {
  TrainConfig config = ZeroConfig("sgd");
  config.clip = 0;
  config.ema_decay = 0.9f;
  config.precision = "fp16";
  for (const char* amp : {"O1", "O2"}) {
    SCOPED_TRACE(amp);
    config.amp = amp;
    const Ended whole = TrainOn(config, 2, 0), shared = TrainOn(config, 2, 3);
    // More than two data-parallel ranks add up what they share in another order.
    const auto expect_same = [](const Ended& found, const Ended& expected) {
      if (SharedWorld().size() > 4) return ExpectClose(found.parameters, expected.parameters, 1e-3);
      ExpectEqual(found.parameters, expected.parameters);
    };
    expect_same(shared, whole);
    // To twice the data-parallel ranks; what both wrote gives the same bits.
    const Ended from_shared = TrainOn(config, 1, 0, Step(shared, 3)),
                from_whole = TrainOn(config, 1, 0, Step(whole, 3));
    {
      SCOPED_TRACE("to ranks that share nothing");
      expect_same(from_shared, from_whole);
      ExpectClose(from_shared.parameters, whole.parameters, 1e-3);
    }
    // And back, or on in another stage.
    {
      SCOPED_TRACE("back to those that share");
      expect_same(TrainOn(config, 2, 3, Step(from_shared, 5)), TrainOn(config, 2, 0, Step(from_whole, 5)));
    }
    SCOPED_TRACE("in stage 1");  // from before those, which went on in the same folders
    expect_same(TrainOn(config, 2, 1, Step(shared, 2)), whole);
  }
}

// Bytes that rank 0 plans, by arena.
struct Planned {
  double state = 0, gradients = 0, activations = 0, parameters = 0, largest = 0;  // of one parameter
};

Planned PlannedWith(TrainConfig config, int zero) {
  config.zero = zero;
  config.own["width"] = 64;
  config.own["depth"] = 4;
  config.steps = 1;
  auto run = MakeRun(config, SharedWorld());
  EXPECT_TRUE(run.ok()) << Message(run.status());
  if (!run.ok()) return {};
  Planned planned;
  const HostTensors tensors = *run->trainer->Parameters();
  for (const auto& [name, tensor] : tensors) {
    const auto bytes = static_cast<double>(tensor.values.size() * sizeof(float));
    planned.parameters += bytes;
    planned.largest = std::max(planned.largest, bytes);
  }
  const auto bytes = [&](int arena) {
    return static_cast<double>(run->trainer->report().memory[static_cast<size_t>(arena)].bytes);
  };
  planned.state = bytes(kStateArena);
  planned.gradients = bytes(kGradientsArena);
  planned.activations = bytes(kActivationsArena);
  return planned;
}

// With P bytes of parameters over R ranks: P + P + 2P of parameters, gradients and moments become P + P + 2P/R in the
// first stage, P + P/R + 2P/R in the second and P/R + P/R + 2P/R in the third, beside two buckets that are on their
// way.
TEST(SharedUpdate, HoldsItsShareAlone) {
  TrainConfig config = ZeroConfig("adamw");
  const Planned whole = PlannedWith(config, 0), first = PlannedWith(config, 1), second = PlannedWith(config, 2);
  const double ranks = SharedWorld().size(), all = whole.parameters, tolerance = 0.05 * all;
  EXPECT_NEAR(whole.state, 3 * all, tolerance);
  EXPECT_NEAR(first.state, all + 2 * all / ranks, tolerance);
  EXPECT_EQ(second.state, first.state);
  EXPECT_NEAR(whole.gradients, all, tolerance);
  EXPECT_NEAR(first.gradients, all, tolerance);
  const double bucket = 4 * 64 * 256;  // of the largest tensor, which is larger than --bucket_mb
  EXPECT_LE(first.activations, whole.activations + (ranks > 1 ? all / ranks + 2 * bucket : 0) + tolerance);
  if (ranks == 1) return;
  EXPECT_LE(second.gradients, 0);
  EXPECT_LE(second.activations, whole.activations + all / ranks + 3 * bucket + tolerance);
  const Planned third = PlannedWith(config, 3);
  EXPECT_NEAR(third.state, 3 * all / ranks, tolerance);
  EXPECT_LE(third.gradients, 0);
  // Of gathered parameters one bucket is read while another one is on its way.
  EXPECT_LE(third.activations, whole.activations + all / ranks + 5 * bucket + tolerance);
  config.accumulation = 2;
  config.train_size = int64_t{16} * SharedWorld().size();
  const Planned accumulated = PlannedWith(config, 2);
  EXPECT_NEAR(accumulated.gradients, all / ranks, tolerance);
}

// What rank 0 of so many would plan, in bytes for each parameter.
struct PerParameter {
  double state = 0, gradients = 0, activations = 0;
  double bucket = 0;  // of f32 gradients
};
PerParameter PlannedFor(const char* model, int ranks, int zero, const char* precision, int accumulation) {
  World& world = SharedWorld();
  Settings settings(RunTable());
  const auto give = [&](const char* name, const nlohmann::json& value) {
    EXPECT_TRUE(settings.Give(name, value, Origin::kFlag, "this test").ok()) << name;
  };
  give("model", model);
  give("optimizer", "adamw");
  give("batch_size", 2);
  give("bucket_mb", 4);  // of the smaller model a twentieth
  give("accumulation", accumulation);
  give("zero", zero);
  give("precision", precision);
  const auto setup = SetUpModel(settings, nullptr, ranks);
  EXPECT_TRUE(setup.ok()) << Message(setup.status());
  if (!setup.ok()) return {};
  TrainingPlans plans;
  const Status compiled =
      plans.CompileRun(setup->config, setup->model, Mesh{.data = ranks}, 0, 1, *world.device, world.reference.get());
  EXPECT_TRUE(compiled.ok()) << Message(compiled);
  if (!compiled.ok()) return {};
  double parameters = 0;
  for (const auto& [name, entry] : plans.layout->entries()) {
    if (entry.is_weight()) parameters += static_cast<double>(Elements(entry.whole_shape()));
  }
  const auto bytes = [&](int arena) { return static_cast<double>(plans.layout->bytes(arena)) / parameters; };
  return {bytes(kStateArena), bytes(kGradientsArena), bytes(kActivationsArena),
          1e6 * *setup->config.bucket_mb / parameters};
}

// ZeRO's formulas (Rajbhandari et al. 2020, figure 1) for Adam over N ranks, in bytes for each parameter, within 5 %.
// In f32: 4 + 8 of parameters and moments become 4 + 8/N and 12/N, 4 of gradients become 4/N. In mixed precision: 2 + 4
// + 8 of half weights, f32 weights and moments become 2 + 12/N and, where half weights are what is gathered, 12/N.
TEST(SharedUpdate, TakesTheMemoryOfTheFormula) {
  if (SharedWorld().size() > 1) GTEST_SKIP() << "the ranks of this world would all plan the same, as one alone does";
  const auto expect = [](double found, double expected, const char* what) {
    EXPECT_NEAR(found, expected, 0.05 * expected) << what;
  };
  for (const char* model : {"vit_small", "vit_base"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      const bool half = std::string(precision) != "fp32";
      for (const double ranks : {2, 4, 8}) {
        if (std::string(model) == "vit_base" && ranks != 8) continue;
        PerParameter stage[4];
        for (int zero = 0; zero < 4; ++zero) {
          SCOPED_TRACE(fmt::format("{} {} {} ranks, zero {}", model, precision, ranks, zero));
          stage[zero] = PlannedFor(model, static_cast<int>(ranks), zero, precision, 1);
          if (::testing::Test::HasFailure()) return;
          const double shared[] = {half ? 14.0 : 12.0, half ? 2 + 12 / ranks : 4 + 8 / ranks,
                                   half ? 2 + 12 / ranks : 4 + 8 / ranks, 12 / ranks};
          expect(stage[zero].state, shared[zero], "state");
          expect(stage[zero].gradients, zero < 2 ? 4.0 : 0.0, "gradients");
          // What is reduced or gathered is there bucket by bucket.
          const double buckets[] = {0, 2, 3, 5};
          EXPECT_LE(stage[zero].activations,
                    stage[0].activations + (zero == 0 ? 0 : 4 / ranks) + buckets[zero] * stage[0].bucket);
        }
        expect(PlannedFor(model, static_cast<int>(ranks), 2, precision, 2).gradients, 4 / ranks, "sums of gradients");
      }
    }
  }
}

// The rest is whole, as with --zero=2: neither changes a bit of what is computed.
TEST(SharedParameters, AreAFractionOfAll) {
  TrainConfig config = ZeroConfig("adamw");
  config.ema_decay = 0.9f;
  config.accumulation = 2;
  config.train_size = int64_t{16} * SharedWorld().size();
  const Ended second = Train(config, 2);
  for (const float fraction : {0.0f, 0.4f}) {
    SCOPED_TRACE(fraction);
    config.shard_param_frac = fraction;
    const Ended some = Train(config, 3);
    ExpectEqual(some.parameters, second.parameters);
    ExpectSameState(some, second, 6);
    config.shard_param_frac = 1;
    ExpectEqual(Train(config, 3, Step(some, 3)).parameters, second.parameters);
  }
  const double ranks = SharedWorld().size();
  config = ZeroConfig("adamw");
  for (const float fraction : {0.0f, 0.25f, 0.5f, 0.75f}) {
    SCOPED_TRACE(fraction);
    config.shard_param_frac = fraction;
    const Planned some = PlannedWith(config, 3);
    const double whole = some.parameters * (1 - fraction) + some.parameters * fraction / ranks;
    const double bucket = std::max(some.largest, *config.bucket_mb * 1e6);  // of which the last one may be over it
    EXPECT_LE(some.state, whole + 2 * some.parameters / ranks + 0.05 * some.parameters);
    EXPECT_GE(some.state, whole + 2 * some.parameters / ranks - bucket - 0.05 * some.parameters);
  }
}

}  // namespace
}  // namespace switchyard
